"""Which lower bound a run reports, in its table, its files and tables over several runs."""

import json

import pytest

from doppler.report.aggregate import collect, summarise
from doppler.report.rows import gap_over, read_results

# Five ops of 1 s on two devices: 2.5 s of load, but no op is in two places.
FIVE_OPS = "5\n\n\n\n" + "10000000000,40000000000\n" * 5


@pytest.fixture
def evaluate(run, tmp_path):
    """evaluate(*baselines) -> (summary, what was printed, rows of results.csv)."""
    (tmp_path / "five.txt").write_text(FIVE_OPS)

    def go(*baselines: str):
        summary, text = run(
            "stage=evaluate",
            f"baseline=[{','.join(baselines)}]",
            "workload=file",
            f"workload.path={tmp_path}/five.txt",
            "cluster.num_devices=2",
        )
        method = baselines[0] if len(baselines) == 1 else "baselines"
        folder = tmp_path / "evaluate/five/p100x4" / method
        (results,) = folder.glob("*/results.csv")
        assert (
            json.loads(results.with_name("summary.json").read_text())["bound"] == summary["bound"]
        )
        return summary, text, read_results(results)

    return go


def test_without_a_proof_the_table_shows_and_names_the_bound_of_the_problem(evaluate):
    summary, text, rows = evaluate("round_robin")
    assert (summary["bound"], summary["lower_bound_s"]) == ("load", pytest.approx(2.5))
    assert "lower bound 2.5 s (load)" in text
    assert rows[0].gap == pytest.approx(0.2)


def test_what_one_method_proves_holds_for_all(evaluate):
    pytest.importorskip("ortools")
    summary, text, rows = evaluate("single_device", "cp_sat")
    assert summary["bound"] == "cp_sat"
    assert "lower bound 3 s (cp_sat)" in text
    gaps = {row.method: row.gap for row in rows}
    assert gaps == {"cp_sat": pytest.approx(0, abs=1e-5), "single_device": pytest.approx(2 / 3)}
    for row in rows:
        assert row.bound == "cp_sat"
        assert 3.0 * (1 - 1e-5) <= row.lower_bound_s <= 3.0


def test_tables_over_several_runs_take_the_largest_bound_of_all(evaluate, tmp_path):
    pytest.importorskip("ortools")
    evaluate("single_device")
    evaluate("cp_sat")
    table = {row.method: row for row in summarise(collect([tmp_path])).itertuples()}
    assert {row.bound for row in table.values()} == {"cp_sat"}
    assert table["single_device"].gap == pytest.approx(2 / 3, rel=1e-4)
    assert table["single_device"].lower_bound_s == table["cp_sat"].lower_bound_s


def test_gaps_of_what_takes_no_time():
    assert gap_over(0.0, 0.0) == 0.0
    assert gap_over(0.0, 1.0) == float("inf")
    assert gap_over(2.0, 2.0 * (1 + 1e-12)) == 0.0
    assert gap_over(2.0, 3.0) == 0.5
