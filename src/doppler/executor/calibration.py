"""What ops and transfers cost on a system, measured in its own executions.

Kernels are timed in the conditions in which they will run: in executions of the workload itself,
under placements that keep all devices busy, so that devices compete for memory bandwidth and
caches. If the machine says what devices share, the simulator itself computes how they slow each
other down. Then kernels are timed on one device at a time, and links one by one.

Shape suffixes: V ops, T transfers, D devices, N samples.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from doppler.einsum import Given, lower
from doppler.einsum.language.resolver import parse_program
from doppler.graph import DataflowGraph
from doppler.problem import Placement, Problem, build
from doppler.problem.costs import CostTable, kernel_key
from doppler.support.errors import InputError
from doppler.system import System
from doppler.trace import Trace

FloatArray = NDArray[np.float64]

# Sizes in bytes of the transfers that probe a link, from a few numbers to a large block.
_PROBED_BYTES = (256, 4096, 16384, 65536, 262144, 1048576, 2097152)
# The size of a further probe for links within one memory: what fits in the cache of a GPU, as 2 MB,
# is copied about as fast as a few bytes. Also limited to this share of the memory of a device.
_LARGE_BYTES, _LARGE_SHARE = 1 << 26, 1 / 64

# Measuring all pairs of so many devices takes a minute or two.
_MAX_DEVICES = 64


def occupied_s(trace: Trace) -> tuple[FloatArray, FloatArray]:
    """Return for how many seconds each op [V] and transfer [T] occupied its device or link.

    The time runs from when the task could have started (its operands are there, and the task before
    it on the same stream or link is done) to its finish. In a simulation that is its duration; on a
    real system it includes handing the task over.

    Args:
        trace: of one execution.
    """
    device_V = trace.placement.device
    op_V = _from_possible_start(
        np.stack([device_V, trace.op_stream]),
        trace.op_ready_s(),
        trace.op_start_s,
        trace.op_finish_s,
    )
    transfer_T = _from_possible_start(
        np.stack([trace.transfer_src, trace.transfer_dst]),
        trace.transfer_ready_s(),
        trace.transfer_start_s,
        trace.transfer_finish_s,
    )
    return op_V, transfer_T


def _from_possible_start(
    resource_2N: NDArray[np.int64], ready_N: FloatArray, start_N: FloatArray, finish_N: FloatArray
) -> FloatArray:
    order_N = np.lexsort((finish_N, start_N, *resource_2N))
    free_N = np.zeros(len(order_N))
    follows = (resource_2N[:, order_N][:, 1:] == resource_2N[:, order_N][:, :-1]).all(axis=0)
    free_N[order_N[1:][follows]] = finish_N[order_N[:-1][follows]]
    # Clocks of two threads may disagree by a little.
    return np.maximum(finish_N - np.maximum(free_N, ready_N), finish_N - start_N)


def covering_placements(problem: Problem, num: int, rng: np.random.Generator) -> list[Placement]:
    """Make placements that together run each op on every device that can run it.

    Half of them are random. The others keep blocks of consecutive ops together, as good placements
    do: then all devices compute most of the time and compete for memory bandwidth and shared cores.

    Args:
        problem: to place.
        num: least number of placements; at least one is made per device.
        rng: draws them.
    """
    able_VD = np.isfinite(problem.arrays.op_seconds)
    num_able_V = able_VD.sum(axis=1)
    ranked_VD = np.argsort(~able_VD, axis=1, kind="stable")  # first those that can run it
    placements = []
    while len(placements) < max(num, problem.num_devices):
        begin_V = rng.integers(0, 2**31, problem.num_ops)
        if len(placements) // problem.num_devices % 2:
            begin_V = _neighbours(problem)
        for turn in range(problem.num_devices):
            chosen_V = (begin_V + turn) % num_able_V
            device_V = np.take_along_axis(ranked_VD, chosen_V[:, None], axis=1)[:, 0]
            placements.append(Placement.make(problem, device_V[problem.arrays.group]))
    return placements


def serial_placements(problem: Problem, num: int) -> list[Placement]:
    """Make placements that each put all ops on one device, except those that it cannot run.

    Args:
        problem: to place.
        num: least number of placements.
    """
    able_VD = np.isfinite(problem.arrays.op_seconds)
    placements = []
    while len(placements) < num:
        for d in range(problem.num_devices):
            device_V = np.where(able_VD[:, d], d, able_VD.argmax(axis=1))
            placements.append(Placement.make(problem, device_V[problem.arrays.group]))
    return placements


def _neighbours(problem: Problem) -> NDArray[np.int64]:
    """A device for each op [V]: each node's ops are divided into equal consecutive blocks."""
    ops, num = problem.graph.ops, problem.num_devices
    _, node_V = np.unique(ops.node, return_inverse=True)
    blocks_V = np.bincount(node_V)[node_V]
    return np.clip(ops.block, 0, blocks_V - 1) * num // blocks_V


@runtime_checkable
class TellsDemands(Protocol):
    """A session that can run kernels at the same time and measure what they share."""

    def demands(self) -> dict[str, FloatArray]:
        """Shares [D, 2] of processors and memory that each kernel uses, by kernel key."""
        ...


def calibrate(
    system: System,
    problem: Problem,
    *,
    runs: int,
    seconds: float = 0.0,
    rng: np.random.Generator,
    links: bool,
) -> CostTable:
    """Measure every kernel of a problem on every device and, if wanted, every link.

    If the machine says what devices share, and the system can measure it, each kernel's use of the
    shared resources is measured too.

    Args:
        system: to measure on.
        problem: whose kernels are measured.
        runs: number of placements of the problem, and of the graph that probes links.
        seconds: minimum time for which each of the two is executed. Links within one memory are
            probed once more, with a large block.
        rng: draws placements and orders.
        links: whether to measure links.

    Returns:
        The measured costs.

    Raises:
        InputError: there are so many devices that measuring all pairs would take too long.
    """
    num = problem.num_devices
    if num > _MAX_DEVICES:
        raise InputError(
            f"cluster.num_devices: calibration measures every pair of devices, {num * (num - 1):,} "
            f"of {num}: use at most {_MAX_DEVICES}"
        )
    alone = bool(problem.cluster.shared)
    placements = serial_placements(problem, runs) if alone else None
    placements = placements or covering_placements(problem, runs, rng)
    traces = run_all(system, problem, placements, seconds)
    measured = kernel_costs(traces)
    if alone:
        with system.open(problem) as session:
            if isinstance(session, TellsDemands):
                measured = replace(measured, demands=session.demands())
    if not links or problem.num_devices == 1:
        return measured
    probe = build(link_probe(), problem.cluster)
    traces = run_all(system, probe, probing_placements(probe, runs, alone=alone), seconds)
    if any(one.links and one.devices for one in problem.cluster.shared):
        # By itself: beside kernels of its size it would be slower.
        room = min(device.memory_bytes for device in problem.cluster.devices) * _LARGE_SHARE
        size = int(max(min(_LARGE_BYTES, room), _PROBED_BYTES[-1]))
        large = build(link_probe((size,)), problem.cluster)
        traces += run_all(system, large, probing_placements(large, runs, alone=True), 0.0)
    latency_s, seconds_per_byte = link_costs(traces)
    return replace(measured, latency_s=latency_s, seconds_per_byte=seconds_per_byte)


def kernel_costs(traces: Sequence[Trace]) -> CostTable:
    """Return the seconds of every kernel on every device, from executions of one problem.

    Args:
        traces: of the executions.

    Returns:
        A table of costs without links.
    """
    problem, samples = traces[0].problem, kernel_samples(traces)
    nothing = CostTable.empty(tuple(device.name for device in problem.cluster.devices))
    kernels = {key: np.full(problem.num_devices, np.nan) for key, _ in samples}
    for (key, d), seconds_N in samples.items():
        kernels[key][d] = typical_s(seconds_N)
    return replace(nothing, kernels=kernels)


def kernel_samples(traces: Sequence[Trace]) -> dict[tuple[str, int], FloatArray]:
    """Return all seconds [N] that ops of a kernel occupied a device, by kernel and device.

    Ops without a kernel, which only a simulator executes, are left out.

    Args:
        traces: of executions of one problem.
    """
    samples: dict[tuple[str, int], list[float]] = defaultdict(list)
    graph = traces[0].problem.graph
    kernels = graph.ops.kernels or (None,) * graph.num_ops
    keys = [None if kernel is None else kernel_key(kernel) for kernel in kernels]
    for trace in traces:
        op_V, _ = occupied_s(trace)
        for key, d, seconds in zip(keys, trace.placement.device.tolist(), op_V, strict=True):
            if key is not None:
                samples[key, d].append(float(seconds))
    return {key: np.array(seconds) for key, seconds in samples.items()}


def typical_s(seconds_N: FloatArray) -> float:
    """Return the mean after limiting every value to three medians.

    A makespan is a sum, so means predict it best. Very large values come from outside disturbances.

    Args:
        seconds_N: samples [N], seconds.
    """
    return float(np.minimum(seconds_N, 3.0 * np.median(seconds_N)).mean())


def run_all(
    system: System, problem: Problem, placements: Sequence[Placement], seconds: float
) -> list[Trace]:
    """Execute placements repeatedly and return their traces.

    The first few are executed once more beforehand, to warm up.

    Args:
        system: to execute on.
        problem: to open a session for.
        placements: to execute.
        seconds: minimum time to go on for.
    """
    with system.open(problem) as session:
        for placement in placements[: problem.num_devices]:
            session.trace(placement)
        traces, until_s = [], time.monotonic() + seconds
        while not traces or time.monotonic() < until_s:
            traces += [session.trace(placement) for placement in placements]
    return traces


def link_probe(sizes: Sequence[int] = _PROBED_BYTES) -> DataflowGraph:
    """Make a graph that moves blocks of some sizes wherever its placement separates two ops.

    Args:
        sizes: bytes of the blocks.
    """
    lines = ["program links", ""]
    for i, size in enumerate(sizes):
        lines += [
            f"input x{i}[{size // 4}] f32",
            f"y{i}[i] = relu(x{i}[i])",
            f"z{i}[i] = relu(y{i}[i])",
        ]
    program = parse_program("\n".join(lines) + "\n", file="links")
    return lower(program, Given().splits(program, 1))


def probing_placements(probe: Problem, num: int, *, alone: bool = False) -> list[Placement]:
    """Make placements of `link_probe` in which every link moves blocks of every size.

    Args:
        probe: `link_probe` on the machine.
        num: least number of placements.
        alone: use one link per placement; else several links are busy at the same time.
    """
    edges, num_devices = probe.graph.edges, probe.num_devices
    placements = []
    while len(placements) < num:
        for begin, distance in product(range(num_devices), range(1, num_devices)):
            device_V = np.empty(probe.num_ops, dtype=np.int64)
            device_V[edges.src] = begin + (0 if alone else np.arange(len(edges)))
            device_V[edges.dst] = device_V[edges.src] + distance
            placements.append(Placement.make(probe, device_V % num_devices))
    return placements


def link_costs(traces: Sequence[Trace]) -> tuple[FloatArray, FloatArray]:
    """Return latency and seconds per byte [D, D] of links that the traces use; NaN for others.

    Args:
        traces: of `link_probe` with any sizes.
    """
    problem = traces[0].problem
    samples: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for trace in traces:
        bytes_T = trace.problem.graph.regions.bytes[trace.transfer_region]
        _, seconds_T = occupied_s(trace)
        for s, d, num_bytes, seconds in zip(
            trace.transfer_src, trace.transfer_dst, bytes_T, seconds_T, strict=True
        ):
            samples[int(s), int(d)].append((float(num_bytes), float(seconds)))
    shape = (problem.num_devices, problem.num_devices)
    latency_s, seconds_per_byte = np.full(shape, np.nan), np.full(shape, np.nan)
    for link, pairs in samples.items():
        latency_s[link], seconds_per_byte[link] = fit_link(*np.array(pairs).T)
    return latency_s, seconds_per_byte


def fit_link(bytes_N: FloatArray, seconds_N: FloatArray) -> tuple[float, float]:
    """Fit latency and seconds per byte, both at least 0, with the least relative error.

    Args:
        bytes_N: sizes [N] of transfers.
        seconds_N: their seconds [N].
    """
    sizes = np.unique(bytes_N)
    typical = np.array([typical_s(seconds_N[bytes_N == size]) for size in sizes])
    weights = 1.0 / np.maximum(typical, 1e-12)
    columns = np.stack([np.ones_like(sizes), sizes], axis=1) * weights[:, None]
    scale = np.array([1.0, max(sizes.max(), 1.0)])
    latency, slope = nnls(columns / scale, typical * weights)[0] / scale
    return float(latency), float(slope)
