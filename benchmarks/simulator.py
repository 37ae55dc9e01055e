"""Speed of the simulators: against SimPy and a plain oracle, over two cores, and by graph size.

Run: ``python benchmarks/simulator.py [--graph PATH]``; ``--help`` lists the rest. Without graphs it
takes the published ones where they are at hand (in ``$DOPPLER_SHARED`` or ../shared), else a
layered graph of the size of the published block.

All contestants of a table simulate the same placements, in turns, in one process on one core; a
cell is the median over the turns, of CPU time (of elapsed time where two cores work). What each is
prepared with (costs as plain lists, open sessions, compiled engines) is not timed. Independent
random placements are the worst case of the engines: the processor predicts no branch of theirs. In
steps of a local search each placement differs from the one before by one op. The published engine
is held against SimPy with the published semantics, the others against SimPy with contention.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from doppler.cluster import SharedResource, preset
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
SHARED_ROW = "work-conserving, contention shared"
ORACLE_ROW, PUBLISHED_ROW = "plain oracle, contention fifo", "published engine"
SIMPY_ROW, SIMPY_CONTENTION_ROW = "SimPy, published semantics", "SimPy, with contention"
console = Console(width=110)

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


def placements(problem: Problem, num: int, *, search: bool) -> np.ndarray:
    """Random devices [B, V]; ops rank in topological order, as they do without priorities.

    search: each placement moves one op of the one before, as a local search does.
    """
    rng = np.random.default_rng(0)
    device_BV = rng.integers(0, problem.num_devices, (num, problem.num_ops))
    if search:
        for b in range(1, num):
            moved = rng.integers(problem.num_ops)
            device = device_BV[b, moved]
            device_BV[b] = device_BV[b - 1]
            device_BV[b, moved] = device
    return device_BV


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


def engine_batch(session: SimulatorSession, num: int, *, search: bool = False) -> Batch:
    """Simulate ``num`` placements in one call."""
    device_BV = placements(session.problem, num, search=search)

    def batch() -> int:
        session.measure(device_BV)
        return num

    return batch


def slow_batch(
    problem: Problem, num: int, evaluate: Callable[[list[int]], object], *, search: bool
) -> Batch:
    """Simulate the first ``num`` of the same placements, one call each."""
    devices = placements(problem, num, search=search).tolist()

    def batch() -> int:
        for device in devices:
            evaluate(device)
        return num

    return batch


def with_sharing(problem: Problem) -> Problem:
    """The same where all links pass one switch and all ops share processors and a memory.

    Switch and memory have what half of the links and devices can use together.
    """
    num, cluster = problem.num_devices, problem.cluster
    pairs = tuple((s, d) for s in range(num) for d in range(num) if s != d)
    most = float(cluster.bytes_per_s[0, 1]) * num / 2
    memory = cluster.devices[0].memory_bytes_per_s * num / 2
    shared = (
        SharedResource(name="switch", bytes_per_s=most, links=pairs),
        SharedResource(name="memory", bytes_per_s=memory, devices=tuple(range(num))),
        SharedResource(name="processors", devices=tuple(range(num))),
    )
    return build(problem.graph, replace(cluster, shared=shared))


def measure_all(problem: Problem, rounds: int, *, search: bool) -> dict[str, float]:
    """Evaluations per second of all simulators on one problem."""
    plain = simpy_model.Graph.of(problem)

    def ask_oracle(device: list[int]) -> object:
        return oracle.simulate(problem, Placement.make(problem, np.array(device)))

    slow = {
        ORACLE_ROW: (2, ask_oracle),
        SIMPY_ROW: (10, lambda device: simpy_model.published(plain, device)),
        SIMPY_CONTENTION_ROW: (10, lambda device: simpy_model.with_contention(plain, device)),
    }
    systems = {
        PUBLISHED_ROW: Published(),
        "work-conserving, contention none": WorkConserving(contention="none"),
        "work-conserving, contention fifo": WorkConserving(contention="fifo"),
        "work-conserving, contention engines": WorkConserving(contention="engines"),
    }
    sharing = with_sharing(problem)
    return rates(
        {
            **{
                name: slow_batch(problem, num, evaluate, search=search)
                for name, (num, evaluate) in slow.items()
            },
            **{
                name: engine_batch(system.open(problem, num_threads=1), 2000, search=search)
                for name, system in systems.items()
            },
            SHARED_ROW: engine_batch(
                WorkConserving(contention="shared").open(sharing, num_threads=1), 500, search=search
            ),
        },
        rounds,
    )


def compare(graph: DataflowGraph, num_devices: int, rounds: int) -> None:
    """Print evaluations per second of all simulators on one graph, and their ratios."""
    problem = build(graph, preset(name="p100x4", num_devices=num_devices))
    measured = [measure_all(problem, rounds, search=search) for search in (False, True)]
    recorded = RECORDED_PER_S.get(graph.name) if num_devices == 4 else None
    table = Table(
        title=f"{graph.name}: {graph.num_ops} ops, {num_devices} devices, one core",
        title_justify="left",
    )
    table.add_column("simulator")
    for column in (
        "random placements\nevaluations/s",
        "ratio\nto SimPy",
        "ratio to\npublished code",
        "search steps\nevaluations/s",
        "ratio\nto SimPy",
    ):
        table.add_column(column, justify="right")
    if recorded:
        table.add_row("published code (recorded, not run)", f"{recorded}", "", "1", "", "")
    for name in measured[0]:
        peer = SIMPY_ROW if name in (PUBLISHED_ROW, SIMPY_ROW) else SIMPY_CONTENTION_ROW
        cells = [name]
        for rate in measured:
            ratio = rate[name] / rate[peer]
            cells += [f"{rate[name]:,.0f}", f"{ratio:,.2f}" if ratio < 10 else f"{ratio:,.0f}"]
        cells.insert(3, f"{measured[0][name] / recorded:,.0f}" if recorded else "")
        table.add_row(*cells)
    console.print(table)
    console.print()


def compare_cores(graph: DataflowGraph, num_devices: int, rounds: int) -> None:
    """Print what a second core brings, and whether there was one to be had."""
    if len(os.sched_getaffinity(0)) < 2:
        console.print("one core only: two cores are not compared\n")
        return
    problem = build(graph, preset(name="p100x4", num_devices=num_devices))
    table = Table(title=f"{graph.name}: batches of 10,000 on two cores", title_justify="left")
    table.add_column("simulator")
    for column in ("one core, evaluations/s", "two cores", "ratio", "cores at work"):
        table.add_column(column, justify="right")
    for name, system in {"published": Published(), "work-conserving": WorkConserving()}.items():
        batches = {
            str(num): engine_batch(system.open(problem, num_threads=num), 10_000) for num in (1, 2)
        }
        rate = rates(batches, rounds, time.perf_counter)
        begin, cpu_begin = time.perf_counter(), time.process_time()
        for _ in range(rounds):
            batches["2"]()
        at_work = (time.process_time() - cpu_begin) / (time.perf_counter() - begin)
        ratio = rate["2"] / rate["1"]
        table.add_row(
            name, f"{rate['1']:,.0f}", f"{rate['2']:,.0f}", f"{ratio:.2f}", f"{at_work:.2f}"
        )
    console.print(table)
    console.print("Below 2.00 cores at work, other programs had the rest.\n")


def _peak_mib() -> float:
    """Peak resident memory of this process; getrusage would count that of its parent too."""
    status = Path("/proc/self/status")
    if not status.exists():
        return float("nan")
    fields = dict(line.split(":", 1) for line in status.read_text(encoding="utf-8").splitlines())
    return float(fields["VmHWM"].split()[0]) / 1024


def _measure_growth(num_ops: int, width: int) -> str:
    """One row: graph, seconds, nanoseconds, memory; in a process of its own, for the memory."""
    problem = build(layered_graph(num_ops, width=width), preset(name="v100x8"))
    before = _peak_mib()
    rng = np.random.default_rng(0)
    seconds = []
    with WorkConserving().open(problem, num_threads=1) as session:
        session.measure(np.zeros((1, num_ops), dtype=np.int64))
        for _ in range(max(5, min(50, 2_000_000 // num_ops))):
            device_BV = rng.integers(0, problem.num_devices, (1, num_ops))
            begin = time.process_time()
            session.measure(device_BV)
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
            done = subprocess.run(
                command, capture_output=True, text=True, check=True, encoding="utf-8"
            )
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
    folder = Path(os.environ.get("DOPPLER_SHARED") or ROOT.parent / "shared") / "graphs"
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
