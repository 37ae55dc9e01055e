"""What ops and transfers cost on a system, as its own executions show it.

Kernels are timed where they will run: in executions of the workload itself, under placements that
keep all devices busy, so that they share memory bandwidth and caches as they will then. Where the
machine says what devices share, the simulator knows how they slow each other down: there kernels
are timed on one device at a time, and links one by one.

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

# Their pairs are measured within a minute or two.
_MAX_DEVICES = 64


def occupied_s(trace: Trace) -> tuple[FloatArray, FloatArray]:
    """What each op [V] and transfer [T] occupied its device or link, in seconds.

    From when it could have started (what it reads is there, and what ran before it on the same
    stream or link is done) to its finish. In a simulation that is its duration; a real system also
    hands over, and that counts.
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
    """Placements among which each op runs on every device that it can run on.

    At least ``num``, and one for every device. They are random in turns with such as good ones
    are, that keep blocks of a number together: there all devices compute most of the time, and take
    memory bandwidth, and cores where others use them, from each other.
    """
    able_VD = np.isfinite(problem.arrays.op_seconds)
    num_able_V = able_VD.sum(axis=1)
    ranked_VD = np.argsort(~able_VD, axis=1, kind="stable")  # devices that can run it come first
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
    """At least ``num`` placements, each with all ops on one device, or where else they can run."""
    able_VD = np.isfinite(problem.arrays.op_seconds)
    placements = []
    while len(placements) < num:
        for d in range(problem.num_devices):
            device_V = np.where(able_VD[:, d], d, able_VD.argmax(axis=1))
            placements.append(Placement.make(problem, device_V[problem.arrays.group]))
    return placements


def _neighbours(problem: Problem) -> NDArray[np.int64]:
    """Per op [V] a device, the same for blocks of a number, in equal parts of each node's."""
    ops, num = problem.graph.ops, problem.num_devices
    _, node_V = np.unique(ops.node, return_inverse=True)
    blocks_V = np.bincount(node_V)[node_V]
    return np.clip(ops.block, 0, blocks_V - 1) * num // blocks_V


@runtime_checkable
class TellsDemands(Protocol):
    """A session of a system on which kernels can be run at the same time, as executors' are."""

    def demands(self) -> dict[str, FloatArray]:
        """Shares [D, 2] of processors and memory that kernels use, by their key."""
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
    """Measure every kernel of a problem on every device, and, if wanted, every link.

    runs: placements of the problem, and as many of the probe of the links. seconds: for how long at
    least each of the two is executed, over and over. What kernels use of what the machine says is
    shared is measured too, where the system can tell.

    Raises:
        InputError: so many devices that measuring them would not end.
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
    latency_s, seconds_per_byte = link_costs(traces)
    return replace(measured, latency_s=latency_s, seconds_per_byte=seconds_per_byte)


def kernel_costs(traces: Sequence[Trace]) -> CostTable:
    """Seconds of every kernel on every device that executions of one problem show; no links."""
    problem, samples = traces[0].problem, kernel_samples(traces)
    nothing = CostTable.empty(tuple(device.name for device in problem.cluster.devices))
    kernels = {key: np.full(problem.num_devices, np.nan) for key, _ in samples}
    for (key, d), seconds_N in samples.items():
        kernels[key][d] = typical_s(seconds_N)
    return replace(nothing, kernels=kernels)


def kernel_samples(traces: Sequence[Trace]) -> dict[tuple[str, int], FloatArray]:
    """Per kernel and device all seconds [N] that ops of it occupied the device."""
    samples: dict[tuple[str, int], list[float]] = defaultdict(list)
    keys = [kernel_key(kernel) for kernel in traces[0].problem.graph.ops.kernels if kernel]
    for trace in traces:
        op_V, _ = occupied_s(trace)
        for key, d, seconds in zip(keys, trace.placement.device.tolist(), op_V, strict=True):
            samples[key, d].append(float(seconds))
    return {key: np.array(seconds) for key, seconds in samples.items()}


def typical_s(seconds_N: FloatArray) -> float:
    """The mean, no value counting for more than three medians.

    A makespan is a sum, so means predict it; what is far off was disturbed from outside.
    """
    return float(np.minimum(seconds_N, 3.0 * np.median(seconds_N)).mean())


def run_all(
    system: System, problem: Problem, placements: Sequence[Placement], seconds: float
) -> list[Trace]:
    """Traces of placements, again and again for so many seconds at least.

    The first few run once more before, to warm up.
    """
    with system.open(problem) as session:
        for placement in placements[: problem.num_devices]:
            session.trace(placement)
        traces, until_s = [], time.monotonic() + seconds
        while not traces or time.monotonic() < until_s:
            traces += [session.trace(placement) for placement in placements]
    return traces


def link_probe() -> DataflowGraph:
    """A graph that moves blocks of several sizes wherever its placement separates two ops."""
    lines = ["program links", ""]
    for i, size in enumerate(_PROBED_BYTES):
        lines += [
            f"input x{i}[{size // 4}] f32",
            f"y{i}[i] = relu(x{i}[i])",
            f"z{i}[i] = relu(y{i}[i])",
        ]
    program = parse_program("\n".join(lines) + "\n", file="links")
    return lower(program, Given().splits(program, 1))


def probing_placements(probe: Problem, num: int, *, alone: bool = False) -> list[Placement]:
    """At least ``num`` placements of `link_probe`, in which every link moves every size.

    Args:
        probe: `link_probe` on the machine.
        num: of placements.
        alone: one link a placement is used; else several, which are busy at one time.
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
    """Latency and seconds per byte [D, D] of the links that the traces use; NaN for others."""
    problem = traces[0].problem
    samples: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for trace in traces:
        bytes_T = problem.graph.regions.bytes[trace.transfer_region]
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
    """Latency and seconds per byte, none negative, of least relative error at the typical times."""
    sizes = np.unique(bytes_N)
    typical = np.array([typical_s(seconds_N[bytes_N == size]) for size in sizes])
    weights = 1.0 / np.maximum(typical, 1e-12)
    columns = np.stack([np.ones_like(sizes), sizes], axis=1) * weights[:, None]
    scale = np.array([1.0, max(sizes.max(), 1.0)])
    latency, slope = nnls(columns / scale, typical * weights)[0] / scale
    return float(latency), float(slope)
