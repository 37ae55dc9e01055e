"""Sweeps as a person starts them: killed, started again, with runs that fail."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from doppler.report.aggregate import collect, summarise

PROJECT = Path(__file__).resolve().parents[2]
SWEEP = ("stage=evaluate", "baseline=[annealing,round_robin]", "workload.params.n=64")
ENDLESS_S = 120  # a sweep that takes longer hangs


def start(out: Path, *overrides: str) -> subprocess.Popen:
    command = [sys.executable, "src/run.py", "-m", *SWEEP, *overrides, f"output_dir={out}"]
    return subprocess.Popen(
        command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finished(out: Path) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in out.rglob("summary.json")}


def table(out: Path):
    """What a report says, but for seconds."""
    return [
        (row.method, row.seeds, row.makespan_s, row.spread_s, row.jitter_p95_s, row.evaluations)
        for row in summarise(collect([out])).itertuples()
    ]


@pytest.mark.slow
def test_a_killed_sweep_goes_on_and_a_failed_run_does_not_end_it(run, tmp_path):
    out, sweep = tmp_path / "sweep", "seed=0,-1,1,2"
    cell = "baseline.annealing.evaluations=300000"  # a second or more
    first = start(out, sweep, cell)
    give_up = time.monotonic() + ENDLESS_S
    while not finished(out) and time.monotonic() < give_up:
        time.sleep(0.01)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    before = finished(out)
    assert before and len(before) < 3, "killed in mid-sweep"

    second = start(out, sweep, cell)
    said, complained = second.communicate(timeout=ENDLESS_S)
    assert second.returncode == 1
    assert "finished already" in said
    assert "1 of the sweep's runs failed:\n" in complained
    (line,) = [line for line in complained.splitlines() if line.startswith("  ")]
    assert "seed=-1" in line
    assert line.endswith("seed: must be a whole number from 0 to 2**63 - 1, got -1")
    assert "Traceback" not in complained
    after = finished(out)
    assert len(after) == 3
    assert {name: after[name] for name in before} == before, "finished runs are not repeated"

    for seed in (0, 1, 2):
        run(*SWEEP[:2], f"output_dir={tmp_path}/whole", f"seed={seed}", cell)
    assert table(out) == table(tmp_path / "whole")
