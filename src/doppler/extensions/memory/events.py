"""Traces of plans: ops and transfers, and the events that the memory plan added.

Shape suffixes: V ops, T transfers, M further tasks, K tasks, D devices.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from doppler.extensions.memory.arrays import EVICT, FREE, NOTHING, PlanState
from doppler.extensions.memory.plans import KINDS, MemoryPlan
from doppler.trace import ExecutionRules, MemoryEvents, Trace

FloatArray = NDArray[np.float64]


def planned_trace(m: PlanState, plan: MemoryPlan, execution: ExecutionRules) -> Trace:
    """Return the trace of a simulated plan.

    Args:
        m: state that holds the plan and its run.
        plan: that was run.
        execution: rules of the system.
    """
    tasks = m.run.tasks[: plan.num_tasks]
    return make_trace(
        plan,
        tasks["start"].copy(),
        tasks["finish"].copy(),
        system_kind="simulated",
        execution=execution,
        stream=tasks["stream"].astype(np.int64),
        inlet=tasks["inlet"].astype(np.int64),
        peak_bytes=m.devices["peak"].copy(),
    )


def make_trace(
    plan: MemoryPlan,
    start_K: FloatArray,
    finish_K: FloatArray,
    *,
    system_kind: Literal["simulated", "measured"],
    execution: ExecutionRules,
    stream: NDArray[np.int64],
    inlet: NDArray[np.int64],
    peak_bytes: FloatArray | None = None,
) -> Trace:
    """Return the trace of an executed plan.

    Args:
        plan: that was executed.
        start_K: start of each task, seconds.
        finish_K: finish of each task, seconds.
        system_kind: whether the times are simulated or measured.
        execution: rules of the system.
        stream: [K] stream of each op; outgoing interface of each transfer between hosts.
        inlet: [K] incoming interface of each transfer between hosts.
        peak_bytes: [D] peak memory; computed from the times of the tasks unless given.
    """
    problem, num_ops = plan.problem, plan.problem.num_ops
    num_moves = plan.count(1)
    moves = slice(num_ops, num_ops + num_moves)
    src_T, dst_T = plan.source[moves], plan.device[moves]
    crosses_T = problem.cluster.between_hosts[src_T, dst_T] & (execution.contention != "none")
    in_use = bytes_in_use(plan, start_K, finish_K)
    if peak_bytes is None:
        peak_bytes = np.array([rows[:, 1].max(initial=0.0) for rows in in_use])
    return Trace(
        problem=problem,
        placement=plan.placement,
        system_kind=system_kind,
        rules=execution,
        op_stream=stream[:num_ops],
        op_start_s=start_K[:num_ops],
        op_finish_s=finish_K[:num_ops],
        transfer_region=plan.copies.region[plan.made[moves]],
        transfer_src=src_T,
        transfer_dst=dst_T,
        transfer_start_s=start_K[moves],
        transfer_finish_s=finish_K[moves],
        peak_bytes=peak_bytes,
        transfer_outlet=np.where(crosses_T, stream[moves], -1),
        transfer_inlet=np.where(crosses_T, inlet[moves], -1),
        memory=_events(plan, start_K, finish_K, stream, in_use),
    )


def _events(
    plan: MemoryPlan,
    start_K: FloatArray,
    finish_K: FloatArray,
    stream: NDArray[np.int64],
    in_use: tuple[FloatArray, ...],
) -> MemoryEvents:
    """Return the events of the plan. FREE tasks are replaced by the tasks that they wait for."""
    shown = np.flatnonzero(plan.kind != FREE)
    number = np.full(plan.num_tasks, NOTHING)
    number[shown] = np.arange(len(shown))
    last = np.full(plan.num_tasks, NOTHING)
    for one, other in plan.waits[np.argsort(plan.kind[plan.waits[:, 1]] != FREE, kind="stable")]:
        if plan.kind[one] == FREE:  # its own waits come earlier in this loop
            one = last[one]
        if one >= 0 and (last[other] < 0 or finish_K[one] > finish_K[last[other]]):
            last[other] = one
    ready_K = np.where(last >= 0, finish_K[last], 0.0)
    extra = shown[shown >= plan.problem.num_ops + plan.count(1)]
    subject = np.where(plan.kind[extra] == EVICT, plan.moved[extra], plan.made[extra])
    graph, copies = plan.problem.graph, plan.copies
    return MemoryEvents(
        kinds=tuple(KINDS[int(k)] for k in plan.kind[extra]),  # pyright: ignore[reportArgumentType]
        ops=plan.op[extra],
        names=tuple(
            graph.inputs.names[copies.input[c]] if copies.input[c] >= 0 else graph.ops.names[v]
            for c, v in zip(subject, plan.op[extra], strict=True)
        ),
        device=plan.device[extra],
        stream=stream[extra],
        bytes=copies.bytes[subject],
        start_s=start_K[extra],
        finish_s=finish_K[extra],
        ready_s=ready_K[shown],
        last=np.where(last[shown] >= 0, number[last[shown]], NOTHING),
        in_use=in_use,
        limit_bytes=plan.limit_bytes,
        offloaded_bytes=plan.offloaded_bytes,
    )


def bytes_in_use(
    plan: MemoryPlan, start_K: FloatArray, finish_K: FloatArray
) -> tuple[FloatArray, ...]:
    """Return how many bytes are in use on each device, over time.

    A copy takes memory from the start of the task that writes it until all tasks that read it have
    ended. At one instant, memory is released before it is taken.

    Args:
        plan: that was executed.
        start_K: start of each task, seconds.
        finish_K: finish of each task, seconds.

    Returns:
        For each device rows of (seconds, bytes in use from then on).
    """
    copies = plan.copies
    born = np.where(copies.creator >= 0, start_K[copies.creator], 0.0)
    dies = np.where(copies.creator >= 0, finish_K[copies.creator], 0.0)
    is_used = np.zeros(len(copies), bool)
    for c, k in plan.uses.tolist():
        dies[c] = max(dies[c], finish_K[k])
        is_used[c] = True
    dies = np.where(copies.gone, dies, np.inf)
    there = (copies.creator >= 0) | is_used | ~copies.gone
    found = []
    for d in range(plan.problem.num_devices):
        on = there & (copies.device == d)
        times = np.concatenate([dies[on], born[on]])
        change = np.concatenate([-copies.bytes[on], copies.bytes[on]])
        order = np.lexsort((change, times))
        order = order[np.isfinite(times[order])]
        found.append(np.stack([times[order], change[order].cumsum()], axis=1))
    return tuple(found)
