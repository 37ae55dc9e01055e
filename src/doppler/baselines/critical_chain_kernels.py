"""Compiled: the critical chain of an execution, which decides when it ends.

Dimension: V ops. Indices: u and v ops, i position among the reads of an op.
"""

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from doppler.problem import Problem
from doppler.support.compiled import compiled


class Chain(NamedTuple):
    """Ops of the critical chain and their shares of the makespan; only the first ``num[0]`` count.

    Attributes:
        num: [1] number of ops.
        op: [V] the ops, the last to end first.
        share: [V] share of the makespan in which the op ran or waited for a transfer, cumulated
            over the ops. The last one is 1, or less if it is unknown what that op waited for.
        ends_in: [V] scratch.
        beside: [V] scratch.
    """

    num: NDArray[np.int64]  # [1]
    op: NDArray[np.int64]  # [V] the last to end first
    share: NDArray[np.float64]  # [V]
    # Scratch: the ops by the V-th part of the makespan that they end in, as linked lists.
    ends_in: NDArray[np.int64]  # [V]
    beside: NDArray[np.int64]  # [V]

    @classmethod
    def unknown(cls, problem: Problem) -> Self:
        """A chain of all ops by their work, for when no execution is known op by op."""
        num_ops, seconds_V = problem.num_ops, problem.mean_op_seconds
        sums_V = np.cumsum(seconds_V if seconds_V.any() else np.ones_like(seconds_V))
        return cls(
            num=np.array([num_ops]),
            op=np.arange(num_ops),
            share=sums_V / sums_V[-1],
            ends_in=np.zeros(num_ops, np.int64),
            beside=np.zeros(num_ops, np.int64),
        )


@compiled
def trace_back(problem, tasks, chain):
    """Write the critical chain of the execution that a simulator left behind.

    It leads from the op that ends last to what that op waited for, and so on: the op that held its
    device until then, else the last op that sent it something from another device. With contention
    that is not always the sender of the last arrival; `trace.explain` is exact but slow.

    Args:
        problem: ProblemArrays.
        tasks: of the simulator, state.TASK.
        chain: Chain, filled in.
    """
    num_ops = len(chain.op)
    v = 0
    for u in range(1, num_ops):
        if tasks[u].finish > tasks[v].finish:
            v = u
    makespan = tasks[v].finish
    if makespan == 0.0:
        return
    _list_by_end(tasks, makespan, chain)
    num, seconds = 0, 0.0
    while v >= 0:
        before = _holder(tasks, v, makespan, chain)
        if before < 0:
            before = _sender(problem, tasks, v)
        seconds += tasks[v].finish - (tasks[before].finish if before >= 0 else tasks[v].start)
        chain.op[num] = v
        chain.share[num] = seconds / makespan
        num += 1
        v = before
    chain.num[0] = num


@compiled
def _list_by_end(tasks, makespan, chain):
    for part in range(len(chain.op)):
        chain.ends_in[part] = -1
    for v in range(len(chain.op)):
        part = _part(tasks[v].finish, makespan, chain)
        chain.beside[v] = chain.ends_in[part]
        chain.ends_in[part] = v


@compiled
def _part(seconds, makespan, chain):
    return int(seconds / makespan * (len(chain.op) - 1))


@compiled
def _holder(tasks, v, makespan, chain):
    """An op that ran on the device of op v until v began; -1 if there is none."""
    start = tasks[v].start
    u = chain.ends_in[_part(start, makespan, chain)]
    while u >= 0:
        ends_then = tasks[u].finish == start and tasks[u].start < start
        if ends_then and tasks[u].resource == tasks[v].resource:
            return u
        u = chain.beside[u]
    return u


@compiled
def _sender(problem, tasks, v):
    """The last op to end of those that op v reads from, preferably on other devices.

    -1 if v reads nothing.
    """
    last, last_is_far = -1, False
    for i in range(problem.read_ptr[v], problem.read_ptr[v + 1]):
        u = problem.region_src[problem.reads[i]]
        is_far = tasks[u].resource != tasks[v].resource
        if (
            last < 0
            or is_far > last_is_far
            or (is_far == last_is_far and tasks[u].finish > tasks[last].finish)
        ):
            last, last_is_far = u, is_far
    return last
