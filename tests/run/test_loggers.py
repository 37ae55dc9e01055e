"""Several loggers at once: live curves, results, runs that are killed or were finished before."""

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from wandb_files import stored

from doppler.support.errors import InputError

PROJECT = Path(__file__).resolve().parents[2]
ENDLESS_S = 900  # a run that takes longer hangs
TRAINING = ("stage=rl_sim", "stage.init_from=null")


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """A user who never logged in, and whose proxy leads nowhere."""
    for name in [name for name in os.environ if name.startswith("WANDB")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")


def curve_of(directory: Path, key: str = "best_s") -> dict[int, float]:
    """A column of metrics.csv, by step."""
    with (directory / "metrics.csv").open(newline="") as file:
        return {int(row["step"]): float(row[key]) for row in csv.DictReader(file)}


def board(directory: Path):
    """What TensorBoard reads in a run directory."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(directory / "tensorboard"))
    found.Reload()
    return found


def board_curve(directory: Path, key: str = "stage_2/best_s") -> dict[int, float]:
    return {event.step: event.value for event in board(directory).Scalars(key)}


def start(out: Path) -> subprocess.Popen:
    command = [sys.executable, "src/run.py", *TRAINING, "logger=[csv,tensorboard,wandb]"]
    long = ("workload.params.n=64", "budget.evaluations=4000", "trainer.checkpoint_every_s=0.2")
    return subprocess.Popen(
        [*command, *long, f"output_dir={out}"],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(process: subprocess.Popen, out: Path, rows: int) -> int:
    """Rows of the W&B curve, once there are more than so many, while training goes on."""
    give_up = time.monotonic() + ENDLESS_S
    while time.monotonic() < give_up:
        assert process.poll() is None, process.stdout and process.stdout.read()
        found = [len(stored(path).curve("stage_2/best_s")) for path in out.rglob("run-*.wandb")]
        if found and found[-1] > rows:
            return found[-1]
        time.sleep(0.05)
    raise AssertionError(f"no more than {rows} rows")


@pytest.mark.slow
def test_curves_are_live_and_a_killed_run_goes_on_in_them(stranger, tmp_path):
    pytest.importorskip("wandb")
    pytest.importorskip("tensorboard")
    first = start(tmp_path)
    seen = wait_for(first, tmp_path, 0)
    later = wait_for(first, tmp_path, seen)
    assert later > seen
    assert not list(tmp_path.rglob("summary.json")), "training goes on"
    first.kill()
    first.communicate()
    (before,) = tmp_path.rglob("run-*.wandb")

    second = start(tmp_path)
    said, _ = second.communicate(timeout=ENDLESS_S)
    assert second.returncode == 0, said
    assert "resuming from" in said
    (directory,) = (path.parent for path in tmp_path.rglob("summary.json"))
    files = sorted(directory.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 2 and files[0] == before
    assert len({path.name for path in files}) == 1, "parts of one W&B run"
    identity = (directory / ".hydra/run_hash").read_text().strip()
    assert files[0].name == f"run-{identity}.wandb"

    curve, (begun, ended) = curve_of(directory), map(stored, files)
    assert ended.curve("stage_2/best_s") == pytest.approx(curve), "whole, in spite of the kill"
    assert len(begun.curve("stage_2/best_s")) >= later
    assert board_curve(directory) == pytest.approx(curve)

    summary = json.loads((directory / "summary.json").read_text())
    for part in (begun, ended):
        assert part.config["workload"]["name"] == "chainmm" and part.config["seed"] == 0
    assert {"chainmm", "p100x4", "doppler", "simulated"} <= set(ended.tags)
    assert ended.summary["makespan_s"] == summary["makespan_s"]
    assert ended.artifacts.count("placement") == 1
    media = files[1].parent / "files/media"
    (picture,) = media.rglob("schedule*.png")
    assert picture.read_bytes() == (directory / "schedule.png").read_bytes()
    (table,) = media.rglob("results*.table.json")
    assert "doppler greedy" in table.read_text()


def test_each_run_of_a_sweep_is_a_wandb_run_of_its_own(run, stranger, tmp_path):
    pytest.importorskip("wandb")
    for seed in (0, 1):
        wandb = ("logger=[wandb]", f"seed={seed}")
        _, said = run("stage=evaluate", "baseline=[round_robin]", *wandb)
        (line,) = (one for one in said.splitlines() if one.startswith("W&B (offline):"))
        assert list(Path(line.rpartition("wandb sync ")[2]).glob("run-*.wandb")), line
    files = list(tmp_path.rglob("run-*.wandb"))
    assert len({path.name for path in files}) == len(files) == 2
    give_up, seeds = time.monotonic() + ENDLESS_S, set()
    while seeds != {0, 1} and time.monotonic() < give_up:  # W&B's own process writes them
        seeds = {stored(path).config.get("seed") for path in files}
    assert seeds == {0, 1}
    assert "WANDB_MODE" not in os.environ


def test_a_finished_run_is_published_once_to_loggers_that_come_later(run, tmp_path):
    pytest.importorskip("tensorboard")
    summary, _ = run(*TRAINING)
    (directory,) = (path.parent for path in tmp_path.rglob("summary.json"))
    assert not (directory / "tensorboard").exists()
    log = (directory / "run.log").read_text()
    for _ in range(2):
        _, said = run(*TRAINING, "logger=[csv,tensorboard]")
        assert "is finished already" in said
        events = sorted((directory / "tensorboard").glob("events*"))
    assert board_curve(directory) == pytest.approx(curve_of(directory))
    found = board(directory)
    assert found.Tags()["images"] == ["schedule"]
    assert found.Scalars("makespan_s")[-1].value == pytest.approx(summary["makespan_s"])
    assert "_hparams_/session_start_info" in found.summary_metadata
    assert len(events) == 1, "once"
    assert (directory / "run.log").read_text() == log, "what is shown again is not logged"
    assert "doppler greedy" in log and "Traceback" not in log


def test_curves_of_all_stages_stand_side_by_side_in_dashboards(run, tmp_path):
    pytest.importorskip("tensorboard")
    _, said = run("baseline=[]", "logger=tensorboard")  # metrics.csv is written without being named
    (whole,) = tmp_path.glob("train/*/*/*/*")
    step = whole / "imitation"
    assert len(curve_of(step, "log_likelihood")) == 2, "8 episodes, four an update"
    assert not (step / "tensorboard").exists()
    assert board_curve(whole) == pytest.approx(curve_of(whole))
    for key in ("loss", "learning_rate", "gradient_norm", "log_likelihood"):
        assert board_curve(whole, f"stage_1/{key}") == pytest.approx(curve_of(step, key))
    assert set(curve_of(whole, "lower_bound_s").values()) != set()
    assert f"tensorboard --logdir {whole}" in said


def test_mlflow_keeps_one_run_with_curve_and_files(run, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    for overwrite in ("false", "true"):
        summary, _ = run(*TRAINING, "logger=[csv,mlflow]", f"overwrite={overwrite}")
    (directory,) = (path.parent for path in tmp_path.rglob("summary.json"))
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (kept,) = client.search_runs([client.get_experiment_by_name("doppler").experiment_id])
    assert kept.info.status == "FINISHED"
    assert kept.data.params["workload/name"] == "chainmm"
    assert kept.data.metrics["makespan_s"] == pytest.approx(summary["makespan_s"])
    history = client.get_metric_history(kept.info.run_id, "stage_2/best_s")
    assert {one.step: one.value for one in history} == pytest.approx(curve_of(directory))
    names = {one.path for one in client.list_artifacts(kept.info.run_id)}
    assert names == {"results.csv", "placement.json", "schedule.png"}


@pytest.mark.parametrize(
    ("logger", "word", "near"),
    [("wandb", "entty", "entity"), ("mlflow", "run_nmae", "run_name")],
)
def test_a_setting_that_a_logger_does_not_know_is_named_before_anything_begins(
    logger, word, near, run, tmp_path, monkeypatch
):
    pytest.importorskip("wandb")
    if logger == "mlflow":  # is not needed to know what it takes
        monkeypatch.setattr("doppler.experiment.publishing.find_spec", lambda name: True)
    with pytest.raises(InputError) as error:
        run(f"logger={logger}", f"+logger.{logger}.{word}=mine")
    assert str(error.value) == (
        f"logger.{logger}.{word}: no such option, did you mean logger.{logger}.{near}?"
    )
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("logger", ["wandb", "tensorboard", "mlflow"])
def test_a_package_that_is_missing_is_named_before_anything_begins(
    logger, run, tmp_path, monkeypatch
):
    monkeypatch.setattr("doppler.experiment.publishing.find_spec", lambda name: None)
    with pytest.raises(InputError) as error:
        run(f"logger=[csv,{logger}]")
    assert str(error.value) == (
        f"logger={logger}: {logger} is not installed (pip install '.[{logger}]')"
    )
    assert not list(tmp_path.iterdir())


def test_what_wandb_does_not_take_is_one_line(run, stranger):
    pytest.importorskip("wandb")
    with pytest.raises(InputError, match=r"logger=wandb: .*project"):
        run(*TRAINING, "logger=[wandb]", "logger.wandb.project=a/b")
    with pytest.raises(InputError, match=r"logger=wandb: .*(api_key|API key|login)"):
        run(*TRAINING, "logger=[wandb]", "logger.wandb.offline=false")
