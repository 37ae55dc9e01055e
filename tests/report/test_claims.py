"""The paper's claims against made-up results: each outcome, and every table that a claim reads."""

import io
import math
from dataclasses import replace

import pandas as pd
import pytest
from rich.console import Console
from tests.results import ROW, leave_run, seeds, summary

from doppler.experiment.reproduce import PLAN, finished_tables, listed, verdicts, write_page
from doppler.report.claims import RULES, claims_of, claims_table

# Kendall's tau needs the methods of the paper's main table; here in its order on ffnn.
IN_ORDER = {"critical_path": 5.0, "placeto_unaided": 4.0, "gdp_unaided": 3.0, "enumerative": 2.0}


def main_table(doppler: list[float], others=IN_ORDER, wall_s=1.0) -> pd.DataFrame:
    """A main table on ffnn: our makespans without a search, and one for each other method."""
    rows = seeds(doppler, method="doppler_unaided", workload="ffnn", wall_s=wall_s)
    for method, makespan_s in others.items():
        rows += seeds([makespan_s] * 3, method=method, workload="ffnn", wall_s=2.0)
    return summary(rows)


def cells(number: int, tables: dict[str, pd.DataFrame], rules: str = "equal"):
    """The comparisons of a claim."""
    return [cell for cell in claims_of(tables)[number - 1].cells if cell.rules == rules]


@pytest.mark.parametrize(
    ("doppler", "outcome"),
    [
        ([1.0, 1.01, 0.99], "agree"),
        ([3.0, 2.5, 3.6], "level"),
        ([4.0, 4.01, 3.99], "against"),
        ([2.99], "level"),  # one seed: less than 1% away
        ([2.9], "agree"),
    ],
)
def test_outcomes_follow_the_interval_or_one_percent(doppler, outcome):
    (cell,) = cells(1, {"paper": main_table(doppler)})
    assert cell.outcome == outcome
    assert cell.paper == pytest.approx(49.9 / 100.3)
    assert cell.ours.value == pytest.approx(math.prod(doppler) ** (1 / len(doppler)) / 3.0)


def test_an_opposite_number_of_the_paper_is_not_agreed_with_by_being_faster():
    rows = seeds([1.0], method="doppler_unaided", workload="llama_block")
    rows += seeds([2.0], method="enumerative", workload="llama_block")
    (cell,) = cells(2, {"paper": summary(rows)})  # the paper: 191.5 ms against 172.7 ms
    assert cell.outcome == "against"


@pytest.mark.parametrize(("ours", "outcome"), [(1.001, "level"), (0.9, "level"), (1.1, "level")])
def test_a_number_of_the_paper_near_one_agrees_with_nothing(ours, outcome):
    """The paper: 123.4 ms with stage III, 122.5 without, on chainmm."""
    rows = seeds([ours], method="doppler", system_kind="measured")
    rows += seeds([1.0], method="doppler stage II", system_kind="measured")
    (cell,) = cells(6, {"main_host": summary(rows)}, "measured")
    assert cell.outcome == outcome


def test_workloads_of_which_the_paper_prints_nothing_answer_no_claim():
    table = main_table([1.0])
    table["workload"] = "cholesky"
    policies = made_up(POLICIES, workload="cholesky")
    host = made_up(["doppler", "critical_path"], workload="cholesky", system_kind="measured")
    tables = {"paper": table, "ablation/policies": policies, "main_host": host}
    assert claims_table(claims_of(tables)).empty


def test_a_missing_method_leaves_a_claim_open():
    without = {name: one for name, one in IN_ORDER.items() if name != "gdp_unaided"}
    claims = claims_of({"paper": main_table([1.0], without)})
    assert claims[0].verdict("equal") == "needs gdp_unaided in experiment=paper"
    assert "of 1 agree" in claims[1].verdict("equal")  # EnumOpt is there
    needed = "needs critical_path_50, gdp_unaided in experiment=paper"
    assert claims[0].verdict("paper's") == needed
    assert claims[0].verdict("measured") == "needs experiment=main_host"


def test_a_claim_says_what_was_not_run_yet_or_that_rules_do_not_test_it():
    claims = claims_of({})
    assert claims[4].verdict("equal") == "needs experiment=ablation/policies"
    transfer = "needs experiment=transfer or experiment=transfer_machines"
    assert claims[9].verdict("search") == transfer
    assert claims[9].verdict("measured") == "-"
    named = {name for claim in claims for one in claim.lacking.values() for name in one}
    assert named <= {step.experiment for step in PLAN}
    only = {"ablation/stages": made_up(["doppler greedy"])}
    stages = claims_of(only)[5].verdict("equal")
    assert (
        stages == "needs doppler_stage_two greedy, doppler imitation in experiment=ablation/stages"
    )


def test_verdicts_fit_a_narrow_terminal_without_breaking_words():
    for tables in ({}, {"paper": main_table([1.0])}):
        claims = claims_of(tables)
        text = io.StringIO()
        Console(file=text, width=80, markup=False).print(listed(claims))
        lines = text.getvalue().splitlines()
        assert max(map(len, lines)) <= 80
        words = text.getvalue().split()
        for claim in claims:
            assert set(claim.text.split()) <= set(words)
            assert {word for rules in RULES for word in claim.verdict(rules).split()} <= {
                *words,
                "-",
            }


def test_the_order_of_methods_is_kendalls_tau():
    (same,) = cells(3, {"paper": main_table([1.0])})
    assert (same.ours.value, same.outcome) == (pytest.approx(1.0), "agree")
    backwards = {name: 6.0 - makespan_s for name, makespan_s in IN_ORDER.items()}
    (reverse,) = cells(3, {"paper": main_table([9.0], backwards)})
    assert (reverse.ours.value, reverse.outcome) == (pytest.approx(-1.0), "against")


def test_time_per_execution_is_compared_with_placeto_and_gdp():
    found = cells(8, {"paper": main_table([1.0], wall_s=1.0)})
    assert [cell.ours.value for cell in found] == pytest.approx([0.5, 0.5])
    assert found[0].paper == pytest.approx(4.252 / 9.237)


def test_barriers_are_compared_on_one_workload_across_systems():
    rows = seeds([1.0, 1.0], method="enumerative", workload="ffnn")
    rows += seeds([1.5, 1.5], method="enumerative", workload="ffnn", system="bulk_synchronous")
    (cell,) = cells(4, {"wc_vs_sync": summary(rows)})
    assert (cell.ours.value, cell.outcome) == (pytest.approx(1 / 1.5), "agree")
    assert cell.paper == pytest.approx(50.2 / 76.9)


def test_of_several_budgets_the_largest_counts():
    rows = seeds([9.0], method="doppler_unaided", workload="ffnn", evaluations=10)
    rows += seeds([1.0], method="doppler_unaided", workload="ffnn", evaluations=1000)
    rows += seeds([2.0], method="enumerative", workload="ffnn", evaluations=1)
    (cell,) = cells(2, {"paper": summary(rows)})
    assert cell.ours.value == pytest.approx(0.5)


def test_methods_of_a_claim_have_one_budget(tmp_path):
    """A sweep with a larger budget that has begun: DOPPLER has run, EnumOpt and GDP have not."""
    others = {"enumerative": 1, "gdp_unaided": 1000, "placeto_unaided": 1000, "critical_path": 1000}

    def leave(budget: int, method: str, makespan_s: float, evaluations: int) -> None:
        row = replace(ROW, method=method, workload="ffnn", makespan_s=makespan_s)
        leave_run(
            tmp_path / "paper" / f"{method}-{budget}",
            [replace(row, evaluations=evaluations)],
            {"budget": {"evaluations": budget, "measured_evaluations": 7}},
            method=method,
        )

    leave(1000, "doppler_unaided", 3.0, 1000)
    leave(8000, "doppler_unaided", 1.0, 8000)
    for method, evaluations in others.items():
        leave(1000, method, 2.0, evaluations)
    tables = finished_tables(tmp_path)
    assert [cell.ours.value for cell in cells(1, tables)] == [pytest.approx(1.5)]
    assert [cell.ours.value for cell in cells(2, tables)] == [pytest.approx(1.5)]
    leave(8000, "enumerative", 2.0, 1)
    assert [cell.ours.value for cell in cells(2, finished_tables(tmp_path))] == [0.5]


def test_transfer_compares_a_few_episodes_with_another_budget(tmp_path):
    for method, budget in (("doppler_few_shot greedy", 256), ("etf", 8000)):
        rows = [replace(ROW, method=method, evaluations=budget)]
        config = {"budget": {"evaluations": budget}}
        leave_run(tmp_path / "transfer" / str(budget), rows, config, method=method)
    assert len(cells(10, finished_tables(tmp_path))) == 1


def made_up(methods: list[str], **changes) -> pd.DataFrame:
    """A table with these methods, each slower than the one before."""
    rows = []
    for place, method in enumerate(methods):
        rows += seeds([1.0 + place], method=method, **changes)
    return summary(rows)


POLICIES = ["doppler", "doppler_sel_only", "doppler_plc_only"]
TABLES = {
    "ablation/policies": (5, [f"{name} greedy" for name in POLICIES], 2),
    "ablation/stages": (6, ["doppler greedy", "doppler_stage_two greedy", "doppler imitation"], 2),
    "ablation/message_passing": (7, ["doppler_per_episode greedy", "doppler_per_step greedy"], 1),
    "main_8dev": (9, ["doppler greedy", "gdp greedy", "critical_path"], 1),
    "transfer": (10, ["doppler_few_shot greedy", "etf"], 1),
    "transfer_machines": (10, ["doppler_few_shot_machine greedy", "etf"], 1),
}


@pytest.mark.parametrize("name", TABLES)
def test_each_table_answers_its_claim_with_what_the_policy_decides(name):
    number, methods, count = TABLES[name]
    found = cells(number, {name: made_up(methods)})
    assert len(found) == count
    assert {cell.outcome for cell in found if not cell.paper > 1.01} == {"agree"}
    assert cells(number, {name: made_up(methods)}, "search") == []
    searched = [method.removesuffix(" greedy") for method in methods]
    assert cells(number, {name: made_up(searched)}, "search")


@pytest.mark.parametrize(
    ("makespans", "outcome"),
    [
        ([0.9, 0.9001, 0.9002], "agree"),
        ([1.005, 1.0051, 1.0049], "agree"),
        ([0.8, 1.0, 1.1], "level"),
        ([1.2, 1.2001, 1.2002], "against"),
        ([1.005], "agree"),
        ([1.02], "against"),
    ],
)
def test_encoding_once_must_surely_cost_at_most_a_hundredth(makespans, outcome):
    rows = seeds(makespans, method="doppler_per_episode greedy")
    rows += seeds([1.0, 1.0001, 0.9999][: len(makespans)], method="doppler_per_step greedy")
    (cell,) = cells(7, {"ablation/message_passing": summary(rows)})
    assert cell.outcome == outcome


def of_budget(rows, budget: int) -> pd.DataFrame:
    return summary([replace(row, evaluations=budget) for row in rows]).assign(run_budget=budget)


def test_barriers_are_compared_at_a_budget_that_both_systems_had():
    free = seeds([1.0], method="enumerative")
    barriers = seeds([1.5], method="enumerative", system="bulk_synchronous")
    table = pd.concat(
        [of_budget([*free, *barriers], 1000), of_budget(seeds([0.5], method="enumerative"), 4000)]
    )
    (cell,) = cells(4, {"wc_vs_sync": table})
    assert cell.ours.value == pytest.approx(1.0 / 1.5)


def test_other_machines_are_judged_by_the_budget_that_most_methods_had():
    known = {"doppler greedy": 1.0, "critical_path": 2.0, "gdp greedy": 1.25}
    rows = [row for method, value in known.items() for row in seeds([value], method=method)]
    more = [*seeds([0.9], method="doppler greedy"), *seeds([1.8], method="critical_path")]
    (cell,) = cells(9, {"main_8dev": pd.concat([of_budget(rows, 1000), of_budget(more, 4000)])})
    assert cell.ours.value == pytest.approx(1.0 / 1.25)


def test_nothing_is_placed_on_one_device():
    table = made_up(["doppler greedy", "critical_path"], num_devices=1)
    assert cells(9, {"fewer_devices": table}) == []


def test_limits_of_memory_are_told_apart_and_the_paper_gpus_have_none(tmp_path):
    for memory in (16e9, 2e9, 1.6e9):
        rows = [replace(ROW, method=name) for name in ("doppler greedy", "critical_path")]
        rows = [replace(row, problem=f"of {memory}") for row in rows]
        config = {"cluster": {"name": "p100x4", "memory_bytes": memory}}
        leave_run(tmp_path / "memory_limits" / f"{memory}", rows, config, method="doppler")
    found = cells(9, finished_tables(tmp_path))
    assert sorted(cell.setting for cell in found) == [
        "chainmm, 4 p100x4, work_conserving, memory_bytes=1600000000.0",
        "chainmm, 4 p100x4, work_conserving, memory_bytes=2000000000.0",
    ]


def test_measured_rows_answer_two_claims():
    methods = ["doppler", "doppler stage II", "critical_path"]
    table = made_up(methods, system_kind="measured", workload="llama_block")
    assert [cell.outcome for cell in cells(1, {"main_host": table}, "measured")] == ["agree"]
    assert [cell.outcome for cell in cells(6, {"main_host": table}, "measured")] == ["agree"]


def test_every_claim_has_a_step_that_tests_it(tmp_path):
    told = {int(word) for step in PLAN for word in step.claims.split(", ") if word.isdigit()}
    claims = claims_of({"paper": main_table([1.0])})
    assert told == set(range(1, len(claims) + 1))
    write_page(claims, tmp_path)
    rows = pd.read_csv(tmp_path / "claims.csv")
    assert len(rows) == len(claims_table(claims)) > 0
    assert set(rows["rules"]) <= set(RULES)
    page = (tmp_path / "claims.md").read_text()
    assert verdicts(claims) in page
    assert "yes: 1 of 1 agree; 0.33" in page
