"""What the executor costs beside the kernels: dispatch per op, and whole runs of the workloads.

    python benchmarks/executor.py

Dispatch: 2,000 ops that do nothing on 2 devices, in a wide graph (none waits for another) and in a
chain that changes the device at every op. A hand-off is what it takes one thread to wake another
and go to sleep, back and forth, measured in turns with the rest; goals are in hand-offs. Cells are
medians over the turns, of elapsed time per op.

Workloads at preset small: plain torch, op by op (`run_graph`), and the executor with everything on
one device and with ops dealt out in turns to two; the synchronous executor with the same. All are
in turns; random weights and data. The fewer cores are free, the less two devices are worth.

Simulation: llama_layer small on 2 devices, calibrated as stage=calibrate does, then random
placements measured (medians of 5 repeats in turns) over what the simulator says.
"""

import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / "src"))

from doppler.cluster import host  # noqa: E402
from doppler.einsum import FewestElements, load_program, load_workload, lower  # noqa: E402
from doppler.executor import SynchronousThreads, Threads, random_inputs, run_graph  # noqa: E402
from doppler.executor.calibration import calibrate  # noqa: E402
from doppler.executor.tasks import Tasks, Unroller  # noqa: E402
from doppler.executor.workers import Workers  # noqa: E402
from doppler.graph import DataflowGraph, Edges, Inputs, Ops  # noqa: E402
from doppler.problem import build  # noqa: E402
from doppler.simulator import WorkConserving  # noqa: E402

NUM_OPS, TURNS, PLACEMENTS = 2000, 21, 30
GOALS = {"wide": 1.5, "chain": 3.0}  # hand-offs per op


def in_turns(
    contestants: Mapping[str, Callable[[], float]], turns: int = TURNS
) -> dict[str, float]:
    """Median seconds of each contestant."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(turns):
        for name, contestant in contestants.items():
            seconds[name].append(contestant())
    return {name: statistics.median(values) for name, values in seconds.items()}


def hand_off_s(num: int = 1000) -> float:
    """Seconds from one thread to another that sleeps, and sleeps again."""
    here, there = threading.Lock(), threading.Lock()
    here.acquire()
    there.acquire()

    def answer() -> None:
        for _ in range(num):
            there.acquire()
            here.release()

    thread = threading.Thread(target=answer)
    thread.start()
    begin = time.perf_counter()
    for _ in range(num):
        there.release()
        here.acquire()
    elapsed = time.perf_counter() - begin
    thread.join()
    return elapsed / (2 * num)


def empty_tasks(kind: str) -> Tasks:
    """NUM_OPS ops on devices 0, 1, 0, 1, ..."""
    src = np.arange(NUM_OPS - 1) if kind == "chain" else np.arange(0)
    graph = DataflowGraph(
        name=kind,
        ops=Ops.make(flops=np.zeros(NUM_OPS)),
        edges=Edges.make(src=src, dst=src + 1, bytes=np.zeros(len(src))),
        inputs=Inputs.make(),
    )
    device_V = (np.arange(NUM_OPS) % 2).tolist()
    return Unroller(graph, 2).work_conserving(device_V, list(range(NUM_OPS)))


def nothing() -> None:
    """A kernel that does nothing."""


def dispatch() -> None:
    """Overhead per op, in microseconds and in hand-offs."""
    workers = Workers()

    def run(kind: str) -> Callable[[], float]:
        tasks = empty_tasks(kind)
        actions = [nothing] * len(tasks.resource)

        def once() -> float:
            dispatcher, begin = workers.run(
                tasks, actions, fifo=False, sender_copies=True, timeout_s=60
            )
            return (max(dispatcher.finish_s) - begin) / NUM_OPS

        return once

    median_s = in_turns({"hand-off": hand_off_s, **{kind: run(kind) for kind in GOALS}})
    workers.close()
    hand_off = median_s.pop("hand-off")
    print(f"one thread hand-off: {hand_off * 1e6:.2f} us")
    for kind, seconds in median_s.items():
        print(
            f"{kind:6s} {NUM_OPS} empty ops: {seconds * 1e6:6.2f} us per op, "
            f"{seconds / hand_off:5.2f} hand-offs (goal: at most {GOALS[kind]})"
        )


def workload_s(graph: DataflowGraph) -> dict[str, float]:
    """Median seconds of a workload by how it is executed."""
    inputs = random_inputs(graph, np.random.default_rng(0))
    problem = build(graph, host(num_devices=2))
    alone_BV = np.zeros((1, graph.num_ops), dtype=np.int64)
    dealt_BV = np.arange(graph.num_ops)[None] % 2

    def plain() -> float:
        begin = time.perf_counter()
        run_graph(graph, inputs)
        return time.perf_counter() - begin

    with Threads().open(problem) as free, SynchronousThreads().open(problem) as synchronous:
        return in_turns(
            {
                "plain torch": plain,
                "one device": lambda: free.measure(alone_BV).seconds[0, 0],
                "two devices": lambda: free.measure(dealt_BV).seconds[0, 0],
                "two, synchronous": lambda: synchronous.measure(dealt_BV).seconds[0, 0],
            }
        )


def workloads() -> None:
    """Whole runs, in milliseconds."""
    print("\nworkload (small)  ops  plain torch   one device  two devices  two, synchronous")
    for path in sorted((PROJECT / "workloads").glob("*.einsum")):
        program = load_program(str(path), preset="small")
        graph = lower(program, program.given_splits)
        cells = " ".join(f"{seconds * 1e3:9.2f} ms" for seconds in workload_s(graph).values())
        print(f"{graph.name:17s} {graph.num_ops:4d} {cells}")


def against_simulation() -> None:
    """Measured makespans over those that the simulator predicts with measured costs."""
    graph = load_workload(
        program=str(PROJECT / "workloads/llama_layer.einsum"),
        decomposition=FewestElements(),
        parts=2,
        preset="small",
    )
    system, cluster, rng = Threads(), host(num_devices=2), np.random.default_rng(0)
    costs = calibrate(system, build(graph, cluster), runs=TURNS, rng=rng, links=True)
    problem = build(graph, cluster, costs)
    device_BV = rng.integers(2, size=(PLACEMENTS, graph.num_ops))
    simulated_B = WorkConserving().open(problem).measure(device_BV).seconds[:, 0]
    with system.open(problem) as session:
        measured_B = np.median(session.measure(device_BV, repeats=5).seconds, axis=1)
    ratio_B = measured_B / simulated_B
    low, median, high = np.quantile(ratio_B, [0.1, 0.5, 0.9])
    print(
        f"\n{graph.name} small, {graph.num_ops} ops on 2 devices, {PLACEMENTS} random placements:\n"
        f"measured over simulated makespan: median {median:.2f} (goal: at most 1.15), "
        f"10% to 90% {low:.2f} to {high:.2f}"
    )


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    print(f"{len(os.sched_getaffinity(0))} cores, torch {torch.__version__}, {TURNS} turns")
    dispatch()
    workloads()
    against_simulation()


if __name__ == "__main__":
    main()
