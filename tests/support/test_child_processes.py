"""Processes that we start import nothing from the working directory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[2] / "src"
# What a process of Python, torch or multiprocessing imports first of all.
PLANTED = ("torch", "numpy", "json", "multiprocessing", "signal", "ctypes", "socket", "doppler")
MULTIPROCESSING = """
import multiprocessing as mp
from doppler.support.child_processes import without_working_directory
if __name__ == "__main__":
    for method in ("spawn", "forkserver"):
        with without_working_directory():
            process = mp.get_context(method).Process(target=print, args=("ran",))
            process.start()
        process.join()
        assert process.exitcode == 0
"""
COMMAND = """
import subprocess, sys
from doppler.support.commands import carried_out
def command(words):
    return subprocess.run([sys.executable, "-m", "json.tool", "--help"], stdout=-3).returncode
sys.exit(carried_out(command, []))
"""


@pytest.fixture
def strangers(tmp_path):
    """A folder whose modules would run, and the file that shows it."""
    folder, witness = tmp_path / "strangers", tmp_path / "witness"
    folder.mkdir()
    for name in PLANTED:
        (folder / f"{name}.py").write_text(f"open({str(witness)!r}, 'a').write({name!r})\n")
    yield folder
    assert not witness.exists(), witness.read_text()


@pytest.mark.parametrize("text", [MULTIPROCESSING, COMMAND], ids=["multiprocessing", "command"])
def test_processes_leave_the_working_directory_out(strangers, tmp_path, text):
    run(strangers, tmp_path, text)


def run(folder: Path, tmp_path: Path, text: str) -> None:
    script = tmp_path / "script" / "main.py"
    script.parent.mkdir()
    script.write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    environment.pop("PYTHONSAFEPATH", None)
    done = subprocess.run(
        [sys.executable, script], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
