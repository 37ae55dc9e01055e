"""What only real systems have, from made-up run directories."""

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from results import ROW, leave_run
from rich.console import Console

from doppler.report.aggregate import frame_of, summarise
from doppler.report.finished import FinishedRun, find_runs, read_run
from doppler.report.page import write_report
from doppler.report.paired import PairedRatio, write_paired
from doppler.report.rows import ResultRow, read_results, write_results
from doppler.report.run_table import print_results
from doppler.report.tables import fidelity_tables, method_labels, turns_tables

WHERE = {"workload": "ffnn", "cluster": "host", "num_devices": 2}
HEAD = {"versions": {"torch": "2"}, "git_commit": None, "host": {"cpus": 2}}
FIDELITY = {
    "measured costs": {
        "placements": 60,
        "pearson": 0.97,
        "spearman": 0.953,
        "split_half": None,
        "mean_error": 0.103,
        "median_ratio": 0.971,
    }
}


def paired_run(
    directory: Path, ratio: float, low: float, high: float, rows: Sequence[ResultRow] = (ROW,)
) -> FinishedRun:
    leave_run(directory, [*rows], {}, **WHERE)
    one = PairedRatio(
        method="doppler",
        other="heft",
        method_s=0.01 * ratio,
        other_s=0.01,
        ratio=ratio,
        low=low,
        high=high,
        rounds=31,
    )
    write_paired(directory / "paired.csv", [one])
    return read_run(directory)


def test_ratios_are_averaged_and_intervals_hold_those_of_all_seeds(tmp_path):
    runs = [
        paired_run(tmp_path / "a", 0.9, 0.88, 0.92),
        paired_run(tmp_path / "b", 1.0, 0.97, 1.05),
        read_run(leave_run(tmp_path / "simulated", [ROW], {}, **WHERE)),
    ]
    (table,) = turns_tables(runs, {ROW.problem: "ffnn, 2 layers"})
    section = "simulated by work_conserving (queue priority)"
    assert table.title == f"Measured in turns: ffnn, 2 layers, {section}"
    assert table.cells.values.tolist() == [
        ["doppler / heft", "2", "0.950", "0.880 to 1.050", "9.5 ms", "10 ms"]
    ]


def test_ratios_of_other_settings_budgets_or_rules_are_not_averaged(tmp_path):
    heft = replace(ROW, method="heft", variant="h", evaluations=1)
    rows = {
        "a": [ROW, heft],
        "b": [replace(ROW, seed=1), replace(heft, seed=1)],
        "variant": [replace(ROW, variant="b"), heft],
        "budget": [ROW, replace(heft, evaluations=50)],
        "rules": [replace(one, rules="queue fifo", queue="fifo") for one in (ROW, heft)],
    }
    runs = [paired_run(tmp_path / name, 0.9, 0.88, 0.92, these) for name, these in rows.items()]
    own, fifo = turns_tables(runs, {ROW.problem: "ffnn"})
    assert "queue priority" in own.title and "queue fifo" in fifo.title
    assert list(zip(own.cells["method"], own.cells["n"], strict=True)) == [
        ("doppler #aaaa / heft, 1", "2"),
        ("doppler #b / heft, 1", "1"),
        ("doppler #aaaa / heft, 50", "1"),
    ]
    assert list(zip(fifo.cells["method"], fifo.cells["n"], strict=True)) == [
        ("doppler / heft", "1")
    ]


def test_seeds_of_one_budget_are_one_row_though_each_executed_another_number(tmp_path):
    rows = [
        [replace(ROW, seed=seed, evaluations=used, budget=1250, system_kind="measured")]
        for seed, used in enumerate((1330, 1371))
    ]
    rows.append([replace(rows[0][0], evaluations=1098, budget=1016)])
    runs = [
        paired_run(tmp_path / f"{number}", 0.9, 0.88, 0.92, one) for number, one in enumerate(rows)
    ]
    table = summarise(frame_of(runs))
    assert sorted(zip(table["budget"], table["seeds"], table["evaluations"], strict=True)) == [
        (1016, 1, 1098),
        (1250, 2, 1350),
    ]
    assert sorted(method_labels(table)) == ["doppler, 1,016", "doppler, 1,250"]
    (turns,) = turns_tables(runs, {ROW.problem: "ffnn"})
    told = dict(zip(turns.cells["method"], turns.cells["n"], strict=True))
    assert told == {"doppler, 1,250 / heft": "2", "doppler, 1,016 / heft": "1"}


def test_a_calibration_alone_is_a_report(tmp_path):
    directory = leave_run(
        tmp_path / "runs/calibrate", [ROW], {}, fidelity=FIDELITY, **WHERE, **HEAD
    )
    (directory / "results.csv").unlink()  # it compares no methods
    (table,) = fidelity_tables(find_runs([tmp_path / "runs"])[0])
    where = "ffnn on host, 2 devices"
    figures = ("0.970", "0.953", "-", "10.3%", "0.97")
    assert table.cells.values.tolist() == [[where, "measured costs", "0", "60", *figures]]
    assert "| 0.953 |" in write_report([tmp_path / "runs"], tmp_path / "report")[0]
    assert "Fidelity" in (tmp_path / "report/report.html").read_text()


def test_columns_of_gpus_are_there_only_where_gpus_execute(tmp_path):
    path = tmp_path / "results.csv"
    write_results(path, [ROW])
    assert "gpu_busy" not in path.read_text()
    assert read_results(path) == [ROW]
    on_gpus = replace(ROW, gpu_busy=0.4, energy_j=1.5)
    write_results(path, [on_gpus, ROW])
    found = read_results(path)
    assert found[0] == on_gpus
    assert np.isnan(found[1].energy_j)
    wide = printed([on_gpus, ROW])
    assert "GPUs busy" in wide and "40%" in wide and "1.5 J" in wide
    assert "energy" not in printed([ROW])


def printed(rows) -> str:
    console = Console(width=300, file=io.StringIO(), record=True)
    print_results(rows, console)
    return console.export_text()
