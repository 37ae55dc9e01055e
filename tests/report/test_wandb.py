"""logger=wandb without network or login, and the dashboard built from code."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from doppler.errors import InputError
from doppler.report.wandb_runs import WandbRuns

PROJECT = Path(__file__).resolve().parents[2]
SETTINGS = {"project": "doppler", "entity": None, "mode": "auto", "tags": []}


def environment(tmp_path: Path) -> dict[str, str]:
    """That of a user who never logged in, and whose proxy leads nowhere."""
    own = {name: text for name, text in os.environ.items() if not name.startswith("WANDB")}
    nowhere = "http://127.0.0.1:9"
    return {**own, "HOME": str(tmp_path), "HTTPS_PROXY": nowhere, "HTTP_PROXY": nowhere}


def sweep(tmp_path: Path, *overrides: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [
            *(sys.executable, "src/run.py", "logger=wandb", *overrides, f"output_dir={tmp_path}"),
            *("workload.params.n=64", "budget.evaluations=40", "budget.imitation_episodes=16"),
        ],
        cwd=PROJECT,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_without_the_package_there_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"wandb is not installed \(pip install"):
        WandbRuns(directory=tmp_path, **SETTINGS)


def test_a_mode_that_does_not_exist_is_refused(tmp_path):
    pytest.importorskip("wandb")
    with pytest.raises(InputError, match=r"logger.mode: .* got 'on'"):
        WandbRuns(directory=tmp_path, **{**SETTINGS, "mode": "on"})


@pytest.mark.slow
def test_three_seeds_are_three_offline_runs_with_config_curves_and_media(tmp_path):
    pytest.importorskip("wandb")
    done = sweep(tmp_path, "baseline=[critical_path]", "-m", "seed=0,1,2")
    assert done.returncode == 0, done.stderr
    records = {path: stored(path) for path in tmp_path.rglob("run-*.wandb")}
    assert len(records) == 3, "stage I is a step of a run, and no run of its own"
    found = set()
    for path, record in records.items():
        directory = path.parents[2]
        assert path.parent.name.startswith("offline-run-")
        summary = json.loads((directory / "summary.json").read_text())
        assert record["config"]["seed"] == summary["seed"]
        assert record["config"]["workload"]["name"] == "chainmm"
        assert {"chainmm", "p100x4", "doppler", "simulated"} <= set(record["tags"])
        rows = (directory / "metrics.csv").read_text().splitlines()
        curve = [row["best_s"] for row in record["history"] if "best_s" in row]
        column = rows[0].split(",").index("best_s")
        assert curve == [float(row.split(",")[column]) for row in rows[1:]]
        keys = {key for row in record["history"] for key in row}
        assert {"schedule", "results"} <= keys
        assert record["summary"]["makespan_s"] == summary["makespan_s"]
        assert record["artifacts"] == ["placement"]
        media = path.parent / "files/media"
        (picture,) = media.rglob("schedule*.png")
        assert picture.read_bytes() == (directory / "schedule.png").read_bytes()
        (table,) = media.rglob("results*.table.json")
        assert "critical_path" in table.read_text()
        found.add(summary["seed"])
    assert found == {0, 1, 2}

    # What is published is not published again.
    for path in list(records):
        WandbRuns(directory=path.parents[2], **SETTINGS).publish()
    assert len(list(tmp_path.rglob("run-*.wandb"))) == 3


def records_of(path: Path):
    """The messages of an offline run: a log of blocks as LevelDB has them, after a head of 7 bytes.

    A record has 4 bytes of checksum, 2 of length, 1 that says whole, first, middle or last.
    """
    data, position, whole = path.read_bytes(), 7, b""
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        length, kind = struct.unpack("<HB", data[position + 4 : position + 7])
        whole += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            yield whole
            whole = b""


def stored(path: Path) -> dict:
    """What an offline run keeps."""
    from wandb.proto import wandb_internal_pb2

    found: dict = {"config": {}, "summary": {}, "history": [], "tags": [], "artifacts": []}
    for data in records_of(path):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        for item in [*record.run.config.update, *record.config.update]:
            found["config"][item.key] = json.loads(item.value_json)
        for item in record.summary.update:
            found["summary"][item.key or item.nested_key[0]] = json.loads(item.value_json)
        if record.history.item:
            row = {
                one.key or one.nested_key[0]: json.loads(one.value_json)
                for one in record.history.item
            }
            found["history"].append(row)
        found["tags"] += record.run.tags
        artifact = record.artifact or record.request.log_artifact.artifact
        if artifact.type == "placement":
            found["artifacts"].append(artifact.type)
    return found


def test_the_dashboard_is_built_without_network_or_login():
    pytest.importorskip("wandb_workspaces")
    from doppler.report.dashboard import report, workspace

    built = workspace("someone", "doppler")
    assert [section.name for section in built.sections] == ["Learning", "Results", "Schedules"]
    stored = built._to_model().model_dump_json(by_alias=True)
    for key in ("best_s", "greedy_s", "makespan_s", "jitter_mean_s", "schedule"):
        assert f'"{key}"' in stored, key
    assert (built.entity, built.project) == ("someone", "doppler")
    written = report("someone", "doppler")
    grids = [block for block in written.blocks if type(block).__name__ == "PanelGrid"]
    assert [len(grid.panels) for grid in grids] == [4, 4, 1]
    assert all(grid.runsets[0].project == "doppler" for grid in grids)
