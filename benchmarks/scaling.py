"""Time and memory by the number of ops: a first placement by the policy, and training.

    python benchmarks/scaling.py --heft --out docs/results/data    # rows of results/scaling.md
    python benchmarks/scaling.py --families tree stencil --ops 1000 10000 --no-training

*CPU s*: of one greedy placement with the pretrained weights, from the priced problem on: view,
features, merged views, episodes, the choice among them by estimates, one execution. Median of
three, each with a new policy, on one thread, compilation excluded. *over untrained*: the makespan
over that with new weights, which decide as a list scheduler does. *peak MiB*: of a process that
does only this, libraries and the making of the graph included. *exponent*: of the growth of CPU
seconds from the family's smallest graph to its largest below a million ops. *over HEFT*, *over the
bound*: makespans, simulated, work-conserving, contention fifo, queue priority, on h100x8; transfers
take half as long as ops. HEFT is left out above 200,000 ops, but with --heft. Training is
benchmarks/training.py --growth.
"""

import argparse
import csv
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import training

from doppler.baselines import HEFT
from doppler.baselines.bounds import lower_bound
from doppler.cluster import preset
from doppler.env import make_view
from doppler.graph.synthetic import FAMILIES, synthetic
from doppler.policies.weights import PRETRAINED
from doppler.problem import Problem, build
from doppler.search import Evaluator, GreedyEpisode, load_policy
from doppler.simulator import WorkConserving

REPETITIONS, SEED, RATIO, CLUSTER = 3, 21, 0.5, "h100x8"
SMALLEST, MILLION, MOST_OF_HEFT = 1000, 1_000_000, 200_000


@dataclass(frozen=True)
class Cell:
    """One graph, measured in a process of its own.

    heft, bound: makespans of the policy over these, nan where they are not asked for.
    untrained: makespan of the policy over its makespan with new weights.
    """

    family: str
    num_ops: int
    cpu_s: float
    peak_mib: float
    heft: float
    bound: float
    untrained: float


def problem_of(family: str, num_ops: int) -> Problem:
    """A graph of the family on the machine."""
    graph = synthetic(family=family, num_ops=num_ops, transfer_ratio=RATIO, seed=SEED)  # pyright: ignore[reportArgumentType]
    return build(graph, preset(name=CLUSTER))


def placed(problem: Problem, weights: str | None = PRETRAINED) -> tuple[float, float]:
    """Makespan of the first placement, and the CPU seconds that it took."""
    policy = load_policy(weights)
    with WorkConserving().open(problem) as session:
        begin_s = time.process_time()
        best = Evaluator(session=session, confirmations=0, seed=0)
        step = GreedyEpisode.of(policy, make_view(problem))
        step.search(best, 1, np.random.default_rng(0))
        return best.seconds, time.process_time() - begin_s


def measure(family: str, num_ops: int, with_heft: bool) -> Cell:
    """Measured in this process."""
    torch.set_num_threads(1)
    for size in (100, 1100):  # whatever is compiled is compiled here
        placed(problem_of("layered", size))
    problem = problem_of(family, num_ops)
    repetitions = REPETITIONS if problem.num_ops < MILLION / 2 else 1
    found = [placed(problem) for _ in range(repetitions)]
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds, heft_s = found[0][0], np.nan
    if problem.num_ops < MOST_OF_HEFT or with_heft:
        with WorkConserving().open(problem) as session:
            heft_s = HEFT(evaluations=1).place(session, np.random.default_rng(0)).makespan_s
    return Cell(
        family=family,
        num_ops=problem.num_ops,
        cpu_s=float(np.median([cpu_s for _, cpu_s in found])),
        peak_mib=peak_mib,
        heft=seconds / heft_s,
        bound=seconds / lower_bound(problem).seconds,
        untrained=seconds / placed(problem, weights=None)[0],
    )


def printed(*arguments: str, threads: int | None = None) -> dict:
    """What a process of Python prints last, as JSON; ``threads``: of its linear algebra."""
    environment = os.environ | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment, encoding="utf-8"
    )
    return json.loads(done.stdout.splitlines()[-1])


def exponent(cells: list[Cell]) -> str:
    """Of the growth of a family's CPU seconds."""
    chosen = [one for one in cells if one.num_ops < MILLION / 2]
    first, last = min(chosen, key=lambda c: c.num_ops), max(chosen, key=lambda c: c.num_ops)
    if first is last:
        return ""
    return f"{np.log(last.cpu_s / first.cpu_s) / np.log(last.num_ops / first.num_ops):.2f}"


def rows_of(cells: list[Cell]) -> list[list[str]]:
    """Heads and rows, families together."""
    heads = ("over HEFT", "over untrained", "over the bound")
    rows = [["ops", "family", "CPU s", "peak MiB", "exponent", *heads]]
    for family in dict.fromkeys(one.family for one in cells):
        own = [one for one in cells if one.family == family]
        for one in own:
            growth = exponent(own) if one is own[-1] else ""
            heft = "" if np.isnan(one.heft) else f"{one.heft:.3f}"
            over = (heft, f"{one.untrained:.3f}", f"{one.bound:.3f}")
            took = (f"{one.cpu_s:.3f}", f"{one.peak_mib:,.0f}", growth)
            rows.append([f"{one.num_ops:,}", family, *took, *over])
    return rows


def training_rows() -> list[list[str]]:
    """Heads and rows of episodes per second, all of stage II included, on layered graphs."""
    rows = [["ops", "episodes/s", "peak MiB"]]
    for num_ops in (100, 1000, 10_000):
        found = printed(training.__file__, "--size", str(num_ops))
        rows.append([f"{num_ops:,}", f"{found['per_s']:,.0f}", f"{found['peak_mib']:,.0f}"])
    return rows


def write(rows: list[list[str]], path: Path | None) -> None:
    """Print rows as CSV, and write them if there is a path."""
    csv.writer(sys.stdout).writerows(rows)
    if path is not None:
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--families", nargs="*", default=list(FAMILIES))
    parser.add_argument("--ops", type=int, nargs="*", default=[SMALLEST, 10_000, 100_000])
    parser.add_argument("--million", nargs="*", default=["tree", "elimination"], help="families")
    parser.add_argument("--heft", action="store_true", help="of graphs of any size")
    parser.add_argument("--no-training", action="store_true")
    parser.add_argument("--out", type=Path, help="a folder for rows as CSV")
    parser.add_argument("--cell", nargs=2, metavar=("FAMILY", "OPS"), help="one graph, as JSON")
    options = parser.parse_args()
    if options.cell:
        print(json.dumps(asdict(measure(options.cell[0], int(options.cell[1]), options.heft))))
        return
    cells, heft = [], ["--heft"] if options.heft else []
    for family in options.families:
        sizes = [*options.ops, *([MILLION] if family in options.million else [])]
        for num_ops in sizes:
            cells.append(
                Cell(**printed(__file__, "--cell", family, str(num_ops), *heft, threads=1))
            )
            print(cells[-1], flush=True)
    write(rows_of(cells), options.out and options.out / "scaling.csv")
    if not options.no_training:
        write(training_rows(), options.out and options.out / "scaling_training.csv")


if __name__ == "__main__":
    main()
