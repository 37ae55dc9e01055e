"""How tasks use shared resources of a machine, and at which rates they then run.

A task that uses a shared resource runs at a rate between 0 and 1, where 1 is its speed when alone.
Speeds are max-min fair: the speeds of all tasks (bytes per second of a transfer, the largest demand
of an op) rise together until a task has its full speed or one of its resources is full. The rate of
a task is its speed over its speed alone.

Shape suffixes: V ops, R regions, D devices, S shared resources, C = D + D * D users (device d is
user d, the link from s to d is user D + s * D + d), U uses.

Source: progressive filling, Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2; with
demands of several resources it is dominant resource fairness (Ghodsi et al., NSDI 2011). SimGrid's
default model gives transfers the same rates (Casanova et al., JPDC 2014).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.cluster import Cluster
from doppler.graph import DataflowGraph
from doppler.problem.arrays import ProblemArrays
from doppler.problem.costs import CostTable
from doppler.problem.pricing import rates_of

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Tolerance for rounding errors in sums of shares.
ROUNDING = 1e-9


class SharingArrays(NamedTuple):
    """The demands of tasks at full speed, and the capacities of resources.

    Processors are counted as shares of all processors, bytes per second as shares of the largest
    bandwidth of any resource.
    """

    capacity: FloatArray  # [S]
    moves_bytes: NDArray[np.bool_]  # [S] whether it counts bytes
    use_ptr: IntArray  # [C + 1] user c uses uses[use_ptr[c]:use_ptr[c + 1]]
    uses: IntArray  # [U] resources
    op_processors: FloatArray  # [V, D]
    op_bytes: FloatArray  # [V, D] per second
    region_bytes: FloatArray  # [R]


def make_sharing(
    graph: DataflowGraph, cluster: Cluster, arrays: ProblemArrays, costs: CostTable | None
) -> SharingArrays | None:
    """Return the demands of a problem's ops and transfers; None if its machine shares nothing.

    Args:
        graph: what is executed.
        cluster: the machine with its ``shared`` resources.
        arrays: seconds of ops and transfers without sharing.
        costs: measured on the machine. Missing demands are modelled by floating-point operations
            and bytes. An op whose seconds come with the graph may use all processors.
    """
    if not cluster.shared:
        return None
    num = cluster.num_devices
    moves_bytes_S = np.array([one.bytes_per_s is not None for one in cluster.shared])
    capacity_S = np.array([one.bytes_per_s or 1.0 for one in cluster.shared], dtype=np.float64)
    most = float(capacity_S[moves_bytes_S].max(initial=0.0)) or 1.0
    capacity_S[moves_bytes_S] /= most
    used: list[list[int]] = [[] for _ in range(num + num * num)]
    memory_D = np.full(num, np.inf)  # largest bytes per second of a device
    for k, one in enumerate(cluster.shared):
        for d in one.devices:
            used[d].append(k)
            memory_D[d] = min(memory_D[d], one.bytes_per_s or np.inf)
        for s, d in one.links:
            used[num + s * num + d].append(k)
    processors_VD, bytes_VD = _modelled(graph, cluster, arrays)
    bytes_VD = np.minimum(bytes_VD, memory_D)
    if costs is not None:
        measured_VD2 = _measured(graph, costs)
        known_VD = np.isfinite(measured_VD2).all(axis=2)
        processors_VD = np.where(known_VD, measured_VD2[:, :, 0], processors_VD)
        shared_D = np.where(np.isfinite(memory_D), memory_D, 0.0)
        bytes_VD = np.where(known_VD, measured_VD2[:, :, 1] * shared_D, bytes_VD)
    return SharingArrays(
        capacity=capacity_S,
        moves_bytes=moves_bytes_S,
        use_ptr=np.cumsum([0, *map(len, used)]).astype(np.int64),
        uses=np.array([k for of_user in used for k in of_user], dtype=np.int64),
        op_processors=np.ascontiguousarray(processors_VD),
        op_bytes=np.ascontiguousarray(bytes_VD / most),
        region_bytes=arrays.region_bytes / most,
    )


def _modelled(
    graph: DataflowGraph, cluster: Cluster, arrays: ProblemArrays
) -> tuple[FloatArray, FloatArray]:
    """Shares of processors, and bytes per second, [V, D] each, by rooflines."""
    seconds_VD = np.where(np.isfinite(arrays.op_seconds), arrays.op_seconds, 0.0)
    takes_VD = seconds_VD > 0
    seconds_VD = np.where(takes_VD, seconds_VD, 1.0)
    given = graph.given_costs
    if given is not None and given.op_seconds is not None:
        processors_VD = np.ones_like(seconds_VD)
    else:
        rates = [rates_of(graph.ops.dtypes, device) for device in cluster.devices]
        processors_VD = graph.ops.flops[:, None] / np.stack(rates, axis=1) / seconds_VD
    moved_V = graph.ops.read_bytes + graph.ops.output_bytes
    bytes_VD = moved_V[:, None] / seconds_VD
    return np.minimum(processors_VD, 1.0) * takes_VD, bytes_VD * takes_VD


def _measured(graph: DataflowGraph, costs: CostTable) -> FloatArray:
    """Shares [V, D, 2] of a device's processors and memory, NaN if unknown."""
    kernels = graph.ops.kernels or (None,) * graph.num_ops
    return np.stack([costs.demand(kernel) for kernel in kernels])


def max_min_rates(
    demands: Sequence[Mapping[int, float]], weights: Sequence[float], capacity: Sequence[float]
) -> list[float]:
    """Compute the rates of tasks that run at the same time, each above 0 and at most 1.

    This is `simulator/sharing_kernels.py` in plain Python.

    Args:
        demands: for each task, how much of each shared resource it uses at full speed.
        weights: the speed of each task alone. Its rate is the common speed over this, at most 1.
        capacity: of each shared resource.
    """
    rates, left, level = [0.0] * len(demands), list(capacity), 0.0
    waiting = set(range(len(demands)))
    total = [sum(demand.get(k, 0.0) for demand in demands) for k in range(len(left))]
    if all(sum_k <= room * (1 + ROUNDING) for sum_k, room in zip(total, left, strict=True)):
        return [1.0] * len(demands)
    while waiting:
        full, reached = -1, np.inf
        for k, room in enumerate(left):
            slope = sum(demands[i].get(k, 0.0) / weights[i] for i in sorted(waiting))
            if slope > 0 and room / slope < reached:
                full, reached = k, room / slope
        least = min(weights[i] for i in waiting)
        level = max(level, min(least, reached))
        for i in sorted(waiting):
            if weights[i] <= level:
                rates[i] = 1.0
            elif least > level and demands[i].get(full, 0.0) > 0:
                rates[i] = level / weights[i]
            else:
                continue
            waiting.remove(i)
            for k, demand in demands[i].items():
                left[k] -= demand * rates[i]
    return rates
