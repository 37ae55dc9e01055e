"""A first run compiles side by side what it needs, once, and says about how long that takes."""

import io
import os
import subprocess
import sys

import pytest
from rich.console import Console

from doppler import first_run
from doppler.first_run import POLICIES, SEARCHES, compile_ahead
from doppler.precompile import _parts


class NoPool:
    """Must not be opened."""

    def __init__(self, *arguments) -> None:
        raise AssertionError("a pool is opened")


@pytest.fixture
def stamps(tmp_path, monkeypatch):
    """A folder for stamps, on a machine of two cores, where no process may be started."""
    monkeypatch.setattr(first_run, "_stamp", lambda part: tmp_path / part.replace(" ", "_"))
    monkeypatch.setattr(first_run, "num_threads", lambda: 2)
    monkeypatch.setattr(first_run, "ProcessPoolExecutor", NoPool)
    return tmp_path


def console() -> Console:
    return Console(file=io.StringIO())


def test_parts_that_runs_need_are_parts_that_there_are():
    assert {*SEARCHES, *POLICIES.values(), *first_run._CORE_S} <= _parts().keys()


def test_what_is_compiled_is_not_compiled_again(stamps):
    (stamps / "clustering").touch()
    compile_ahead(["clustering"], console())
    with pytest.raises(AssertionError, match="a pool is opened"):
        compile_ahead(["clustering", "policies"], console())


def test_what_came_with_the_package_is_not_compiled_either(stamps, monkeypatch):
    (stamps / first_run.stamp_name("clustering")).touch()
    monkeypatch.setattr(first_run, "FOLDER", stamps)
    monkeypatch.setattr(first_run, "runs_here", lambda: True)
    compile_ahead(["clustering"], console())
    monkeypatch.setattr(first_run, "runs_here", lambda: False)
    with pytest.raises(AssertionError, match="a pool is opened"):
        compile_ahead(["clustering"], console())


def test_on_one_core_nothing_is_gained_by_processes(stamps, monkeypatch):
    monkeypatch.setattr(first_run, "num_threads", lambda: 1)
    compile_ahead(["policies"], console())
    assert not list(stamps.iterdir())


def test_the_time_left_falls_with_what_is_done():
    display = first_run._Display(console(), list(SEARCHES), 2)
    begin_s = display._left_s([], 0.0)
    later_s = display._left_s(SEARCHES[:3], begin_s / 2)
    assert 1.0 <= display._left_s(SEARCHES, begin_s) < later_s < begin_s


@pytest.mark.slow
def test_a_second_process_finds_what_was_compiled(tmp_path):
    code = """
from rich.console import Console
from doppler.first_run import compile_ahead
from doppler.precompile import compile_part

if __name__ == "__main__":
    compile_ahead(["clustering"], Console())
    print(compile_part("clustering"))
"""
    (tmp_path / "script.py").write_text(code)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    outs = [
        subprocess.run(
            [sys.executable, str(tmp_path / "script.py")],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    ]
    assert "compiling, once on this machine, 1 parts: about" in outs[0] or os.cpu_count() == 1
    assert all("clustering: nothing to compile" in out for out in outs)
    assert "compiling" not in outs[1]
