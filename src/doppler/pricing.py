"""What ops and transfers cost on a cluster: rooflines, measured seconds, or given ones.

Shape suffixes: V ops, D devices.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.cluster import Cluster, Device
from doppler.costs import CostTable
from doppler.errors import InputError
from doppler.graph import DataflowGraph, GivenCosts
from doppler.graph.scalar import WHOLE

FloatArray = NDArray[np.float64]

# What runs at the rate of another dtype, unless the device says otherwise.
_RATE_LIKE = {"c64": "f32", "bf16": "f16", **dict.fromkeys(("bool", *WHOLE), "f32")}


def op_cost_s(
    *, flops: FloatArray, moved_bytes: FloatArray, dtypes: tuple[str, ...], device: Device
) -> FloatArray:
    """Roofline seconds [V]: launch + max(flops / peak of the dtype, bytes / memory bandwidth).

    Where the device has an efficiency, kernels reach a share of the peaks, and less the smaller
    they are.

    Source: Williams, Waterman, Patterson, "Roofline", CACM 2009; the launch overhead is added.

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
    rate_V = np.array([rate[dtype] for dtype in dtypes])
    bytes_per_s, reached = device.memory_bytes_per_s, device.efficiency
    if reached is not None:
        # The size at which half is reached is what filling and draining the device costs.
        flops = np.where(flops > 0, flops + reached.half_flops, 0.0)
        moved_bytes = np.where(moved_bytes > 0, moved_bytes + reached.half_bytes, 0.0)
        rate_V, bytes_per_s = rate_V * reached.compute, bytes_per_s * reached.memory
    return device.launch_overhead_s + np.maximum(flops / rate_V, moved_bytes / bytes_per_s)


class Prices(NamedTuple):
    """The part of ProblemArrays that depends on the cluster or on given costs; fields as there."""

    op_seconds: FloatArray
    size: FloatArray
    latency_s: FloatArray
    seconds_per_size: FloatArray
    memory_bytes: FloatArray


def given_prices(graph: DataflowGraph, given: GivenCosts, num_devices: int) -> Prices:
    """Given costs: the same seconds on every device and link, no memory to count."""
    size = np.zeros(len(graph.regions))
    size[graph.regions.of_edge] = given.transfer_seconds
    return Prices(
        op_seconds=np.repeat(given.op_seconds[:, None], num_devices, axis=1),
        size=size,
        latency_s=np.zeros((num_devices, num_devices)),
        seconds_per_size=np.ones((num_devices, num_devices)),
        memory_bytes=np.full(num_devices, np.inf),
    )


def modelled_prices(graph: DataflowGraph, cluster: Cluster, costs: CostTable | None) -> Prices:
    """By the rooflines of the devices and by the links, or as measured on them.

    Raises:
        InputError: see op_cost_s.
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
    latency_s, seconds_per_size = cluster.latency_s.copy(), 1.0 / cluster.bytes_per_s
    if costs is not None:
        op_seconds = _replaced(op_seconds, measured_seconds(graph, costs))
        latency_s = _replaced(latency_s, costs.latency_s)
        seconds_per_size = _replaced(seconds_per_size, costs.seconds_per_byte)
    return Prices(
        op_seconds=op_seconds,
        size=graph.regions.bytes.copy(),
        latency_s=latency_s,
        seconds_per_size=seconds_per_size,
        memory_bytes=np.array([float(device.memory_bytes) for device in cluster.devices]),
    )


def measured_seconds(graph: DataflowGraph, costs: CostTable) -> FloatArray:
    """Seconds of each op's kernel [V, D], NaN where none are measured."""
    kernels = graph.ops.kernels or (None,) * graph.num_ops
    return np.stack([costs.seconds(kernel) for kernel in kernels])


def _replaced(modelled: FloatArray, measured: FloatArray) -> FloatArray:
    return np.where(np.isfinite(measured), measured, modelled)
