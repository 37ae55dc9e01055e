"""stage=rl_sim and stage=pipeline: stage II, after stage I or from other weights."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from doppler.baselines import Baseline
from doppler.experiment.comparing import compare_baselines
from doppler.experiment.directory import RunDirectory, Summary
from doppler.experiment.inference import apply_policy
from doppler.experiment.judging import Method, nominal_s
from doppler.experiment.learning import Learner, check_learning, check_policy, check_training_left
from doppler.experiment.problem_set import train_on_set
from doppler.experiment.results import finish
from doppler.experiment.run import Run, Stage
from doppler.experiment.specification import Specification, plain
from doppler.search import Effort, ScoredPlacement
from doppler.support.errors import InputError
from doppler.support.options import Count, FilePath, Natural, check
from doppler.training import LAST, Reinforcement, peak_bytes

# In place of a path: the checkpoint of the stage before, made first if there is none.
AUTO = "auto"
# On these depends no weight and no placement.
_UNUSED = ("executor", "budget.measured_evaluations", "trainer.checkpoint_every_s")


@dataclass(frozen=True, kw_only=True)
class StageTwo(Stage):
    """Policy gradient in the simulator.

    teacher: of stage I.
    init_from: auto: the checkpoint of stage I for this problem, policy and seed; None: random
        weights; else the path of a checkpoint, or ``pretrained``.
    problems, held_out: lines of configuration; if there are any, the training is on the first,
        tries its weights on the others, and places the run's own problem with the last weights.
    updates: of that training.
    """

    teacher: Baseline
    init_from: FilePath | None = AUTO
    problems: Sequence[str] = ()
    held_out: Sequence[str] = ()
    updates: Natural = 0
    name: ClassVar[str] = "rl_sim"
    unused: ClassVar[tuple[str, ...]] = (*_UNUSED, "baseline")

    def __post_init__(self) -> None:
        if self.problems:  # baselines stand beside what is placed in the end
            object.__setattr__(self, "unused", _UNUSED)

    def check(self, spec: Specification) -> None:
        """See Stage."""
        super().check(spec)
        check_policy(spec, None if self.init_from == AUTO else self.init_from)
        if bool(self.problems) != bool(self.held_out):
            raise InputError("stage.problems, stage.held_out: training on a set needs both")
        if self.problems:
            check("stage.updates", Count, self.updates)
            if "batch_problems" not in spec.cfg.algorithm.reinforcement:
                raise InputError("stage.problems: training on many takes algorithm=problem_set")
        else:
            cfg, budget = spec.cfg, "budget.evaluations"
            check_learning(cfg.algorithm, budget, cfg.budget.evaluations)

    def needed(self, run: Run) -> Iterator[Run]:
        """Stage I, if its weights are asked for."""
        if self.init_from == AUTO and not self.problems and not run.is_finished:
            yield imitation_step(run)

    def check_left(self, directory: RunDirectory) -> None:
        """See Stage."""
        super().check_left(directory)
        check_training_left(directory)

    def run(self, run: Run) -> Summary:
        """Train on the problem, or on many."""
        if self.problems:
            weights = None if self.init_from == AUTO else self.init_from
            path = train_on_set(run, self.problems, self.held_out, self.updates, weights)
            return apply_policy(run, path, compare_baselines(run.spec, run.say))
        return self.learn_and_compare(run)

    def learn_and_compare(self, run: Run) -> Summary:
        """Train on the problem; the configured baselines, if they count, stand beside."""
        spec, init_from = run.spec, self._weights(run)
        learner = Learner(
            title="stage II, simulated",
            algorithm=spec.cfg.algorithm,
            budget="budget.evaluations",
            evaluations=spec.cfg.budget.evaluations,
            init_from=init_from,
            is_one_budget=self.init_from == AUTO,
        )
        with run.open() as session:
            module = learner.learn(run, session)
        best, *others = _learned_methods(run, module)
        if not np.isfinite(best.makespan_s):
            raise InputError(
                f"{spec.problem.graph.name}: no episode of {best.evaluations} fits in the memory "
                f"of {spec.cfg.cluster.name}"
            )
        fitting = [method for method in others if np.isfinite(method.makespan_s)]
        for method in others:
            if method not in fitting:
                run.say(f"{method.name} is left out: it does not fit in memory")
        greedy = others[-1] if module.task.greedy.placement is not None else None
        return finish(
            run,
            best,
            [*fitting, *self.compared(run)],
            {
                "init_from": str(init_from) if init_from else None,
                "greedy_makespan_s": greedy.makespan_s if greedy in fitting else None,
                **sources_of(module),
                **training_speed(module),
                "peak_memory_bytes": peak_bytes(),
            },
        )

    def compared(self, run: Run) -> list[Method]:
        """What stands beside: nothing, stage II is for other runs to go on from."""
        return []

    def _weights(self, run: Run) -> str | Path | None:
        if self.init_from != AUTO:
            return self.init_from
        path = imitation_step(run).directory.path / LAST
        run.say(f"initial weights: {path}")
        return path


@dataclass(frozen=True, kw_only=True)
class Pipeline(StageTwo):
    """Stages I and II, the baselines beside."""

    name: ClassVar[str] = "pipeline"
    unused: ClassVar[tuple[str, ...]] = _UNUSED

    def check(self, spec: Specification) -> None:
        """See Stage."""
        if self.problems:
            raise InputError("stage.problems: only stage=rl_sim trains on a set, not pipeline")
        super().check(spec)

    def compared(self, run: Run) -> list[Method]:
        """The configured baselines."""
        return compare_baselines(run.spec, run.say)


def imitation_step(run: Run) -> Run:
    """Stage I of a run's problem, policy and seed."""
    teacher = plain(run.spec.cfg.stage.teacher)
    target = "doppler.experiment.ImitationStage"
    return run.step({"_target_": target, "teacher": teacher})


def training_speed(module: Reinforcement) -> Summary:
    """Episodes, and how many of them a second, of a training that has ended."""
    assert module.trained is not None, "training has ended"
    own_s = module.trained[1].seconds - module.inherited.seconds
    return {
        "episodes": module.num_episodes,
        "episodes_per_s": module.num_episodes / max(own_s, 1e-9),
    }


def sources_of(module: Reinforcement) -> Summary:
    """What found the best placement of all, and that of training alone."""
    assert module.trained is not None, "training has ended"
    found, task = module.trained[0], module.task
    best = task.best.found if task.best.placement else task.greedy
    trained = (found.source or best.source) if module.num_updates else None
    return {"source": best.source, "trained_source": trained}


def _learned_methods(run: Run, module: Reinforcement) -> list[Method]:
    """The best of all, the best of training alone, the greedy placement of the best weights.

    Where nothing was trained only the first.
    """
    spec, task = run.spec, module.task
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
    methods = [method(name, task.best.found if task.best.placement else task.greedy, in_all)]
    if in_all.evaluations > effort.evaluations and found.placement is not None:
        methods.append(method(f"{name} trained", found, effort))
    if task.greedy.placement is not None:
        methods.append(method(f"{name} greedy", task.greedy, effort))
    return methods
