"""The parts of `make gpu` that execute: results, overheads, speeds, use.

Shape suffix: B placements, V ops.
"""

import logging
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from benchmarks.executor import NUM_OPS, empty_tasks, hand_off_s, in_turns
from benchmarks.gpu.parts import Fault, Figure, Settings
from executions import (
    WORKLOADS,
    check_runs,
    check_too_little_memory,
    graph,
    ordered_placement,
    problem,
)
from torch.fx.experimental.proxy_tensor import make_fx

from doppler.einsum import load_program, lower
from doppler.executor import (
    Cuda,
    SynchronousCuda,
    SynchronousThreads,
    Threads,
    random_inputs,
)
from doppler.executor.devices import Cores, Devices
from doppler.executor.gpus import Gpus
from doppler.executor.graphs import Captured
from doppler.executor.issuing import issue_all
from doppler.executor.kernels import compile_kernel
from doppler.executor.operands import assemble, cut
from doppler.executor.recording import Action
from doppler.executor.tasks import Tasks
from doppler.executor.tensors import input_blocks
from doppler.executor.workers import Workers
from doppler.graph import DataflowGraph, topological_order
from doppler.system import System

# Sums in another order; clocks of several GPUs, and what an event takes to be noticed.
ERROR_FACTOR, CLOCKS_S = 10.0, 50e-6
TIMED_RUNS, TURNS = {False: 20, True: 3}, {False: 9, True: 3}  # by whether it is to be small
USE_S = 2.0
# About 10 ms: longer than the host takes to start what torch.compile made.
HOLD_CYCLES = 20_000_000

Findings = Iterator[Figure | Fault]


def _systems(settings: Settings) -> dict[str, System]:
    if settings.executor == "cuda":
        strict = {
            "strict, issued ahead": Cuda(queue="strict", graphs=False),
            "strict, as graphs": Cuda(queue="strict"),
        }
        free, synchronous = Cuda, SynchronousCuda()
    else:
        strict = {"strict": Threads(queue="strict")}
        free, synchronous = Threads, SynchronousThreads()
    queues = {"priority": free(), "fifo": free(queue="fifo")}
    return {**queues, **strict, "synchronous": synchronous}


def _devices(settings: Settings, num: int) -> Devices:
    return Gpus(num) if settings.executor == "cuda" else Cores(num)


def _wait(settings: Settings) -> None:
    if settings.executor == "cuda":
        for gpu in range(torch.cuda.device_count()):
            torch.cuda.synchronize(gpu)


@contextmanager
def refused_graphs() -> Iterator[list[str]]:
    """Collect the warnings of executions that should be CUDA graphs and are not."""
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logger = logging.getLogger("doppler.executor.graphs")
    logger.addHandler(handler)
    try:
        yield told
    finally:
        logger.removeHandler(handler)


def results(settings: Settings) -> Findings:
    """Every workload on every system: its results are plain torch's, its traces pass the checks."""
    seeds = range(2 if settings.small else 25)
    on_gpus = settings.executor == "cuda"
    for label, system in _systems(settings).items():
        for name in WORKLOADS[:2] if settings.small else WORKLOADS:
            try:
                with refused_graphs() as refused:
                    share = check_runs(
                        name,
                        settings.num_devices,
                        system,
                        seeds,
                        factor=ERROR_FACTOR if on_gpus else 1.0,
                        tolerance_s=CLOCKS_S if label.startswith("strict, ") else None,
                    )
            except Exception as error:
                yield Fault.of(error, f"{name}, {label}")
            else:
                yield Figure(name, label, share)
                yield from (Fault(f"{name}, {label}: {line}") for line in refused[:1])
    if on_gpus:
        check_too_little_memory(Cuda())


# --- Overheads ------------------------------------------------------------------------------------


def overhead(settings: Settings) -> Findings:
    """What an op of next to no work costs: NUM_OPS of them on two devices."""
    devices, workers = _devices(settings, 2), Workers()
    numbers = [torch.zeros(1, device=devices.place(d)) for d in range(2)]
    _wait(settings)
    contestants: dict[tuple[str, str], Callable[[], float]] = {}
    for kind in ("wide", "chain"):
        tasks = empty_tasks(kind)
        actions = _tiny_actions(tasks, devices, numbers)
        contestants[kind, "dispatched"] = partial(_dispatched_s, workers, devices, tasks, actions)
        if settings.executor == "cuda":
            contestants[kind, "issued ahead"] = partial(_issued_ahead_s, tasks, actions)
            contestants[kind, "issued ahead, by the host's clock"] = partial(
                _all_told_s, tasks, actions
            )
    contestants["one at a time", "dispatched"] = partial(_alone_s, devices, numbers[0])
    contestants["hand-off of threads", "dispatched"] = hand_off_s
    for (kind, mode), seconds in in_turns(contestants, TURNS[settings.small]).items():
        yield Figure(kind, mode, seconds * 1e6)
    workers.close()


def _tiny_actions(tasks: Tasks, devices: Devices, numbers: list[torch.Tensor]) -> list[Action]:
    adding = [devices.computing(d, partial(numbers[d].add_, 1)) for d in range(2)]
    copying = {(s, 1 - s): devices.copying(s, 1 - s, numbers[s], numbers[1 - s]) for s in range(2)}
    moves = range(tasks.num_ops, tasks.num_ops + tasks.num_transfers)
    ops = [adding[d] for d in tasks.resource[: tasks.num_ops]]
    return [*ops, *(copying[tasks.channel(task)] for task in moves)]


def _dispatched_s(workers: Workers, devices: Devices, tasks: Tasks, actions: list[Action]) -> float:
    dispatcher, begin = workers.run(
        tasks, actions, fifo=False, sender_copies=devices.sender_copies, timeout_s=60
    )
    return (max(dispatcher.finish_s) - begin) / NUM_OPS


def _issued_ahead_s(tasks: Tasks, actions: list[Action]) -> float:
    """By the clock of the GPU."""
    return max(issue_all(tasks, actions, 60).finish_s) / NUM_OPS


def _all_told_s(tasks: Tasks, actions: list[Action]) -> float:
    """By the clock of the host, which issues it all before the GPU begins."""
    begin = time.perf_counter()
    issue_all(tasks, actions, 60)
    return (time.perf_counter() - begin) / NUM_OPS


def _alone_s(devices: Devices, number: torch.Tensor) -> float:
    """Issued and waited for, by one thread, with nothing to decide."""
    action = devices.computing(0, partial(number.add_, 1))
    with torch.inference_mode():
        begin = time.perf_counter()
        for _ in range(NUM_OPS):
            action()
    return (time.perf_counter() - begin) / NUM_OPS


def graphs(settings: Settings) -> Findings:
    """The same ops, on streams of one GPU: issued ahead, and as a CUDA graph that is replayed.

    On cores, which have no graphs, dispatched.
    """
    on_gpus = settings.executor == "cuda"
    devices: Devices = Gpus(2, [0, 0]) if on_gpus else Cores(2)
    numbers, workers = [torch.zeros(1, device=devices.place(d)) for d in range(2)], Workers()
    _wait(settings)
    contestants: dict[tuple[str, str], Callable[[], float]] = {}
    for kind in ("wide", "chain"):
        tasks = empty_tasks(kind)
        actions: list[Any] = _tiny_actions(tasks, devices, numbers)
        if not on_gpus:
            run = partial(_dispatched_s, workers, devices, tasks, actions)
            contestants[kind, "dispatched"] = run
            continue
        _issued_ahead_s(tasks, actions)  # loads what may not be loaded during a capture
        begin = time.perf_counter()
        captured = Captured(tasks, actions, None)
        yield Figure(kind, "captured, once", (time.perf_counter() - begin) / NUM_OPS * 1e3)
        yield Figure(kind, "replayed, first time", _replayed_s(captured) * 1e3)
        contestants[kind, "issued ahead"] = partial(_issued_ahead_s, tasks, actions)
        contestants[kind, "issued ahead, by the host's clock"] = partial(
            _all_told_s, tasks, actions
        )
        contestants[kind, "replayed"] = partial(_replayed_s, captured)
        contestants[kind, "replayed, by the host's clock"] = partial(_replayed_all_told_s, captured)
    for (kind, mode), seconds in in_turns(contestants, TURNS[settings.small]).items():
        yield Figure(kind, mode, seconds * 1e3)
    workers.close()


def _replayed_s(captured: Captured) -> float:
    """By the clock of the GPU."""
    return max(captured.replay(60).finish_s) / NUM_OPS


def _replayed_all_told_s(captured: Captured) -> float:
    """By the clock of the host."""
    begin = time.perf_counter()
    captured.replay(60)
    return (time.perf_counter() - begin) / NUM_OPS


def whole_runs(settings: Settings) -> Findings:
    """Time the small presets: by torch, all ops on one device, and ops dealt out in turns.

    All seconds are by the clock of the devices, from the start of the first op to the end of the
    last. Torch computes the same operators on one device: eagerly, where the device waits for the
    host to issue them, and compiled, where it is held until the host is done, because replays of
    our graphs do not count the host either. Where a workload is split into blocks, torch also
    computes it as a whole, as one would on one device.
    """
    repeats = TIMED_RUNS[settings.small]
    names = WORKLOADS[:1] if settings.small else WORKLOADS
    if settings.executor == "cuda" and not settings.small:
        _compile_all(names)
    for name in names:
        for of in _graphs(name):
            yield from _torch_runs(of, settings)
    for name in names:
        of = problem(name, settings.num_devices)
        alone_BV = np.zeros((1, of.num_ops), dtype=np.int64)
        dealt_BV = np.arange(of.num_ops)[None] % of.num_devices
        for label, system in _systems(settings).items():
            if label == "fifo":
                continue
            with refused_graphs() as refused, system.open(of) as session:
                for where, device_BV in (("one device", alone_BV), ("dealt out", dealt_BV)):
                    seconds_R = session.measure(device_BV, repeats=1 + repeats).seconds[0]
                    milliseconds = float(np.median(seconds_R[1:])) * 1e3
                    yield Figure(_row(of.graph), f"{where}, {label}", milliseconds)
            yield from (Fault(f"{name}, {label}: {line}") for line in refused[:1])


def _graphs(name: str) -> list[DataflowGraph]:
    """A workload split into blocks, and as a whole if that differs."""
    split = graph(name)
    whole = lower(load_program(f"workloads/{name}.einsum", preset="small"), {})
    return [split] if whole.num_ops == split.num_ops else [split, whole]


def _row(of: DataflowGraph) -> str:
    return f"{of.name}, {of.num_ops} ops"


def _torch_runs(of: DataflowGraph, settings: Settings) -> Findings:
    """One device, without the executor."""
    operators, blocks = _traced(of, _devices(settings, 1).place(0))
    with torch.inference_mode():
        seconds = _median_s(lambda: operators(blocks), settings)
        yield Figure(_row(of), "torch, eager", seconds * 1e3)
        if settings.executor != "cuda" or settings.small:
            return
        try:
            compiled = _compiled(operators)
            seconds = _median_s(lambda: compiled(blocks), settings, held=True)
        except Exception as error:  # of another project's compiler
            yield Figure(_row(of), "torch.compile", type(error).__name__)
        else:
            yield Figure(_row(of), "torch.compile", seconds * 1e3)


def _compile_all(names: Sequence[str]) -> None:
    """Fill torch's cache of compiled code, in one process for each graph."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(8, mp_context=spawn) as pool:
        for done in [pool.submit(_compile_one, name, i) for name in names for i in range(2)]:
            done.exception()  # is told by the run that needs the code


def _compile_one(name: str, i: int) -> None:
    if i < len(_graphs(name)):
        operators, blocks = _traced(_graphs(name)[i], "cuda:0")
        with torch.inference_mode():
            _compiled(operators)(blocks)
            torch.cuda.synchronize()


def _compiled(operators: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(operators, mode="reduce-overhead", fullgraph=True, dynamic=False)


def _traced(of: DataflowGraph, place: str) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """The operators of a graph as one function, and what it takes."""
    inputs = random_inputs(of, np.random.default_rng(0))
    blocks = [block.to(place) for block in input_blocks(of, inputs)]
    for block in blocks:  # or the CUDA graphs of torch.compile copy them in each call
        torch._dynamo.mark_static_address(block)
    with torch.inference_mode():
        return make_fx(partial(_compute, of, place))(blocks), blocks


def _compute(of: DataflowGraph, place: str, blocks: list[torch.Tensor]) -> list[torch.Tensor]:
    """All results that no other op reads."""
    results: dict[int, torch.Tensor] = {}
    for v in topological_order(of.num_ops, of.edges.src, of.edges.dst).tolist():
        kernel, reads = of.ops.kernels[v], of.ops.reads[v]
        assert kernel is not None
        sources = [(blocks if read.from_input else results)[read.source] for read in reads]
        pieces = [cut(source, read.box) for source, read in zip(sources, reads, strict=True)]
        operands = assemble(kernel, reads, pieces, device=place)
        results[v] = compile_kernel(kernel, device=place)(operands)
    return [results[v] for v in sorted(set(results) - set(of.edges.src.tolist()))]


def _median_s(function: Callable[[], object], settings: Settings, *, held: bool = False) -> float:
    """Seconds of one call, by the clock of the GPU if there is one."""
    clock, seconds = _gpu_s if settings.executor == "cuda" else _host_s, []
    for _ in range(5 + TIMED_RUNS[settings.small]):
        _wait(settings)
        if held:
            torch.cuda._sleep(HOLD_CYCLES)
        seconds.append(clock(function))
    return statistics.median(seconds[5:])


def _gpu_s(function: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    function()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def _host_s(function: Callable[[], object]) -> float:
    begin_s = time.perf_counter()
    function()
    return time.perf_counter() - begin_s


# --- Speeds and use -------------------------------------------------------------------------------


def machine(settings: Settings) -> Findings:
    """What one device does at best, to hold the presets of clusters against."""
    place = _devices(settings, 1).place(0)
    num = 256 if settings.small else 8192
    before = torch.get_float32_matmul_precision()
    for label, dtype, precision in (
        ("f32 product", torch.float32, "highest"),
        ("f32 product in TF32", torch.float32, "high"),
        ("f16 product", torch.float16, "highest"),
    ):
        x = torch.randn(num, num, device=place).to(dtype)
        torch.set_float32_matmul_precision(precision)
        seconds = _median_s(partial(torch.mm, x, x), settings)
        torch.set_float32_matmul_precision(before)
        yield Figure(f"{label}, TFLOP/s", "rate", 2 * num**3 / seconds / 1e12)
    block = torch.zeros((1 << 20) if settings.small else (1 << 30), dtype=torch.uint8, device=place)
    seconds = _median_s(partial(torch.empty_like(block).copy_, block), settings)
    yield Figure("copy, read and written, GB/s", "rate", 2 * len(block) / seconds / 1e9)


def use(settings: Settings) -> Findings:
    """How busy GPUs are while one placement is executed over and over."""
    of = problem("chainmm" if settings.small else "llama_layer", settings.num_devices)
    with _systems(settings)["priority"].open(of) as session:
        found = session.use(ordered_placement(of, 0), USE_S)
    if settings.executor == "cuda" and not found:
        yield Fault("the driver says nothing of the use of its GPUs")
    for gpu, busy, memory_bytes, energy_j in found:
        yield Figure(gpu, "busy, %", 100 * busy)
        yield Figure(gpu, "GB in use", memory_bytes / 1e9)
        if energy_j is not None:
            yield Figure(gpu, "J an execution", energy_j)
