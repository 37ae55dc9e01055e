"""The scheduling core, driven by a clock instead of threads: the schedules of the simulators."""

import heapq

import numpy as np
import pytest
from problems import random_placement, random_problem

from doppler.executor.dispatcher import Dispatcher
from doppler.executor.peak import peak_bytes
from doppler.executor.tasks import NOWHERE, Tasks, Unroller
from doppler.problem import Placement, Problem
from doppler.simulator import BulkSynchronous, WorkConserving

NUM_PROBLEMS = 150


def seconds_of(problem: Problem, tasks: Tasks) -> list[float]:
    """What each op and each transfer takes, by the problem."""
    arrays = problem.arrays
    ops = [arrays.op_seconds[v, tasks.resource[v]] for v in range(tasks.num_ops)]
    transfers = []
    for i, r in enumerate(tasks.region):
        pair = tasks.channel(tasks.num_ops + i)
        transfers.append(arrays.latency_s[pair] + arrays.size[r] * arrays.seconds_per_size[pair])
    return [*ops, *transfers]


def play(tasks: Tasks, seconds: list[float], *, fifo: bool = False) -> Dispatcher:
    """A backend whose tasks take exactly so long; all that ends at an instant is retired first."""
    dispatcher = Dispatcher(tasks, fifo=fifo)
    running: list[tuple[float, int]] = []
    started, now = dispatcher.start(0.0), 0.0
    while True:
        for task in started:
            heapq.heappush(running, (now + seconds[task], task))
        if not running:
            return dispatcher
        now = running[0][0]
        while running and running[0][0] == now:
            dispatcher.retire(heapq.heappop(running)[1], now)
        started = dispatcher.start(now)


def cases() -> list[tuple[Problem, Placement]]:
    problems = [random_problem(seed) for seed in range(NUM_PROBLEMS)]
    return [(problem, random_placement(problem, seed)) for seed, problem in enumerate(problems)]


@pytest.mark.parametrize("contention", ["fifo", "sender"])
@pytest.mark.parametrize("queue", ["priority", "fifo", "strict"])
def test_every_event_is_that_of_the_simulator(queue, contention):
    num_deadlocks = 0
    for problem, placement in cases():
        tasks = Unroller(problem.graph, problem.num_devices).work_conserving(
            placement.device.tolist(),
            placement.priority.tolist(),
            queue=queue,
            sender=contention == "sender",
        )
        played = play(tasks, seconds_of(problem, tasks), fifo=queue == "fifo")
        session = WorkConserving(queue=queue, contention=contention).open(problem)
        if np.isnan(played.finish_s).any():
            assert not session.measure(placement.device[None], placement.priority[None]).feasible[0]
            num_deadlocks += 1
            continue
        trace = session.trace(placement)
        num_ops = problem.num_ops
        assert played.start_s[:num_ops] == trace.op_start_s.tolist()
        assert played.finish_s[:num_ops] == trace.op_finish_s.tolist()
        moves = {
            (region, *tasks.channel(num_ops + i)): (
                played.start_s[num_ops + i],
                played.finish_s[num_ops + i],
            )
            for i, region in enumerate(tasks.region)
        }
        assert moves == {
            (r, s, d): (start, finish)
            for r, s, d, start, finish in zip(
                trace.transfer_region.tolist(),
                trace.transfer_src.tolist(),
                trace.transfer_dst.tolist(),
                trace.transfer_start_s.tolist(),
                trace.transfer_finish_s.tolist(),
                strict=True,
            )
        }
    assert (num_deadlocks > 0) == (queue == "strict")


def test_peak_memory_is_that_of_the_simulator():
    for seed in range(NUM_PROBLEMS):
        # Tasks without duration would let the order of simultaneous events count.
        problem = random_problem(seed, costs="distinct")
        placement = random_placement(problem, seed)
        tasks = Unroller(problem.graph, problem.num_devices).work_conserving(
            placement.device.tolist(), placement.priority.tolist()
        )
        played = play(tasks, seconds_of(problem, tasks))
        peak_D = peak_bytes(problem, tasks, np.array(played.start_s), np.array(played.finish_s))
        expected = WorkConserving().open(problem).trace(placement).peak_bytes
        np.testing.assert_array_equal(peak_D, expected)


def test_the_synchronous_makespan_is_that_of_the_simulator():
    num_exchanges = 0
    for seed in range(NUM_PROBLEMS):
        problem = random_problem(seed)
        problem.arrays.latency_s[:] = 0.0  # once per message there, once per region here
        placement = random_placement(problem, seed)
        tasks = Unroller(problem.graph, problem.num_devices).synchronous(placement.device.tolist())
        played = play(tasks, seconds_of(problem, tasks), fifo=True)
        assert not np.isnan(played.finish_s).any()
        expected = BulkSynchronous().open(problem).measure(placement.device[None]).seconds[0, 0]
        assert max(played.finish_s[: problem.num_ops]) == pytest.approx(expected, rel=1e-12)
        num_exchanges += tasks.num_transfers
    assert num_exchanges > 0


def test_barriers_take_no_resource_and_no_time():
    problem = next(p for p, _ in cases() if p.num_devices == 3 and p.graph.num_edges > 5)
    tasks = Unroller(problem.graph, 3).synchronous(random_placement(problem, 0).device.tolist())
    played = play(tasks, seconds_of(problem, tasks), fifo=True)
    barriers = [k for k, resource in enumerate(tasks.resource) if resource == NOWHERE]
    assert barriers
    assert [played.start_s[k] for k in barriers] == [played.finish_s[k] for k in barriers]
    assert sorted(played.finish_s[k] for k in barriers) == [played.finish_s[k] for k in barriers]
