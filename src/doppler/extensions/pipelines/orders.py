"""Orders of actions on a pipeline's devices: converts them to placements and back, with checks.

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
    """Return the graph of a problem, which has to be a pipeline.

    Args:
        problem: whose graph it is.

    Raises:
        InputError: it is another graph.
    """
    if not isinstance(problem.graph, PipelineGraph):
        raise InputError(
            f"graph {problem.graph.name!r}: not a pipeline (workload=pipeline_parallel)"
        )
    return problem.graph


def orders_of(trace: Trace) -> Orders:
    """Return what each device does, by start.

    Microbatches are interchangeable. So those of each stage are renumbered to be in order: nothing
    starts later, and torch's runtime requires it.

    Args:
        trace: of a pipeline.
    """
    actions, placement = pipeline_of(trace.problem).actions, trace.placement
    orders: Orders = [[] for _ in range(trace.problem.num_devices)]
    for v in np.lexsort((placement.priority, trace.op_start_s)):
        orders[placement.device[v]].append(actions[v])
    return [renumbered(order) for order in orders]


def renumbered(order: list[Action]) -> list[Action]:
    """Renumber microbatches from 0 on, for each kind of action of each stage.

    Args:
        order: actions of a device.
    """
    count: Counter[tuple[int, str]] = Counter()
    found = []
    for action in order:
        found.append(action._replace(microbatch=count[action.stage, action.kind]))
        count[action.stage, action.kind] += 1
    return found


def placement_of_orders(problem: Problem, orders: Orders) -> Placement:
    """Return the placement whose strict execution follows given orders.

    Args:
        problem: of a pipeline.
        orders: what each device does.

    Raises:
        InputError: an action is missing, unknown or repeated, a stage is on two devices, there are
            more orders than devices, or they wait for each other in a circle.
    """
    graph = pipeline_of(problem)
    if len(orders) > problem.num_devices:
        raise InputError(f"{len(orders)} ranks are too many for {problem.num_devices} devices")
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
    """Return ranks [V] in which every op comes after its inputs and after the op before it.

    Ops are ranked by when they would start if no transfer waited for another.
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
    """Replace every B by I, followed directly by W.

    Args:
        orders: what each device does.
    """
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
    """Return which backwards [S, M] are B.

    Args:
        orders: what each device does.
        num_stages: S.
        microbatches: M.
    """
    whole = {(one.stage, one.microbatch) for order in orders for one in order if one.kind == "B"}
    return np.array([[(s, m) in whole for m in range(microbatches)] for s in range(num_stages)])
