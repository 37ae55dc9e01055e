"""Which splits place better: ``decomposition=auto`` against the published ones.

Run: ``python benchmarks/decomposition.py [--evaluations N] [--seeds N]``.

True costs, work-conserving system with contention and priorities; all objects as conf/ describes
them. Both graphs of a workload are given to the same methods with the same number of evaluations;
a cell is the median over seeds of the makespan in milliseconds, with its range. The two graphs
compute the same program, so their makespans compare; the bounds are of the graphs, not of the
program. What the judge of ``auto`` searches is spent once for a workload and a cluster, and is not
counted.
"""

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from rich.console import Console
from rich.table import Table

from doppler.baselines import lower_bound
from doppler.problem import build

PROJECT = Path(__file__).resolve().parents[1]
WORKLOADS = ("chainmm", "ffnn", "llama_block", "llama_layer")
CLUSTERS = ("p100x4", "v100x8")
METHODS = ("annealing", "clustering")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--evaluations", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    table = Table(title=f"ms, {options.evaluations:,} evaluations each, {options.seeds} seeds")
    columns = ("cluster", "workload", "splits", "ops", "bound", *METHODS, "auto / published")
    for column in (*columns, "seconds"):
        table.add_column(column)
    with initialize_config_dir(str(PROJECT / "conf"), version_base="1.3"):
        for cluster in CLUSTERS:
            for workload in WORKLOADS:
                published: list[float] = []
                for splits in ("published", "auto"):
                    cells, medians = measure(cluster, workload, splits, options)
                    ratios = [f"{a / b:.3f}" for a, b in zip(medians, published, strict=False)]
                    published = published or medians
                    table.add_row(
                        cluster, workload, splits, *cells[:-1], " ".join(ratios), cells[-1]
                    )
    Console(width=150).print(table)


def measure(
    cluster: str, workload: str, splits: str, options: argparse.Namespace
) -> tuple[list[str], list[float]]:
    """The cells of a row (the last: seconds to make the graph), and each method's median."""
    cfg = compose(
        "config",
        [
            *(f"cluster={cluster}", f"workload={workload}", f"decomposition={splits}"),
            *(f"baseline=[{','.join(METHODS)}]", f"budget.evaluations={options.evaluations}"),
            *(f"baseline.{method}.evaluations={options.evaluations}" for method in METHODS),
        ],
    )
    begin = time.perf_counter()
    graph = instantiate(cfg.workload)
    seconds = time.perf_counter() - begin
    problem = build(graph, instantiate(cfg.cluster))
    cells = [str(graph.num_ops), f"{1e3 * lower_bound(problem).seconds:.2f}"]
    medians = []
    for method in METHODS:
        with instantiate(cfg.simulator).open(problem) as session:
            found = [
                1e3 * instantiate(cfg.baseline[method]).place(session, rng).makespan_s
                for rng in map(np.random.default_rng, range(options.seeds))
            ]
        medians.append(statistics.median(found))
        cells.append(f"{medians[-1]:.2f} ({min(found):.2f} to {max(found):.2f})")
    return [*cells, f"{seconds:.1f}"], medians


if __name__ == "__main__":
    main()
