"""The tutorial's files, code and commands, from top to bottom."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from rich.console import Console

from doppler.experiment import execute

PROJECT = Path(__file__).resolve().parents[2]
TUTORIAL = (PROJECT / "docs/tutorial.md").read_text()
FILE = r"^`(\S+)`:\n\n```\w+\n(.*?)```"


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The tutorial's files in the directory from which the process runs."""
    for name, text in re.findall(FILE, TUTORIAL, re.DOTALL | re.MULTILINE):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("my_models", None)


def test_the_code_runs(files, capsys):
    without_files = re.sub(FILE, "", TUTORIAL, flags=re.DOTALL | re.MULTILINE)
    blocks = re.findall(r"```python\n(.*?)```", without_files, re.DOTALL)
    assert len(blocks) >= 8
    namespace = {"__name__": "tutorial"}
    for block in blocks:
        exec(compile(block, "tutorial.md", "exec"), namespace)
    shown = capsys.readouterr().out
    (shown_lines,) = re.findall(r"^ {4}(Block on .*)\n {4}(  ops .*)$", TUTORIAL, re.MULTILINE)
    for line in shown_lines:
        assert line in shown
    assert (files / "placed/block/schedule.png").exists()


def commands() -> list[str]:
    lines = re.findall(r"^    python src/run\.py(.*)$", TUTORIAL, re.MULTILINE)
    assert len(lines) == 2
    return lines


@pytest.mark.parametrize("command", commands())
def test_the_commands_run(command, files):
    overrides = [*shlex.split(command), "budget.evaluations=40", f"output_dir={files}"]
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(PROJECT / "conf"), version_base="1.3"):
        cfg = compose("config", overrides)
    summary = execute(cfg, [], Console(quiet=True))
    assert summary["lower_bound_s"] <= summary["makespan_s"] * (1 + 1e-9)
