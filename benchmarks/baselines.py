"""Speed of the baselines: seconds and evaluations per second of each that is configured.

Run: ``python benchmarks/baselines.py [--problem chainmm --baseline heft]``; ``--help`` lists the
rest. Baselines are those of conf/baseline, problems are workloads of conf/workload on 4 devices and
a layered graph of 10,000 ops, whose layers are its nodes, on 8.

Each search runs on one core of simulation, its machine code compiled beforehand. Times are medians
over the turns, of CPU time; *elapsed* says where a search waits or uses more cores. The simulator's
own speed is measured in the same process on placements that differ by one move each, as a local
search's do, in one batch: what an annealing of no cost at all would reach.
"""

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from rich.console import Console
from rich.table import Table

PROJECT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT / "benchmarks")]

from simulator import engine_batch, layered_graph, rates  # noqa: E402

from doppler.baselines import Baseline, SearchResult, lower_bound  # noqa: E402
from doppler.cluster import preset  # noqa: E402
from doppler.problem import Problem, build  # noqa: E402
from doppler.simulator import WorkConserving  # noqa: E402
from doppler.support.errors import InputError  # noqa: E402

LARGE, WIDTH = 10_000, 100
PROBLEMS = ("chainmm", "llama_layer", f"layered_{LARGE}")
console = Console(width=120)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One search: what it found, in which time."""

    result: SearchResult
    cpu_s: float
    elapsed_s: float


def make_problem(name: str) -> Problem:
    """A problem by its name in PROBLEMS.

    Raises:
        InputError: no such workload.
    """
    if name == f"layered_{LARGE}":
        graph = layered_graph(LARGE, width=WIDTH)
        layers = replace(graph.ops, node=np.arange(LARGE) // WIDTH)
        return build(replace(graph, ops=layers), preset(name="v100x8"))
    if not (PROJECT / f"conf/workload/{name}.yaml").exists():
        raise InputError(f"{name}: no such workload")
    cfg = compose("config", [f"workload={name}", "cluster=p100x4"])
    return build(instantiate(cfg.workload), instantiate(cfg.cluster))


def make_baselines(names: Sequence[str], evaluations: int) -> dict[str, Baseline]:
    """The configured baselines at the given budget."""
    overrides = [f"baseline=[{','.join(names)}]", f"budget.evaluations={evaluations}"]
    cfg = compose("config", overrides)
    return {str(name): instantiate(conf) for name, conf in cfg.baseline.items()}


def search(problem: Problem, baseline: Baseline, seed: int) -> Turn:
    """Search once, on one core of simulation."""
    with WorkConserving().open(problem, num_threads=1) as session:
        cpu, elapsed = time.process_time(), time.perf_counter()
        result = baseline.place(session, np.random.default_rng(seed))
        return Turn(
            result=result,
            cpu_s=time.process_time() - cpu,
            elapsed_s=time.perf_counter() - elapsed,
        )


def simulator_rate(problem: Problem, rounds: int) -> float:
    """Evaluations per second of the simulator alone, on one core."""
    num = max(100, 200_000 // problem.num_ops)
    with WorkConserving().open(problem, num_threads=1) as session:
        return rates({"": engine_batch(session, num, search=True)}, rounds)[""]


def compare(name: str, problem: Problem, baselines: dict[str, Baseline], rounds: int) -> None:
    """Print one table."""
    own_rate, bound = simulator_rate(problem, max(5, rounds)), lower_bound(problem)
    console.print(
        f"{name}: {problem.num_ops:,} ops, {problem.num_devices} devices; the simulator alone "
        f"{own_rate:,.0f} evaluations/s; lower bound {bound.seconds:.4g} s"
    )
    table = Table()
    table.add_column("baseline")
    for column in ("makespan s", "evaluations", "CPU s", "elapsed s", "evaluations/s", "share"):
        table.add_column(column, justify="right")
    for label, baseline in baselines.items():
        try:
            turns = [search(problem, baseline, seed) for seed in range(rounds)]
        except InputError as error:
            table.add_row(label, f"left out: {error}")
            continue
        cpu_s = statistics.median(turn.cpu_s for turn in turns)
        rate = statistics.median(turn.result.evaluations / turn.cpu_s for turn in turns)
        table.add_row(
            label,
            f"{statistics.median(turn.result.makespan_s for turn in turns):.4g}",
            f"{statistics.median(turn.result.evaluations for turn in turns):,.0f}",
            f"{cpu_s:.4f}",
            f"{statistics.median(turn.elapsed_s for turn in turns):.4f}",
            f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}",
            f"{rate / own_rate:.2f}",
        )
    console.print(table)
    console.print()


def main() -> None:
    """Print all tables."""
    configured = sorted(path.stem for path in (PROJECT / "conf/baseline").glob("*.yaml"))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--problem", action="append", help=f"default: {', '.join(PROBLEMS)}")
    parser.add_argument("--baseline", action="append", choices=configured, help="default: all")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each, by other seeds")
    parser.add_argument("--evaluations", type=int, default=1000, help="of those with a budget")
    arguments = parser.parse_args()
    console.print(
        f"{platform.processor() or platform.machine()}, {len(os.sched_getaffinity(0))} cores, "
        f"Python {platform.python_version()}, {arguments.rounds} turns, budget "
        f"{arguments.evaluations:,} evaluations\n"
        "share: evaluations/s over those of the simulator alone, one core each"
    )
    with initialize_config_dir(str(PROJECT / "conf"), version_base="1.3"):
        baselines = make_baselines(arguments.baseline or configured, arguments.evaluations)
        warm_up = make_problem("chainmm")
        for name, baseline in list(baselines.items()):
            try:
                search(warm_up, baseline, 0)
            except InputError as error:
                console.print(f"{name} is left out: {error}")
                del baselines[name]
        for name in arguments.problem or PROBLEMS:
            try:
                problem = make_problem(name)
            except InputError as error:
                console.print(f"{error}, skipped\n")
                continue
            compare(name, problem, baselines, arguments.rounds)


if __name__ == "__main__":
    main()
