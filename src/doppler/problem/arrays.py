"""A problem as plain arrays for compiled code.

Shape suffixes: V ops, E edges, R regions, I inputs, D devices, K kinds of devices, H hosts.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.graph import DataflowGraph
from doppler.problem.pricing import Prices
from doppler.problem.restrictions import OpGroups

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class ProblemArrays(NamedTuple):
    """A problem as plain arrays.

    The transfer of a region takes `move_seconds`. If seconds of transfers are given, ``size`` holds
    them. The other arrays are those of graph.Regions, and the same edges from the consumer's side:
    op v reads the regions ``reads[read_ptr[v]:read_ptr[v + 1]]``.
    """

    op_seconds: FloatArray  # [V, D], inf where the device may not run the op
    size: FloatArray  # [R]
    latency_s: FloatArray  # [D, D]
    seconds_per_size: FloatArray  # [D, D]
    region_src: IntArray  # [R]
    region_ptr: IntArray  # [V + 1]
    consumer_ptr: IntArray  # [R + 1]
    consumers: IntArray  # [E]
    read_ptr: IntArray  # [V + 1]
    reads: IntArray  # [E]
    region_bytes: FloatArray  # [R]
    sink_bytes: FloatArray  # [V] output that no op reads, kept to the end
    input_ptr: IntArray  # [I + 1]
    input_consumers: IntArray
    input_bytes: FloatArray  # [I]
    memory_bytes: FloatArray  # [D]
    # Optional arrays come last; they are empty if unused (groups: each op alone).
    kind_seconds: FloatArray  # [R, K, K] given by kinds of devices; or [0, 0, 0]
    kind: IntArray  # [D]
    group: IntArray  # [V] the first op of each op's group, which goes to one device
    member_ptr: IntArray  # [V + 1] group g: members[member_ptr[g]:member_ptr[g + 1]]; or [0]
    members: IntArray  # [V], or [0]
    host: IntArray  # [D] the host of each device; or [0]: all are on one
    nics: IntArray  # [H] network interfaces of each host, in either direction; or [0]


def make_arrays(graph: DataflowGraph, prices: Prices, groups: OpGroups) -> ProblemArrays:
    """Make writable and contiguous copies of everything that compiled code reads.

    Args:
        graph: to execute.
        prices: seconds and limits on the cluster.
        groups: of ops that go to one device.
    """
    edges, regions, inputs = graph.edges, graph.regions, graph.inputs
    read_edge_E = np.lexsort((regions.of_edge, edges.dst))
    return ProblemArrays(
        op_seconds=np.ascontiguousarray(prices.op_seconds),
        size=prices.size,
        latency_s=prices.latency_s,
        seconds_per_size=np.ascontiguousarray(prices.seconds_per_size),
        region_src=regions.src.copy(),
        region_ptr=regions.op_ptr.copy(),
        consumer_ptr=regions.consumer_ptr.copy(),
        consumers=regions.consumers.copy(),
        read_ptr=np.searchsorted(edges.dst[read_edge_E], np.arange(graph.num_ops + 1)),
        reads=regions.of_edge[read_edge_E],
        region_bytes=regions.bytes.copy(),
        sink_bytes=np.where(np.diff(regions.op_ptr) == 0, graph.ops.output_bytes, 0.0),
        input_ptr=np.cumsum([0, *(len(ops) for ops in inputs.consumers)]).astype(np.int64),
        input_consumers=np.array(
            [v for consumers in inputs.consumers for v in consumers], dtype=np.int64
        ),
        input_bytes=inputs.bytes.copy(),
        memory_bytes=prices.memory_bytes,
        kind_seconds=np.ascontiguousarray(prices.kind_seconds),
        kind=prices.kind,
        group=groups.of_op.copy(),
        member_ptr=groups.ptr.astype(np.int64),
        members=groups.members.astype(np.int64),
        host=prices.host,
        nics=prices.nics,
    )


def link_seconds(arrays: ProblemArrays, regions: slice | None = None) -> FloatArray:
    """Return the seconds [D, D] of a transfer of mean size, or those [R, D, D] of some regions.

    Args:
        arrays: the problem.
        regions: None: the mean over all.
    """
    if regions is None:
        size = float(arrays.size.mean()) if len(arrays.size) else 0.0
        if len(arrays.kind_seconds):
            return arrays.kind_seconds.mean(axis=0)[np.ix_(arrays.kind, arrays.kind)]
        return arrays.latency_s + size * arrays.seconds_per_size
    if len(arrays.kind_seconds):
        return arrays.kind_seconds[regions][:, arrays.kind][:, :, arrays.kind]
    return arrays.latency_s + arrays.size[regions, None, None] * arrays.seconds_per_size


def transposed(arrays: ProblemArrays) -> ProblemArrays:
    """Return the arrays with all transfers in the other direction.

    Args:
        arrays: the problem.
    """
    return arrays._replace(
        latency_s=np.ascontiguousarray(arrays.latency_s.T),
        seconds_per_size=np.ascontiguousarray(arrays.seconds_per_size.T),
        kind_seconds=np.ascontiguousarray(arrays.kind_seconds.transpose(0, 2, 1)),
    )


def same_when_swapped(arrays: ProblemArrays, a: int, b: int) -> bool:
    """Whether two devices can swap names without changing the problem.

    Args:
        arrays: the problem.
        a: a device.
        b: the other device.
    """
    swapped, between = np.arange(len(arrays.kind)), ~np.eye(len(arrays.kind), dtype=bool)
    swapped[[a, b]] = b, a
    names = np.ix_(swapped, swapped)
    return (
        np.array_equal(arrays.op_seconds[:, a], arrays.op_seconds[:, b])
        and bool(arrays.memory_bytes[a] == arrays.memory_bytes[b])
        and _hosts_alike(arrays, a, b)
        and all(
            np.array_equal(link[between], link[names][between])
            for link in (arrays.latency_s, arrays.seconds_per_size)
        )
        and (
            len(arrays.kind_seconds) == 0
            or _kinds_alike(arrays, int(arrays.kind[a]), int(arrays.kind[b]), names)
        )
    )


def _hosts_alike(arrays: ProblemArrays, a: int, b: int) -> bool:
    """Whether both devices are on one host, or each is the only one on its host."""
    if len(arrays.host) == 0 or arrays.host[a] == arrays.host[b]:
        return True
    num_H = np.bincount(arrays.host)
    return bool(
        num_H[arrays.host[a]] == num_H[arrays.host[b]] == 1
        and len(set(arrays.nics[arrays.host[[a, b]]])) == 1
    )


def _kinds_alike(arrays: ProblemArrays, a: int, b: int, names: tuple) -> bool:
    between = ~np.eye(len(arrays.kind), dtype=bool)
    return a == b or all(
        np.array_equal(seconds[between], seconds[names][between])
        for seconds in arrays.kind_seconds[:, arrays.kind][:, :, arrays.kind]
    )
