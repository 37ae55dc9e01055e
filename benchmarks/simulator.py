"""Speed of the simulators: against SimPy and a plain oracle, over two cores, and by graph size.

Run: ``python benchmarks/simulator.py [--graph PATH]``; ``--help`` lists the rest. Without graphs it
takes the published ones where they are at hand (``$DOPPLER_GRAPHS``, else ../shared/graphs), else a
layered graph of the size of the published block.

All contestants of a table simulate the same random placements, in turns, in one process on one
core; a cell is the median over the turns, of CPU time (of elapsed time where two cores work). What
each is prepared with (costs as plain lists, open sessions, compiled engines) is not timed.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from doppler.cluster import preset
from doppler.graph import DataflowGraph
from doppler.graph.dataflow import Edges, Inputs, Ops
from doppler.graph.formats import load_graph
from doppler.problem import Placement, Problem, build
from doppler.simulator import Published, SimulatorSession, WorkConserving

ROOT = Path(__file__).resolve().parents[1]
# The SimPy model and the plain oracle are what the tests hold the engines against.
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "simulator")]

import oracle  # noqa: E402
import simpy_model  # noqa: E402
from problems import layered_edges  # noqa: E402

PUBLISHED = ("chain_mm_112nodes.txt", "ffnn_192nodes.txt", "transformer_block_215nodes.txt")
# Measured once with the released code of DOPPLER on one core (CPU time), 4 devices.
RECORDED_PER_S = {
    "chain_mm_112nodes": 94,
    "ffnn_192nodes": 36,
    "transformer_block_215nodes": 36,
}
PUBLISHED_ROW, SIMPY_ROW = "published", "SimPy, published semantics"
SIMPY_CONTENTION_ROW, FIFO_ROW = "SimPy, with contention", "work-conserving, contention fifo"
console = Console(width=100)

Batch = Callable[[], int]  # simulates some placements, returns how many


def layered_graph(num_ops: int, *, width: int, seed: int = 0) -> DataflowGraph:
    """Layers of ``width`` ops that read up to 3 ops of the layer before; 1 Gflop, 1 MB an op."""
    rng = np.random.default_rng(seed)
    src, dst = layered_edges(num_ops, rng, width=width, fan_in=3)
    size_V = rng.uniform(0.5e6, 1.5e6, num_ops)
    return DataflowGraph(
        name=f"layered_{num_ops}",
        ops=Ops.make(flops=rng.uniform(0.5e9, 1.5e9, num_ops), output_bytes=size_V),
        edges=Edges.make(src=src, dst=dst, bytes=size_V[src]),
        inputs=Inputs.make(),
    )


def random_batch(problem: Problem, num: int) -> tuple[np.ndarray, np.ndarray]:
    """Random placements: devices [B, V] and rankings [B, V]."""
    rng = np.random.default_rng(0)
    shape = (num, problem.num_ops)
    return rng.integers(0, problem.num_devices, shape), rng.permuted(
        np.broadcast_to(np.arange(problem.num_ops), shape), axis=1
    )


def rates(
    batches: dict[str, Batch], rounds: int, clock: Callable[[], float] = time.process_time
) -> dict[str, float]:
    """Evaluations per second of each, the median of ``rounds`` turns."""
    seconds: dict[str, list[float]] = {name: [] for name in batches}
    for batch in batches.values():  # compile, open, warm up
        batch()
    for _ in range(rounds):
        for name, batch in batches.items():
            begin = clock()
            num = batch()
            seconds[name].append((clock() - begin) / num)
    return {name: 1.0 / statistics.median(times) for name, times in seconds.items()}


def engine_batch(session: SimulatorSession, num: int) -> Batch:
    """Simulate ``num`` placements in one call."""
    device_BV, priority_BV = random_batch(session.problem, num)

    def batch() -> int:
        session.measure(device_BV, priority_BV)
        return num

    return batch


def slow_batch(problem: Problem, num: int, evaluate: Callable[[list[int]], object]) -> Batch:
    """Simulate the first ``num`` of the same placements, one call each."""
    devices = random_batch(problem, num)[0].tolist()

    def batch() -> int:
        for device in devices:
            evaluate(device)
        return num

    return batch


def compare(graph: DataflowGraph, num_devices: int, rounds: int) -> None:
    """Print evaluations per second of all simulators on one graph, and their ratios."""
    problem = build(graph, preset(name="p100x4", num_devices=num_devices))
    plain = simpy_model.Graph.of(problem)
    systems = {
        PUBLISHED_ROW: Published(),
        "work-conserving, contention none": WorkConserving(contention="none"),
        FIFO_ROW: WorkConserving(contention="fifo"),
        "work-conserving, contention engines": WorkConserving(contention="engines"),
    }

    def ask_oracle(device: list[int]) -> object:
        return oracle.simulate(problem, Placement.make(problem, np.array(device)))

    rate = rates(
        {
            "plain oracle, contention fifo": slow_batch(problem, 1, ask_oracle),
            SIMPY_ROW: slow_batch(problem, 10, lambda d: simpy_model.published(plain, d)),
            SIMPY_CONTENTION_ROW: slow_batch(
                problem, 10, lambda d: simpy_model.with_contention(plain, d)
            ),
            **{
                name: engine_batch(system.open(problem, num_threads=1), 2000)
                for name, system in systems.items()
            },
        },
        rounds,
    )
    recorded = RECORDED_PER_S.get(graph.name) if num_devices == 4 else None
    table = Table(
        title=f"{graph.name}: {graph.num_ops} ops, {num_devices} devices, one core",
        title_justify="left",
    )
    table.add_column("simulator")
    for column in ("evaluations/s", "ratio to SimPy", "ratio to published code"):
        table.add_column(column, justify="right")
    if recorded:
        table.add_row("published code (recorded, not run)", f"{recorded}", "", "1")
    for name, value in rate.items():
        published = name in (PUBLISHED_ROW, SIMPY_ROW)
        peer = rate[SIMPY_ROW if published else SIMPY_CONTENTION_ROW]
        table.add_row(
            "published engine" if name == PUBLISHED_ROW else name,
            f"{value:,.0f}" if value > 100 else f"{value:.1f}",
            f"{value / peer:,.2f}" if value < 10 * peer else f"{value / peer:,.0f}",
            f"{value / recorded:,.0f}" if recorded else "",
        )
    console.print(table)
    console.print(
        "SimPy runs the published semantics for the published engine, and those with contention "
        "for the others.\n"
    )


def compare_cores(graph: DataflowGraph, num_devices: int, rounds: int) -> None:
    """Print what a second core brings."""
    cores = len(os.sched_getaffinity(0))
    if cores < 2:
        console.print("one core only: two cores are not compared\n")
        return
    problem = build(graph, preset(name="p100x4", num_devices=num_devices))
    table = Table(title=f"{graph.name}: batches of 10,000 on two cores", title_justify="left")
    for column in ("simulator", "one core, evaluations/s", "two cores", "ratio"):
        table.add_column(column, justify="left" if column == "simulator" else "right")
    for name, system in {"published": Published(), "work-conserving": WorkConserving()}.items():
        rate = rates(
            {
                str(threads): engine_batch(system.open(problem, num_threads=threads), 10_000)
                for threads in (1, 2)
            },
            rounds,
            time.perf_counter,
        )
        ratio = rate["2"] / rate["1"]
        table.add_row(name, f"{rate['1']:,.0f}", f"{rate['2']:,.0f}", f"{ratio:.2f}")
    console.print(table)
    console.print()


def _peak_mib() -> float:
    """Peak resident memory of this process; getrusage would count that of its parent too."""
    status = Path("/proc/self/status")
    if not status.exists():
        return float("nan")
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return float(fields["VmHWM"].split()[0]) / 1024


def _measure_growth(num_ops: int, width: int) -> str:
    """One row: graph, seconds, nanoseconds, memory; in a process of its own, for the memory."""
    problem = build(layered_graph(num_ops, width=width), preset(name="v100x8"))
    before = _peak_mib()
    device_BV, priority_BV = random_batch(problem, 1)
    seconds = []
    with WorkConserving().open(problem, num_threads=1) as session:
        session.measure(device_BV, priority_BV)
        for _ in range(max(3, min(50, 2_000_000 // num_ops))):
            begin = time.process_time()
            session.measure(device_BV, priority_BV)
            seconds.append(time.process_time() - begin)
    return f"{problem.graph.num_edges} {statistics.median(seconds)} {before} {_peak_mib()}"


def show_growth(sizes: Sequence[int], widths: Sequence[int]) -> None:
    """Print seconds per evaluation and nanoseconds per op as graphs grow."""
    table = Table(
        title="growth: layered random graphs, 8 devices, contention fifo, one core",
        title_justify="left",
    )
    columns = (
        "width",
        "ops",
        "edges",
        "s/evaluation",
        "ns/op",
        "growth",
        "log n",
        "peak MiB",
        "built",
    )
    for column in columns:
        table.add_column(column, justify="right")
    for width in widths:
        first: tuple[float, float] | None = None
        for num_ops in sizes:
            command = [sys.executable, __file__, "--one-size", str(num_ops), str(width)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            edges, seconds, before, peak = (float(word) for word in done.stdout.split())
            per_op = seconds / num_ops * 1e9
            first = first or (per_op, np.log(num_ops))
            table.add_row(
                f"{width:,}",
                f"{num_ops:,}",
                f"{edges:,.0f}",
                f"{seconds:.4f}",
                f"{per_op:.0f}",
                f"{per_op / first[0]:.2f}",
                f"{np.log(num_ops) / first[1]:.2f}",
                f"{peak:,.0f}",
                f"{before:,.0f}",
            )
        table.add_section()
    console.print(table)
    console.print(
        "growth: of ns per op, relative to the first size; log n: what a growth with log n is.\n"
        "peak MiB: resident memory of the process; built: the same before the first evaluation."
    )


def default_graphs() -> list[DataflowGraph]:
    """The published graphs, or a generated one of the size of the published block."""
    folder = Path(os.environ.get("DOPPLER_GRAPHS") or ROOT.parent / "shared" / "graphs")
    found = [folder / name for name in PUBLISHED if (folder / name).is_file()]
    return [load_graph(path) for path in found] or [layered_graph(182, width=12)]


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graph", type=Path, action="append", help="graph files")
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9, help="turns of each contestant")
    parser.add_argument("--sizes", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--widths", type=int, nargs="*", default=[100, 1_000])
    parser.add_argument("--one-size", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one_size:
        print(_measure_growth(*arguments.one_size))
        return
    console.print(
        f"{platform.processor() or platform.machine()}, {len(os.sched_getaffinity(0))} cores, "
        f"Python {platform.python_version()}, {arguments.rounds} turns\n"
    )
    graphs = [load_graph(path) for path in arguments.graph or ()] or default_graphs()
    for graph in graphs:
        compare(graph, arguments.devices, arguments.rounds)
    compare_cores(graphs[-1], arguments.devices, arguments.rounds)
    show_growth(arguments.sizes, arguments.widths)


if __name__ == "__main__":
    main()
