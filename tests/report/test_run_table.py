"""The table of a run on the terminal: what found each row, which are the same, and a sentence."""

import io
from dataclasses import replace

import pytest
from results import ROW
from rich.console import Console

from doppler.report.paired import PairedRatio, paired_verdict
from doppler.report.run_table import print_results, run_verdict
from doppler.report.sources import found_by, found_by_seeds

ROWS = [
    replace(ROW, source="clustering, estimates", placement="aa"),
    replace(
        TRAINED := replace(ROW, placement="bb", makespan_s=0.12, evaluations=ROW.evaluations // 2),
        method="doppler trained",
        source="episode",
    ),
    replace(TRAINED, method="doppler greedy", source="greedy episode"),
    replace(ROW, method="etf", uses_order=False, placement="cc", makespan_s=0.11),
]


def printed(rows, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    print_results(rows, console)
    return console.export_text()


@pytest.mark.parametrize(
    ("source", "words"),
    {
        "": "itself",
        "episode": "policy",
        "greedy episode, estimates": "policy + estimates",
        "clustering, estimates, annealing": "clustering + estimates + annealing",
        "teacher etf": "teacher etf",
    }.items(),
)
def test_sources_are_told_in_words(source, words):
    assert found_by(source) == words


def test_sources_of_several_seeds_are_counted():
    assert found_by_seeds(["episode", "episode"]) == "policy"
    assert found_by_seeds(["episode", "", "episode"]) == "policy (2), itself (1)"


def test_the_table_says_what_found_each_row_and_which_are_the_same():
    lines = printed(ROWS, 140).splitlines()
    trained, greedy = (next(x for x in lines if name in x) for name in ("trained", "greedy"))
    assert "policy" in trained
    assert "same placement as doppler trained" in greedy
    assert any("clustering + estimates" in line for line in lines)


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_tables_fit_the_terminal_and_name_what_is_left_out(width):
    text = printed(ROWS, width)
    assert max(map(len, text.splitlines())) <= width
    names = ("order", "jitter mean", "jitter p95", "evaluations", "seconds")
    assert all(name in text for name in names), "as a column, or in the line below"
    assert ("results.csv has them" in text) == (width < 140)


def test_the_sentence_says_what_is_best_and_what_the_search_added():
    text = run_verdict(ROWS)
    assert "doppler is best (100 ms); the best other method, etf, takes 10.0% longer" in text
    alone = "without the search after its training doppler has 120 ms (found by policy), 20.0%"
    assert alone in text


def test_the_sentence_is_silent_about_a_search_that_did_not_take_place():
    unaided = [replace(row, evaluations=ROW.evaluations) for row in ROWS]
    assert "search" not in run_verdict(unaided)


def test_the_sentence_says_so_where_two_methods_found_the_same():
    rows = [ROWS[0], replace(ROWS[3], makespan_s=0.1, placement="aa")]
    assert run_verdict(rows) == "doppler and etf found the same placement (100 ms)."


def test_the_sentence_says_so_where_another_method_is_best():
    assert "etf is best (50 ms); doppler takes 100.0% longer" in run_verdict(
        [ROWS[0], replace(ROWS[3], makespan_s=0.05)]
    )


def test_measured_methods_are_told_apart_only_where_the_interval_allows():
    def ratio(other: str, low: float, high: float, *, same: bool = False) -> PairedRatio:
        return PairedRatio(
            method="doppler",
            other=other,
            method_s=0.1,
            other_s=0.1,
            ratio=(low + high) / 2,
            low=low,
            high=high,
            rounds=41,
            same=same,
        )

    pairs = [
        ratio("etf", 0.9, 0.95),
        ratio("heft", 0.98, 1.01),
        ratio("greedy", 1.0, 1.0, same=True),
    ]
    text = paired_verdict(pairs)
    assert text.startswith("doppler (100 ms) is faster than etf;")
    assert "level, within what the measurement can tell, with heft" in text
    assert "the same placement as greedy" in text and "slower" not in text
