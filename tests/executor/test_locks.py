"""Locks on devices, between processes and within one."""

import logging
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from doppler.cluster import host
from doppler.einsum import load_program, lower
from doppler.executor import ExecutionError, Threads, memory
from doppler.executor.locks import _held, acquire, lock_path, release
from doppler.problem import build
from doppler.support.errors import InputError
from doppler.support.files import lock_file

HOLDER = """
import fcntl, sys
files = [open(path, "w") for path in sys.argv[1:]]
for file in files:
    fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Locks of its own for every test."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.fixture
def hold():
    """hold(*devices): another process takes these devices; returns what ends it."""
    processes = []

    def start(*devices: str):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, *(str(lock_path(device)) for device in devices)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process.kill

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def acquiring(*devices: str) -> threading.Thread:
    thread = threading.Thread(target=acquire, args=(devices,), daemon=True)
    thread.start()
    return thread


def test_a_device_waits_for_the_process_that_has_it_even_if_that_is_killed(hold, caplog):
    kill = hold("cpu-0", "cpu-1")
    with caplog.at_level(logging.WARNING):
        thread = acquiring("cpu-0", "cpu-1")
        thread.join(0.3)
        assert thread.is_alive()
        (told,) = caplog.messages
        assert "device cpu-0: waiting for another run to finish (process " in told
        kill()
        thread.join(10)
    assert not thread.is_alive()
    release(["cpu-0", "cpu-1"])


def test_other_devices_are_free(hold):
    hold("cpu-2")
    acquire(["cpu-0", "cpu-1"])
    release(["cpu-0", "cpu-1"])


def test_sessions_of_one_process_share_devices(hold):
    acquire(["cpu-0", "cpu-1"])
    acquire(["cpu-0"])
    release(["cpu-0", "cpu-1"])
    assert list(_held) == ["cpu-0"]
    hold("cpu-1")
    release(["cpu-0"])
    assert not _held
    hold("cpu-0")


def test_released_devices_leave_no_file_open():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        acquire(["cpu-0", "cpu-1"])
        release(["cpu-0", "cpu-1"])
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_session_holds_its_devices_from_open_to_close(hold):
    program = load_program("workloads/cholesky.einsum", preset="small")
    of = build(lower(program, program.given_splits), host(num_devices=2))
    with Threads().open(of) as session:
        assert sorted(_held) == ["cpu-0", "cpu-1"]
        session.measure(np.zeros((1, of.num_ops), dtype=np.int64))
    assert not _held
    kill = hold("cpu-1")
    opened = []
    waiting = threading.Thread(target=lambda: opened.append(Threads().open(of)), daemon=True)
    waiting.start()
    time.sleep(0.3)
    assert not opened
    kill()
    waiting.join(10)
    opened[0].close()
    assert not _held


def test_a_session_that_cannot_be_opened_holds_nothing(monkeypatch):
    def fail(*_, **__):
        raise MemoryError

    program = load_program("workloads/cholesky.einsum", preset="small")
    of = build(lower(program, program.given_splits), host(num_devices=2))
    monkeypatch.setattr(memory, "assemble", fail)
    with pytest.raises(ExecutionError):
        Threads().open(of)
    assert not _held


def pipe(path):
    os.mkfifo(path)


def link(path):
    path.symlink_to(path.with_name("precious"))


@pytest.mark.parametrize("make", [pipe, link, os.mkdir])
def test_what_is_no_lock_file_is_named_and_not_waited_for(make, tmp_path):
    (tmp_path / "precious").write_text("kept")
    make(lock_path("cpu-0"))
    with pytest.raises(InputError, match=r"doppler-.*-cpu-0\.lock: "):
        acquire(["cpu-0"])
    assert (tmp_path / "precious").read_text() == "kept" and not _held


def test_a_wait_for_another_process_has_an_end_and_names_it(hold):
    hold("cpu-0")
    with pytest.raises(InputError, match=r"cpu: another process runs here, .*\(process \d+\)$"):
        lock_file(lock_path("cpu-0"), "cpu", limit_s=0.1)
