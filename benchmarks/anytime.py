"""What a search has found after so many seconds, and after so many evaluations.

    python benchmarks/anytime.py [--seconds 0.01 0.1 1 10] [--evaluations 1 16 64 256 1000 4000]
    python benchmarks/anytime.py --groups "51 problems" --out FILE.csv    # adds rows to a file

The rows of docs/results/data/anytime.csv are made this way, the page is docs/results/scaling.md.

Every point is a search of its own, which knew its budget: annealing cools within it. One core,
compilation excluded, views and features included; a point stands at the seconds that it took. The
methods are those of `doppler.place`: the pretrained policy as stage=inference uses it, the same
with new weights, which were never trained, searches
without learning, and CP-SAT, which is stopped after the seconds (it has no evaluations, and stands
for graphs of up to 2,000 ops); doppler.place is what it does by itself, by evaluations alone, as
within seconds it does what portfolio does. The system is work-conserving, contention fifo, queue
priority. Figures are makespans over the best that any method found of the problem, geometric means
over problems and seeds.
"""

import argparse
import csv
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from transfer import UNSEEN

import doppler
from doppler.baselines import CPSAT, Clustering
from doppler.env import make_view
from doppler.experiment.problem_set import problems_of
from doppler.policies import Policy
from doppler.precompile import warm_up
from doppler.problem import Problem
from doppler.search import (
    Budget,
    Evaluator,
    load_policy,
    policy_steps,
    search,
    search_settings,
    steps_of,
    suited,
)
from doppler.simulator import WorkConserving

PROJECT = Path(__file__).resolve().parents[1]
GROUPS = {
    "four workloads": ("workload=chainmm,ffnn,llama_block,llama_layer cluster=p100x4,v100x8",),
    "51 problems": UNSEEN,
    "1,000 ops": (
        "workload=synthetic workload.family=layered,random,stencil,elimination "
        "workload.num_ops=1000 workload.transfer_ratio=0.5 workload.seed=21 cluster=h100x8",
    ),
    "10,000 ops": (
        "workload=synthetic workload.family=layered,random,stencil,elimination "
        "workload.num_ops=10000 workload.transfer_ratio=0.5 workload.seed=21 cluster=h100x8",
    ),
    "100,000 ops": (
        "workload=synthetic workload.family=layered,random,stencil,elimination "
        "workload.num_ops=100000 workload.transfer_ratio=0.5 workload.seed=21 cluster=h100x8",
    ),
}
POLICY, UNTRAINED, PLACE, SOLVER = "doppler", "doppler untrained", "doppler.place", "cp_sat"
METHODS = (
    *(POLICY, UNTRAINED, PLACE, "estimates_then_anneal", "cluster_then_anneal", "portfolio"),
    *("annealing_order", "etf", SOLVER),
)
SEEDS, MOST_SOLVED = 3, 2000  # the solver takes minutes to make a model of larger graphs
MANY_PROBLEMS = 20  # of more each search is one of one seed
MANY_OPS = 50_000  # an execution of more takes so long that each search is one of one seed


@dataclass(frozen=True)
class Point:
    """What one search found, in seconds, and what it took."""

    method: str
    problem: int
    budget: Budget
    makespan_s: float
    took_s: float
    evaluations: int


def searched(
    method: str, problem: Problem, budget: Budget, seed: int, policies: Mapping[str, Policy]
) -> Point:
    """Search the problem once; what makes the steps is within the seconds."""
    rng = np.random.default_rng(seed)
    with WorkConserving().open(problem) as session:
        begin_s = time.perf_counter()
        if method == SOLVER:
            assert budget.seconds is not None, "a solver counts seconds"
            solver = CPSAT(deterministic_time=1e6, seconds=budget.seconds, workers=1)
            found = solver.place(session, rng)
            makespan_s, evaluations = found.makespan_s, found.evaluations
        elif method == PLACE:
            placed = doppler.place(
                problem.graph,
                cluster=problem.cluster,
                evaluations=budget.evaluations,
                system=WorkConserving(),
                seed=seed,
            )
            makespan_s, evaluations = placed.makespan_s, placed.evaluations
        else:
            best = Evaluator(session=session, confirmations=0, seed=seed)
            if method in policies:
                view = make_view(problem)
                steps = policy_steps(search_settings(), policies[method], view)
            else:
                steps = suited(steps_of(method), problem)
            if budget.seconds is not None:
                spent_s = time.perf_counter() - begin_s
                budget = Budget(seconds=max(budget.seconds - spent_s, 1e-6))
            search(steps, best, budget, rng)
            makespan_s, evaluations = best.seconds, best.evaluations
        took_s = time.perf_counter() - begin_s
    return Point(method, 0, budget, makespan_s, took_s, evaluations)


def points_of(
    problems: Sequence[Problem], budgets: Sequence[Budget], policies: Mapping[str, Policy]
) -> Iterator[tuple[int, int, Point]]:
    """Index of the budget and of the problem, and what was found."""
    for b, budget in enumerate(budgets):
        for p, problem in enumerate(problems):
            for method in METHODS:
                is_short = budget.seconds is None or budget.seconds < 1
                if method == SOLVER and (is_short or problem.num_ops > MOST_SOLVED):
                    continue
                if method == PLACE and budget.seconds is not None:
                    continue
                is_long = (budget.seconds or 0) >= 10 or problem.num_ops > MANY_OPS
                seeds = 1 if is_long or len(problems) > MANY_PROBLEMS else SEEDS
                for seed in range(seeds):
                    yield b, p, searched(method, problem, budget, seed, policies)


def curves(
    problems: Sequence[Problem], budgets: Sequence[Budget], policies: Mapping[str, Policy]
) -> dict[str, list[tuple[float, float, float]]]:
    """Of each method, by budget: median seconds, median evaluations, ratio to the best known."""
    found = list(points_of(problems, budgets, policies))
    best = [
        min(point.makespan_s for _, p, point in found if p == index)
        for index in range(len(problems))
    ]
    result: dict[str, list[tuple[float, float, float]]] = {method: [] for method in METHODS}
    for b in range(len(budgets)):
        for method in METHODS:
            here = [(p, one) for k, p, one in found if k == b and one.method == method]
            if here:
                ratios = [one.makespan_s / best[p] for p, one in here]
                result[method].append(
                    (
                        float(np.median([one.took_s for _, one in here])),
                        float(np.median([one.evaluations for _, one in here])),
                        float(np.exp(np.mean(np.log(ratios)))),
                    )
                )
    return result


def print_curves(
    title: str, found: dict[str, list[tuple[float, float, float]]], budgets: Sequence[Budget]
) -> None:
    """A Markdown table, methods as rows, budgets as columns; what took longer is told."""
    heads = [f"{one.seconds:g} s" if one.seconds else f"{one.evaluations:,}" for one in budgets]
    print(f"\n{title}\n\n| method | " + " | ".join(heads) + " |")
    print("| --- |" + " ---: |" * len(heads))
    for method, rows in found.items():
        cells = ["-"] * (len(heads) - len(rows))
        for budget, (took_s, _, ratio) in zip(budgets[len(cells) :], rows, strict=True):
            is_late = budget.seconds is not None and took_s > 1.2 * budget.seconds
            cells.append(f"{ratio:.3f}" + (f" ({took_s:.2g} s)" if is_late else ""))
        if rows:
            print(f"| {method} | " + " | ".join(cells) + " |")


def write(
    path: Path,
    name: str,
    found: dict[str, list[tuple[float, float, float]]],
    budgets: Sequence[Budget],
) -> None:
    """Add the curves of a group to a file, a row for each point."""
    is_new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow(("problems", "unit", "budget", "method", "ratio", "took_s"))
        for method, points in found.items():
            own = budgets[len(budgets) - len(points) :]
            for budget, (took_s, _, ratio) in zip(own, points, strict=True):
                unit = "seconds" if budget.seconds else "evaluations"
                size = f"{budget.seconds or budget.evaluations:g}"
                writer.writerow((name, unit, size, method, f"{ratio:.3f}", f"{took_s:.2g}"))


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, nargs="*", default=[0.01, 0.1, 1, 10])
    evaluations = [1, 16, 64, 256, 1000, 4000]
    parser.add_argument("--evaluations", type=int, nargs="*", default=evaluations)
    parser.add_argument("--groups", nargs="*", default=list(GROUPS), choices=list(GROUPS))
    parser.add_argument("--problems", type=int, nargs="*", help="numbers, from 0, in each group")
    parser.add_argument("--out", type=Path, help="a CSV file for the rows")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    policies = {POLICY: load_policy(), UNTRAINED: load_policy(None)}
    everything = ["baseline=[cluster_then_anneal,estimates_then_anneal,portfolio]", "budget=quick"]
    with initialize_config_dir(str(PROJECT / "conf"), version_base="1.3"):
        cfg = compose("config", everything)
        groups = {name: list(problems_of(GROUPS[name], name)) for name in arguments.groups}
    if arguments.problems:
        groups = {name: [each[i] for i in arguments.problems] for name, each in groups.items()}
    compiled = [Clustering(evaluations=1), *map(instantiate, cfg.baseline.values())]
    warm_up(WorkConserving(), compiled, policies[POLICY])
    kinds = {
        "seconds": [Budget(seconds=one) for one in arguments.seconds],
        "evaluations": [Budget(evaluations=one) for one in arguments.evaluations],
    }
    for name, problems in groups.items():
        for method in METHODS[:-1]:  # whatever is compiled for this size is compiled here
            few = 70 if problems[0].num_ops <= MANY_OPS else 2
            searched(method, problems[0], Budget(evaluations=few), 0, policies)
        for kind, budgets in kinds.items():
            if not budgets:
                continue
            found = curves(problems, budgets, policies)
            print_curves(f"{name}, by {kind}", found, budgets)
            if arguments.out is not None:
                few = f"{name}, two graphs" if len(problems) == 2 else name
                write(arguments.out, few, found, budgets)


if __name__ == "__main__":
    main()
