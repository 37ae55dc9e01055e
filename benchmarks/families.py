"""One placement by the policy, on families, sizes and prices of communication, against heuristics.

    python benchmarks/families.py [CHECKPOINT] [--ops 60 300 1000] [--ratios 0.1 1 10] [--seeds 3]
    python benchmarks/families.py --out FOLDER "60 to 1,000 ops"    # adds rows to two CSV files

The rows are docs/results/data/families.csv and families_seconds.csv, the page is
docs/results/pretrained.md. What stands after the folder is the set that the rows are of.

*Alone*: one greedy episode of the policy (of merged views the one that is estimated best), no other
scheduler's placement among its candidates. *At once*: one execution too, chosen and made better by
estimates among the policy's and list schedulers' drafts; *without policy*: the same of list
schedulers' alone. *Trained*: with the pretrained weights; *untrained*: with new weights, which
decide as a list scheduler does, so that the difference is what training is worth. Each is divided
by the best of HEFT, ETF, the queue-aware ETF and 32 clusterings (35 executions) on the same
problem: simulated, work-conserving, contention fifo, queue priority.
Means are geometric, over problems and seeds of problems; intervals are of 95%, over problems; what
does not fit in memory is counted, and in no mean. The seeds of these problems, and the families
elimination and butterfly, are in no training set.
"""

import argparse
import csv
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch
from hydra import initialize_config_dir
from hydra.utils import instantiate

from doppler.baselines import ETF, HEFT, Clustering, QueuedETF
from doppler.baselines.hosts import num_ways
from doppler.env import make_view
from doppler.experiment.problem_set import problems_of
from doppler.policies import Policy
from doppler.policies.weights import PRETRAINED
from doppler.problem import Problem
from doppler.search import (
    Budget,
    Evaluator,
    GreedyEpisode,
    SearchStep,
    estimates_step,
    load_policy,
    search,
    search_settings,
)
from doppler.simulator import WorkConserving
from doppler.support.errors import InputError

PROJECT = Path(__file__).resolve().parents[1]
FAMILIES = ("layered", "random", "fork_join", "tree", "stencil", "products", "map_reduce")
UNSEEN = ("elimination", "butterfly")
FIRST_SEED = 101
TRAINED, UNTRAINED, ALONE, AT_ONCE, WITHOUT = (
    *("trained", "untrained", "alone", "at once"),
    "without policy",
)
METHODS = (
    *(f"{weights} {what}" for what in (ALONE, AT_ONCE) for weights in (TRAINED, UNTRAINED)),
    WITHOUT,
)


@dataclass(frozen=True)
class Kind:
    """Which problem it is."""

    family: str
    num_ops: int
    ratio: float


@dataclass(frozen=True)
class Cell:
    """A problem.

    over: by method, the makespan over that of the best heuristic. cpu_s: seconds to find it.
    """

    kind: Kind
    over: dict[str, float]
    cpu_s: dict[str, float]


def heuristics_s(problem: Problem) -> float:
    """The best makespan of 35 executions, on several hosts of list schedulers' ways to use them."""
    rng, ways = np.random.default_rng(0), num_ways(problem)
    methods = [HEFT(evaluations=ways), ETF(evaluations=ways), QueuedETF(evaluations=ways)]
    with WorkConserving().open(problem) as session:
        found = [
            method.place(session, rng).makespan_s
            for method in (*methods, Clustering(evaluations=32))
        ]
    return min(found)


def searched(steps: Sequence[SearchStep], problem: Problem) -> float:
    """The makespan of one execution."""
    with WorkConserving().open(problem) as session:
        best = Evaluator(session=session, confirmations=0, seed=0)
        search(steps, best, Budget(evaluations=1), np.random.default_rng(0))
    return best.seconds


def methods_of(
    problem: Problem, policies: Mapping[str, Policy]
) -> Iterator[tuple[str, float, float]]:
    """Name, makespan and CPU seconds of one execution by each method, the view included.

    policies: by what the names of their methods begin with.
    """
    settings = search_settings()
    for name in METHODS:
        begin_s = time.process_time()
        if name == WITHOUT:
            drafts = instantiate(settings.drafts, _convert_="all")
            step: SearchStep = instantiate(settings.estimates)(drafts=drafts)
        else:
            weights, _, what = name.partition(" ")
            view = make_view(problem)
            if what == ALONE:
                step = GreedyEpisode.of(policies[weights], view)
            else:
                step = estimates_step(settings, policies[weights], view)
        seconds = searched([step], problem)
        yield name, seconds, time.process_time() - begin_s


def problems_by_kind(
    clusters: Sequence[str], ops: Sequence[int], ratios: Sequence[float], seeds: Sequence[int]
) -> Iterator[tuple[Kind, Problem]]:
    """All problems that fit on their machine, of all families."""
    for cluster, num_ops, ratio, family, seed in product(
        clusters, ops, ratios, (*FAMILIES, *UNSEEN), seeds
    ):
        line = (
            f"workload=synthetic workload.family={family} workload.num_ops={num_ops} "
            f"workload.transfer_ratio={ratio} workload.seed={seed} cluster={cluster}"
        )
        try:
            (problem,) = problems_of((line,), "families")
        except InputError as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        yield Kind(family, num_ops, ratio), problem


def cells(options: argparse.Namespace, policies: Mapping[str, Policy]) -> Iterator[Cell]:
    """All of them, measured."""
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
    for kind, problem in problems_by_kind(options.clusters, options.ops, options.ratios, seeds):
        to_beat_s = heuristics_s(problem)
        found = list(methods_of(problem, policies))
        over = {name: seconds / to_beat_s for name, seconds, _ in found}
        yield Cell(kind, over, {name: cpu_s for name, _, cpu_s in found})


def mean(chosen: Sequence[Cell], method: str) -> str:
    """The geometric mean, and its interval."""
    found = np.array([cell.over[method] for cell in chosen])
    logs = np.log(found[np.isfinite(found)])
    if len(logs) == 0:
        return "none fits"
    half = 1.96 * logs.std(ddof=1) / np.sqrt(len(logs)) if len(logs) > 1 else np.nan
    low, high = np.exp([logs.mean() - half, logs.mean() + half])
    lacking = f", {len(found) - len(logs)} do not fit" if len(logs) < len(found) else ""
    return f"{np.exp(logs.mean()):.3f} ({low:.3f} to {high:.3f}){lacking}"


def rows_of(found: Sequence[Cell]) -> list[list[str]]:
    """Heads and rows over all, by ratio and size, and by family and ratio."""
    seen = [cell for cell in found if cell.kind.family in FAMILIES]
    unseen = [cell for cell in found if cell.kind.family in UNSEEN]
    groups = {"families of the training set": seen, "other families": unseen}
    for ratio, num_ops in product(
        sorted({one.kind.ratio for one in found}), sorted({one.kind.num_ops for one in found})
    ):
        groups[f"ratio {ratio:g}, {num_ops:,} ops"] = [
            one for one in found if (one.kind.ratio, one.kind.num_ops) == (ratio, num_ops)
        ]
    for family, ratio in product((*FAMILIES, *UNSEEN), sorted({one.kind.ratio for one in found})):
        groups[f"{family}, ratio {ratio:g}"] = [
            one for one in found if (one.kind.family, one.kind.ratio) == (family, ratio)
        ]
    rows = [
        [name, str(len(chosen)), *(mean(chosen, method) for method in METHODS)]
        for name, chosen in groups.items()
        if chosen
    ]
    return [["problems", "n", *METHODS], *rows]


def seconds_of(found: Sequence[Cell]) -> list[list[str]]:
    """Heads and rows of the CPU seconds of one placement, medians by size."""
    rows = [["ops", *METHODS]]
    for num_ops in sorted({one.kind.num_ops for one in found}):
        chosen = [one for one in found if one.kind.num_ops == num_ops]
        medians = (f"{np.median([one.cpu_s[m] for one in chosen]):.3f}" for m in METHODS)
        rows.append([f"{num_ops:,} ops", *medians])
    return rows


def write(rows: Sequence[list[str]], path: Path | None, of: str) -> None:
    """Print rows as CSV, and add them to a file if there is a path."""
    csv.writer(sys.stdout).writerows(rows)
    if path is not None:
        lines = [["set", *rows[0]]] if not path.exists() else []
        lines += [[of, *row] for row in rows[1:]]
        with path.open("a", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", nargs="?", default=PRETRAINED)
    parser.add_argument("--ops", type=int, nargs="*", default=[60, 300, 1000])
    parser.add_argument("--ratios", type=float, nargs="*", default=[0.1, 1.0, 10.0])
    parser.add_argument("--clusters", nargs="*", default=["h100x8", "mixed"])
    parser.add_argument("--seeds", type=int, default=3, help="problems of each kind")
    parser.add_argument("--out", nargs=2, metavar=("FOLDER", "SET"), help="add rows to CSV files")
    options = parser.parse_args()
    torch.set_num_threads(1)
    policies = {TRAINED: load_policy(options.checkpoint), UNTRAINED: load_policy(None)}
    with initialize_config_dir(str(PROJECT / "conf"), version_base="1.3"):
        for problem in problems_of(("workload=synthetic cluster=mixed",), "families"):
            list(methods_of(problem, policies))  # compiles
            heuristics_s(problem)
        found = list(cells(options, policies))
    folder, of = options.out or (None, "")
    write(rows_of(found), folder and Path(folder) / "families.csv", of)
    write(seconds_of(found), folder and Path(folder) / "families_seconds.csv", of)


if __name__ == "__main__":
    main()
