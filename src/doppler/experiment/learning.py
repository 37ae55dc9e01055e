"""What stages I to III share: policies, teachers, trainings in a run's directory."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig

from doppler.baselines import Annealing, Baseline, Clustering, TaughtPlacement, Teacher
from doppler.experiment.comparing import is_pointless, search_with
from doppler.experiment.directory import RunDirectory
from doppler.experiment.run import Run
from doppler.experiment.specification import Specification
from doppler.policies import Policy
from doppler.policies.weights import load_checkpoint, load_policy_weights
from doppler.precompile import alone, warm_up
from doppler.problem import Placement
from doppler.report.rows import format_seconds
from doppler.search import (
    NO_EFFORT,
    NO_PLACEMENT,
    AnnealOnEstimates,
    Budget,
    Effort,
    Evaluator,
    GreedyEpisode,
    ScoredPlacement,
    confirmations_within,
    policy_steps,
    search,
    seeded_generator,
)
from doppler.support.errors import InputError
from doppler.support.files import read_json
from doppler.support.waiting import waiting
from doppler.system import Session, honours_order
from doppler.training import (
    BEST,
    LAST,
    Reinforcement,
    Task,
    effort_of,
    fit,
    found_of,
    save_checkpoint,
    updates_done,
)
from doppler.training.updates import EpisodeTraining

TEACHER_FILE = "teacher.json"


def check_policy(spec: Specification, weights: str | Path | None) -> None:
    """Raise an InputError if the configured policy cannot be made, or cannot have these weights."""
    policy = instantiate(spec.cfg.policy.build)
    if weights is not None:
        load_policy_weights(policy, weights)


def make_policy(run: Run, weights: str | Path | None = None) -> Policy:
    """The configured policy, with the weights of a checkpoint or the initial ones of the seed."""
    torch.manual_seed(run.spec.seed)
    policy = instantiate(run.spec.cfg.policy.build)
    if weights is not None:
        load_policy_weights(policy, weights)
    return policy


def check_learning(algorithm: DictConfig, budget: str, evaluations: int) -> None:
    """Refuse options of learning that do not go together, and a budget that is of no use.

    Args:
        algorithm: its part of the configuration.
        budget: the option that says how many evaluations there are.
        evaluations: for training and search.

    Raises:
        InputError: names the option.
    """
    _num_updates(algorithm, budget, evaluations, confirmations=0)


def _num_updates(
    algorithm: DictConfig, budget: str, evaluations: int, *, confirmations: int
) -> int:
    """What is trained with the evaluations that are not the search's; 0: nothing."""
    learning = instantiate(algorithm.reinforcement)
    for_training = evaluations - int(algorithm.search_share * evaluations)
    num_updates = learning.updates_within(for_training, confirmations)
    if num_updates == 0 and algorithm.search_share == 0:
        raise InputError(
            f"{budget}: what is left to train with, {evaluations}, is less than one batch of "
            f"{learning.batch_episodes} takes, confirmations included, and "
            "algorithm.search_share=0 leaves no search"
        )
    return num_updates


def searches_of(run: Run) -> list[Baseline]:
    """What a policy's search has beside episodes, to be compiled before a clock starts."""
    order, options = honours_order(run.spec.system.queue), run.spec.cfg.search.anneal
    anneal = Annealing(evaluations=1, order=order, hot=options.hot, cold=options.cold)
    drafts = instantiate(run.spec.cfg.search.drafts, _convert_="all")
    estimates: Any = alone(AnnealOnEstimates(drafts=drafts))
    return [anneal, estimates]


def train(run: Run, module: EpisodeTraining, teachers: Sequence[Baseline] = ()) -> None:
    """Fit a module in the run's directory; what is compiled is compiled before its clock starts.

    Args:
        run: whose directory it is.
        module: what is trained.
        teachers: what it asks for decisions.
    """
    cfg, directory, system = run.spec.cfg, run.directory.path, run.spec.system
    with waiting(run.say, "compiling"):
        warm_up(system, [*searches_of(run), Clustering(evaluations=1), *teachers], module.policy)
    fit(
        module,
        directory,
        settings=cfg.trainer,
        loggers=run.loggers.begin(updates_done(directory)),
        console=run.console,
        say=run.say,
    )


def make_teacher(run: Run, baseline: Baseline) -> tuple[Teacher, Effort, ScoredPlacement]:
    """Who teaches stage I, what it took to know what to teach, and what was found by it.

    A list scheduler decides anew for every batch. Any other baseline searches once, on the run's
    system, and teaches the placement that it finds: it is kept in the run directory.

    Raises:
        InputError: the search is of no use on this system, or finds nothing that fits in memory.
    """
    if isinstance(baseline, Teacher):
        return baseline, NO_EFFORT, NO_PLACEMENT
    name, path = type(baseline).__name__, run.directory.path / TEACHER_FILE
    if is_pointless(run.spec, baseline):
        raise InputError(f"stage.teacher: {name} searches for an order, this system keeps none")
    if not path.exists():
        with waiting(run.say, f"{name} searches for what to teach"):
            result, effort = search_with(run.spec, baseline, "teacher")
        if not np.isfinite(result.makespan_s):
            raise InputError(f"stage.teacher: {name} found no placement that fits in memory")
        result.placement.save(path, {"makespan_s": result.makespan_s, **asdict(effort)})
    placement = Placement.load(path, run.spec.problem)
    kept = _read_teacher(path)
    effort = Effort(kept["evaluations"], kept["seconds"])
    run.say(
        f"{name} teaches a placement of {format_seconds(kept['makespan_s'])}, found in "
        f"{effort.evaluations:,} evaluations, {format_seconds(effort.seconds)}"
    )
    found = ScoredPlacement(placement, kept["makespan_s"], f"teacher {name.lower()}")
    return TaughtPlacement.of(run.spec.problem, placement), effort, found


def check_training_left(directory: RunDirectory) -> None:
    """Raise an InputError if a training cannot go on from there, nor another begin with it."""
    last, teacher = directory.path / LAST, directory.path / TEACHER_FILE
    if directory.is_finished or last.exists():
        load_checkpoint(last)
    elif teacher.exists():
        _read_teacher(teacher)


def _read_teacher(path: Path) -> dict[str, Any]:
    try:
        kept = read_json(path)
    except InputError:
        kept = None
    if isinstance(kept, dict) and {"evaluations", "seconds", "makespan_s"} <= kept.keys():
        return kept
    raise InputError(f"{path}: damaged")


def best_so_far(run: Run, session: Session, evaluations: int) -> Evaluator:
    """Executes on the run's system, so often in all; keeps the best placement, on disk too."""
    kind = run.spec.system.kind

    def keep(placement: Placement, seconds: float) -> None:
        run.directory.keep_best(placement, seconds, kind)

    return Evaluator(
        session=session,
        confirmations=confirmations_within(evaluations, run.spec.cfg.search.confirmations),
        seed=run.spec.seed,
        on_best=keep,
    )


@dataclass(frozen=True, kw_only=True)
class Learner:
    """Stage II or III on one problem.

    title: what the training is called where progress is told.
    algorithm: its part of the configuration.
    evaluations: of training and search together.
    budget: the option that says so.
    init_from: a checkpoint; None: random weights.
    is_one_budget: whether what stage I used is of these evaluations.
    """

    title: str
    algorithm: DictConfig
    evaluations: int
    budget: str
    init_from: str | Path | None
    is_one_budget: bool

    def learn(self, run: Run, session: Session) -> Reinforcement:
        """Train, then search with what was learned; leaves best.ckpt and last.ckpt.

        It begins with the best placement of the checkpoint, executed once more: it may come from
        another system. Where too little is left for an update, all of it is the search's, and the
        weights are left as they are.
        """
        spec, directory = run.spec, run.directory.path
        policy, inherited, found = make_policy(run, self.init_from), NO_EFFORT, NO_PLACEMENT
        if self.init_from is not None:
            inherited = effort_of(self.init_from)
            found = found_of(self.init_from, spec.problem)
        best = best_so_far(run, session, self.evaluations)
        if found.placement is not None:
            best.confirm(found.placement, found.source)
        evaluations = self._left(best.evaluations, inherited.evaluations)
        num_updates = _num_updates(
            self.algorithm, self.budget, evaluations, confirmations=best.confirmations
        )
        if num_updates == 0:
            run.say(
                f"{self.title}: {self.budget}={self.evaluations:,} leaves less than one batch to "
                "train with: nothing is trained, all is for the search"
            )
        task, learning = Task(spec.view, best), instantiate(self.algorithm.reinforcement)
        module: Reinforcement = Reinforcement(
            policy=policy,
            tasks=[task],
            trials=[task],
            learning=learning,
            num_updates=num_updates,
            seed=spec.seed,
            title=self.title,
            on_best=lambda: save_checkpoint(module.trainer, directory / BEST),
            inherited=inherited,
        )
        train(run, module)
        if module.trained is None:  # else an interrupted run had come further than this
            begin = time.perf_counter()
            if num_updates > 0:
                module.try_greedy()
            else:
                module.on_best()  # the weights that it begins with are the best that there are
            module.trained = best.found if num_updates > 0 else NO_PLACEMENT, module.effort
            if self.algorithm.search_share > 0:
                used = module.learning.evaluations(num_updates, best.confirmations)
                self._search(run, module, evaluations - used)
            if best.placement is None and task.greedy.placement is None:
                raise InputError(
                    f"{spec.policy_name}: no placement of {best.evaluations} fits in memory"
                )
            module.elapsed_s += time.perf_counter() - begin
            save_checkpoint(module.trainer, directory / LAST)
        return module

    def _left(self, used: int, inherited: int) -> int:
        """What a teacher used is of the same budget, what other trainings used is not."""
        used += inherited if self.is_one_budget else 0
        left = self.evaluations - used
        if left < 1 and self.is_one_budget:
            raise InputError(
                f"stage.teacher: {used:,} evaluations are used, which leaves none of "
                f"{self.budget}={self.evaluations:,} to train with"
            )
        return left

    def _search(self, run: Run, module: Reinforcement, evaluations: int) -> None:
        best = module.task.best
        steps = policy_steps(run.spec.cfg.search, module.policy, run.spec.view)
        if module.num_updates == 0 and best.placement is not None:
            # The greedy placement of these weights is known where the best one comes from.
            steps = [step for step in steps if not isinstance(step, GreedyEpisode)]
        rng = seeded_generator(run.spec.seed, "inference")
        with waiting(run.say, f"searching from there, {evaluations:,} evaluations"):
            search(steps, best, Budget(evaluations=evaluations), rng)
