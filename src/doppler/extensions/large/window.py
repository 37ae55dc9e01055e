"""A window of a placement as a problem of its own: ops of neighbouring ranks; all others stay.

Shape suffixes: V ops of the whole problem, E edges, R regions, D devices, X ops of a window's
ranks, W all ops of its problem.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.extensions.large.window_kernels import fill_last_finish
from doppler.graph import DataflowGraph
from doppler.graph.dataflow import Edges, Inputs, Ops
from doppler.problem import Placement, Problem
from doppler.problem.arrays import make_arrays
from doppler.problem.pricing import Prices
from doppler.problem.restrictions import groups_of

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class Timed(NamedTuple):
    """A placement, and when its ops run, as estimated; every op ranks after its producers.

    Attributes:
        seconds: makespan; inf if the placement does not fit in memory.
        device: [V] of each op.
        priority: [V] of each op.
        ranked: [V] ops by priority.
        start: [V] seconds.
        finish: [V] seconds.
    """

    seconds: float
    device: IntArray
    priority: IntArray
    ranked: IntArray
    start: FloatArray
    finish: FloatArray


@dataclass(frozen=True, eq=False, kw_only=True)
class Window:
    """A window as a problem, and the present placement of its ops.

    Its ops are, sorted by number, those of the ranks ``begin`` to ``last - 1`` and the earlier ops
    that they read, which take no time. One more op per device keeps it busy until its earlier ops
    have ended.

    Attributes:
        problem: of the window.
        placement: present placement of its ops.
        begin: first rank.
        last: rank after the last one.
        number: [last - begin] op of the window for each rank.
    """

    problem: Problem
    placement: Placement
    begin: int
    last: int
    number: IntArray

    def put(self, ranked: IntArray, after: Placement, device_V: IntArray, rank_V: IntArray) -> None:
        """Write a placement of the window into a placement of the whole problem.

        Args:
            ranked: [V] ops by priority before the change.
            after: placement of the window.
            device_V: devices of the whole problem, changed.
            rank_V: ranks of the whole problem, changed.
        """
        op_R = ranked[self.begin : self.last]
        device_V[op_R] = after.device[self.number]
        order_R = np.argsort(after.priority[self.number])
        rank_V[op_R[order_R]] = np.arange(self.begin, self.last)


def window_of(problem: Problem, now: Timed, begin: int, end: int, last: int) -> Window:
    """Return the window in which the ops of ranks ``begin`` to ``end - 1`` are free to move.

    Ops up to rank ``last - 1`` stay where they are. So does a group with ops outside of the free
    ones. Data that the window's ops read from earlier ops are sent when the window begins, and
    memory is unlimited.

    Args:
        problem: the whole problem.
        now: its present placement.
        begin: first rank.
        end: rank after the last free op.
        last: rank after the last op.
    """
    arrays, op_X = problem.arrays, now.ranked[begin:last]
    reads_E, dst_E = _reads(arrays.read_ptr, arrays.reads, op_X)
    src_E = arrays.region_src[reads_E]
    earlier = np.unique(src_E[now.priority[src_E] < begin])
    op_W, num_devices = np.sort(np.append(earlier, op_X)), problem.num_devices
    at_X, busy_D = np.searchsorted(op_W, op_X), np.zeros(num_devices)
    fill_last_finish(now.ranked, now.device, now.finish, begin, busy_D)
    seconds_WD = np.full((len(op_W) + num_devices, num_devices), np.inf)
    seconds_WD[np.arange(len(op_W)), now.device[op_W]] = 0.0
    busy_for_D = np.maximum(busy_D - now.start[op_X].min(), 0.0)
    seconds_WD[len(op_W) + np.arange(num_devices), np.arange(num_devices)] = busy_for_D
    seconds_WD[at_X, now.device[op_X]] = arrays.op_seconds[op_X, now.device[op_X]]
    free, group_W = _free(problem, now, begin, end), np.full(len(seconds_WD), -1)
    at_free = np.searchsorted(op_W, free)
    seconds_WD[at_free], group_W[at_free] = arrays.op_seconds[free], arrays.group[free]
    sub = part_of(problem, op_W, (src_E, dst_E, reads_E), seconds_WD, group_W)
    first_W = np.argsort(np.append(now.priority[op_W], np.full(num_devices, begin - 0.5)))
    priority_W = np.empty(len(first_W), np.int64)
    priority_W[first_W] = np.arange(len(first_W))
    device_W = np.append(now.device[op_W], np.arange(num_devices))
    placement = Placement.make(sub, device_W, priority_W)
    return Window(problem=sub, placement=placement, begin=begin, last=last, number=at_X)


def _free(problem: Problem, now: Timed, begin: int, end: int) -> IntArray:
    """Return the ops of these ranks, except those whose groups have ops outside of them."""
    op = now.ranked[begin:end]
    if not problem.has_groups:
        return op
    arrays = problem.arrays
    root = arrays.group[op]
    inside = np.bincount(root, minlength=problem.num_ops)[root]
    return op[inside == np.diff(arrays.member_ptr)[root]]


def _reads(ptr: IntArray, reads: IntArray, op_X: IntArray) -> tuple[IntArray, IntArray]:
    """Return the regions that these ops read, and which op reads each."""
    count_X = ptr[op_X + 1] - ptr[op_X]
    first_X = count_X.cumsum() - count_X
    index_E = np.arange(count_X.sum()) + np.repeat(ptr[op_X] - first_X, count_X)
    return reads[index_E], np.repeat(op_X, count_X)


def part_of(
    problem: Problem,
    op_W: IntArray,
    edges: tuple[IntArray, IntArray, IntArray],
    seconds_WD: FloatArray,
    group_W: IntArray,
    inputs: Inputs | None = None,
) -> Problem:
    """Return a part of a problem: some of its ops, and further ops after them.

    Transfers take as long as in the whole problem.

    Args:
        problem: the whole problem.
        op_W: ops of the whole problem, sorted.
        edges: producer, consumer and region of each read [E]; producers and consumers are among the
            ops.
        seconds_WD: seconds of the ops, and of the further ops.
        group_W: group of each op, or -1.
        inputs: that ops of the part read; if None, memory is unlimited.
    """
    arrays, (src_E, dst_E, region_E) = problem.arrays, edges
    graph = DataflowGraph(
        name=problem.graph.name,
        ops=Ops.make(flops=np.zeros(len(seconds_WD)), group=group_W),
        edges=Edges.make(
            src=np.searchsorted(op_W, src_E),
            dst=np.searchsorted(op_W, dst_E),
            region=region_E,
            bytes=arrays.region_bytes[region_E],
        ),
        inputs=inputs or Inputs.make(),
    )
    of_R = np.zeros(len(graph.regions), np.int64)
    of_R[graph.regions.of_edge] = region_E
    prices = Prices(
        op_seconds=seconds_WD,
        size=arrays.size[of_R],
        latency_s=arrays.latency_s,
        seconds_per_size=arrays.seconds_per_size,
        memory_bytes=np.full(problem.num_devices, np.inf)
        if inputs is None
        else arrays.memory_bytes,
        kind=arrays.kind,
        kind_seconds=arrays.kind_seconds[of_R] if len(arrays.kind_seconds) else arrays.kind_seconds,
        host=arrays.host,
        nics=arrays.nics,
    )
    made = make_arrays(graph, prices, groups_of(graph))
    return replace(problem, graph=graph, arrays=made, costs=None)
