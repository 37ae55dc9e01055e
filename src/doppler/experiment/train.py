"""``stage=train``: the paper's method in the simulator, and what it is compared with."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from doppler.baselines import Baseline
from doppler.experiment.comparison import compare_baselines
from doppler.experiment.directory import RunDirectory, Summary
from doppler.experiment.imitation import imitate, imitated_method
from doppler.experiment.judging import Method, nominal_s
from doppler.experiment.policy_training import (
    Learner,
    LearningBudget,
    check_policy,
    check_training_left,
)
from doppler.experiment.results import finish
from doppler.experiment.run import Run, Stage
from doppler.experiment.specification import Specification, plain
from doppler.search import Effort, ScoredPlacement
from doppler.support.errors import InputError
from doppler.support.options import FilePath
from doppler.training import LAST, Reinforcement, peak_bytes

# In place of a path: the weights of stage I, which is part of the run.
AUTO = "auto"
IMITATION = "imitation"  # the folder of stage I in the run's directory


@dataclass(frozen=True, kw_only=True)
class Train(Stage):
    """Stage I, stage II and a search from there; the configured baselines stand beside.

    Attributes:
        teacher: of stage I, any baseline.
        init_from: auto: stage I makes the first weights; None: the initial weights of the seed;
            else the path of a checkpoint, or ``pretrained``.
    """

    teacher: Baseline
    init_from: FilePath | None = AUTO
    name: ClassVar[str] = "train"
    # No weight and no placement depends on these.
    unused: ClassVar[tuple[str, ...]] = (
        "budget.measured_evaluations",
        "trainer.checkpoint_every_s",
    )

    def check(self, spec: Specification) -> None:
        """See Stage."""
        super().check(spec)
        check_policy(spec, None if self.init_from == AUTO else self.init_from)
        self.check_budget(spec)

    def check_budget(self, spec: Specification) -> None:
        """Raise an InputError if the budget is of no use."""
        self._budget(spec).check(spec.cfg.algorithm)

    def check_left(self, directory: RunDirectory) -> None:
        """See Stage."""
        super().check_left(directory)
        check_training_left(directory, [IMITATION])

    def run(self, run: Run) -> Summary:
        """Imitate a teacher, reinforce in the simulator, search from there, and compare."""
        first: list[Method] = []
        weights: str | Path | None = self.init_from
        if self.init_from == AUTO:
            stage_one = run.part(IMITATION)
            first = [imitated_method(stage_one, imitate(stage_one, self.teacher))]
            weights = stage_one.directory.path / LAST
        learner = Learner(
            title="stage II, simulated",
            algorithm=run.spec.cfg.algorithm,
            budget=self._budget(run.spec),
            init_from=weights,
        )
        with run.open() as session:
            stage_two = learner.train(run, session)
            learner.search(run, stage_two)
        best, *learned = learned_methods(run, stage_two)
        others = [one for one in [*learned, *first] if _fits(run, one)]
        others += self.compared(run)
        return finish(run, best, others, _summary(stage_two, weights, others))

    def compared(self, run: Run) -> list[Method]:
        """The configured baselines."""
        return compare_baselines(run.spec, run.say)

    def _budget(self, spec: Specification) -> LearningBudget:
        return LearningBudget(
            evaluations=spec.evaluations,
            option=spec.evaluations_option,
            includes_teacher=self.init_from == AUTO,
        )


def _fits(run: Run, method: Method) -> bool:
    fits = bool(np.isfinite(method.makespan_s))
    if not fits:
        run.say(f"{method.name} is left out: it does not fit in memory")
    return fits


def _summary(module: Reinforcement, weights: str | Path | None, others: list[Method]) -> Summary:
    found = module.problem.greedy.placement
    greedy = [one.makespan_s for one in others if found is not None and one.placement is found]
    return {
        "init_from": str(weights) if weights else None,
        "greedy_makespan_s": greedy[0] if greedy else None,
        **sources_of(module),
        **training_speed(module),
        "peak_memory_bytes": peak_bytes(),
    }


def training_speed(module: Reinforcement) -> Summary:
    """Episodes of a training that has ended, and how many of them a second."""
    assert module.trained is not None, "training has ended"
    own_s = module.trained[1].seconds - module.inherited.seconds
    return {
        "episodes": module.num_episodes,
        "episodes_per_s": module.num_episodes / max(own_s, 1e-9),
    }


def sources_of(module: Reinforcement) -> Summary:
    """What found the best placement of all, and the best one of training alone."""
    assert module.trained is not None, "training has ended"
    found, best = module.trained[0], module.problem.best
    trained = (found.source or best.source) if module.num_updates else None
    return {"source": best.source, "trained_source": trained}


def learned_methods(run: Run, module: Reinforcement) -> list[Method]:
    """The best of all, the best of training alone, the greedy placement of the best weights.

    Where nothing was trained, only the first.

    Raises:
        InputError: the first does not fit into memory.
    """
    spec, problem = run.spec, module.problem
    assert module.trained is not None, "training has ended"
    found, effort = module.trained
    settings = [
        *(plain(spec.cfg.policy), plain(spec.cfg.algorithm), plain(spec.cfg.search), spec.origin),
        plain(spec.cfg.stage.teacher),
    ]

    def method(label: str, found: ScoredPlacement, effort: Effort) -> Method:
        assert found.placement is not None, "one was found that fits, or the run has ended"
        return Method(
            name=label,
            settings=settings,
            placement=found.placement,
            makespan_s=nominal_s(spec, found.placement),
            uses_order=True,
            evaluations=effort.evaluations,
            wall_s=effort.seconds,
            source=found.source,
        )

    name, in_all = spec.policy_name, module.effort
    methods = [method(name, problem.best, in_all)]
    if not np.isfinite(methods[0].makespan_s):
        raise InputError(
            f"{spec.problem.graph.name}: no episode of {in_all.evaluations} fits in the memory of "
            f"{spec.cfg.cluster.name}"
        )
    if in_all.evaluations > effort.evaluations and found.placement is not None:
        methods.append(method(f"{name} trained", found, effort))
    if problem.greedy.placement is not None:
        methods.append(method(f"{name} greedy", problem.greedy, effort))
    return methods
