"""Sweeps whose runs are started by others: Hydra's launchers, and a sweeper that searches."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

PROJECT = Path(__file__).resolve().parents[2]
SMALL = ("stage=evaluate", "workload.params.n=64")


def sweep(out: Path, *overrides: str) -> subprocess.CompletedProcess:
    command = [sys.executable, PROJECT / "src/run.py", "-m", *SMALL, *overrides]
    return subprocess.run(
        [*command, f"output_dir={out}"], cwd=PROJECT, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("launcher", "package"),
    [
        ("basic", "hydra"),
        ("joblib", "hydra_plugins.hydra_joblib_launcher"),
        ("submitit_local", "hydra_plugins.hydra_submitit_launcher"),
    ],
)
def test_a_run_that_fails_ends_no_other_and_is_named_with_every_launcher(
    launcher, package, tmp_path
):
    pytest.importorskip(package)
    done = sweep(tmp_path, "baseline=[round_robin]", "seed=-1,0", f"hydra/launcher={launcher}")
    assert done.returncode == 1
    heading, line = done.stderr.splitlines()[-2:]
    assert heading == "1 of the sweep's runs failed:"
    assert "seed=-1" in line and line.endswith(
        "seed: must be a whole number from 0 to 2**63 - 1, got -1"
    )
    assert "Traceback" not in done.stderr
    assert len(list(tmp_path.rglob("summary.json"))) == 1, "seed 0 has run"


def test_a_sweeper_searches_for_the_least_makespan(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    done = sweep(
        *(tmp_path, "baseline=[random]", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=6"),
        *("hydra.sweeper.n_jobs=1", "baseline.random.evaluations=choice(1,1000)"),
    )
    assert done.returncode == 0, done.stderr
    found = yaml.safe_load((tmp_path / "sweeps/optimization_results.yaml").read_text())
    assert found["best_params"] == {"baseline.random.evaluations": 1000}
    assert f'"makespan_s": {found["best_value"]}' in next(
        path.read_text()
        for path in tmp_path.rglob("summary.json")
        if '"evaluations": 1000' in path.read_text()
    )


def test_a_metric_that_runs_do_not_have_is_named(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    done = sweep(
        *(tmp_path, "baseline=[random]", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=1"),
        *("optimized_metric=makespan", "baseline.random.evaluations=choice(1,2)"),
    )
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert "optimized_metric: the run has no number 'makespan', choose from " in line
    assert "makespan_s" in line
