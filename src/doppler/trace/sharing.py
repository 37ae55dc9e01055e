"""How shared resources affected an execution: who used them, how much, and at what cost.

Shape suffixes: V ops, T transfers, D devices.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from doppler.problem.arrays import link_seconds
from doppler.problem.sharing import SharingArrays, max_min_rates
from doppler.trace.events import Trace


@dataclass(frozen=True, kw_only=True)
class SharedUse:
    """How busy a shared resource was.

    Attributes:
        name: of the resource.
        utilisation: share of its capacity over the whole makespan that was used.
    """

    name: str
    utilisation: float


@dataclass(frozen=True)
class FluidTask:
    """An op or a transfer, as far as it uses what is shared.

    Attributes:
        start_s: when it starts.
        begin_s: when it begins to use what is shared: a transfer after its latency.
        finish_s: when it ends.
        alone_s: what it takes from ``begin_s`` on when nothing else runs, at full speed.
        demand: of each shared resource that it uses, how much, at full speed.
        weight: how fast it is alone, see problem/sharing.py.
    """

    start_s: float
    begin_s: float
    finish_s: float
    alone_s: float
    demand: dict[int, float]
    weight: float

    @property
    def slowed_s(self) -> float:
        """How much longer it took than alone, in seconds."""
        return max(0.0, self.finish_s - self.begin_s - self.alone_s)


def fluid_tasks(trace: Trace) -> list[FluidTask]:
    """Return the ops and then the transfers of a simulated trace, also those that share nothing.

    Args:
        trace: of the execution.
    """
    problem, sharing = trace.problem, trace.problem.sharing
    if sharing is None:
        return []
    found, num = [], problem.num_devices
    for v, d in enumerate(trace.placement.device.tolist()):
        amounts = {
            True: float(sharing.op_bytes[v, d]),
            False: float(sharing.op_processors[v, d]),
        }
        found.append(
            _task(
                trace.op_start_s[v],
                trace.op_start_s[v],
                trace.op_finish_s[v],
                problem.arrays.op_seconds[v, d],
                [(k, amounts[bool(sharing.moves_bytes[k])]) for k in _used(sharing, d)],
            )
        )
    for t, r in enumerate(trace.transfer_region.tolist()):
        src, dst = int(trace.transfer_src[t]), int(trace.transfer_dst[t])
        latency_s = float(problem.arrays.latency_s[src, dst])
        whole_s = float(link_seconds(problem.arrays, slice(r, r + 1))[0, src, dst])
        if len(problem.arrays.kind_seconds):
            whole_s += latency_s
        start_s, moving_s = trace.transfer_start_s[t], whole_s - latency_s
        rate = float(sharing.region_bytes[r]) / moving_s if moving_s > 0 else 0.0
        uses = [(k, rate) for k in _used(sharing, num + src * num + dst)]
        finish_s = trace.transfer_finish_s[t]
        found.append(_task(start_s, start_s + latency_s, finish_s, moving_s, uses))
    return found


def _used(sharing: SharingArrays, user: int) -> list[int]:
    return sharing.uses[sharing.use_ptr[user] : sharing.use_ptr[user + 1]].tolist()


def _task(
    start_s: float, begin_s: float, finish_s: float, alone_s: float, uses: list[tuple[int, float]]
) -> FluidTask:
    demand: dict[int, float] = {}
    for k, amount in uses:
        if amount > 0:
            demand[k] = demand.get(k, 0.0) + amount
    weight = max((amount for _, amount in uses), default=0.0)
    return FluidTask(
        float(start_s), float(begin_s), float(finish_s), float(alone_s), demand, weight
    )


def wrong_rates(trace: Trace, tolerance: float) -> list[str]:
    """Tasks that took another time than max-min fair rates give them, one line each.

    Rates are computed anew for each stretch of time in which the same tasks run; a task has to have
    done all its work at its end, and no more.

    Args:
        trace: simulated, without jitter.
        tolerance: how far times may disagree, in seconds.
    """
    sharing, tasks = trace.problem.sharing, fluid_tasks(trace)
    if sharing is None:
        return []
    capacity = sharing.capacity.tolist()
    done = [0.0 if task.demand else task.finish_s - task.begin_s for task in tasks]
    using = [i for i, task in enumerate(tasks) if task.demand]
    ends = {edge for i in using for edge in (tasks[i].begin_s, tasks[i].finish_s)}
    running: list[int] = []
    waiting = sorted(using, key=lambda i: -tasks[i].begin_s)
    moments = sorted(ends)
    for now, then in pairwise(moments):
        while waiting and tasks[waiting[-1]].begin_s <= now:
            running.append(waiting.pop())
        running = [i for i in running if tasks[i].finish_s > now]
        demands, weights = [tasks[i].demand for i in running], [tasks[i].weight for i in running]
        for i, rate in zip(running, max_min_rates(demands, weights, capacity), strict=True):
            done[i] += rate * (then - now)
    num = trace.problem.num_ops
    return [
        f"{'op' if i < num else 'transfer'} {i if i < num else i - num} takes "
        f"{task.finish_s - task.begin_s} s, in which it does the work of {done[i]} s, "
        f"not of {task.alone_s}"
        for i, task in enumerate(tasks)
        if abs(done[i] - task.alone_s) > tolerance
    ]


def shared_used(trace: Trace) -> tuple[SharedUse, ...]:
    """How busy each shared resource was, the busiest first; nothing where tasks do not share."""
    sharing, cluster = trace.problem.sharing, trace.problem.cluster
    if sharing is None or not trace.rules.shared:
        return ()
    work = np.zeros(len(cluster.shared))
    for task in fluid_tasks(trace):
        for k, amount in task.demand.items():
            work[k] += amount * task.alone_s
    share = work / (sharing.capacity * (trace.makespan_s or 1.0))
    uses = [
        SharedUse(name=one.name, utilisation=float(share[k]))
        for k, one in enumerate(cluster.shared)
    ]
    return tuple(sorted(uses, key=lambda use: -use.utilisation))
