"""Orders of a pipeline's devices: from placements and to them, checked.

Shape suffixes: S stages, V ops, D devices.
"""

from collections import Counter, deque

import numpy as np
from numpy.typing import NDArray

from doppler.extensions.pipelines.stages import Action, Orders, PipelineGraph
from doppler.problem import Placement, Problem
from doppler.support.errors import InputError
from doppler.trace import Trace

IntArray = NDArray[np.int64]


def pipeline_of(problem: Problem) -> PipelineGraph:
    """The graph of the problem, which is a pipeline's.

    Raises:
        InputError: it is another one.
    """
    if not isinstance(problem.graph, PipelineGraph):
        raise InputError(f"graph {problem.graph.name!r}: no pipeline (workload=pipeline_parallel)")
    return problem.graph


def orders_of(trace: Trace) -> Orders:
    """What each device does, by start.

    Microbatches are alike, so of each stage they come in their order: nothing begins later, and
    torch's runtime needs it.
    """
    actions, placement = pipeline_of(trace.problem).actions, trace.placement
    orders: Orders = [[] for _ in range(trace.problem.num_devices)]
    for v in np.lexsort((placement.priority, trace.op_start_s)):
        orders[placement.device[v]].append(actions[v])
    return [renumbered(order) for order in orders]


def renumbered(order: list[Action]) -> list[Action]:
    """The same with microbatches from 0 on, for each kind of each stage."""
    count: Counter[tuple[int, str]] = Counter()
    found = []
    for action in order:
        found.append(action._replace(microbatch=count[action.stage, action.kind]))
        count[action.stage, action.kind] += 1
    return found


def placement_of_orders(problem: Problem, orders: Orders) -> Placement:
    """The placement whose strict execution follows the orders.

    Raises:
        InputError: an action is missing, unknown, or there twice; a stage is on two devices; the
            orders wait for each other.
    """
    graph = pipeline_of(problem)
    index = {action: v for v, action in enumerate(graph.actions)}
    device_V = np.full(graph.num_ops, -1, dtype=np.int64)
    rows = []
    for d, order in enumerate(orders):
        for action in order:
            if action not in index:
                raise InputError(f"device {d}: {action} is not an action of the pipeline")
            if device_V[index[action]] >= 0:
                raise InputError(f"device {d}: {action} is there twice")
            device_V[index[action]] = d
        rows.append([index[action] for action in order])
    missing = np.flatnonzero(device_V < 0)
    if len(missing):
        raise InputError(f"{graph.ops.names[missing[0]]} is on no device")
    return Placement.make(problem, device_V, _ranks(problem, rows))


def _ranks(problem: Problem, rows: list[list[int]]) -> IntArray:
    """Ranks [V] in which no op comes before what it waits for: inputs, and who is before it.

    By when they would end if every transfer took its time at once.
    """
    graph, p = problem.graph, problem.arrays
    next_V, waits_V = (
        np.full(graph.num_ops, -1),
        np.bincount(graph.edges.dst, minlength=graph.num_ops),
    )
    for row in rows:
        next_V[row[:-1]] = row[1:]
        waits_V[row[1:]] += 1
    readers: list[list[tuple[int, float]]] = [[] for _ in range(graph.num_ops)]
    device_V = np.zeros(graph.num_ops, np.int64)
    for d, row in enumerate(rows):
        device_V[row] = d
    moving_E = p.size[graph.regions.of_edge]
    for src, dst, seconds in zip(
        graph.edges.src.tolist(), graph.edges.dst.tolist(), moving_E.tolist(), strict=True
    ):
        readers[src].append((dst, seconds if device_V[src] != device_V[dst] else 0.0))
    start_V, position_V = np.zeros(graph.num_ops), np.zeros(graph.num_ops, np.int64)
    ready, done = deque(np.flatnonzero(waits_V == 0).tolist()), 0
    while ready:
        v = ready.popleft()
        position_V[v], done = done, done + 1
        end = start_V[v] + p.op_seconds[v, device_V[v]]
        after = readers[v] + ([(int(next_V[v]), 0.0)] if next_V[v] >= 0 else [])
        for u, seconds in after:
            start_V[u] = max(start_V[u], end + seconds)
            waits_V[u] -= 1
            if waits_V[u] == 0:
                ready.append(u)
    if done < graph.num_ops:
        v = next(row[i] for row in rows for i in range(len(row)) if waits_V[row[i]] > 0)
        raise InputError(f"the orders wait for each other: {graph.ops.names[v]} never starts")
    rank_V = np.empty(graph.num_ops, np.int64)
    rank_V[np.lexsort((position_V, start_V))] = np.arange(graph.num_ops)
    return rank_V


def split_actions(orders: Orders) -> Orders:
    """Every B as I and, right behind it, W."""
    return [
        [
            part
            for one in order
            for part in (
                [one]
                if one.kind != "B"
                else [
                    Action(one.stage, "I", one.microbatch),
                    Action(one.stage, "W", one.microbatch),
                ]
            )
        ]
        for order in orders
    ]


def fused_of(orders: Orders, num_stages: int, microbatches: int) -> NDArray[np.bool_]:
    """Which backwards [S, M] are B."""
    whole = {(one.stage, one.microbatch) for order in orders for one in order if one.kind == "B"}
    return np.array([[(s, m) in whole for m in range(microbatches)] for s in range(num_stages)])
