"""Sweeps whose runs are started by others: Hydra's launchers, and a sweeper that searches."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

PROJECT = Path(__file__).resolve().parents[2]
SMALL = ("stage=evaluate", "workload.params.n=64")


# What stands for SLURM: jobs of an array are processes, and begin at once.
SLURM = {
    "sbatch": """#!/bin/bash
script=${@: -1}
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\)%.*/\\1/p' $script)
cp $script $(dirname $0)/submitted
export SLURM_JOB_ID=77 SLURM_ARRAY_JOB_ID=77 SLURM_NTASKS=1 SLURM_JOB_NUM_NODES=1 SLURM_NODEID=0
export SLURM_JOB_NODELIST=localhost SLURM_PROCID=0 SLURM_LOCALID=0
for i in $(seq 0 $last); do
    SLURM_ARRAY_TASK_ID=$i setsid bash $script > /dev/null 2>&1 &
done
echo Submitted batch job 77
""",
    "srun": """#!/bin/bash
while [[ $1 == -* ]]; do [[ $1 == --output || $1 == --error ]] && shift; shift; done
exec "$@"
""",
    "sacct": """#!/bin/bash
echo 'JobID|State|NodeList'
for i in 0 1; do echo "77_$i|RUNNING|localhost"; done
""",
}


@pytest.fixture
def slurm(tmp_path_factory):
    """A folder of its commands, in front of all others."""
    folder = tmp_path_factory.mktemp("slurm")
    for name, text in SLURM.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        yield folder


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
        pytest.param(
            *("submitit_local", "hydra_plugins.hydra_submitit_launcher"), marks=pytest.mark.slow
        ),
        pytest.param(
            *("submitit_slurm", "hydra_plugins.hydra_submitit_launcher"), marks=pytest.mark.slow
        ),
    ],
)
def test_a_run_that_fails_ends_no_other_and_is_named_with_every_launcher(
    launcher, package, tmp_path, slurm
):
    pytest.importorskip(package)
    asked = ("partition=nodes", "timeout_min=60", "cpus_per_task=4")  # as docs/hosts.md
    options = [f"hydra.launcher.{one}" for one in asked if launcher == "submitit_slurm"]
    chosen = ("baseline=[round_robin]", "seed=-1,0", f"hydra/launcher={launcher}")
    done = sweep(tmp_path, *chosen, *options)
    assert done.returncode == 1
    heading, line = done.stderr.splitlines()[-2:]
    assert heading == "1 of the sweep's runs failed:"
    assert "seed=-1" in line and line.endswith(
        "seed: must be a whole number from 0 to 2**63 - 1, got -1"
    )
    assert "Traceback" not in done.stderr
    assert len(list(tmp_path.rglob("summary.json"))) == 1, "seed 0 has run"
    if options:
        script = (slurm / "submitted").read_text()
        for line in ("--partition=nodes", "--time=60", "--cpus-per-task=4", "--array=0-1%2"):
            assert f"#SBATCH {line}\n" in script


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
