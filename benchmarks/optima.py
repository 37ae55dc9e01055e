"""Methods against optima that others have proven: problem sets of stored graphs.

    python -m benchmarks.optima FOLDER [FOLDER ...] --every 6       # the tables, of every 6th case
    python -m benchmarks.optima FOLDER --prove --seconds 600        # CP-SAT on 12 named graphs

A folder has graphs and ``optimal.csv`` (docs/formats.md, "Known optima"); a case is one line of it,
a graph on some processors, taken in the order of the lines. All processors are alike, transfers do
not contend, and methods run on ``system.queue=priority``, where nothing idles on purpose
(``--queue strict`` lets a device wait for the next op of its order). Prints Markdown: for each
folder and budget the ratio of every method's makespan to the optimum, mean, worst, and the share of
cases in which it is reached; of cases of which only a bound is known, the mean ratio to that; then
the mean ratio at 1,000 evaluations by processors, ops, CCR (the seconds of all transfers over those
of all ops) and, where names say so, shape.
"""

import argparse
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from doppler.baselines import CPSAT
from doppler.cluster import preset
from doppler.env import make_view
from doppler.graph import load_graph
from doppler.graph.formats import graph_files
from doppler.graph.optima import Optimum, known_optima
from doppler.problem import Problem, build
from doppler.search import (
    Budget,
    Evaluator,
    estimates_step,
    load_policy,
    policy_steps,
    search,
    search_settings,
    steps_of,
)
from doppler.simulator import WorkConserving

METHODS = (
    *("critical_path", "etf", "etf_near", "etf_queued", "heft", "peft", "cpop", "clustering"),
    *("annealing", "annealing_order", "list_then_anneal", "cluster_then_anneal", "portfolio"),
    *("estimates_then_anneal", "doppler", "at_once"),
)
EVALUATIONS, SECONDS = (1, 64, 1000, 4000), 1.0
# To which the ratios of the sets are rounded.
_CCR = (0.1, 1.0, 2.0, 10.0)
GROUPED_AT = "1,000 evaluations"
# Of 21 ops: all shapes, two and more processors, little and much communication.
NAMED = (
    *(
        "2p_SeriesParallel-MaxBf-3_Nodes_21_CCR_9.99",
        "2p_OutTree-Balanced-MaxBf-3_Nodes_21_CCR_2.01",
    ),
    *("2p_Random_Nodes_21_Density_2.48_CCR_0.99", "4p_Random_Nodes_21_Density_4.86_CCR_10.02"),
    *("4p_Random_Nodes_21_Density_0.86_CCR_0.98", "4p_SeriesParallel-MaxBf-5_Nodes_21_CCR_1.96"),
    *("4p_Stencil_Nodes_21_CCR_10.03", "8p_InTree-Balanced-MaxBf-3_Nodes_21_CCR_0.99"),
    *("8p_Pipeline_Nodes_21_CCR_1.98", "8p_Random_Nodes_21_Density_1.29_CCR_1.95"),
    *("16p_OutTree-Unbalanced-MaxBf-3_Nodes_21_CCR_0.99",),
    *("16p_SeriesParallel-MaxBf-4_Nodes_21_CCR_1.01",),
)


class Case(NamedTuple):
    """A graph on so many processors."""

    path: Path
    optimum: Optimum

    def problem(self) -> Problem:
        """All processors alike."""
        machine = preset(name="identical", num_devices=self.optimum.processors)
        return build(load_graph(self.path), machine)


def cases_of(folder: Path) -> list[Case]:
    """All cases of a folder; the numbers of processors of a graph stand together."""
    return [Case(path, one) for path in graph_files(folder) for one in known_optima(path)]


def steps(method: str, problem: Problem, budget: Budget) -> Sequence[Any]:
    """Of a method of conf/, or of the policy that comes with the package.

    at_once: of its drafts and those of list schedulers, made better on estimates, the first that is
    executed; doppler begins with its greedy episode.
    """
    if method == "at_once":
        return [estimates_step(search_settings(), _policy(), make_view(problem))]
    if method == "doppler":
        return policy_steps(search_settings(), _policy(), make_view(problem))
    return steps_of(method)


_LOADED: list[Any] = []


def _policy() -> Any:
    if not _LOADED:
        _LOADED.append(load_policy())
    return _LOADED[0]


def found_s(method: str, problem: Problem, system: WorkConserving, budget: Budget) -> float:
    """The makespan that a method finds within a budget."""
    with system.open(problem) as session:
        best = Evaluator(session=session, confirmations=0, seed=0)
        search(steps(method, problem, budget), best, budget, np.random.default_rng(0))
    return best.seconds


def measure(
    folder: Path, every: int, every_timed: int, queue: str, methods: Sequence[str]
) -> pd.DataFrame:
    """A row per case, method and budget: the ratio to the optimum or its bound."""
    system: Any = WorkConserving(contention="none", queue=queue)  # pyright: ignore[reportArgumentType]
    rows = []
    for i, case in enumerate(cases_of(folder)[::every]):
        problem = case.problem()
        budgets = {f"{num:,} evaluations": Budget(evaluations=num) for num in EVALUATIONS}
        if i * every % every_timed == 0:
            budgets[f"{SECONDS:g} s"] = Budget(seconds=SECONDS)
        for method in methods:
            for name, budget in budgets.items():
                if method == "at_once" and budget.evaluations != 1:
                    continue
                seconds = found_s(method, problem, system, budget)
                rows.append(
                    {
                        **{"method": method, "budget": name, "proven": case.optimum.is_proven},
                        "ratio": seconds / case.optimum.seconds,
                        **groups_of(case, problem),
                    }
                )
    table = pd.DataFrame(rows)
    table["ratio"] = table["ratio"].where((table["ratio"] - 1).abs() > 1e-9, 1.0)
    return table


def groups_of(case: Case, problem: Problem) -> dict[str, Any]:
    """What cases are grouped by."""
    found = re.match(r"(?:\d+p_)?([A-Za-z_]+?)(?:-.*)?_Nodes_", case.path.name)
    given = problem.graph.given_costs
    assert given is not None
    ratio = given.transfer_seconds.sum() / (given.op_seconds.sum() or 1.0)
    return {
        "processors": case.optimum.processors,
        "ops": problem.num_ops // 10 * 10,
        "shape": found[1] if found else "",
        "CCR": min(_CCR, key=lambda one: abs(np.log(ratio / one))) if ratio else 0.0,
    }


def print_budgets(table: pd.DataFrame) -> None:
    """A table per budget, the best method first."""
    for budget, rows in table.groupby("budget", sort=False):
        num_proven = int(rows[rows["proven"]].groupby("method").size().max())
        num_others = int(rows.groupby("method").size().max()) - num_proven
        bound = " over the bound |" if num_others else ""
        print(f"\n### {budget}: {num_proven} cases with a proven optimum", end="")
        print(f", {num_others} with a bound" if num_others else "")
        print(f"\n| method | mean | worst | optimal |{bound}")
        print("| --- | ---: | ---: | ---: |" + (" ---: |" if num_others else ""))
        lines = []
        for method, group in rows.groupby("method", sort=False):
            ratio, rest = (group[group["proven"] == one]["ratio"] for one in (True, False))
            told = f"| {method} | {ratio.mean():.4f} | {ratio.max():.3f} "
            told += f"| {100 * (ratio <= 1).mean():.0f}% |"
            lines.append((ratio.mean(), told + (f" {rest.mean():.4f} |" if num_others else "")))
        print("\n".join(line for _, line in sorted(lines)))


def print_groups(table: pd.DataFrame) -> None:
    """Mean ratios at one budget, a table per way to group the cases."""
    rows = table[(table["budget"] == GROUPED_AT) & table["proven"]]
    order = rows.groupby("method")["ratio"].mean().sort_values().index
    for column in ("processors", "ops", "shape", "CCR"):
        names = sorted(rows[column].unique())
        if len(names) < 2:
            continue
        means = rows.pivot_table(index="method", columns=column, values="ratio", aggfunc="mean")
        counts = rows[rows["method"] == order[0]].groupby(column).size()
        print(f"\n### By {column}, {GROUPED_AT}, mean ratio (number of cases)\n")
        print(f"| method | {' | '.join(f'{name} ({counts[name]})' for name in names)} |")
        print("| --- |" + " ---: |" * len(names))
        for method in order:
            print(f"| {method} | {' | '.join(f'{means.loc[method, one]:.3f}' for one in names)} |")


def prove(folder: Path, names: Iterable[str], seconds: float) -> None:
    """What CP-SAT proves of named graphs, on a system that may idle on purpose."""
    print("| graph | recorded optimum | found | bound | s |\n| --- | ---: | ---: | ---: | ---: |")
    for name in names:
        (path,) = folder.glob(f"{name}_*")
        (optimum,) = known_optima(path)
        problem = Case(path, optimum).problem()
        begin = time.perf_counter()
        with WorkConserving(contention="none", queue="strict").open(problem) as session:
            solver = CPSAT(deterministic_time=seconds, seconds=seconds, workers=1)
            result = solver.place(session, np.random.default_rng(0))
        took = time.perf_counter() - begin
        bound_s = result.lower_bound_s or 0.0
        told = f"{optimum.seconds:g} | {result.makespan_s:g} | {bound_s:.4f} | {took:.1f}"
        print(f"| {name} | {told} |", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--every", type=int, default=6, help="case that is taken; 1: all")
    parser.add_argument("--every-timed", type=int, default=24, help="case that has seconds, too")
    parser.add_argument("--queue", default="priority", choices=("priority", "strict"))
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--prove", nargs="*", choices=NAMED, help="these graphs, or all 12")
    parser.add_argument("--seconds", type=float, default=600.0, help="of each proof, at most")
    arguments = parser.parse_args()
    for folder in arguments.folders:
        if arguments.prove is not None:
            prove(folder, arguments.prove or NAMED, arguments.seconds)
            continue
        table = measure(
            folder, arguments.every, arguments.every_timed, arguments.queue, arguments.methods
        )
        print(f"\n## {folder.name}, queue {arguments.queue}, every {arguments.every}. case")
        print_budgets(table)
        print_groups(table)


if __name__ == "__main__":
    main()
