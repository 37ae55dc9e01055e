"""A small problem with a few layers that represent all layers of a large graph.

Of a run of equal layers the first two and the last one are kept, and the second represents those in
between. The same op of all layers goes to the same device. So a placement's makespan on the small
problem is the makespan on the whole, less the time of the missing layers. Shape suffixes: V ops of
the whole problem, E reads, P places in a layer, W ops of the few layers, D devices.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from doppler.extensions.large.layers import Layers, find_layers
from doppler.extensions.large.window import Timed, part_of
from doppler.graph.dataflow import Inputs
from doppler.problem import Placement, Problem
from doppler.support.errors import InputError

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class FewLayers:
    """A problem with only a few of the layers of a larger one.

    Attributes:
        problem: with the few layers.
        op: [W] op of the whole problem that each op is.
        stand_in: [V] op of the few layers that represents each op of the whole problem.
        layers: of the whole problem; those from ``layers.first + 2`` to ``layers.last - 1`` are
            missing.
    """

    problem: Problem
    op: IntArray
    stand_in: IntArray
    layers: Layers

    @property
    def missing(self) -> range:
        """The layers that are left out."""
        return range(self.layers.first + 2, self.layers.last)

    def of_layer(self, placement: Placement, layer: int) -> IntArray:
        """Return devices [W] that place the ops of every layer like those of one layer.

        Args:
            placement: of the whole problem.
            layer: whose devices are used.
        """
        there_W = self.layers.op[self.layers.place[self.op], layer]
        device_W = placement.device[np.where(self.layers.place[self.op] >= 0, there_W, self.op)]
        return device_W[self.problem.arrays.group]

    def order_of(self, placement: Placement) -> IntArray:
        """Return priorities [W] in the order of a placement of the whole problem.

        Args:
            placement: of the whole problem.
        """
        return np.argsort(np.argsort(placement.priority[self.op])).astype(np.int64)

    def stretched(self, timed: Timed) -> tuple[IntArray, IntArray]:
        """Extend a placement of the few layers to the whole problem, layer after layer.

        Layers follow each other at the interval at which the second one follows the first. An op
        comes before one of its producers at most by the difference between these intervals.

        Args:
            timed: placement of the few layers, and when its ops run.

        Returns:
            Devices [V] and priorities [V].
        """
        start_V = timed.start[self.stand_in] + self._later(timed.start)
        rank_V = timed.priority[self.stand_in]
        priority_V = np.empty(len(start_V), np.int64)
        priority_V[np.lexsort((rank_V, start_V))] = np.arange(len(start_V))
        return timed.device[self.stand_in], priority_V

    def _later(self, start_W: FloatArray) -> FloatArray:
        """Return how many seconds [V] later each op runs than the op that represents it.

        Places at which one layer overlaps the next form a phase, such as forward and backward.
        """
        first, last = self.layers.first, self.layers.last
        short_V = np.full(len(self.stand_in), -1)
        short_V[self.op] = np.arange(len(self.op))
        begin_P, middle_P, end_P = (
            start_W[short_V[self.layers.op[:, layer]]] for layer in (first, first + 1, last)
        )
        later_V = np.zeros(len(self.stand_in))
        start_V = start_W[self.stand_in]
        for places in _phases(np.minimum(begin_P, end_P), np.maximum(begin_P, end_P)):
            rises = float(np.median(end_P[places] - begin_P[places])) >= 0
            each_s = float(np.median(np.abs(end_P[places] - middle_P[places])))
            turn_s = np.where(rises, middle_P, end_P)[places].mean() + each_s / 2
            inside_V = np.isin(self.layers.place, places)
            layer_V = self.layers.layer
            num_V = layer_V - first - 1 if rises else last - 1 - layer_V
            num_V = np.where(inside_V, num_V, np.where(start_V > turn_s, len(self.missing), 0))
            later_V += each_s * num_V.clip(0, len(self.missing))
        return later_V


def _phases(low_P: FloatArray, high_P: FloatArray) -> list[IntArray]:
    """Group the places into phases, which run one after another."""
    order = np.argsort(low_P)
    reached = np.maximum.accumulate(high_P[order])
    cuts = np.flatnonzero(low_P[order][1:] > reached[:-1]) + 1
    return np.split(order, cuts)


def few_layers(problem: Problem) -> FewLayers | None:
    """Return a problem with a few of the layers of a graph, or None if too few layers are alike.

    Args:
        problem: to shorten.
    """
    layers = find_layers(problem)
    if layers is None:
        return None
    stays_V = ~_missing(layers)
    op = np.flatnonzero(stays_V)
    number_V = np.full(problem.num_ops, -1)
    number_V[op] = np.arange(len(op))
    gone = np.flatnonzero(~stays_V)
    stand_in_V = number_V.copy()
    stand_in_V[gone] = number_V[layers.op[layers.place[gone], layers.first + 1]]
    group_W = _groups(problem, layers, op, stand_in_V)
    seconds_WD = problem.arrays.op_seconds[op]
    able_WD = np.ones_like(seconds_WD, dtype=bool)
    np.logical_and.at(able_WD, group_W, np.isfinite(seconds_WD))
    seconds_WD[~able_WD[group_W]] = np.inf
    if not np.isfinite(seconds_WD).any(axis=1).all():
        return None
    edges = _reads(problem, layers, stays_V)
    try:
        inputs = _inputs(problem, stand_in_V)
        part = part_of(problem, op, edges, seconds_WD, group_W, inputs)
    except InputError:  # a layer reads more than the layer before it
        return None
    return FewLayers(problem=part, op=op, stand_in=stand_in_V, layers=layers)


def _missing(layers: Layers) -> NDArray[np.bool_]:
    """Return whether each op [V] is left out."""
    between_V = (layers.layer >= layers.first + 2) & (layers.layer < layers.last)
    return between_V & (layers.place >= 0)


def _groups(problem: Problem, layers: Layers, op_W: IntArray, stand_in_V: IntArray) -> IntArray:
    """Return the group [W] of each op: the same place of all layers, and the problem's groups."""
    place_W, seconds_VD = layers.place[op_W], problem.arrays.op_seconds
    second_W = layers.op[place_W, layers.first + 1]
    tied = (place_W >= 0) & (seconds_VD[op_W] == seconds_VD[second_W]).all(axis=1)
    one = np.concatenate([np.flatnonzero(tied), stand_in_V])
    other = np.concatenate([stand_in_V[second_W[tied]], stand_in_V[problem.arrays.group]])
    joined = coo_array((np.ones(len(one)), (one, other)), shape=(len(op_W),) * 2)
    return connected_components(joined, directed=False)[1].astype(np.int64)


def _reads(
    problem: Problem, layers: Layers, stays_V: NDArray[np.bool_]
) -> tuple[IntArray, IntArray, IntArray]:
    """Return producers, consumers and regions; reads of a missing layer go across the gap."""
    p, first, last = problem.arrays, layers.first, layers.last
    dst_E = np.repeat(np.arange(problem.num_ops), np.diff(p.read_ptr))
    read_E = p.reads[stays_V[dst_E]]
    dst_E = dst_E[stays_V[dst_E]]
    src_E = p.region_src[read_E]
    over = np.flatnonzero(~stays_V[src_E] & (layers.place[dst_E] >= 0))
    gap, layer_V = last - first - 2, layers.layer
    reader = layer_V[dst_E[over]]
    near = np.where(reader >= last, reader - gap, reader) + layer_V[src_E[over]] - reader
    seen = np.where(near > first + 1, near + gap, near)
    exists = (seen >= 0) & (seen < layers.op.shape[1])
    other = layers.op[layers.place[src_E[over]], seen * exists]
    read = p.region_ptr[other] + read_E[over] - p.region_ptr[src_E[over]]
    exists &= (other >= 0) & (read < p.region_ptr[other + 1])
    read_E[over[exists]], src_E[over[exists]] = read[exists], other[exists]
    found = stays_V[src_E]
    pair, index = np.unique(np.stack([dst_E[found], read_E[found]]), axis=1, return_index=True)
    return src_E[found][index], pair[0], pair[1]


def _inputs(problem: Problem, stand_in_V: IntArray) -> Inputs:
    """Return all inputs, read by the ops that represent their readers, so that memory counts."""
    p = problem.arrays
    num = len(p.input_bytes)
    input_N = np.repeat(np.arange(num), np.diff(p.input_ptr))
    input_N, reader_N = np.unique(np.stack([input_N, stand_in_V[p.input_consumers]]), axis=1)
    readers = np.split(reader_N, np.searchsorted(input_N, np.arange(1, num)))
    consumers = [one.tolist() for one in readers] if num else []
    return Inputs.make(names=[""] * num, bytes=p.input_bytes, consumers=consumers)
