"""The parts of `make gpu` that execute: results, overheads, speeds, use.

Shape suffix: B placements, V ops.
"""

import statistics
import time
from collections.abc import Callable, Iterator
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

from doppler.executor import (
    Cuda,
    SynchronousCuda,
    SynchronousThreads,
    Threads,
    random_inputs,
    run_graph,
)
from doppler.executor.devices import Cores, Devices
from doppler.executor.gpus import Gpus
from doppler.executor.graphs import Captured
from doppler.executor.issuing import issue_all
from doppler.executor.recording import Action
from doppler.executor.tasks import Tasks
from doppler.executor.workers import Workers
from doppler.system import System

# Sums in another order; clocks of several GPUs, and what an event takes to be noticed.
ERROR_FACTOR, CLOCKS_S = 10.0, 50e-6
TIMED_RUNS, TURNS = {False: 20, True: 3}, {False: 9, True: 3}  # by whether it is to be small
USE_S = 2.0

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


def results(settings: Settings) -> Findings:
    """Every workload on every system: its results are plain torch's, its traces pass the checks."""
    seeds = range(2 if settings.small else 50)
    on_gpus = settings.executor == "cuda"
    for label, system in _systems(settings).items():
        for name in WORKLOADS[:2] if settings.small else WORKLOADS:
            try:
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
            contestants[kind, "issued ahead, all told"] = partial(_all_told_s, tasks, actions)
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
        contestants[kind, "issued ahead"] = partial(_issued_ahead_s, tasks, actions)
        contestants[kind, "issued ahead, all told"] = partial(_all_told_s, tasks, actions)
        contestants[kind, "replayed"] = partial(_replayed_s, captured)
        contestants[kind, "replayed, all told"] = partial(_replayed_all_told_s, captured)
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
    """Small presets: plain torch op by op, all ops on one device, and dealt out in turns.

    The first run after a session is opened shows what warming up has left over.
    """
    repeats = TIMED_RUNS[settings.small]
    for name in ("chainmm",) if settings.small else ("llama_layer", "ffnn", "chainmm", "cholesky"):
        of = problem(name, settings.num_devices)
        alone_BV = np.zeros((1, of.num_ops), dtype=np.int64)
        dealt_BV = np.arange(of.num_ops)[None] % of.num_devices
        yield Figure(name, "in plain torch", _plain_s(name, settings) * 1e3)
        for label, system in _systems(settings).items():
            if label == "fifo":
                continue
            with system.open(of) as session:
                dealt_R = session.measure(dealt_BV, repeats=1 + repeats).seconds[0]
                alone_R = session.measure(alone_BV, repeats=repeats).seconds[0]
            if label == "priority":
                yield Figure(name, "on one device", float(np.median(alone_R)) * 1e3)
                yield Figure(name, "dealt out, first run", float(dealt_R[0]) * 1e3)
            yield Figure(name, f"dealt out, {label}", float(np.median(dealt_R[1:])) * 1e3)


def _plain_s(name: str, settings: Settings) -> float:
    place = _devices(settings, 1).place(0)
    inputs = random_inputs(graph(name), np.random.default_rng(0))
    inputs = {key: value.to(place) for key, value in inputs.items()}
    return _median_s(lambda: run_graph(graph(name), inputs), settings)


def _median_s(function: Callable[[], object], settings: Settings) -> float:
    """Of one call, all that it issued done."""
    seconds = []
    for _ in range(3 + TIMED_RUNS[settings.small]):
        _wait(settings)
        begin = time.perf_counter()
        function()
        _wait(settings)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[3:])


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
