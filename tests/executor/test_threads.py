"""Execution on threads: right results, right traces, clear failures, nothing left behind."""

import os
import resource
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from executions import WORKLOADS, check_runs, graph, ordered_placement, problem
from problems import REPOSITORY, graph_of, random_placement

from doppler.baselines import HEFT
from doppler.baselines.naive import random_devices
from doppler.cluster import host
from doppler.executor import ExecutionError, SynchronousThreads, Threads, devices, memory
from doppler.executor.memory import Memory
from doppler.problem import Placement, Problem, build
from doppler.support.errors import InputError
from doppler.trace import check

SYSTEMS = [Threads(), Threads(queue="fifo"), Threads(queue="strict"), SynchronousThreads()]


def executor_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "executor"]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    assert not executor_threads()
    yield
    deadline = time.monotonic() + 5
    while executor_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not executor_threads()


# --- Results and traces ---------------------------------------------------------------------------


def test_groups_and_pins_hold_where_ops_are_executed():
    plain = graph("chainmm")
    label_V = np.arange(plain.num_ops) // 4
    ops = replace(plain.ops, group=label_V, pinned=np.where(label_V == 1, 0, -1))
    restricted = build(replace(plain, ops=ops), host(num_devices=2))
    rng = np.random.default_rng(0)
    legal_BV = random_devices(restricted, 3, rng)
    assert (legal_BV[:, label_V == 1] == 0).all() and (legal_BV == 1).any()
    moved_V = np.where(label_V == 1, 1, legal_BV[0])
    parted_V = legal_BV[0].copy()
    parted_V[0] = 1 - parted_V[0]
    with Threads(verify=True).open(restricted) as session:
        measured = session.measure(np.stack([*legal_BV, moved_V, parted_V]))
        assert measured.feasible.tolist() == [True] * 3 + [False] * 2
        assert np.isfinite(measured.seconds[:, 0]).tolist() == [True] * 3 + [False] * 2
        check(session.trace(Placement.make(restricted, legal_BV[1])))
        found = HEFT(evaluations=3).place(session, rng)
    assert restricted.allows(found.placement.device[None]).all()
    for device_V in (moved_V, parted_V):
        with pytest.raises(InputError, match="placement: op"):
            Placement.make(restricted, device_V)


@pytest.mark.parametrize("name", WORKLOADS)
def test_results_and_traces_are_right(name):
    check_runs(name, 2, Threads(), range(2))


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: f"{system.name}-{system.queue}")
def test_every_system_is_right_on_more_devices_than_cores(system):
    check_runs("cholesky", 4, system, range(3))


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: f"{system.name}-{system.queue}")
@pytest.mark.parametrize("num_devices", [2, 4])
@pytest.mark.parametrize("name", WORKLOADS)
def test_results_and_traces_of_50_placements_are_right(name, num_devices, system):
    check_runs(name, num_devices, system, range(50))


@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_priorities_is_executed(seed):
    of = problem("cholesky")
    with Threads(verify=True).open(of) as session:
        check(session.trace(random_placement(of, seed)))


def test_every_device_computes_in_a_memory_of_its_own():
    of = problem("cholesky")
    with Threads().open(of) as session:
        one, other = session._memory._results
        assert one.keys() == other.keys() == set(range(of.num_ops))
        addresses = [
            {t.untyped_storage().data_ptr() for t in each.values()} for each in (one, other)
        ]
        assert not addresses[0] & addresses[1]
        session._memory.wipe()
        session.trace(Placement.make(of, np.ones(of.num_ops, dtype=np.int64)))
        assert all(result.isnan().all() for result in one.values())
        assert not any(result.isnan().any() for result in other.values())


def test_nothing_is_allocated_from_run_to_run():
    of = problem("cholesky")
    placement = ordered_placement(of, 0)
    with Threads().open(of) as session:
        session.trace(placement)
        before = [t.data_ptr() for each in session._memory._results for t in each.values()]
        session.trace(placement)
        assert before == [t.data_ptr() for each in session._memory._results for t in each.values()]


def test_verification_finds_what_did_not_run(monkeypatch):
    of = problem("cholesky")
    placement = ordered_placement(of, 0)
    real = Memory.actions
    last = int(np.argmax(placement.priority))

    def lazy(self, tasks):
        actions = real(self, tasks)
        actions[last] = lambda: None
        return actions

    with Threads(verify=True).open(of) as session:
        session.trace(placement)
        monkeypatch.setattr(Memory, "actions", lazy)
        with pytest.raises(ExecutionError, match="result 'distance': differs from plain torch"):
            session.trace(placement)
    with Threads(verify=False).open(of) as session:
        session.trace(placement)


# --- Measuring ------------------------------------------------------------------------------------


def test_measurements_are_those_of_the_protocol():
    of = problem("cholesky")
    rng = np.random.default_rng(0)
    device_BV = rng.integers(2, size=(3, of.num_ops))
    with Threads().open(of) as session:
        measured = session.measure(device_BV, repeats=4)
        assert session.evaluations == 12
        assert measured.seconds.shape == (3, 4)
        assert (measured.seconds > 0).all()
        assert len(np.unique(measured.seconds)) > 1
        assert measured.feasible.all()
        assert measured.peak_bytes.shape == (3, 2)
        alone = session.measure(np.zeros((1, of.num_ops), dtype=np.int64))
        assert alone.peak_bytes[0, 0] > 0
        assert alone.peak_bytes[0, 1] == 0


def test_repeats_are_interleaved(monkeypatch):
    of = problem("cholesky")
    device_BV = np.stack([np.full(of.num_ops, d) for d in (0, 1)])
    executed = []
    with Threads().open(of) as session:
        real = session._execute

        def watched(device_V, priority_V):
            executed.append(int(device_V[0]))
            return real(device_V, priority_V)

        monkeypatch.setattr(session, "_execute", watched)
        session.measure(device_BV, repeats=3)
    assert executed == [0, 1] * 3


def test_what_a_device_cannot_run_or_hold_is_infeasible():
    of = problem("cholesky")
    kind = graph("cholesky").ops.kinds[0]
    of.arrays.op_seconds[np.array(graph("cholesky").ops.kinds) == kind, 1] = np.inf
    of.arrays.memory_bytes[0] = 10.0
    device_BV = np.stack([np.full(of.num_ops, d) for d in (0, 1)])
    with Threads().open(of) as session:
        measured = session.measure(device_BV, repeats=2)
    assert measured.feasible.tolist() == [False, False]
    assert np.isfinite(measured.seconds[0]).all(), "it ran, in more memory than the device has"
    assert np.isinf(measured.seconds[1]).all()


def backwards(of: Problem) -> Placement:
    device_V = np.zeros(of.num_ops, dtype=np.int64)
    straight = Placement.make(of, device_V).priority
    return Placement.make(of, device_V, of.num_ops - 1 - straight)


def test_a_strict_order_that_waits_for_itself_is_infeasible():
    of = problem("cholesky")
    bad = backwards(of)
    with Threads(queue="strict").open(of) as session:
        measured = session.measure(bad.device[None], bad.priority[None])
        assert not measured.feasible[0]
        with pytest.raises(InputError, match="placement: never finishes: its strict order waits"):
            session.trace(bad)
        check(session.trace(ordered_placement(of, 0)))
    with Threads().open(of) as session:
        check(session.trace(bad))


def test_a_placement_for_another_problem_is_refused():
    with (
        Threads().open(problem("cholesky")) as session,
        pytest.raises(InputError, match="placement: made for problem"),
    ):
        session.trace(ordered_placement(problem("ffnn"), 0))


# --- Failures -------------------------------------------------------------------------------------


def failing_at(op: int, device: int, action, monkeypatch) -> None:
    """From now on, the op does something else there, after it has been planned."""
    real = Memory.actions

    def actions(self, tasks):
        result = real(self, tasks)
        if tasks.resource[op] == device:
            result[op] = action
        return result

    monkeypatch.setattr(Memory, "actions", actions)


def fail() -> None:
    raise RuntimeError("first line\nsecond line")


def test_an_op_that_raises_is_named_and_the_session_goes_on(monkeypatch):
    of = problem("cholesky")
    with Threads().open(of) as session:
        placement = ordered_placement(of, 0)
        d = int(placement.device[5])
        with monkeypatch.context() as patch:
            failing_at(5, d, fail, patch)
            with pytest.raises(ExecutionError) as error:
                session.trace(placement)
        name = of.graph.ops.names[5]
        assert str(error.value) == (f"op 5 ({name!r}) on device cpu:{d}: RuntimeError: first line")
        check(session.trace(placement))


def transfers_that(action, monkeypatch) -> None:
    """From now on, transfers do something else."""
    real = Memory.actions

    def actions(self, tasks):
        return [*real(self, tasks)[: tasks.num_ops], *[action] * tasks.num_transfers]

    monkeypatch.setattr(Memory, "actions", actions)


def test_a_transfer_that_raises_is_named_and_the_session_goes_on(monkeypatch):
    of = problem("cholesky")
    with Threads().open(of) as session:
        with monkeypatch.context() as patch:
            transfers_that(fail, patch)
            pattern = r"transfer of op \d+ \('.*'\) from device cpu:. to cpu:.: RuntimeError: first"
            with pytest.raises(ExecutionError, match=pattern):
                session.trace(ordered_placement(of, 0))
        check(session.trace(ordered_placement(of, 0)))


def test_a_transfer_that_hangs_is_named_although_ops_wait_behind_it(monkeypatch):
    of = problem("cholesky")
    hang = threading.Event()
    session = Threads(timeout_s=0.2).open(of)
    transfers_that(hang.wait, monkeypatch)
    with pytest.raises(ExecutionError, match=r"transfer of op \d+ .*: still runs after 0.2 s"):
        session.trace(ordered_placement(of, 0))
    session.close()
    hang.set()


def test_an_op_that_hangs_is_named_and_holds_nothing_up(monkeypatch):
    of = problem("cholesky")
    hang = threading.Event()
    session = Threads(timeout_s=0.2).open(of)
    placement = ordered_placement(of, 0)
    failing_at(7, int(placement.device[7]), hang.wait, monkeypatch)
    with pytest.raises(
        ExecutionError, match=r"op 7 \(.*\) on device cpu:.: still runs after 0.2 s"
    ):
        session.trace(placement)
    with pytest.raises(ExecutionError, match="a task of this session hangs: no other can be"):
        session.trace(placement)
    session.close()
    assert executor_threads(), "the one that hangs"
    hang.set()


HANGING = """
import threading
from doppler.cluster import host
from doppler.einsum import load_program, lower
from doppler.executor import Threads
from doppler.executor.memory import Memory
from doppler.problem import build
import numpy as np

program = load_program("workloads/cholesky.einsum", preset="small")
problem = build(lower(program, program.given_splits), host(num_devices=2))
session = Threads(timeout_s=0.2, warm_up=0).open(problem)
Memory.actions = lambda self, tasks: [threading.Event().wait] * len(tasks.resource)
session.measure(np.zeros((1, problem.num_ops), dtype=np.int64))
"""


@pytest.mark.slow
def test_a_process_ends_although_an_op_hangs():
    done = subprocess.run(
        [sys.executable, "-c", HANGING],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "ExecutionError: op " in last
    assert last.endswith("still runs after 0.2 s")


def test_a_slow_run_of_quick_ops_is_no_hang(monkeypatch):
    of = problem("cholesky")
    with Threads(timeout_s=0.1).open(of) as session:
        monkeypatch.setattr(
            Memory,
            "actions",
            lambda self, tasks: [partial(time.sleep, 0.005)] * len(tasks.resource),
        )
        trace = session.trace(Placement.make(of, np.zeros(of.num_ops, dtype=np.int64)))
    assert trace.makespan_s > 0.1


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 bytes")]
)
def test_a_device_out_of_memory_is_named_already_when_memory_is_planned(monkeypatch, error):
    of = problem("cholesky")

    def no_room(kernel, reads, pieces, *, device):
        raise error

    monkeypatch.setattr(memory, "assemble", no_room)
    with pytest.raises(ExecutionError, match=r"op 0 \(.*\) on device cpu:0: out of memory"):
        Threads().open(of)


def test_a_graph_larger_than_the_machine_is_refused_before_it_takes_any_memory(monkeypatch):
    of = problem("chainmm", 4)
    monkeypatch.setattr(devices.os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}.get)
    with pytest.raises(InputError) as error:
        Threads().open(of)
    assert str(error.value) == (
        "graph 'chainmm': needs 0.0178 GB on device 0, which has 0.00102 GB "
        "(workload.preset=small is smaller)"
    )


def test_graphs_that_do_not_say_what_they_compute_are_refused():
    of = build(graph_of([1, 1], [(0, 1, 4)]), host(num_devices=2))
    with pytest.raises(InputError, match="graph 'test' cannot be executed"):
        Threads().open(of)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"queue": "random"}, "Threads.queue: must be one of priority, fifo, strict, got 'random'"),
        ({"verify": "maybe"}, "Threads.verify: must be true or false, got 'maybe'"),
        ({"timeout_s": 0}, "Threads.timeout_s: must be a number above 0, at most 1e9, got 0"),
        (
            {"timeout_s": np.inf},
            "Threads.timeout_s: must be a number above 0, at most 1e9, got inf",
        ),
        (
            {"timeout_s": "long"},
            "Threads.timeout_s: must be a number above 0, at most 1e9, got 'long'",
        ),
        ({"warm_up": -1}, "Threads.warm_up: must be a whole number of at least 0, got -1"),
        ({"warm_up": 1.5}, "Threads.warm_up: must be a whole number of at least 0, got 1.5"),
    ],
)
def test_settings_out_of_range_are_refused(fields, message):
    with pytest.raises(InputError) as error:
        Threads(**fields)
    assert str(error.value) == message


# --- Nothing is left behind -----------------------------------------------------------------------


def resident_bytes() -> int:
    """What the process holds now: its peak, reached by an earlier test, would hide a leak."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def run_many(num: int) -> tuple[int, int]:
    """Growth of resident memory in bytes, and of the number of threads, over so many runs."""
    of = problem("chainmm", 4)
    rng = np.random.default_rng(0)
    with Threads().open(of) as session:

        def runs(count: int) -> None:
            session.measure(rng.integers(4, size=(count, of.num_ops)))

        runs(25)
        held, threads = resident_bytes(), threading.active_count()
        runs(num)
        return resident_bytes() - held, threading.active_count() - threads


def test_runs_leak_neither_memory_nor_threads():
    grown_bytes, num_threads = run_many(25)
    assert num_threads == 0
    # One copy of the results of a run is 12 MB.
    assert grown_bytes < 12e6


@pytest.mark.slow
def test_1000_runs_leak_neither_memory_nor_threads():
    grown_bytes, num_threads = run_many(1000)
    assert num_threads == 0
    assert grown_bytes < 12e6


def test_a_session_that_nobody_closes_ends_with_its_last_reference():
    session = Threads().open(problem("cholesky"))
    assert executor_threads()
    del session


def test_a_closed_session_says_so():
    of = problem("chainmm", 2)
    with Threads().open(of) as session:
        session.measure(np.zeros((1, of.num_ops), dtype=int))
    with pytest.raises(ExecutionError, match="this session is closed"):
        session.measure(np.zeros((1, of.num_ops), dtype=int))


def test_a_closed_session_that_is_kept_holds_no_memory():
    with Threads().open(problem("cholesky")) as session:
        result = weakref.ref(session._memory.result(0, 0))
        assert result() is not None
    assert result() is None
    assert session.as_executed() is session.problem
