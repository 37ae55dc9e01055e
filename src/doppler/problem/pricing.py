"""Costs of ops and transfers on a cluster: modelled by rooflines, measured, or given.

Shape suffixes: V ops, D devices.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.cluster import Cluster, Device
from doppler.graph import DataflowGraph, GivenCosts
from doppler.graph.scalar import WHOLE
from doppler.problem.costs import CostTable
from doppler.support.errors import InputError

FloatArray = NDArray[np.float64]

# Dtypes that run at the rate of another dtype unless the device says otherwise.
_RATE_LIKE = {"c64": "f32", "bf16": "f16", **dict.fromkeys(("bool", *WHOLE), "f32")}


def rates_of(dtypes: tuple[str, ...], device: Device) -> FloatArray:
    """Return the peak floating-point operations per second [V] of a device for some dtypes.

    Args:
        dtypes: of the ops.
        device: that runs them.

    Raises:
        InputError: the device has no rate for a dtype that occurs.
    """
    rate = dict(device.flop_per_s)
    for dtype, like in _RATE_LIKE.items():
        if like in rate:
            rate.setdefault(dtype, rate[like])
    missing = sorted(set(dtypes) - rate.keys())
    if missing:
        raise InputError(
            f"device {device.name!r}: no flop_per_s for dtype {missing[0]!r}, "
            f"only {', '.join(device.flop_per_s)}"
        )
    return np.array([rate[dtype] for dtype in dtypes], dtype=np.float64)


def op_cost_s(
    *, flops: FloatArray, moved_bytes: FloatArray, dtypes: tuple[str, ...], device: Device
) -> FloatArray:
    """Return roofline seconds [V]: launch + max(flops / peak of the dtype, bytes / bandwidth).

    If the device has an efficiency, kernels reach a share of the peaks, which is smaller for small
    kernels.

    Args:
        flops: [V] floating-point operations.
        moved_bytes: [V] bytes read and written.
        dtypes: [V] of the ops.
        device: that runs them.

    Source: Williams, Waterman, Patterson, "Roofline", CACM 2009; the launch overhead is added.

    Raises:
        InputError: the device has no rate for a dtype that occurs.
    """
    rate_V = rates_of(dtypes, device)
    bytes_per_s, reached = device.memory_bytes_per_s, device.efficiency
    if reached is not None:
        # The size at which half the rate is reached stands for filling and draining the device.
        flops = np.where(flops > 0, flops + reached.half_flops, 0.0)
        moved_bytes = np.where(moved_bytes > 0, moved_bytes + reached.half_bytes, 0.0)
        rate_V, bytes_per_s = rate_V * reached.compute, bytes_per_s * reached.memory
    return device.launch_overhead_s + np.maximum(flops / rate_V, moved_bytes / bytes_per_s)


class Prices(NamedTuple):
    """The fields of ProblemArrays that depend on the cluster or on given costs."""

    op_seconds: FloatArray
    size: FloatArray
    latency_s: FloatArray
    seconds_per_size: FloatArray
    memory_bytes: FloatArray
    kind: NDArray[np.int64]
    kind_seconds: FloatArray
    host: NDArray[np.int64]
    nics: NDArray[np.int64]


def given_prices(
    graph: DataflowGraph, given: GivenCosts, cluster: Cluster, costs: CostTable | None
) -> Prices:
    """Use the costs that come with a graph; missing ones are modelled.

    Args:
        graph: to execute.
        given: its costs.
        cluster: that executes it.
        costs: measured on the cluster; None: all are modelled.

    Raises:
        InputError: as in `modelled_prices`; or the costs are for another number of devices, or for
            other kinds of devices than the cluster has.
    """
    if given.op_seconds is None or given.transfer_seconds is None:
        prices = modelled_prices(graph, cluster, costs)
    else:
        prices = _no_prices(graph, cluster)
    if given.op_seconds is not None:
        prices = prices._replace(op_seconds=_given_ops(graph, given.op_seconds, cluster))
    if given.transfer_seconds is not None:
        num_regions, num = len(graph.regions), cluster.num_devices
        size, by_kind = np.zeros(num_regions), prices.kind_seconds
        if given.transfer_seconds.ndim == 3:
            by_kind = np.zeros((num_regions, *2 * (prices.kind.max() + 1,)))
            by_kind[graph.regions.of_edge] = _by_kinds(graph, given, cluster)
        else:
            size[graph.regions.of_edge] = given.transfer_seconds
        prices = prices._replace(
            size=size,
            latency_s=np.zeros((num, num)),
            seconds_per_size=np.ones((num, num)),
            kind_seconds=by_kind,
        )
    if not given.counts_memory:
        prices = prices._replace(memory_bytes=np.full(cluster.num_devices, np.inf))
    return prices


def _no_prices(graph: DataflowGraph, cluster: Cluster) -> Prices:
    """Prices of 0 for all ops and transfers; memory and kinds are the cluster's."""
    num, kinds = cluster.num_devices, [device.kind for device in cluster.devices]
    return Prices(
        op_seconds=np.zeros((graph.num_ops, num)),
        size=np.zeros(len(graph.regions)),
        latency_s=np.zeros((num, num)),
        seconds_per_size=np.ones((num, num)),
        memory_bytes=np.array([float(device.memory_bytes) for device in cluster.devices]),
        kind=np.array([list(dict.fromkeys(kinds)).index(kind) for kind in kinds]),
        kind_seconds=np.zeros((0, 0, 0)),
        host=np.array(cluster.hosts or (), dtype=np.int64),
        nics=np.full(cluster.num_hosts if cluster.hosts else 0, cluster.nics, dtype=np.int64),
    )


def _given_ops(graph: DataflowGraph, seconds: FloatArray, cluster: Cluster) -> FloatArray:
    """The given seconds [V, D] of ops."""
    num = cluster.num_devices
    if seconds.ndim == 1:
        return np.repeat(seconds[:, None], num, axis=1)
    if seconds.shape[1] != num:
        raise InputError(
            f"graph {graph.name!r}: given seconds for {seconds.shape[1]} devices, cluster "
            f"{cluster.name!r} has {num}"
        )
    return seconds.copy()


def _by_kinds(graph: DataflowGraph, given: GivenCosts, cluster: Cluster) -> FloatArray:
    """The given seconds [E, K, K] between the cluster's kinds of devices, in its order.

    0 between kinds of which it has no two devices.
    """
    names = [device.kind for device in cluster.devices]
    kinds, seconds_EKK = list(dict.fromkeys(names)), given.transfer_seconds
    assert seconds_EKK is not None
    chosen_EKK = np.zeros((len(seconds_EKK), len(kinds), len(kinds)))
    for i, kind in enumerate(kinds):
        for j, to in enumerate(kinds):
            if kind == to and names.count(kind) == 1:
                continue
            for one in (kind, to):
                if one not in given.kinds:
                    raise InputError(
                        f"graph {graph.name!r}: given seconds of edges are for "
                        f"{', '.join(given.kinds)}, cluster {cluster.name!r} has {one!r} "
                        "(the kind of a device is its name up to the last colon)"
                    )
            chosen_E = seconds_EKK[:, given.kinds.index(kind), given.kinds.index(to)]
            if np.isnan(chosen_E).any():
                e = int(np.isnan(chosen_E).argmax())
                raise InputError(
                    f"graph {graph.name!r}: edge {e} ({graph.edges.src[e]} -> "
                    f"{graph.edges.dst[e]}) has no given seconds from {kind!r} to {to!r}"
                )
            chosen_EKK[:, i, j] = chosen_E
    return chosen_EKK


def modelled_prices(graph: DataflowGraph, cluster: Cluster, costs: CostTable | None) -> Prices:
    """Price a graph by the rooflines of devices and by links, or by measurements of them.

    Args:
        graph: to execute.
        cluster: that executes it.
        costs: measured on the cluster; None: all are modelled.

    Raises:
        InputError: as in `op_cost_s`.
    """
    ops = graph.ops
    moved = ops.read_bytes + ops.output_bytes
    op_seconds = np.stack(
        [
            op_cost_s(flops=ops.flops, moved_bytes=moved, dtypes=ops.dtypes, device=device)
            for device in cluster.devices
        ],
        axis=1,
    )
    latency_s, seconds_per_size = cluster.path_latency_s, 1.0 / cluster.path_bytes_per_s
    if costs is not None:
        op_seconds = _replaced(op_seconds, measured_seconds(graph, costs))
        latency_s = _replaced(latency_s, costs.latency_s)
        seconds_per_size = _replaced(seconds_per_size, costs.seconds_per_byte)
        for link in (latency_s, seconds_per_size):  # the diagonal of a table is not a link
            np.fill_diagonal(link, 0.0)
    return _no_prices(graph, cluster)._replace(
        op_seconds=op_seconds,
        size=graph.regions.bytes.copy(),
        latency_s=latency_s,
        seconds_per_size=seconds_per_size,
    )


def measured_seconds(graph: DataflowGraph, costs: CostTable) -> FloatArray:
    """Return the measured seconds [V, D] of each op's kernel, NaN if unknown.

    Args:
        graph: to execute.
        costs: measured.
    """
    kernels = graph.ops.kernels or (None,) * graph.num_ops
    return np.stack([costs.seconds(kernel) for kernel in kernels])


def _replaced(modelled: FloatArray, measured: FloatArray) -> FloatArray:
    return np.where(np.isfinite(measured), measured, modelled)
