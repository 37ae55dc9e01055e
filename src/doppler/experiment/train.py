"""``stage=train``: the paper's method in the simulator, compared with the configured baselines."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from hydra.utils import instantiate
from omegaconf import DictConfig

from doppler.baselines import Baseline, TaughtPlacement
from doppler.experiment.comparison import compare_baselines
from doppler.experiment.directory import RunDirectory, Summary
from doppler.experiment.imitation import imitate, imitated_method
from doppler.experiment.judging import Method
from doppler.experiment.learned_rows import learned_methods, learned_summary
from doppler.experiment.policy_training import (
    LearningBudget,
    check_policy,
    check_training_left,
    fit_in_run,
    make_policy,
    open_evaluator,
)
from doppler.experiment.results import finish
from doppler.experiment.run import Run, Stage
from doppler.experiment.specification import AUTO, IMITATION, Specification
from doppler.problem import Placement
from doppler.search import (
    NO_EFFORT,
    NO_PLACEMENT,
    Budget,
    GreedyEpisode,
    policy_steps,
    search,
    seeded_generator,
)
from doppler.support.errors import InputError
from doppler.support.options import FilePath
from doppler.support.waiting import waiting
from doppler.system import Session
from doppler.training import (
    BEST,
    LAST,
    Imitation,
    Reinforcement,
    TrainingProblem,
    effort_of,
    found_of,
    save_checkpoint,
)

# Folder in the run's directory with the imitation that ends stage II.
SETTLING = "settling"


@dataclass(frozen=True, kw_only=True)
class Train(Stage):
    """Stage I, stage II and a search, compared with the configured baselines.

    Attributes:
        teacher: of stage I, any baseline.
        init_from: auto: stage I makes the first weights; None: the initial weights of the seed;
            else the path of a checkpoint, or ``pretrained``.
    """

    teacher: Baseline
    init_from: FilePath | None = AUTO
    name: ClassVar[str] = "train"
    # These keys affect neither weights nor placements.
    unused: ClassVar[tuple[str, ...]] = (
        "budget.measured_evaluations",
        "trainer.checkpoint_every_s",
    )

    def __post_init__(self) -> None:
        if self.init_from != AUTO:  # stage I does not run
            object.__setattr__(self, "unused", (*self.unused, "stage.teacher"))

    def check(self, spec: Specification) -> None:
        super().check(spec)
        check_policy(spec, None if self.init_from == AUTO else self.init_from)
        self.check_budget(spec)

    def check_budget(self, spec: Specification) -> None:
        """Raise an InputError if the budget is too small."""
        self._budget(spec).check(spec, spec.cfg.algorithm)

    def check_left(self, directory: RunDirectory) -> None:
        super().check_left(directory)
        check_training_left(directory, [IMITATION, SETTLING])

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
        return finish(run, best, others, learned_summary(stage_two, weights, others))

    def compared(self, run: Run) -> list[Method]:
        """Run the configured baselines."""
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


@dataclass(frozen=True, kw_only=True)
class Learner:
    """Trains stage II or III on one problem, then searches with the trained policy.

    Attributes:
        title: of the training in progress lines.
        algorithm: the key ``algorithm`` of the configuration.
        budget: executions that training and search share.
        init_from: a checkpoint; None: the initial weights of the seed.
        stream: ends the names of the random streams. Stage III has its own, or it would draw what
            stage II has drawn.
    """

    title: str
    algorithm: DictConfig
    budget: LearningBudget
    init_from: str | Path | None
    stream: str = ""

    def train(self, run: Run, session: Session) -> Reinforcement:
        """Train with REINFORCE on the run's problem; write best.ckpt and last.ckpt.

        At the end the policy imitates the best placement of the training (`_settle`). The best
        placement of the initial checkpoint is executed again, because it may come from another
        system. If the budget does not suffice for one update, the weights stay as they are and the
        search gets all evaluations.

        Args:
            run: gives policy, problem and directory.
            session: of the run's system.

        Returns:
            The finished training.
        """
        spec, directory = run.spec, run.directory.path
        policy, inherited = make_policy(run, self.init_from), NO_EFFORT
        evaluator = open_evaluator(
            run, session, self.budget.evaluations, self.algorithm.confirmations
        )
        if self.init_from is not None:
            inherited = effort_of(self.init_from)
            found = found_of(self.init_from, spec.problem)
            if found.placement is not None:
                evaluator.confirm(found.placement, found.source)
        left = self.budget.left_to_train(evaluator.evaluations, inherited.evaluations)
        num_updates = self.budget.num_updates(self.algorithm, left, evaluator.confirmations)
        if num_updates == 0:
            run.say(
                f"{self.title}: {self.budget.option}={self.budget.evaluations:,} leaves less than "
                "one batch to train with: nothing is trained, the search uses all of them"
            )
        problem = TrainingProblem(spec.view, evaluator)
        module: Reinforcement = Reinforcement(
            policy=policy,
            problems=[problem],
            trials=[problem],
            options=instantiate(self.algorithm.reinforcement),
            num_updates=num_updates,
            seed=spec.seed,
            title=self.title,
            on_best=lambda: save_checkpoint(module.trainer, directory / BEST),
            inherited=inherited,
            stream=self.stream,
        )
        module.namespace = run.namespace
        fit_in_run(run, module, algorithm=self.algorithm)
        if module.trained is None:  # else an interrupted run had already done this
            if num_updates > 0:
                self._settle(run, module)
            begin = time.perf_counter()
            if num_updates > 0:
                module.try_greedy()
                module.trained = evaluator.found, module.effort
            else:
                module.on_best()  # without training, the initial weights are the best
                module.trained = NO_PLACEMENT, module.effort
            module.elapsed_s += time.perf_counter() - begin
            save_checkpoint(module.trainer, directory / LAST)
        return module

    def _settle(self, run: Run, module: Reinforcement) -> None:
        """Imitate the best placement of the training until it is the policy's greedy choice.

        Nothing is executed. Does nothing if the algorithm leaves this step out (algorithm=paper),
        or if the greedy placement of these weights is known to be as good.
        """
        best, spec = module.problem.evaluator.found, run.spec
        if best.placement is None or not self.algorithm.imitate_best:
            return

        def decided(placement: Placement) -> list[int]:
            steps = TaughtPlacement.of(spec.problem, placement)
            return [*steps.op.tolist(), *steps.device.tolist()]

        # That earlier weights placed as well says nothing about these, which may have changed.
        as_good, tried = [best.placement], module.problem.tried
        if tried.placement is not None and tried.seconds <= best.seconds:
            as_good.append(tried.placement)
        rng = seeded_generator(spec.seed, "settling")
        device_BV, priority_BV = module.policy.rollout(spec.view, 1, 0.0, rng).placements()
        own = decided(Placement.make(spec.problem, device_BV[0], priority_BV[0]))
        if any(own == decided(placement) for placement in as_good):
            return
        imitation: Imitation = instantiate(self.algorithm.imitation)(
            policy=module.policy,
            view=spec.view,
            teacher=TaughtPlacement.of(spec.problem, best.placement),
            episodes=spec.cfg.budget.imitation_episodes,
            seed=spec.seed,
            exploration=None,
        )
        imitation.title = "imitating the best placement"
        imitation.namespace = "settling"
        fit_in_run(run.part(SETTLING), imitation, algorithm=self.algorithm)
        module.settling_s = imitation.elapsed_s
        module.elapsed_s += imitation.elapsed_s

    def search(self, run: Run, module: Reinforcement) -> None:
        """Search from the trained policy, with the evaluations that training has left.

        Args:
            run: gives problem and directory.
            module: the finished training.

        Raises:
            InputError: neither training nor search found a placement that fits in memory.
        """
        evaluator, spec = module.problem.evaluator, run.spec
        if self.algorithm.search_share > 0 and not module.is_searched:
            begin = time.perf_counter()
            num = self.budget.left(evaluator.evaluations, module.inherited.evaluations)
            steps = policy_steps(spec.cfg.search, module.policy, spec.view)
            if module.num_updates == 0 and evaluator.placement is not None:
                # These weights were not changed, so their greedy placement is already known.
                steps = [step for step in steps if not isinstance(step, GreedyEpisode)]
            with waiting(run.say, f"searching from there, {num:,} evaluations"):
                rng = seeded_generator(spec.seed, f"inference{self.stream}")
                search(steps, evaluator, Budget(evaluations=num), rng)
            module.elapsed_s += time.perf_counter() - begin
            module.is_searched = True
            save_checkpoint(module.trainer, run.directory.path / LAST)
        if module.problem.best.placement is None:
            raise InputError(
                f"{spec.policy_name}: no placement of {evaluator.evaluations} fits in memory"
            )
