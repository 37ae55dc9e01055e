"""Random plans for the tests of memory, and a run of one in any order."""

from dataclasses import replace

import numpy as np
from problems import hosted_problem, random_problem

from doppler.extensions.memory import MemoryPlan, Offload
from doppler.extensions.memory.arrays import FREE, op_need_bytes
from doppler.extensions.memory.events import bytes_in_use
from doppler.problem import Placement, Problem
from doppler.simulator import WorkConserving


def some_problem(rng: np.random.Generator) -> Problem:
    """On one host or several, with ties or without."""
    seed, costs = int(rng.integers(2**31)), str(rng.choice(["tied", "distinct"]))
    if rng.random() < 0.2:
        return hosted_problem(seed, costs=costs)
    return random_problem(seed, costs=costs, given_costs=bool(rng.random() < 0.2))


def some_placement(problem: Problem, rng: np.random.Generator) -> Placement:
    """Any devices that run the ops, in any order."""
    able_VD = np.isfinite(problem.arrays.op_seconds)
    device_V = np.array([rng.choice(np.flatnonzero(able_D)) for able_D in able_VD])
    return Placement.make(problem, device_V, rng.permutation(problem.num_ops))


def limited(problem: Problem, placement: Placement, share: float) -> Problem:
    """The problem with limits between what its ops need each, share 0, and all that is held, 1."""
    p, device_V = problem.arrays, placement.device
    free = replace(problem, arrays=p._replace(memory_bytes=np.full(problem.num_devices, np.inf)))
    with WorkConserving(queue="fifo").open(free, num_threads=1) as session:
        held_D = session.measure(device_V[None]).peak_bytes[0]
    least_D = np.zeros(problem.num_devices)
    np.maximum.at(least_D, device_V, op_need_bytes(p)[device_V >= 0])
    limit_D = np.maximum(least_D, least_D + share * (held_D - least_D))
    if (p.region_bytes % 1 == 0).all():
        limit_D = np.ceil(limit_D)
    return replace(problem, arrays=p._replace(memory_bytes=limit_D))


def some_offload(rng: np.random.Generator) -> Offload:
    """Any of the ways to plan."""
    return Offload(
        victim=str(rng.choice(["farthest", "least_recent", "cheapest", "balanced"])),
        ahead=int(rng.choice([0, 0, 1, 5])),
        tries=int(rng.choice([1, 2, 5])),
        recompute=bool(rng.random() < 0.5),
    )


def run_in_any_order(plan: MemoryPlan, rng: np.random.Generator) -> np.ndarray:
    """Peaks [D] of a run in which ready tasks start, and running ones end, in random order."""
    num = plan.num_tasks
    waits, after = np.zeros(num, int), [[] for _ in range(num)]
    for one, other in plan.waits.tolist():
        waits[other] += 1
        after[one].append(other)
    start, finish, now = np.zeros(num), np.zeros(num), 0.0
    ready, running = [k for k in range(num) if waits[k] == 0], []
    while ready or running:
        now += 1.0
        if ready and (not running or rng.random() < 0.6):
            k = ready.pop(int(rng.integers(len(ready))))
            start[k] = now
            running.append(k)
            continue
        k = running.pop(int(rng.integers(len(running))))
        finish[k] = now
        for other in after[k]:
            waits[other] -= 1
            if waits[other] == 0:
                ready.append(other)
    assert (finish >= start).all()
    assert (finish[plan.kind != FREE] > 0).all(), "some task never runs"
    held = bytes_in_use(plan, start, finish)
    return np.array([rows[:, 1].max(initial=0.0) for rows in held])
