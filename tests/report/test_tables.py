"""Tables over made-up runs: what stands together, what leads, what the paper says beside."""

from dataclasses import replace
from html import escape

import numpy as np
import pandas as pd
import pytest
from results import ROW, leave_run, seeds, summary
from scipy.stats import ttest_ind

from doppler.report.aggregate import (
    differences,
    frame_of,
    leader,
    makespan_text,
    problem_labels,
    summarise,
    verdict,
    verdicts,
)
from doppler.report.finished import read_run
from doppler.report.intervals import ratio_of
from doppler.report.published_figures import paper_ms, paper_ratio
from doppler.report.rendering import to_html, to_latex, to_markdown
from doppler.report.rows import ResultRow
from doppler.report.tables import method_labels, result_tables, training_tables
from doppler.report.text_table import TextTable
from doppler.report.units import MILLISECONDS, unit_of
from doppler.support.errors import InputError

LABELS = {"p0": "chainmm on p100x4, 4 devices", "p1": "ffnn on p100x4, 4 devices"}


def tables(rows):
    return result_tables(summary(rows), LABELS)


def lines(table: TextTable) -> list[tuple[str, ...]]:
    return list(table.cells.itertuples(index=False, name=None))


def winner(rows) -> str | None:
    """Who leads surely."""
    lead = leader(summary(rows))
    return lead.best.method if lead.is_beyond else None


def test_the_best_leads_only_where_the_interval_leaves_no_doubt():
    far = seeds([0.13, 0.14, 0.15], method="heft", variant="b")
    near = seeds([0.1115, 0.1125, 0.1135], method="heft", variant="b")
    ours = seeds([0.09, 0.1, 0.11])
    assert winner([*ours, *far]) == "doppler"
    assert winner([*ours, *near]) is None, "three seeds do not tell 12%"
    many = [one for k in range(4) for one in seeds([0.09, 0.1, 0.11])]
    many = [replace(one, seed=seed) for seed, one in enumerate(many)]
    assert winner([*many, *seeds([0.1115, 0.1125] * 6, method="heft", variant="b")]) == "doppler"
    # The rival's spread counts as well.
    wide = seeds([0.08, 0.11, 0.15], method="heft", variant="b")
    assert winner([*seeds([0.1, 0.1, 0.1]), *wide]) is None


def test_rows_of_one_training_are_one_method_and_one_seed_has_no_leader():
    greedy = seeds([0.1, 0.1001, 0.1], method="doppler greedy")
    far = seeds([0.2, 0.2, 0.2], method="heft", variant="b")
    assert winner([*seeds([0.1, 0.1, 0.1]), *greedy, *far]) == "doppler"
    assert winner([*seeds([0.1]), *seeds([0.2], method="heft")]) is None
    assert winner([*seeds([0.1, 0.1]), *seeds([0.1, 0.1], method="heft")]) is None


def test_what_leads_is_bold_in_markdown_latex_and_html():
    found = tables([*seeds([0.1, 0.1]), *seeds([0.2, 0.2], method="heft", variant="b")])
    (table,) = found
    assert table.bold == {(0, list(table.cells).index("makespan, ms"))}
    assert "| **100 ± 0** |" in to_markdown("", found, [])
    assert "| 200 ± 0 |" in to_markdown("", found, [])
    assert r"\textbf{100 $\pm$ 0}" in to_latex("", found)
    assert "<strong>100 ± 0</strong>" in to_html(table)


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
    assert [row[0] for row in lines(found[0])] == ["doppler", "heft"]
    for table in found:
        assert "gap" not in table.cells and "bound" not in table.note
        assert "jitter" not in table.note + str(list(table.cells))
    assert "inf" not in to_markdown("", found, [])


def test_simulated_measured_and_other_queues_never_share_a_table():
    rows = [
        *seeds([0.1], method="simulated"),
        *seeds([0.1], method="measured", system_kind="measured"),
        *seeds([0.1], method="fifo", queue="fifo", rules="queue fifo"),
        *seeds([0.1], method="other_problem", problem="p1", workload="ffnn"),
    ]
    names = {"simulated", "measured", "fifo"}
    for table in tables(rows):
        methods = {row[0] for row in lines(table)}
        assert len(methods & names) <= 1, table.title
        if "other_problem" in methods:
            assert not methods & {"measured", "fifo"}
    kinds = {row[0]: table.title for table in tables(rows) for row in lines(table)}
    assert "measured by" in kinds["measured"]


def test_overview_says_which_order_and_names_every_problem():
    rows = [
        *seeds([0.109, 0.111]),
        *seeds([0.3, 0.3], problem="p1", workload="ffnn"),
        *seeds([0.2, 0.2], method="annealing", variant="b", uses_order=False),
    ]
    overview = tables(rows)[0]
    assert list(overview.cells) == ["method", "order", "chainmm, ms", "ffnn, ms"]
    assert lines(overview) == [
        ("doppler", "own", "110.0 ± 1.4", "300 ± 0"),
        ("annealing", "b_level", "200 ± 0", "-"),
    ]
    assert overview.bold == {(0, 2)}, "alone on ffnn, it leads nobody there"


def test_ratios_stand_beside_the_papers():
    rows = [
        *seeds([0.1, 0.1]),
        *seeds([0.15, 0.15], method="critical_path", variant="b"),
        *seeds([0.15, 0.15], method="heft", variant="c"),
    ]
    (table,) = tables(rows)
    ratios = {row[0]: row[-2:] for row in lines(table)}
    assert ratios == {
        "doppler": ("1.00", "1.00"),
        "critical_path": ("1.50", "1.88"),  # 230.4 / 122.5
        "heft": ("1.50", ""),
    }
    (alone,) = tables(rows[::4])  # doppler and heft
    assert list(alone.cells)[-1] == "over doppler", "of these the paper tells nothing"


def test_methods_without_our_search_stand_beside_the_papers_numbers_too():
    rows = [
        *seeds([0.1], method="doppler_unaided"),
        *seeds([0.2], method="gdp_unaided", variant="b"),
        *seeds([0.3], method="placeto_unaided", variant="c"),
    ]
    (table,) = tables(rows)
    assert list(table.cells)[-2:] == ["over doppler_unaided", "paper"]
    ratios = {row[0]: row[-2:] for row in lines(table)}
    assert ratios == {
        "doppler_unaided": ("1.00", "1.00"),
        "gdp_unaided": ("2.00", "1.62"),  # 198.0 / 122.5
        "placeto_unaided": ("3.00", "1.12"),  # 137.1 / 122.5
    }
    (table,) = tables([*rows, *seeds([0.05], variant="d")])
    assert {row[0]: row[-2:] for row in lines(table)} == {
        "doppler": ("1.00", "1.00"),
        **{name: (f"{2 * float(ours):.2f}", paper) for name, (ours, paper) in ratios.items()},
    }
    (alone,) = tables([*rows[:1], *seeds([0.05], variant="d")])
    assert "paper" not in alone.cells, "the paper compares DOPPLER with others"
    (elsewhere,) = tables([replace(row, cluster="v100x8", num_devices=8) for row in rows])
    assert "paper" not in elsewhere.cells


@pytest.mark.parametrize(
    ("changes", "ratio"),
    [
        ({}, "1.88"),  # 230.4 / 122.5
        ({"cluster": "v100x8", "num_devices": 8}, ""),
        ({"num_devices": 2}, ""),
        ({"workload": "cholesky"}, ""),
        ({"method": "heft"}, ""),
    ],
)
def test_the_paper_is_silent_about_other_machines(changes, ratio):
    assert paper_ratio(replace(ROW, **{"method": "critical_path", **changes})) == ratio


def test_the_papers_table_has_a_figure_of_every_method():
    methods = ["critical_path", "placeto", "gdp", "enumerative", "doppler", "doppler_real"]
    for workload in ("chainmm", "ffnn", "llama_block", "llama_layer"):
        figures = paper_ms(workload)
        assert list(figures) == methods
        assert all(milliseconds > 0 for milliseconds in figures.values())
    assert paper_ms("cholesky") == {}


def test_synchronous_over_work_conserving():
    conserving = seeds([0.1, 0.1], method="enumerative")
    synchronous = seeds([0.14, 0.14], method="enumerative", system="bulk_synchronous", rules="")
    table = tables([*conserving, *synchronous])[-1]
    assert lines(table) == [
        (LABELS["p0"], "enumerative", "140 ± 0 ms", "100 ± 0 ms", "1.40", "1.33"),
    ]


def test_spread_has_the_unit_of_the_mean():
    def text(rows) -> str:
        (row,) = summary(rows).itertuples()
        return makespan_text(row)

    assert text(seeds([41.19e-3, 41.49e-3])) == "41.34 ± 0.21 ms"
    assert text(seeds([0.1, 0.1 + 1e-16])) == "100 ± 0 ms"
    assert text([ROW]) == "100 ms"


def test_problems_of_one_name_are_told_apart_by_their_settings(tmp_path):
    runs = [
        read_run(
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
    assert list(frame_of(runs)["problem_settings"]) == ["memory=1", "memory=2"]
    assert problem_labels(runs[:1]) == {"a": "chainmm on p100x4, 4 devices"}
    assert list(summarise(frame_of(runs[:1]))["problem_settings"]) == [""]


def test_differences_are_named_by_the_last_part_of_their_keys():
    assert differences([{"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}]) == ["c=2", "c=3"]
    assert differences([{"a": 1}, {"a": 1}]) == ["", ""]
    assert differences([{"a": 1}, {}]) == ["a=1", ""]


def test_training_costs_are_medians_by_graph_and_method(tmp_path):
    runs = [
        read_run(
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
    assert lines(table) == [("chainmm", "76", "doppler", "3", "10 ms", "500 MB")]
    assert training_tables([], {}) == []


def test_training_costs_of_other_settings_budgets_or_rules_are_not_averaged(tmp_path):
    changes = [
        *({}, {"seed": 1}, {"variant": "b"}, {"evaluations": 50, "variant": "c"}),
        {"rules": "queue fifo", "queue": "fifo"},
    ]
    runs = [
        read_run(
            leave_run(
                tmp_path / str(number),
                [replace(ROW, **change)],
                {},
                num_ops=76,
                episodes_per_s=float(number + 1),
            )
        )
        for number, change in enumerate(changes)
    ]
    own, fifo = training_tables(runs, {"p0": "chainmm"})
    assert "queue priority" in own.title and "queue fifo" in fifo.title
    assert [(line[2], line[3]) for line in lines(own)] == [
        *(("doppler #aaaa", "2"), ("doppler #b", "1"), ("doppler #c", "1"))
    ]
    assert [(line[2], line[3]) for line in lines(fifo)] == [("doppler", "1")]


@pytest.mark.parametrize(
    ("name", "latex", "markdown"),
    [
        ("a_b", r"a\_b", "a_b"),
        ("_b_", r"\_b\_", r"\_b\_"),
        ("50%", r"50\%", "50%"),
        ("x & y", r"x \& y", "x &amp; y"),
        ("#1", r"\#1", "#1"),
        ("a\\b", r"a\textbackslash{}b", r"a\\b"),
        ("$x^{2}$", r"\$x\textasciicircum{}\{2\}\$", "$x^{2}$"),
        ("~a", r"\textasciitilde{}a", r"\~a"),
        ("<script>", r"$<$script$>$", "&lt;script&gt;"),
        ("a|*b*`[c]", "a|*b*`[c]", r"a\|\*b\*\`\[c\]"),
    ],
)
def test_a_name_is_text_in_every_format(name, latex, markdown):
    found = tables(seeds([0.1], method=name))
    assert f"\n{latex} & 100 & 25.0\\% & itself & own" in to_latex("", found)
    assert f"\n| {markdown} | 100 | 25.0% | itself | own" in to_markdown(name, found, [])
    assert to_markdown(name, found, []).startswith(f"{markdown}\n")
    assert f">{escape(name)}<" in to_html(found[0])


def test_settings_under_one_name_are_told_apart_by_their_evaluations_or_a_hash():
    budgets = [
        *seeds([0.1], method="annealing", variant="a", evaluations=1000),
        *seeds([0.09], method="annealing", variant="b", evaluations=4000),
        *seeds([0.08]),
    ]
    assert method_labels(summary(budgets)) == ["doppler", "annealing, 4,000", "annealing, 1,000"]
    equal = [*budgets, *seeds([0.07], method="annealing", variant="c", evaluations=4000)]
    labels = method_labels(summary(equal))
    assert labels == ["annealing #c", "doppler", "annealing #b", "annealing #a"]
    both = [*equal, *seeds([0.3], method="annealing", variant="a", evaluations=8000)]
    assert method_labels(summary(both))[-2:] == ["annealing #a, 1,000", "annealing #a, 8,000"]


def test_the_verdict_names_the_winner_the_lead_and_how_sure_it_is():
    ours = seeds([0.099, 0.101])
    far = seeds([0.12, 0.12], method="heft", variant="b", evaluations=50)
    assert verdict(summary([*ours, *far, *seeds([0.2], method="random")])) == (
        "doppler is best (100.0 ± 1.4 ms, 1,000 evaluations, n=2); the strongest other method, "
        "heft, takes 20.0% longer (120 ± 0 ms, 50 evaluations, n=2): 95% interval of the ratio "
        "1.200 (1.057 to 1.363)"
    )
    near = seeds([0.1005, 0.1005], method="heft", variant="b")
    assert verdict(summary([*ours, *near])).endswith("1.005 (0.885 to 1.141), so no lead is shown")
    level = seeds([0.1, 0.1], method="heft", variant="b")
    assert verdict(summary([*seeds([0.1, 0.1]), *level])).endswith("are level")
    assert "one seed tells no interval" in verdict(summary([ours[0], far[0]]))
    assert "no other method" in verdict(summary(ours))


def test_one_sentence_tells_of_many_problems():
    heft = {"method": "heft", "variant": "b"}
    second = {"problem": "p1", "workload": "ffnn"}
    rows = [
        *(*seeds([0.1, 0.1]), *seeds([0.2, 0.2], **heft)),
        *(*seeds([0.3, 0.3], **second), *seeds([0.2, 0.3], **second, **heft)),
    ]
    assert verdicts(summary(rows), LABELS) == (
        "Of 2 problems, each against the strongest other method, with 2 seeds: doppler is best on "
        "1, surely on 1 (chainmm by 100.0% over heft); heft is best on 1, nowhere surely."
    )
    alone = verdicts(summary(rows[:4]), LABELS)
    assert alone.startswith("chainmm on p100x4, 4 devices: doppler is best")


def test_all_are_held_against_the_strongest_control_at_no_more_evaluations():
    def control(method: str, makespans: list[float], evaluations: int) -> list[ResultRow]:
        return seeds(makespans, method=method, variant=method, evaluations=evaluations)

    learned = [
        *seeds([0.10, 0.11, 0.12]),
        *seeds([0.2] * 3, method="doppler greedy", evaluations=9),
    ]
    controls = [
        *control("heft", [0.2] * 3, 50),
        *control("portfolio", [0.05] * 3, 4000),
        *control("portfolio", [0.1] * 3, 1000),
    ]
    rows = pd.DataFrame(
        [{**vars(row), "is_control": row in controls} for row in [*learned, *controls]]
    )
    (table,) = result_tables(summarise(rows), LABELS)
    shown = dict(
        zip(
            zip(table.cells["method"], table.cells["evaluations"], strict=True),
            table.cells["over the best control"],
            strict=True,
        )
    )
    # 0.11 over 0.1 by logarithms; t of two degrees of freedom is 4.303.
    logs = np.log([1.0, 1.1, 1.2])
    margin = 4.3027 * logs.std(ddof=1) / 3**0.5
    low, value, high = np.exp(logs.mean() + np.array([-margin, 0, margin]))
    assert shown["doppler", "1,000"] == f"{value:.3f} ({low:.3f} to {high:.3f})"
    assert shown["doppler greedy", "9"] == "2.000 (2.000 to 2.000)", "the smallest budget of each"
    assert shown["portfolio, 4,000", "4,000"] == "1.000 (1.000 to 1.000)"


def test_problems_without_a_known_optimum_have_no_ratio_to_it(tmp_path):
    runs = [
        read_run(leave_run(tmp_path / problem, [replace(ROW, problem=problem)], {}))
        for problem in ("p0", "p1")
    ]
    table = summarise(frame_of(runs))
    assert table["over_optimum"].isna().all()
    titles = [one.title for one in result_tables(table, LABELS)]
    assert len(titles) == 3 and not any("optim" in title for title in titles)


def test_tables_say_what_found_the_placements_of_all_seeds():
    rows = [
        replace(ROW, seed=seed, source=source)
        for seed, source in enumerate(["episode, annealing", "clustering", "merged episode", ""])
    ]
    (table,) = tables([*rows, *seeds([0.2], method="heft", variant="b")])
    words = "policy + annealing (1), clustering (1), policy, in groups (1), itself (1)"
    assert table.cells["found by"].tolist() == [words, "itself"]


def test_tables_say_so_where_two_methods_found_the_same_placements():
    ours = [replace(one, placement=f"p{one.seed}") for one in seeds([0.1, 0.1])]
    same = [replace(one, method="greedy", variant="b") for one in ours]
    other = [replace(same[0], method="heft"), replace(same[1], method="heft", placement="x")]
    (table,) = tables([*ours, *same, *other])
    assert table.cells["found by"].tolist() == ["itself", "same placement as doppler", "itself"]


def test_rows_in_doubt_are_marked_in_tables():
    doubted = [replace(one, doubt="1.0 cores busy") for one in seeds([0.1, 0.1])]
    (table,) = tables([*doubted, *seeds([0.2], method="heft", variant="b")])
    assert table.cells["method"].tolist() == ["doppler (!)", "heft"]
    assert "do not trust these rows, 1.0 cores busy" in table.note


def test_a_control_of_as_large_a_budget_is_taken_though_its_seeds_executed_more():
    rows = [
        *seeds([0.2, 0.2], evaluations=71, budget=64),
        *seeds([0.2, 0.2], method="search", variant="b", evaluations=74, budget=64),
        *seeds([0.4, 0.4], method="search", variant="b", evaluations=20, budget=16),
    ]
    frame = pd.DataFrame([{**vars(row), "is_control": row.method == "search"} for row in rows])
    (table,) = result_tables(summarise(frame), LABELS)
    told = dict(zip(table.cells["method"], table.cells["over the best control"], strict=True))
    assert told["doppler"] == "1.000 (1.000 to 1.000)"


def test_cells_in_doubt_are_marked_where_problems_stand_side_by_side():
    controls = [
        *seeds([0.2, 0.2], method="heft", variant="b"),
        *seeds([0.2, 0.2], method="heft", variant="b", problem="p1", workload="ffnn", doubt="busy"),
    ]
    learned = [*seeds([0.1, 0.1]), *seeds([0.1, 0.1], problem="p1", workload="ffnn")]
    rows = [{**vars(row), "is_control": row in controls} for row in [*learned, *controls]]
    overview, ratios = result_tables(summarise(pd.DataFrame(rows)), LABELS)[:2]
    assert lines(overview) == [
        ("doppler", "own", "100 ± 0", "100 ± 0"),
        ("heft", "own", "200 ± 0", "200 ± 0 (!)"),
    ]
    told = {method: cells for method, *cells in lines(ratios)}
    assert [cell.endswith(" (!)") for cell in told["doppler"]] == [False, True], (
        "of a doubted control"
    )
    assert all(
        table.note.startswith("(!): do not trust these rows, busy. ")
        for table in (overview, ratios)
    )


def test_spreads_have_two_digits_and_means_the_same_decimals():
    assert MILLISECONDS.text_with_spread(48.9123e-3, 0.316e-3) == "48.91 ± 0.32"
    assert MILLISECONDS.text_with_spread(48.9123e-3, 13.16e-3) == "49 ± 13"
    assert MILLISECONDS.text_with_spread(48.9123e-3, 0.0) == "48.91 ± 0"
    assert unit_of([2e-3, 1.5, 3e-3]) is MILLISECONDS


def test_rows_of_learned_methods_are_marked_on_the_page_where_others_stand_beside(tmp_path):
    rows = [*seeds([0.1]), *seeds([0.2], method="heft", variant="b")]
    run = read_run(leave_run(tmp_path / "run", rows, {"baseline": {"heft": {}}}))
    (table,) = result_tables(summarise(frame_of([run])), LABELS)
    assert table.marked == {0}
    assert to_html(table).count('<tr class="own">') == 1


def test_latex_has_rules_of_booktabs():
    text = to_latex("", tables(seeds([0.1])))
    assert all(rf"\{rule}" in text for rule in ("toprule", "midrule", "bottomrule", "usepackage"))


def test_a_makespan_of_zero_is_a_result():
    zero = {"makespan_s": 0.0, "gap": 0.0, "lower_bound_s": 0.0}
    other = replace(ROW, method="heft", variant="b", lower_bound_s=0.0)
    rows = [replace(ROW, **zero), other]
    (table,) = tables(rows)
    assert table.cells["over doppler"].tolist() == ["-", "-"]
    assert table.cells["gap"].tolist() == ["0.0%", "-"]
    assert "heft, takes" in verdict(summary(rows))


def test_two_simulated_runs_of_one_seed_may_not_disagree():
    rows = [ROW, replace(ROW, makespan_s=0.2)]
    with pytest.raises(InputError, match=r"seed 0: runs .* apart give 0\.1 s and 0\.2 s"):
        summary(rows)
    measured = [replace(row, system_kind="measured") for row in rows]
    assert summary(measured)["seeds"].tolist() == [1]


def test_of_runs_that_disagree_the_directories_are_named(tmp_path):
    runs = [
        read_run(leave_run(tmp_path / name, [replace(ROW, makespan_s=seconds)], {}))
        for name, seconds in (("a", 0.1), ("b", 0.2))
    ]
    message = rf"give 0\.1 s \({tmp_path}/a\) and 0\.2 s \({tmp_path}/b\)$"
    with pytest.raises(InputError, match=message):
        summarise(frame_of(runs))


def test_seeds_share_the_tightest_bound_that_one_of_them_knew():
    first, second = seeds([0.1, 0.1])
    table = summary([first, replace(second, lower_bound_s=0.09, bound="cp_sat")])
    assert table[["seeds", "lower_bound_s", "bound"]].values.tolist() == [[2, 0.09, "cp_sat"]]
    assert table["gap"].iloc[0] == pytest.approx(0.1 / 0.09 - 1)


def test_the_interval_of_a_ratio_is_welchs():
    ours, theirs = [0.10, 0.12, 0.11, 0.13], [0.2, 0.19, 0.22]
    table = summary([*seeds(ours), *seeds(theirs, method="heft")]).set_index("method")
    ratio = ratio_of(table.loc["doppler"], table.loc["heft"])
    welch = ttest_ind(np.log(ours), np.log(theirs), equal_var=False).confidence_interval()
    assert (ratio.low, ratio.high) == pytest.approx(tuple(np.exp([welch.low, welch.high])))
    means = np.log(ours).mean() - np.log(theirs).mean()
    assert ratio.value == pytest.approx(np.exp(means))


def test_problems_with_equal_settings_are_told_apart_by_their_costs_or_their_hash(tmp_path):
    runs = [
        read_run(leave_run(tmp_path / one, [replace(ROW, problem=one)], {"costs": costs}))
        for one, costs in (("a", None), ("b", "costs.json"), ("c", "costs.json"))
    ]
    name = "chainmm on p100x4, 4 devices"
    assert problem_labels(runs) == {
        "a": f"{name}, costs=None",
        "b": f"{name}, costs=costs.json, problem=b",
        "c": f"{name}, costs=costs.json, problem=c",
    }


def test_synchronous_makespans_stand_beside_those_of_as_many_evaluations():
    rows = seeds([0.1], method="annealing", variant="a", evaluations=1000)
    rows += seeds([0.09], method="annealing", variant="b", evaluations=8000)
    barriers = {"method": "annealing", "system": "bulk_synchronous", "rules": ""}
    rows += seeds([0.15], variant="a", evaluations=1000, **barriers)
    (line,) = lines(tables(rows)[-1])
    assert line[1:5] == ("annealing, 1,000", "150 ms", "100 ms", "1.50")
    # A learned method has the same variant with every budget.
    rows = seeds([0.09], evaluations=8000)
    rows += seeds([0.15], **{**barriers, "method": "doppler"})
    assert not any("Bulk-synchronous" in table.title for table in tables(rows))
    # All rules are shown, and jitter is that of both.
    rows = seeds([0.1], rules="queue priority, noise 0.0")
    rows += seeds([0.12], rules="queue fifo, noise 0.0")
    rows += seeds([0.11], rules="queue priority, noise 0.05")
    rows += seeds([0.15], **{**barriers, "method": "doppler", "rules": "noise 0.0"})
    shown = lines(tables(rows)[-1])
    assert [(line[1], line[4]) for line in shown] == [
        ("doppler (queue fifo, noise 0.0)", "1.25"),
        ("doppler (queue priority, noise 0.0)", "1.50"),
    ]
