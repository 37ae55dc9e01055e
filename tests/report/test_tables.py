"""Tables over made-up runs: what stands together, what leads, what the paper says beside."""

from dataclasses import replace

import numpy as np
import pytest
from results import ROW, leave_run, seeds

from doppler.report.finished import FinishedRun, differences
from doppler.report.paper import MAIN_MS, ratio_to_reference
from doppler.report.rendering import to_html, to_latex, to_markdown
from doppler.report.report import summarise
from doppler.report.tables import (
    leader,
    makespan_text,
    method_labels,
    problem_labels,
    result_tables,
    training_tables,
)

LABELS = {"p0": "chainmm on p100x4, 4 devices", "p1": "ffnn on p100x4, 4 devices"}


def tables(rows):
    return result_tables(summarise(rows), LABELS)


def test_the_best_leads_only_by_more_than_the_spread():
    far = seeds([0.13, 0.14, 0.15], method="heft", variant="b")
    near = seeds([0.1115, 0.1125, 0.1135], method="heft", variant="b")
    ours = seeds([0.09, 0.1, 0.11])  # spread 0.01
    assert leader(summarise([*ours, *far])).method == "doppler"
    assert leader(summarise([*ours, *near])).method == "doppler"
    nearer = seeds([0.1085, 0.1095, 0.1105], method="heft", variant="b")
    assert leader(summarise([*ours, *nearer])) is None
    # The rival's spread counts as well.
    wide = seeds([0.08, 0.11, 0.15], method="heft", variant="b")
    assert leader(summarise([*seeds([0.1, 0.1, 0.1]), *wide])) is None


def test_rows_of_one_training_are_one_method_and_one_seed_has_no_leader():
    greedy = seeds([0.1, 0.1001, 0.1], method="doppler greedy")
    far = seeds([0.2, 0.2, 0.2], method="heft", variant="b")
    assert leader(summarise([*seeds([0.1, 0.1, 0.1]), *greedy, *far])).method == "doppler"
    assert leader(summarise([*seeds([0.1]), *seeds([0.2], method="heft")])) is None
    assert leader(summarise([*seeds([0.1, 0.1]), *seeds([0.1, 0.1], method="heft")])) is None


def test_what_leads_is_bold_in_markdown_latex_and_html():
    found = tables([*seeds([0.1, 0.1]), *seeds([0.2, 0.2], method="heft", variant="b")])
    (table,) = found
    assert table.bold == {(0, table.columns.index("makespan"))}
    assert "| **100 ± 0 ms** |" in to_markdown(found)
    assert "| 200 ± 0 ms |" in to_markdown(found)
    assert r"\textbf{100 $\pm$ 0 ms}" in to_latex(found)
    assert "<strong>100 ± 0 ms</strong>" in to_html(table)


def test_measured_rows_have_no_bound_and_the_best_method_comes_first():
    measured = {"system_kind": "measured", "lower_bound_s": 0.0, "bound": "unknown", "gap": np.inf}
    found = tables(
        [
            *seeds([0.3, 0.3], method="heft", variant="b", **measured),
            *seeds([0.1, 0.1], **measured),
            *seeds([0.2, 0.2], problem="p1", workload="ffnn", **measured),
            *seeds(
                [0.4, 0.4], problem="p1", workload="ffnn", method="heft", variant="b", **measured
            ),
        ]
    )
    assert [row[0] for row in found[0].rows] == ["doppler", "heft"]
    for table in found:
        assert "gap" not in table.columns and "bound" not in table.note
        assert "jitter" not in table.note + str(table.columns)
        assert all(len(row) == len(table.columns) for row in table.rows)
    assert "inf" not in to_markdown(found)


def test_simulated_measured_and_other_queues_never_share_a_table():
    rows = [
        *seeds([0.1], method="simulated"),
        *seeds([0.1], method="measured", system_kind="measured"),
        *seeds([0.1], method="fifo", queue="fifo", rules="queue fifo"),
        *seeds([0.1], method="other_problem", problem="p1", workload="ffnn"),
    ]
    names = {"simulated", "measured", "fifo"}
    for table in tables(rows):
        methods = {row[0] for row in table.rows}
        assert len(methods & names) <= 1, table.title
        if "other_problem" in methods:
            assert not methods & {"measured", "fifo"}
    kinds = {row[0]: table.title for table in tables(rows) for row in table.rows}
    assert "measured by" in kinds["measured"]


def test_overview_says_which_order_and_names_every_problem():
    rows = [
        *seeds([0.1, 0.12]),
        *seeds([0.3, 0.3], problem="p1", workload="ffnn"),
        *seeds([0.2, 0.2], method="annealing", variant="b", uses_order=False),
    ]
    overview = tables(rows)[0]
    assert overview.columns == ("method", "order", "chainmm", "ffnn")
    assert overview.rows == (
        ("doppler", "own", "110 ± 14 ms", "300 ± 0 ms"),
        ("annealing", "b_level", "200 ± 0 ms", "-"),
    )


def test_ratios_stand_beside_the_papers():
    rows = [
        *seeds([0.1, 0.1]),
        *seeds([0.15, 0.15], method="critical_path", variant="b"),
        *seeds([0.15, 0.15], method="heft", variant="c"),
    ]
    (table,) = tables(rows)
    ratios = {row[0]: row[-2:] for row in table.rows}
    assert ratios == {
        "doppler": ("1.00", "1.00"),
        "critical_path": ("1.50", "1.88"),  # 230.4 / 122.5
        "heft": ("1.50", ""),
    }
    (alone,) = tables(rows[::4])  # doppler and heft
    assert alone.columns[-1] == "over doppler", "of these the paper tells nothing"
    both = tables([*rows, *(replace(row, problem="p1", workload="ffnn") for row in rows)])
    beside = both[1]
    assert beside.columns == ("method", "chainmm", "chainmm, paper", "ffnn", "ffnn, paper")
    assert beside.rows[1] == ("critical_path", "1.50", "1.88", "1.50", "4.36")


def test_the_paper_is_silent_about_other_machines():
    assert ratio_to_reference("chainmm", "p100x4", 4, "critical_path") == 230.4 / 122.5
    assert ratio_to_reference("chainmm", "v100x8", 8, "critical_path") is None
    assert ratio_to_reference("chainmm", "p100x4", 2, "critical_path") is None
    assert ratio_to_reference("cholesky", "p100x4", 4, "critical_path") is None
    assert all("doppler" in methods for methods in MAIN_MS.values())


def test_synchronous_over_work_conserving():
    conserving = seeds([0.1, 0.1], method="enumerative")
    synchronous = seeds([0.14, 0.14], method="enumerative", system="bulk_synchronous", rules="")
    table = tables([*conserving, *synchronous])[-1]
    assert table.rows == (
        (LABELS["p0"], "enumerative", "140 ± 0 ms", "100 ± 0 ms", "1.40", "1.33"),
    )


def test_spread_has_the_unit_of_the_mean():
    (row,) = summarise(seeds([41.19e-3, 41.49e-3]))
    assert makespan_text(row) == "41.34 ± 0.21 ms"
    (equal,) = summarise(seeds([0.1, 0.1 + 1e-16]))
    assert makespan_text(equal) == "100 ± 0 ms"
    (alone,) = summarise([ROW])
    assert makespan_text(alone) == "100 ms"


def test_problems_of_one_name_are_told_apart_by_their_settings(tmp_path):
    runs = [
        FinishedRun(
            leave_run(
                tmp_path / problem,
                [replace(ROW, problem=problem)],
                {"cluster": {"name": "p100x4", "memory": memory}, "workload": {"parts": 4}},
            )
        )
        for problem, memory in (("a", 1), ("b", 2))
    ]
    assert problem_labels(runs) == {
        "a": "chainmm on p100x4, 4 devices, memory=1",
        "b": "chainmm on p100x4, 4 devices, memory=2",
    }
    assert problem_labels(runs[:1]) == {"a": "chainmm on p100x4, 4 devices"}


def test_differences_are_named_by_the_last_part_of_their_keys():
    assert differences([{"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}]) == ["c=2", "c=3"]
    assert differences([{"a": 1}, {"a": 1}]) == ["", ""]
    assert differences([{"a": 1}, {}]) == ["a=1", ""]


def test_training_costs_are_medians_by_graph_and_method(tmp_path):
    runs = [
        FinishedRun(
            leave_run(
                tmp_path / str(seed),
                [replace(ROW, seed=seed)],
                {},
                num_ops=76,
                episodes_per_s=speed,
                peak_memory_bytes=5e8,
            )
        )
        for seed, speed in enumerate((1.0, 100.0, 200.0))
    ]
    (table,) = training_tables(runs, {"p0": "chainmm"})
    assert table.rows == (("chainmm", "76", "doppler", "3", "10 ms", "500 MB"),)
    assert training_tables([], {}) == []


@pytest.mark.parametrize("name", ["a_b", "50%", "x & y", "#1"])
def test_latex_escapes_what_has_a_meaning_there(name):
    text = to_latex(tables(seeds([0.1], method=name)))
    assert f"\n{name} &" not in text
    for character in "_%&#":
        name = name.replace(character, "\\" + character)
    assert f"\n{name} &" in text


def test_settings_under_one_name_are_told_apart_by_their_evaluations_or_a_hash():
    budgets = [
        *seeds([0.1], method="annealing", variant="a", evaluations=1000),
        *seeds([0.09], method="annealing", variant="b", evaluations=4000),
        *seeds([0.08]),
    ]
    assert method_labels(summarise(budgets)) == ["doppler", "annealing, 4,000", "annealing, 1,000"]
    equal = [*budgets, *seeds([0.07], method="annealing", variant="c", evaluations=4000)]
    labels = method_labels(summarise(equal))
    assert labels == ["annealing #c", "doppler", "annealing #b", "annealing #a"]
