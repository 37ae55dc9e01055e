"""Finds equal layers in any graph: runs of ops that repeat at a fixed distance in op numbers.

The ops of a stack of layers are numbered layer by layer: forward and, in training, backward and
once more for the weight updates. In each of these runs op v resembles op v + period. Names play no
role. Runs are aligned by which of their ops read each other, and layers are equal if their ops read
the same from the same. Shape suffixes: V ops, E reads, P places in a layer, L layers.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.graph.levels import depth
from doppler.problem import Problem
from doppler.problem.arrays import ProblemArrays

IntArray = NDArray[np.int64]
HashArray = NDArray[np.uint64]

# Number of ops in a row that are compared, of periods that are tried, and of runs.
_TOGETHER, _TRIED, _MOST_RUNS = 16, 16, 8
# Smallest number of equal layers of which a few are searched in place of all.
LEAST = 6
_ODD = np.uint64(0x9E3779B97F4A7C15)


class Layers(NamedTuple):
    """Which ops are the same op in different layers.

    Attributes:
        place: [V] number of each op within its layer; -1 for ops in no layer.
        layer: [V] layer of each op; -1 for ops in no layer.
        op: [P, L] the op at each place of each layer; -1 where the layer lacks it.
        first: first of the equal layers.
        last: last of the equal layers.
    """

    place: IntArray
    layer: IntArray
    op: IntArray
    first: int
    last: int


class _Run(NamedTuple):
    """Ops ``begin`` to ``begin + num * period - 1``, which repeat."""

    begin: int
    period: int
    num: int


class _Reads(NamedTuple):
    """Which op reads which op's output, for each read [E], and a hash of what is read."""

    src: IntArray
    dst: IntArray
    what: HashArray


def find_layers(problem: Problem) -> Layers | None:
    """Return the layers of a graph, or None if few are equal or they are less than half of the ops.

    Args:
        problem: whose graph is searched for layers.
    """
    p = problem.arrays
    region_R = _region_hashes(p)
    runs = _runs(_op_hashes(p, region_R))
    if not runs or sum(run.period * run.num for run in runs) < problem.num_ops // 2:
        return None
    dst_E = np.repeat(np.arange(problem.num_ops), np.diff(p.read_ptr))
    src_E = p.region_src[p.reads]
    ordinal_E = (p.reads - p.region_ptr[src_E]).astype(np.uint64)
    reads = _Reads(src_E, dst_E, _mixed(region_R[p.reads] + ordinal_E))
    found = None
    while runs and found is None:  # drop the shortest period, which may repeat by chance
        found = _alike(_aligned(runs, reads, problem.num_ops), reads)
        runs.remove(min(runs, key=lambda run: run.period))
    return found if found is not None and _follow(found, problem) else None


def _follow(layers: Layers, problem: Problem) -> bool:
    """Whether layers read each other; if not, they could run at the same time."""
    edges = problem.graph.edges
    depth_V = depth(problem.num_ops, edges.src, edges.dst)
    ends_P2 = depth_V[layers.op[:, [layers.first, layers.last]]]
    return bool((np.abs(np.diff(ends_P2)) >= layers.last - layers.first).any())


def _mixed(value: HashArray) -> HashArray:
    """Hash each number, so that neighbours get very different numbers."""
    for shift in (np.uint64(32), np.uint64(29)):
        value = (value ^ (value >> shift)) * _ODD
    return value ^ (value >> np.uint64(32))


def _bits(values: NDArray[np.float64]) -> HashArray:
    return np.ascontiguousarray(values + 0.0).view(np.uint64)  # + 0.0 turns -0.0 into 0.0


def _hashed_rows(values: NDArray[np.float64]) -> HashArray:
    """Hash each row of [N, K]; integer sums do not depend on the order of the columns' addition."""
    bits_NK = _bits(values)
    column_K = _mixed(np.arange(1, bits_NK.shape[1] + 1, dtype=np.uint64))
    return _mixed(bits_NK + column_K).sum(axis=1, dtype=np.uint64)


def _totals(ptr: IntArray, value: HashArray) -> HashArray:
    before = np.append(np.uint64(0), value.cumsum(dtype=np.uint64))
    return before[ptr[1:]] - before[ptr[:-1]]


def _region_hashes(p: ProblemArrays) -> HashArray:
    columns = [p.size[:, None], p.region_bytes[:, None]]
    if len(p.kind_seconds):
        columns.append(p.kind_seconds.reshape(len(p.size), -1))
    return _hashed_rows(np.concatenate(columns, axis=1))


def _op_hashes(p: ProblemArrays, region_R: HashArray) -> HashArray:
    """Hash what an op takes, reads and writes, but not which ops it is connected with."""
    own_V = _hashed_rows(np.concatenate([p.op_seconds, p.sink_bytes[:, None]], axis=1))
    reads_V = _totals(p.read_ptr, _mixed(region_R[p.reads]))
    makes_V = _totals(p.region_ptr, region_R)
    return _mixed(own_V + _mixed(reads_V) + _mixed(makes_V + _ODD))


def _runs(op_V: HashArray) -> list[_Run]:
    """Return the longest run, and further runs with about as many layers."""
    runs: list[_Run] = []
    free_V = np.ones(len(op_V), bool)
    for _ in range(_MOST_RUNS):
        run = _longest_run(op_V, free_V)
        if run is None:
            break
        free_V[run.begin : run.begin + run.period * run.num] = False
        if not runs or abs(run.num - runs[0].num) <= 2:
            runs.append(run)
    return runs


def _longest_run(op_V: HashArray, free_V: NDArray[np.bool_]) -> _Run | None:
    """Return the run with the shortest period among those that cover nearly the most ops."""
    found = []
    for period in _likely_periods(op_V, free_V):
        same = (op_V[period:] == op_V[:-period]) & free_V[period:] & free_V[:-period]
        edge = np.diff(np.concatenate([[False], same, [False]]).astype(np.int8))
        begins, ends = np.flatnonzero(edge == 1), np.flatnonzero(edge == -1)
        if len(begins):
            best = int((ends - begins).argmax())
            num = int(ends[best] - begins[best]) // period + 1
            if num >= LEAST:
                found.append(_Run(int(begins[best]), period, num))
    most = max((run.period * run.num for run in found), default=0)
    near = [run for run in found if run.period * run.num >= 0.9 * most]
    return min(near, key=lambda run: run.period, default=None)


def _likely_periods(op_V: HashArray, free_V: NDArray[np.bool_]) -> list[int]:
    """Return distances at which several ops in a row repeat."""
    gram, width = np.where(free_V, op_V, np.arange(len(op_V), dtype=np.uint64)), 1
    while width < _TOGETHER and len(gram) > 4 * width:
        gram = _mixed(gram[:-width] + _ODD * gram[width:])
        width *= 2
    order = np.argsort(gram, kind="stable")
    again = gram[order[1:]] == gram[order[:-1]]
    distance, times = np.unique((order[1:] - order[:-1])[again], return_counts=True)
    return distance[np.argsort(-times * distance, kind="stable")[:_TRIED]].tolist()


def _aligned(runs: list[_Run], reads: _Reads, num_ops: int) -> Layers:
    """Return the layers of the first run, and of runs that are joined to it by reads."""
    run_V, turn_V = np.full(num_ops, -1), np.full(num_ops, -1)
    place_V, layer_V = np.full(num_ops, -1), np.full(num_ops, -1)
    first = 0
    for i, run in enumerate(runs):
        step = np.arange(run.period * run.num)
        own = slice(run.begin, run.begin + len(step))
        run_V[own], turn_V[own], place_V[own] = i, step // run.period, first + step % run.period
        first += run.period
    layer_V[run_V == 0] = turn_V[run_V == 0]
    left = list(range(1, len(runs)))
    while left:
        known = [(i, _joined(run_V == i, turn_V, layer_V, reads)) for i in left]
        i, joined = max(known, key=lambda one: one[1][0])
        if joined[0] == 0:
            break
        layer_V[run_V == i] = joined[1] * turn_V[run_V == i] + joined[2]
        left.remove(i)
    place_V[np.isin(run_V, left)] = -1
    layer_V[place_V >= 0] -= min(0, layer_V[place_V >= 0].min())
    op_PL = np.full((first, layer_V.max() + 1), -1)
    inside = place_V >= 0
    op_PL[place_V[inside], layer_V[inside]] = np.flatnonzero(inside)
    return Layers(place_V, layer_V, op_PL, 0, op_PL.shape[1] - 1)


def _joined(
    own_V: NDArray[np.bool_], turn_V: IntArray, layer_V: IntArray, reads: _Reads
) -> tuple[int, int, int]:
    """Return how many reads agree, the direction of the run, and the layer of its turn 0."""
    best = (0, 1, 0)
    for ours, theirs in ((reads.src, reads.dst), (reads.dst, reads.src)):
        between = own_V[ours] & ~own_V[theirs] & (layer_V[theirs] >= 0)
        turn, layer = turn_V[ours[between]], layer_V[theirs[between]]
        for direction in (1, -1):
            shift, times = np.unique(layer - direction * turn, return_counts=True)
            if len(times) and times.max() > best[0]:
                best = (int(times.max()), direction, int(shift[times.argmax()]))
    return best


def _alike(layers: Layers, reads: _Reads) -> Layers | None:
    """Narrow the layers down to those around the middle whose ops read the same from the same."""
    place_V, layer_V, op_PL = layers.place, layers.layer, layers.op
    inside = place_V[reads.src] >= 0
    near = (layer_V[reads.src] - layer_V[reads.dst]).astype(np.uint64)
    of_place = _mixed(_mixed(place_V[reads.src].astype(np.uint64)) + near)
    of_op = _mixed(reads.src.astype(np.uint64) + _ODD)
    who_E = _mixed(np.where(inside, of_place, of_op) + reads.what)
    who_V = np.zeros(len(place_V), np.uint64)
    np.add.at(who_V, reads.dst, who_E)
    middle = op_PL.shape[1] // 2
    same_PL = who_V[op_PL] == who_V[op_PL[:, middle]][:, None]
    same_L = (same_PL & (op_PL >= 0)).all(axis=0)
    if not same_L[middle]:
        return None
    apart = np.flatnonzero(~same_L)
    first = int(max(apart[apart < middle], default=-1)) + 1
    last = int(min(apart[apart > middle], default=len(same_L))) - 1
    return layers._replace(first=first, last=last) if last - first + 1 >= LEAST else None
