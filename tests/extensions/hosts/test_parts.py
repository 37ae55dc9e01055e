"""Placements cut by host: played by clocks, agents together do what one dispatcher does."""

import heapq
from itertools import pairwise

import numpy as np
import pytest
from problems import hosted_problem, random_placement, random_problem
from test_dispatcher import seconds_of

from doppler.executor.dispatcher import Dispatcher
from doppler.executor.tasks import Unroller
from doppler.extensions.hosts.emulation import OutletDispatcher
from doppler.extensions.hosts.parts import IN, OUT, cut_by_host, merged
from doppler.problem.transfer_kernels import move_seconds
from doppler.simulator import WorkConserving

NUM_PROBLEMS = 60


def play(parts, dispatchers, seconds):
    """Agents by one clock: what one sends has arrived when it is sent; start and finish of each.

    All that ends at an instant is retired everywhere before anything starts.
    """
    local = [{int(task): i for i, task in enumerate(part.task)} for part in parts]
    receiver = {
        int(part.task[part.num_ops + t]): int(part.peer[t])
        for part in parts
        for t in np.flatnonzero(part.way == OUT)
    }
    running: list[tuple[float, int, int]] = []
    now = 0.0
    while True:
        for rank, dispatcher in enumerate(dispatchers):
            for task in dispatcher.start(now):
                end = now + seconds[int(parts[rank].task[task])]
                heapq.heappush(running, (end, rank, task))
        if not running:
            break
        now = running[0][0]
        while running and running[0][0] == now:
            _, rank, task = heapq.heappop(running)
            dispatchers[rank].retire(task, now)
            number = int(parts[rank].task[task])
            if number in receiver:
                other = receiver[number]
                dispatchers[other].retire(local[other][number], now)
    return [(np.array(one.start_s), np.array(one.finish_s)) for one in dispatchers]


def of_all_agents(problem, placement, queue, agent_of, make):
    tasks = Unroller(problem.graph, problem.num_devices).work_conserving(
        placement.device.tolist(), placement.priority.tolist(), queue=queue
    )
    if tasks.wait_for_themselves():
        return tasks, None
    parts = cut_by_host(tasks, agent_of, max(agent_of) + 1)
    dispatchers = [make(part.tasks(problem.num_devices)) for part in parts]
    seconds = [
        *problem.arrays.op_seconds[np.arange(tasks.num_ops), placement.device],
        *(
            move_seconds(problem.arrays, region, *tasks.channel(task))
            for task, region in enumerate(tasks.region, start=tasks.num_ops)
        ),
    ]
    return tasks, merged(tasks, parts, play(parts, dispatchers, seconds))


@pytest.mark.parametrize("queue", ["priority", "fifo", "strict"])
def test_agents_together_do_what_one_dispatcher_does(queue):
    circles = 0
    for seed in range(NUM_PROBLEMS):
        problem = random_problem(seed, costs="distinct")
        placement = random_placement(problem, seed)
        rng = np.random.default_rng(seed)
        num = int(rng.integers(1, problem.num_devices + 1))
        agent_of = rng.permutation(
            [*range(num), *rng.integers(num, size=problem.num_devices - num)]
        )
        tasks, times = of_all_agents(
            problem,
            placement,
            queue,
            agent_of.tolist(),
            lambda part: Dispatcher(part, fifo=queue == "fifo"),
        )
        with WorkConserving(queue=queue).open(problem) as session:
            if times is None:
                circles += 1
                measured = session.measure(placement.device[None], placement.priority[None])
                assert not measured.feasible[0]
                continue
            expected = session.trace(placement)
        np.testing.assert_allclose(times.finish_s[: tasks.num_ops], expected.op_finish_s)
        assert times.late_s == times.under_way_s == 0.0
    assert (circles > 0) == (queue == "strict")


@pytest.mark.parametrize("queue", ["priority", "fifo"])
def test_between_two_hosts_the_senders_interfaces_are_all_there_is_to_wait_for(queue):
    """A transfer between two hosts holds as many interfaces of the one as of the other."""
    crossing = 0
    for seed in range(6 * NUM_PROBLEMS):
        problem = hosted_problem(seed, costs="distinct")
        if problem.cluster.num_hosts != 2:
            continue
        hosts, nics = list(problem.cluster.hosts), problem.cluster.nics
        placement = random_placement(problem, seed)
        tasks, times = of_all_agents(
            problem,
            placement,
            queue,
            hosts,
            lambda part, hosts=hosts, nics=nics: OutletDispatcher(
                part, fifo=queue == "fifo", host_D=hosts, nics=nics
            ),
        )
        with WorkConserving(queue=queue).open(problem) as session:
            expected = session.trace(placement)
        np.testing.assert_allclose(times.finish_s[: tasks.num_ops], expected.op_finish_s)
        crossing += sum(
            hosts[s] != hosts[d]
            for s, d in map(tasks.channel, range(tasks.num_ops, len(tasks.resource)))
        )
    assert crossing > 100


def test_every_task_is_of_one_agent_and_what_crosses_of_two():
    problem = random_problem(3, num_devices=4)
    placement = random_placement(problem, 3)
    tasks = Unroller(problem.graph, 4).work_conserving(
        placement.device.tolist(), placement.priority.tolist()
    )
    parts = cut_by_host(tasks, [0, 0, 1, 1], 2)
    told = np.concatenate([part.task for part in parts])
    crosses = [
        task
        for task in range(tasks.num_ops, len(tasks.resource))
        if (tasks.channel(task)[0] < 2) != (tasks.channel(task)[1] < 2)
    ]
    assert len(crosses) > 0
    assert sorted(told.tolist()) == sorted([*range(len(tasks.resource)), *crosses])
    coming = np.concatenate([part.task[part.num_ops :][part.way == IN] for part in parts])
    assert sorted(coming.tolist()) == crosses


def test_what_was_sent_behind_another_message_begins_when_that_has_arrived():
    problem = random_problem(3, num_devices=2)
    placement = random_placement(problem, 3)
    tasks = Unroller(problem.graph, 2).work_conserving(
        placement.device.tolist(), placement.priority.tolist()
    )
    parts = cut_by_host(tasks, [0, 1], 2)
    seconds = seconds_of(problem, tasks)
    played = play(parts, [Dispatcher(part.tasks(2), fifo=False) for part in parts], seconds)
    for part, (_, finish_N) in zip(parts, played, strict=True):
        finish_N[part.num_ops :][part.way == IN] += 100.0  # the network is slow
    times = merged(tasks, parts, played)
    assert times.under_way_s == pytest.approx(100.0)
    for channel in set(tasks.resource[tasks.num_ops :]):
        on = [k for k in range(tasks.num_ops, len(tasks.resource)) if tasks.resource[k] == channel]
        spans = sorted((times.start_s[k], times.finish_s[k]) for k in on)
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
