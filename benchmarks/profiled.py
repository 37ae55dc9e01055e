"""Networks that others have profiled, placed with memory limits and ops that go together.

    python -m benchmarks.profiled FOLDER [FOLDER ...] [--evaluations 4000 --seeds 3 --seconds 120]

Every .json of a folder is a profiled network (docs/formats.md), placed on the accelerators and CPUs
that it names. The system is work-conserving, without contention, queue priority. Prints Markdown:
milliseconds of ETF, of the control without learning (cluster_then_anneal), of the policy that comes
with the package with search after it (doppler), means over seeds, ``-`` where a seed found nothing
that fits in memory; what all ops take one after another on one accelerator of unlimited memory; and
the larger of the lower bounds: those known before any search, and what CP-SAT proves in so many
seconds.
"""

import argparse
from pathlib import Path

import numpy as np
from benchmarks.optima import steps

from doppler.baselines import CPSAT, lower_bound
from doppler.cluster import custom
from doppler.extensions.formats.profiled_format import machine_of
from doppler.graph import load_graph
from doppler.graph.formats import graph_files
from doppler.problem import Problem, build
from doppler.search import Budget, Evaluator, search
from doppler.simulator import WorkConserving
from doppler.support.errors import InputError

METHODS = ("etf", "cluster_then_anneal", "estimates_then_anneal", "doppler")


def problem_of(path: Path) -> Problem:
    """A network on its own machine."""
    devices = machine_of(path)
    machine = custom(name="profiled", devices=devices, bytes_per_s=1e9, latency_s=0.0)
    return build(load_graph(path), machine)


def mean_s(method: str, problem: Problem, evaluations: int, seeds: int) -> float:
    """Mean makespan over seeds; inf where one has found none that fits."""
    found, budget = [], Budget(evaluations=evaluations)
    for seed in range(seeds):
        with WorkConserving(contention="none").open(problem) as session:
            best = Evaluator(session=session, confirmations=0, seed=seed)
            search(steps(method, problem, budget), best, budget, np.random.default_rng(seed))
        found.append(best.seconds if best.placement is not None else np.inf)
    return float(np.mean(found))


def proven_s(problem: Problem, seconds: float) -> tuple[float, str]:
    """The largest lower bound, and its name."""
    known = lower_bound(problem)
    try:
        with WorkConserving(contention="none").open(problem) as session:
            solver = CPSAT(deterministic_time=seconds, seconds=seconds, workers=1)
            proven = solver.place(session, np.random.default_rng(0)).lower_bound_s or 0.0
    except InputError:  # nothing to begin with fits in memory
        return known.seconds, known.name
    return max((proven, "CP-SAT"), (known.seconds, known.name))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--evaluations", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=120.0, help="of CP-SAT, each")
    arguments = parser.parse_args()
    columns = ("network", "ops", "groups", "devices", "memory", *METHODS, "in a row", "bound", "by")
    print(f"| {' | '.join(columns)} |\n| --- |" + " ---: |" * (len(columns) - 1))
    for path in (path for folder in arguments.folders for path in graph_files(folder)):
        problem = problem_of(path)
        sizes = problem.arrays.input_bytes.sum()
        room = problem.arrays.memory_bytes[problem.arrays.memory_bytes < 1e15].sum()
        label_V = problem.graph.ops.group
        cells = [
            *(f"{path.parent.name}/{path.stem}", str(problem.num_ops)),
            *(str(len(np.unique(label_V[label_V >= 0]))), str(problem.num_devices)),
            f"{100 * sizes / room:.0f}%",
        ]
        for method in METHODS:
            seconds = mean_s(method, problem, arguments.evaluations, arguments.seeds)
            cells.append(f"{1e3 * seconds:.2f}" if np.isfinite(seconds) else "-")
        bound_s, name = proven_s(problem, arguments.seconds)
        serial_s = problem.arrays.op_seconds.min(axis=1).sum()
        cells += [f"{1e3 * serial_s:.2f}", f"{1e3 * bound_s:.2f}", name]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
