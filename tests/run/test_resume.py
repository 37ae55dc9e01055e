"""kill -9 in mid-training, the same command again: the result of no interruption, bit for bit."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

PROJECT = Path(__file__).resolve().parents[2]


def command(output_dir: Path) -> list[str]:
    return [
        sys.executable,
        str(PROJECT / "src/run.py"),
        "stage=rl_sim",
        "stage.init_from=null",
        "workload.params.n=512",
        "budget.evaluations=800",
        "budget.imitation_episodes=200",
        "trainer.checkpoint_every_s=0.2",
        f"output_dir={output_dir}",
    ]


def run_directory(output_dir: Path) -> Path:
    (directory,) = output_dir.glob("rl_sim/chainmm/p100x4/doppler/seed=0-*")
    return directory


def kill_in_mid_training(output_dir: Path) -> tuple[Path, int, float]:
    """Start a run, kill it once a checkpoint is written; its step and best so far."""
    process = subprocess.Popen(command(output_dir), cwd=PROJECT, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        assert process.poll() is None, "finished before it could be killed"
        found = list(output_dir.glob("**/checkpoints/last.ckpt"))
        if found:
            break
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    directory = run_directory(output_dir)
    checkpoint = torch.load(directory / "checkpoints/last.ckpt", weights_only=True)
    return directory, checkpoint["global_step"], checkpoint["doppler"]["best"]["seconds"]


def test_a_killed_run_continues_to_the_same_result(tmp_path):
    uninterrupted = subprocess.Popen(
        command(tmp_path / "whole"), cwd=PROJECT, stdout=subprocess.DEVNULL
    )
    directory, step, best_s = kill_in_mid_training(tmp_path / "killed")
    assert 0 < step < 35, "killed too early or too late to test anything"
    assert not (directory / "summary.json").exists()
    anytime = json.loads((directory / "placement.json").read_text())
    assert len(anytime["device"]) == 76
    assert anytime["makespan_s"] <= best_s, "the best placement so far must be on disk"

    again = subprocess.run(
        command(tmp_path / "killed"), cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert "resuming from" in again.stdout
    assert uninterrupted.wait() == 0

    whole = run_directory(tmp_path / "whole")
    for name in ("placement.json", "metrics.csv", "trace.json"):
        assert (directory / name).read_bytes() == (whole / name).read_bytes(), name
    for name in ("last.ckpt", "best.ckpt"):
        one, other = (
            torch.load(folder / "checkpoints" / name, weights_only=True)
            for folder in (directory, whole)
        )
        assert one["state_dict"].keys() == other["state_dict"].keys()
        for key, weights in one["state_dict"].items():
            assert torch.equal(weights, other["state_dict"][key]), (name, key)
    for key in ("makespan_s", "greedy_makespan_s", "evaluations", "episodes", "jitter_mean_s"):
        one, other = (
            json.loads((folder / "summary.json").read_text())[key] for folder in (directory, whole)
        )
        assert one == other, key
    assert anytime["makespan_s"] >= json.loads((whole / "placement.json").read_text())["makespan_s"]
