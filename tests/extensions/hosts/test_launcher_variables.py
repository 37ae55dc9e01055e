"""Variables that schedulers and launchers leave in the environment change no run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[3]
SMALL = (
    *("stage=train", "workload.params.n=64", "budget.imitation_episodes=16"),
    *("budget.evaluations=40", "baseline=[]", "trainer.checkpoint_every_s=0"),
)
SLURM = {
    **{"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "train", "SLURM_NTASKS": "4", "SLURM_PROCID": "3"},
    **{"SLURM_LOCALID": "3", "SLURM_NODEID": "1", "SLURM_JOB_NODELIST": "n[1-2]"},
}
TORCHRUN = {
    **{"TORCHELASTIC_RUN_ID": "old", "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"},
    **{"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"},
    **{"GROUP_RANK": "0", "NODE_RANK": "1", "TORCHELASTIC_RESTART_COUNT": "0"},
}
ENVIRONMENTS = {
    "slurm": SLURM,
    "torchrun": TORCHRUN,
    "torchrun, rank 0": {**TORCHRUN, "RANK": "0"},
    "run id alone": {"TORCHELASTIC_RUN_ID": "old"},
    "rank 0 alone": {"TORCHELASTIC_RUN_ID": "old", "RANK": "0"},
    "no number": {**TORCHRUN, "RANK": "x", "LOCAL_RANK": "", "WORLD_SIZE": "two"},
    "others": {
        **{"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "JSM_NAMESPACE_RANK": "1"},
        **{"KUBERNETES_PORT": "x", "LSB_JOBID": "1", "LSB_DJOB_RANKFILE": "/none"},
        **{"GROUP_RANK": "1", "PL_GLOBAL_SEED": "3", "XLA_DIST": "1"},
    },
}


def run(tmp_path, words, **environment) -> subprocess.CompletedProcess:
    command = [sys.executable, PROJECT / "src/run.py", *words, f"output_dir={tmp_path}"]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "src"), **environment}
    return subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    assert run(folder, SMALL).returncode == 0
    return left(folder)


def left(folder: Path) -> dict[str, bytes]:
    """What training leaves that does not depend on time."""
    (directory,) = folder.glob("train/*/*/*/seed=*")
    assert (directory / "summary.json").exists()
    found = sorted(directory.rglob("metrics.csv"))
    assert found, "metrics of rank 0"
    heads = {str(path.relative_to(directory)): path.read_text().splitlines() for path in found}
    return {name: (lines[0], len(lines)) for name, lines in heads.items()}


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("slurm", "no number") else pytest.param(name, marks=pytest.mark.slow)
        for name in ENVIRONMENTS
    ],
)
def test_a_training_is_one_process_whatever_the_environment_says(name, undisturbed, tmp_path):
    done = run(tmp_path, SMALL, **ENVIRONMENTS[name])
    assert done.returncode == 0, done.stderr
    assert left(tmp_path) == undisturbed
    told = [line for line in done.stderr.splitlines() if "TORCHELASTIC_RUN_ID is set" in line]
    assert len(told) == ("TORCHELASTIC_RUN_ID" in ENVIRONMENTS[name])


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"TORCHELASTIC_RUN_ID": "old"}, "error: RANK: torchrun sets a number, found ''"),
        ({**TORCHRUN, "WORLD_SIZE": ""}, "error: WORLD_SIZE: torchrun sets a number, found ''"),
        ({**TORCHRUN, "RANK": "x"}, "error: RANK: torchrun sets a number, found 'x'"),
        ({**TORCHRUN, "MASTER_ADDR": ""}, "error: MASTER_ADDR: torchrun sets an address"),
    ],
)
def test_a_variable_of_torchrun_that_is_asked_for_and_missing_is_named(environment, said, tmp_path):
    words = ("stage=evaluate", "system=hosts", "system.launcher=torchrun", "cluster=host")
    done = run(tmp_path, words, **environment)
    assert done.returncode == 1 and done.stderr.startswith(said) and done.stderr.count("\n") == 1
