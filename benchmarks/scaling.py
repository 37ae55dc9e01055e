"""Time and memory by the number of ops: a first placement by the policy, and training.

    python benchmarks/scaling.py --out docs/results/scaling.md    # the page
    python benchmarks/scaling.py --families tree stencil --ops 1000 10000 --no-training

*CPU s*: of one greedy placement with the weights of the package, from the priced problem on: view,
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
import json
import os
import platform
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
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


def lines_of(cells: list[Cell]) -> list[str]:
    """A Markdown table, families together."""
    lines = [
        "| ops | family | CPU s | peak MiB | exponent | over HEFT | over untrained "
        "| over the bound |",
        "| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for family in dict.fromkeys(one.family for one in cells):
        own = [one for one in cells if one.family == family]
        for one in own:
            grows = exponent(own) if one is own[-1] else ""
            heft = "" if np.isnan(one.heft) else f"{one.heft:.3f}"
            lines.append(
                f"| {one.num_ops:,} | {family} | {one.cpu_s:.3f} | {one.peak_mib:,.0f} | {grows} "
                f"| {heft} | {one.untrained:.3f} | {one.bound:.3f} |"
            )
    for size in sorted({round(np.log10(one.num_ops)) for one in cells}):
        ratios = [c.heft for c in cells if round(np.log10(c.num_ops)) == size]
        if not np.isnan(ratios).any():
            mean = np.exp(np.log(ratios).mean())
            lines.append(f"\nAbout {10**size:,} ops: {mean:.3f} of HEFT in the mean of families.")
    return lines


def training_lines() -> list[str]:
    """A Markdown table of episodes per second."""
    lines = ["", "| ops | episodes/s | peak MiB |", "| ---: | ---: | ---: |"]
    for num_ops in (100, 1000, 10_000):
        found = printed(training.__file__, "--size", str(num_ops))
        lines.append(f"| {num_ops:,} | {found['per_s']:.0f} | {found['peak_mib']:,.0f} |")
    lines.append("\nStage II on layered graphs, simulation, updates and bookkeeping included.")
    return lines


def page(lines: list[str]) -> str:
    """The lines under a head that says what they are."""
    commit = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(commit, check=True, capture_output=True, text=True, encoding="utf-8")
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[1]
    facts = [
        f"- date: {datetime.now(UTC):%Y-%m-%d}; commit: {done.stdout.strip()}",
        f"- {platform.machine()}, {cores} cores, python {platform.python_version()}, torch "
        f"{torch.__version__}; about {load:.0f} processes at a time: seconds are larger than alone",
    ]
    about = (__doc__ or "").split("\n\n")
    command = "    python benchmarks/scaling.py --out docs/results/scaling.md"
    return "\n\n".join(["# scaling", command, "\n".join(facts), about[2].strip(), "\n".join(lines)])


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--families", nargs="*", default=list(FAMILIES))
    parser.add_argument("--ops", type=int, nargs="*", default=[SMALLEST, 10_000, 100_000])
    parser.add_argument("--million", nargs="*", default=["tree", "elimination"], help="families")
    parser.add_argument("--heft", action="store_true", help="of graphs of any size")
    parser.add_argument("--no-training", action="store_true")
    parser.add_argument("--out", type=Path, help="the page")
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
    lines = lines_of(cells) + ([] if options.no_training else training_lines())
    print("\n".join(lines))
    if options.out is not None:
        options.out.write_text(page(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
