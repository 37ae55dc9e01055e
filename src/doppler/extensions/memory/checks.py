"""Proves that a plan is safe in any order of its execution: slow, and meant to be readable.

The check uses nothing of the planner but the plan. A task is *before* another if it ends before the
other starts in every execution, because a chain of waits leads from one to the other.
"""

from collections import defaultdict
from graphlib import CycleError, TopologicalSorter

import numpy as np
from numpy.typing import NDArray

from doppler.extensions.memory.arrays import EVICT, FREE, LOAD, MOVE, OP, RECOMPUTE
from doppler.extensions.memory.plans import KINDS, MemoryPlan


def violations(plan: MemoryPlan) -> list[str]:
    """Return one line for each rule that some order of execution could break.

    Args:
        plan: to check.

    Returns:
        The lines; empty for a safe plan.
    """
    before = _precedence(plan)
    if before is None:
        return ["tasks wait for each other in a circle"]
    return [
        *_check_tasks(plan),
        *_check_reads(plan, before),
        *_check_host(plan, before),
        *_check_addresses(plan),
        *_check_rooms(plan, before),
    ]


def check(plan: MemoryPlan) -> None:
    """Raise AssertionError if a plan is not safe.

    Args:
        plan: to check.
    """
    found = violations(plan)
    assert not found, "; ".join(found[:5])


def _precedence(plan: MemoryPlan) -> NDArray[np.bool_] | None:
    """Return whether each task [K, K] is before another or is the same; None for a cycle."""
    waits_for: dict[int, set[int]] = {k: set() for k in range(plan.num_tasks)}
    for one, other in plan.waits.tolist():
        waits_for[other].add(one)
    try:
        order = list(TopologicalSorter(waits_for).static_order())
    except CycleError:
        return None
    before = np.eye(plan.num_tasks, dtype=bool)
    for k in order:
        for one in waits_for[k]:
            before[:, k] |= before[:, one]
    return before


def _check_tasks(plan: MemoryPlan) -> list[str]:
    """Check that every op runs where it is placed, and that regions move to their readers."""
    graph, device_V, found = plan.problem.graph, plan.placement.device, []
    num_ops = graph.num_ops
    if not np.array_equal(plan.kind[:num_ops], np.full(num_ops, OP)):
        found.append("the first tasks are not the ops")
    if not np.array_equal(plan.device[:num_ops], device_V):
        found.append("an op is not where it is placed")
    regions = graph.regions
    wanted = set()
    for r in range(len(regions)):
        home = int(device_V[regions.src[r]])
        for v in regions.consumers[regions.consumer_ptr[r] : regions.consumer_ptr[r + 1]]:
            if int(device_V[v]) != home:
                wanted.add((r, int(device_V[v])))
    moves = np.flatnonzero(plan.kind == MOVE)
    made = {(int(plan.copies.region[plan.made[k]]), int(plan.device[k])) for k in moves}
    if made != wanted or len(moves) != len(wanted):
        found.append("transfers are not those of the placement")
    for k in moves.tolist():
        if plan.source[k] != device_V[regions.src[plan.copies.region[plan.made[k]]]]:
            found.append(f"transfer {k} does not come from the device that computes its region")
    return found


def _reads(plan: MemoryPlan) -> list[set[tuple[str, int, int]]]:
    """Return what each task reads: ("region" or "input", its number, a device)."""
    graph, needs = plan.problem.graph, []
    regions = graph.regions
    reads_of: dict[int, set] = defaultdict(set)
    for e in range(graph.num_edges):
        reads_of[int(graph.edges.dst[e])].add(("region", int(regions.of_edge[e])))
    for i, consumers in enumerate(graph.inputs.consumers):
        for v in consumers:
            reads_of[v].add(("input", i))
    for k in range(plan.num_tasks):
        if plan.kind[k] in (OP, RECOMPUTE):
            d = int(plan.device[k])
            needs.append({(what, number, d) for what, number in reads_of[int(plan.op[k])]})
        elif plan.kind[k] == MOVE:
            r = int(plan.copies.region[plan.made[k]])
            needs.append({("region", r, int(plan.source[k]))})
        else:
            needs.append(set())
    return needs


def _check_reads(plan: MemoryPlan, before: NDArray[np.bool_]) -> list[str]:
    """Check that every task uses copies of all that it reads, after they are written."""
    found, copies = [], plan.copies
    used: dict[int, set] = defaultdict(set)
    for c, k in plan.uses.tolist():
        creator = int(copies.creator[c])
        if creator >= 0 and not before[creator, k]:
            found.append(f"task {k} may read copy {c} before it is written")
        if creator == k:
            found.append(f"task {k} reads copy {c}, which it writes")
        if copies.region[c] >= 0:
            used[k].add(("region", int(copies.region[c]), int(copies.device[c])))
        elif copies.input[c] >= 0:
            used[k].add(("input", int(copies.input[c]), int(copies.device[c])))
    for k, needed in enumerate(_reads(plan)):
        if not needed <= used[k]:
            found.append(
                f"task {k} ({KINDS[int(plan.kind[k])]}) uses no copy of {needed - used[k]}"
            )
    return found


def _datum(plan: MemoryPlan, c: int) -> tuple[int, ...]:
    copies = plan.copies
    return tuple(int(x[c]) for x in (copies.region, copies.input, copies.output, copies.device))


def _check_host(plan: MemoryPlan, before: NDArray[np.bool_]) -> list[str]:
    """Check that only inputs and evicted data are loaded, and that tasks write their own data."""
    found, copies = [], plan.copies
    evicted: dict[tuple, list[int]] = defaultdict(list)
    for k in np.flatnonzero(plan.kind == EVICT).tolist():
        evicted[_datum(plan, int(plan.moved[k]))].append(k)
    for c in range(len(copies)):
        k, datum = int(copies.creator[c]), _datum(plan, c)
        if k < 0:
            if copies.input[c] < 0:
                found.append(f"copy {c} is not an input, but is there from the start")
            continue
        kind = plan.kind[k]
        made = range(int(plan.made[k]), int(plan.made[k]) + int(plan.num_made[k]))
        if c not in made:
            found.append(f"copy {c} is not among those that task {k} writes")
        if kind == LOAD and copies.input[c] < 0:
            if not any(before[one, k] for one in evicted[datum]):
                found.append(f"task {k} loads data that no task has evicted before")
        elif kind in (EVICT, FREE):
            found.append(f"task {k} writes copy {c}, but only evicts or frees")
        elif kind in (OP, RECOMPUTE) and plan.op[k] != _maker(plan, c):
            found.append(f"task {k} writes the output of another op")
    last = plan.problem.arrays.sink_bytes
    for v in np.flatnonzero(np.diff(plan.problem.arrays.region_ptr) == 0).tolist():
        stays = [c for c in np.flatnonzero(copies.output == v) if not copies.gone[c]]
        if last[v] > 0 and not stays and not any(d[2] == v for d in evicted):
            found.append(f"the output of op {v} is not kept")
    return found


def _maker(plan: MemoryPlan, c: int) -> int:
    output, region = int(plan.copies.output[c]), int(plan.copies.region[c])
    return output if output >= 0 else int(plan.problem.arrays.region_src[region])


def _check_addresses(plan: MemoryPlan) -> list[str]:
    """Check that every copy is within its device's memory, and has the size of its data."""
    copies, p, found = plan.copies, plan.problem.arrays, []
    slack = 1e-9 * plan.limit_bytes[copies.device]
    slack = np.where(np.isfinite(slack), slack, 0.0)
    over = copies.address + copies.bytes > plan.limit_bytes[copies.device] + slack
    found += [f"copy {c} exceeds the memory of its device" for c in np.flatnonzero(over)]
    for c in range(len(copies)):
        r, i, v = int(copies.region[c]), int(copies.input[c]), int(copies.output[c])
        size = p.region_bytes[r] if r >= 0 else p.input_bytes[i] if i >= 0 else p.sink_bytes[v]
        if size != copies.bytes[c]:
            found.append(f"copy {c} has {copies.bytes[c]} bytes, not {size}")
    return found


def _check_rooms(plan: MemoryPlan, before: NDArray[np.bool_]) -> list[str]:
    """Check that two copies at common addresses are never there at the same time.

    The last read of one must be before the other is written. Then the copies on a device do not
    overlap at any time of any execution, and are below the limit.
    """
    copies, found = plan.copies, []
    users: dict[int, list[int]] = defaultdict(list)
    for c, k in plan.uses.tolist():
        users[c].append(k)
    for d in range(plan.problem.num_devices):
        there = [
            c for c in np.flatnonzero(copies.device == d).tolist()
            if copies.bytes[c] > 0 and not (copies.creator[c] < 0 and _was_never(plan, c, users))
        ]  # fmt: skip
        there.sort(key=lambda c: copies.address[c])
        slack = 1e-9 * float(copies.bytes[there].max(initial=0.0)) if there else 0.0
        for i, one in enumerate(there):
            end = copies.address[one] + copies.bytes[one] - slack
            for other in there[i + 1 :]:
                if copies.address[other] >= end:
                    break
                if not (_over(plan, one, other, users, before)
                        or _over(plan, other, one, users, before)):  # fmt: skip
                    found.append(f"copies {one} and {other} may overlap on device {d}")
    return found


def _was_never(plan: MemoryPlan, c: int, users: dict[int, list[int]]) -> bool:
    """Whether a copy is an input that was evicted before anything read it, so never existed."""
    return bool(plan.copies.gone[c]) and not users[c]


def _over(
    plan: MemoryPlan, one: int, other: int, users: dict[int, list[int]], before: NDArray[np.bool_]
) -> bool:
    """Whether, in every execution, one copy is used last before the other is written."""
    written = int(plan.copies.creator[other])
    if written < 0 or not plan.copies.gone[one]:
        return False
    last = users[one] or [int(plan.copies.creator[one])]
    return all(k != written and before[k, written] for k in last)
