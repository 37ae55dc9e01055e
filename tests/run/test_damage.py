"""Files of a run that are damaged, deleted or cannot be written: one line, and how to mend it."""

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from doppler.experiment import evaluate
from doppler.graph import formats
from doppler.support.errors import InputError

SMALL = ("budget.imitation_episodes=16", "algorithm.search_share=0", "baseline=[heft]")
ANEW = r" \(overwrite=true runs it again\)$"


def directory_of(stage: str, out: Path) -> Path:
    (directory,) = out.glob(f"{stage}/*/*/*/seed=*")
    return directory


def test_a_damaged_checkpoint_of_stage_one_is_named_and_made_anew(run, tmp_path):
    whole, _ = run("stage=train", *SMALL)
    directory = directory_of("train", tmp_path)
    last = directory / "imitation/checkpoints/last.ckpt"
    kept = last.read_bytes()
    for content in (b"", b"PK"):
        (directory / "summary.json").unlink(missing_ok=True)
        shutil.rmtree(directory / "checkpoints", ignore_errors=True)  # killed after stage I
        last.write_bytes(content)
        with pytest.raises(InputError, match=f"{last}: .*{ANEW}"):
            run("stage=train", *SMALL)
    last.write_bytes(kept)
    again, text = run("stage=train", *SMALL)
    assert "resuming from" in text and again["makespan_s"] == whole["makespan_s"]
    last.write_bytes(b"PK")
    (directory / "summary.json").unlink()
    anew, _ = run("stage=train", *SMALL, "overwrite=true")
    assert anew["makespan_s"] == whole["makespan_s"]


def test_a_finished_run_that_is_damaged_says_how_it_is_made_anew(run, tmp_path):
    small = ("stage=evaluate", "baseline=[heft]")
    whole, _ = run(*small)
    results, summary = (
        directory_of("evaluate", tmp_path) / name for name in ("results.csv", "summary.json")
    )
    cases = [(results, None), (results, b"method\n")]
    cases += [(path, content) for path in (results, summary) for content in (b"", b"\xff\xfe\x00")]
    for path, content in cases:
        kept = path.read_bytes()
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(InputError, match=f"{path}: .*{ANEW}"):
            run(*small)
        path.write_bytes(kept)
    results.unlink()
    again, _ = run(*small, "overwrite=true")
    assert again["makespan_s"] == whole["makespan_s"]


def test_a_damaged_hash_is_mended_where_the_directory_has_it_in_its_name(run, tmp_path):
    run("stage=evaluate", "baseline=[heft]")
    path = directory_of("evaluate", tmp_path) / ".hydra/run_hash"
    kept = path.read_text()
    for content in (b"", b"\xff\xfe", None):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        run("stage=evaluate", "baseline=[heft]")
        assert path.read_text() == kept


def test_a_damaged_hash_elsewhere_is_named_with_what_mends_it(run, tmp_path):
    here = (f"run_dir={tmp_path}/here", "stage=evaluate", "baseline=[heft]")
    run(*here)
    path = tmp_path / "here/.hydra/run_hash"
    kept = path.read_text().strip()
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=f"run_hash: damaged; if .*: echo {kept} > {path}$"):
        run(*here)


@pytest.mark.parametrize("depth", [0, 4])
def test_a_directory_that_is_deleted_meanwhile_is_named(depth, run, tmp_path, monkeypatch):
    small = ("stage=evaluate", "baseline=[heft]")
    compare = evaluate.compare_baselines

    def delete_first(*arguments):
        directory = directory_of("evaluate", tmp_path)
        shutil.rmtree([directory, *directory.parents][depth])
        return compare(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(evaluate, "compare_baselines", delete_first)
        with pytest.raises(InputError, match="deleted while the run wrote there"):
            run(*small)
    assert not list(tmp_path.rglob("seed=*")), "nothing is left in the way"
    assert run(*small)[0]["method"] == "heft"


@pytest.mark.parametrize("name", ["schedule.png", "summary.json"])
def test_a_full_disk_names_the_file_and_the_same_command_goes_on(name, run, tmp_path, monkeypatch):
    small = ("stage=evaluate", "baseline=[heft]")
    replace = formats.os.replace

    def full(source, target):
        if Path(target).name == name:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(formats.os, "replace", full)
        with pytest.raises(OSError, match="No space left on device") as error:
            run(*small)
    directory = directory_of("evaluate", tmp_path)
    assert error.value.filename == str(directory / name)
    assert not list(directory.rglob("*.partial"))
    assert not (directory / name).exists()
    assert run(*small)[0]["method"] == "heft"


@pytest.mark.parametrize("name", ["run.log", "imitation/metrics.csv", ".lock"])
@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_what_is_no_file_is_neither_waited_for_nor_followed(name, kind, run, tmp_path):
    run("stage=train", *SMALL)
    directory = directory_of("train", tmp_path)
    (directory / "summary.json").unlink()
    shutil.rmtree(directory / "imitation/checkpoints")
    path, precious = directory / name, tmp_path / "precious"
    path.unlink()
    precious.write_text("kept")
    {"pipe": os.mkfifo, "folder": os.mkdir, "link": lambda it: it.symlink_to(precious)}[kind](path)
    with suppress(InputError, OSError):  # a table is replaced, whatever lies there
        run("stage=train", *SMALL)
    assert precious.read_text() == "kept"
    assert (directory / "summary.json").exists() == (name.endswith(".csv") and kind == "link")
