"""stage=placer: many problems, one after another, each searched as long as it pays."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from doppler.errors import InputError
from doppler.experiment.directory import Summary
from doppler.experiment.problem_set import problems_of
from doppler.experiment.results import identity
from doppler.experiment.run import Run, Stage
from doppler.experiment.specification import Specification
from doppler.options import FilePath
from doppler.placer import (
    LadderRecord,
    StreamCost,
    WhenToGoOn,
    cost_of,
    fixed_costs,
    hindsight_cost,
    read_records,
    record,
    replay,
    to_line,
)
from doppler.problem import Problem
from doppler.report.rows import plain_table
from doppler.search import load_policy, seeded_generator
from doppler.waiting import waiting

LEVELS_FILE = "levels.jsonl"


@dataclass(frozen=True, kw_only=True)
class PlacerStage(Stage):
    """Record what every level finds on every problem, then let a placer choose its levels.

    Problems come in an order that the seed determines. Beside the placer stand each level for all
    problems, and the best level for each at its price, known in advance.

    rules: how the placer weighs seconds. problems: lines of configuration, as those of a training
    set. levels: a file of records, which is made where it is missing; else they lie in the run
    directory.
    """

    rules: WhenToGoOn
    problems: Sequence[str]
    levels: FilePath | None = None
    name: ClassVar[str] = "placer"
    unused: ClassVar[tuple[str, ...]] = (
        *("executor", "policy", "algorithm", "search", "trainer", "baseline", "budget"),
        *("workload", "cluster", "decomposition", "stage.levels", "compute"),
    )

    def method(self, spec: Specification) -> str:
        """It is about one method."""
        return "placer"

    def introduce(self, run: Run) -> None:
        """See Stage."""
        run.say(f"problems of {len(self.problems)} lines -> {run.directory.path}")

    def run(self, run: Run) -> Summary:
        """See Stage."""
        path = Path(self.levels) if self.levels else run.directory.path / LEVELS_FILE
        recorded = self._recorded(run, path)
        order = seeded_generator(run.spec.seed, "order").permutation(len(recorded))
        recorded = [recorded[i] for i in order]
        climbed = replay(recorded, self.rules, seeded_generator(run.spec.seed, "placer"))
        height = [len(one.found_s) for one in climbed]
        costs = [
            cost_of("placer", recorded, height),
            *fixed_costs(recorded),
            hindsight_cost(recorded, self.rules.price),
        ]
        summary = {
            **identity(run),
            "method": "placer",
            "num_problems": len(recorded),
            "seconds": costs[0].seconds,
            "mean_ratio": costs[0].ratio,
            "loss": costs[0].loss,
            "asked": sum(one.was_asked for one in climbed),
            "certain": sum(one.is_certain for one in climbed),
            "compared": {one.name: asdict(one) for one in costs},
        }
        run.directory.write_summary(summary)
        _tell(run, summary)
        return summary

    def show(self, run: Run) -> None:
        """See Stage."""
        _tell(run, run.directory.summary())

    def _recorded(self, run: Run, path: Path) -> list[LadderRecord]:
        """What the levels find, of every problem; what an interrupted run recorded stays."""
        problems = list(problems_of(self.problems, "stage.problems"))
        if not problems:
            raise InputError("stage.problems: there is none")
        recorded = read_records(path) if path.exists() else []
        if len(recorded) > len(problems) or any(
            one.name != _name(number, problem)
            for number, (one, problem) in enumerate(zip(recorded, problems, strict=False))
        ):
            raise InputError(f"{path}: records of other problems than stage.problems")
        policy = load_policy()
        path.parent.mkdir(parents=True, exist_ok=True)
        with waiting(run.say, f"recording {len(problems)} problems"), path.open("a") as file:
            for number in range(len(recorded), len(problems)):
                problem = problems[number]
                one = record(
                    _name(number, problem),
                    problem,
                    run.spec.system,
                    policy,
                    seed=number,
                    clock=time.perf_counter,
                )
                file.write(to_line(one))
                file.flush()
                recorded.append(one)
        return recorded


def _name(number: int, problem: Problem) -> str:
    return f"{number} {problem.graph.name} {problem.hash}"


def _tell(run: Run, summary: Mapping[str, Any]) -> None:
    compared = {name: StreamCost(**one) for name, one in summary["compared"].items()}
    title = f"{summary['num_problems']} problems, seed {summary['seed']}"
    note = "ratio: makespan over lower bound; loss: over the deepest level, less 1"
    table = plain_table(title, ("method",), ("seconds", "ratio", "loss", "levels"), note=note)
    for name, one in compared.items():
        levels = " ".join(map(str, one.levels))
        table.add_row(name, f"{one.seconds:.2f}", f"{one.ratio:.4f}", f"{one.loss:.2%}", levels)
    run.console.print(table)
