"""Shared by the stages that train: policy, teacher, training in a directory, search, budget."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig

from doppler.baselines import Annealing, Baseline, Clustering, TaughtPlacement, Teacher
from doppler.env import ProblemView
from doppler.experiment.comparison import is_pointless, search_with
from doppler.experiment.directory import RunDirectory
from doppler.experiment.run import Run
from doppler.experiment.specification import Specification
from doppler.policies import Bindable, Policy
from doppler.policies.weights import load_checkpoint, load_policy_weights
from doppler.precompile import alone, warm_up
from doppler.problem import Placement
from doppler.report.rows import SUMMARY_FILE, format_seconds
from doppler.search import (
    NO_EFFORT,
    NO_PLACEMENT,
    AnnealOnEstimates,
    Effort,
    Evaluator,
    ScoredPlacement,
    confirmations_within,
)
from doppler.support.errors import InputError
from doppler.support.files import read_json
from doppler.support.waiting import waiting
from doppler.system import Session, honours_order
from doppler.training import (
    LAST,
    fit,
    updates_done,
)
from doppler.training.updates import EpisodeTraining

TEACHER_FILE = "teacher.json"


def check_policy(spec: Specification, weights: str | Path | None) -> None:
    """Refuse a policy that cannot be built, or that cannot load the given weights.

    Args:
        spec: gives policy and problem.
        weights: a checkpoint; None: initial weights.

    Raises:
        InputError: says why; or the name of the policy would mislead in tables: it is that of a
            baseline, or has a space.
    """
    if " " in spec.policy_name:
        raise InputError(
            f"policy.name: must have no spaces, because what follows one names a row of the same "
            f"training (NAME greedy), got {spec.policy_name!r}"
        )
    if spec.policy_name in (spec.cfg.get("baseline") or {}):
        raise InputError(
            f"policy.name: {spec.policy_name!r} is the name of a baseline of this run; "
            "policy.name=OTHER names its rows"
        )
    policy = instantiate(spec.cfg.policy.build)
    if weights is not None:
        load_policy_weights(policy, weights)


def make_policy(
    run: Run, weights: str | Path | None = None, *, serves_many: bool = False
) -> Policy:
    """Build the configured policy with the weights of a checkpoint or with initial weights.

    Args:
        run: gives policy, problem and seed.
        weights: a checkpoint; None: initial weights of the seed.
        serves_many: whether to leave out parts that learn something about this problem alone.
    """
    torch.manual_seed(run.spec.seed)
    policy: Any = instantiate(run.spec.cfg.policy.build)
    if not serves_many:
        bind(policy, run.spec.view)
    if weights is not None:
        load_policy_weights(policy, weights)
        if str(weights) == str(run.spec.cfg.stage.get("init_from")) and _is_unfinished(weights):
            run.say(f"{weights}: its training has not ended; these are the weights so far")
    return policy


def _is_unfinished(weights: str | Path) -> bool:
    """Whether they are a checkpoint of a run, or of a part of a run, that has not ended."""
    path = Path(weights).absolute()
    homes = path.parents[1:3]  # the run, or a part and its run
    is_ours = path.parent.name == Path(LAST).parent.name
    return is_ours and not any((home / SUMMARY_FILE).exists() for home in homes)


def bind(policy: Policy, view: ProblemView) -> None:
    """Let a policy add the parameters that belong to this problem alone, if it has such."""
    if isinstance(policy, Bindable):
        policy.bind(view)


def make_teacher(run: Run, baseline: Baseline) -> tuple[Teacher, Effort, ScoredPlacement]:
    """Build the teacher of stage I.

    A list scheduler decides anew for every batch. Any other baseline searches once, on the run's
    system, and teaches the placement that it finds. That placement is saved in the run's directory.

    Args:
        run: gives system, problem and directory.
        baseline: the teacher.

    Returns:
        The teacher, the effort of its search, and the placement that it found.

    Raises:
        InputError: the search makes no sense on this system, or no placement fits in memory.
    """
    if isinstance(baseline, Teacher):
        return baseline, NO_EFFORT, NO_PLACEMENT
    name, path = type(baseline).__name__, run.directory.path / TEACHER_FILE
    if is_pointless(run.spec, baseline):
        raise InputError(
            f"stage.teacher: {name} searches for an order of ops, which this system ignores"
        )
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


def _read_teacher(path: Path) -> dict[str, Any]:
    try:
        kept = read_json(path)
    except InputError:
        kept = None
    if isinstance(kept, dict) and {"evaluations", "seconds", "makespan_s"} <= kept.keys():
        return kept
    raise InputError(f"{path}: damaged")


def fit_in_run(
    run: Run,
    module: EpisodeTraining,
    teachers: Sequence[Baseline] = (),
    algorithm: DictConfig | None = None,
) -> None:
    """Train a module in the run's directory; an interrupted training is resumed.

    Everything is compiled before the training's clock starts.

    Args:
        run: gives directory, loggers and console.
        module: what is trained.
        teachers: baselines whose decisions it uses.
        algorithm: its settings, such as those of stage III; None: the key ``algorithm``.
    """
    directory = run.directory.path
    compiled = [*searches_of(run), Clustering(evaluations=1), *teachers]
    with waiting(run.say, "compiling"):
        warm_up(run.spec.system, compiled, module.policy)
    fit(
        module,
        directory,
        settings=clipped_as(run.spec.cfg, algorithm),
        loggers=run.loggers.begin(updates_done(directory)),
        console=run.console,
        say=run.say,
    )


def clipped_as(cfg: DictConfig, algorithm: DictConfig | None = None) -> DictConfig:
    """Return the key ``trainer`` with the gradient clip of a training's own algorithm.

    A ``trainer.gradient_clip_val`` that differs from ``algorithm.gradient_clip`` is kept: somebody
    has set it.

    Args:
        cfg: the configuration.
        algorithm: settings of the training; None: the key ``algorithm``.
    """
    settings = cfg.trainer.copy()
    if algorithm is not None and settings.get("gradient_clip_val") == cfg.algorithm.gradient_clip:
        settings.gradient_clip_val = algorithm.gradient_clip
    return settings


def searches_of(run: Run) -> list[Baseline]:
    """The searches that follow a training, which must be compiled before a clock starts."""
    order, options = honours_order(run.spec.system.queue), run.spec.cfg.search.anneal
    anneal = Annealing(evaluations=1, order=order, hot=options.hot, cold=options.cold)
    drafts = instantiate(run.spec.cfg.search.drafts, _convert_="all")
    estimates: Any = alone(AnnealOnEstimates(drafts=drafts))
    return [anneal, estimates]


def check_training_left(directory: RunDirectory, parts: Sequence[str] = ()) -> None:
    """Refuse damaged checkpoints of an interrupted run, from which training could not resume.

    Args:
        directory: of the run.
        parts: folders in it that have a training of their own.

    Raises:
        InputError: names the file that is damaged.
    """
    for path in (directory.path, *(directory.path / part for part in parts)):
        last, teacher = path / LAST, path / TEACHER_FILE
        if last.exists():
            load_checkpoint(last)
        elif teacher.exists():
            _read_teacher(teacher)
        elif path == directory.path and directory.is_finished:
            raise InputError(f"{last}: is missing")


def open_evaluator(run: Run, session: Session, evaluations: int, confirmations: int) -> Evaluator:
    """Open an evaluator on the run's system that also saves the best placement to disk.

    Args:
        run: gives the directory.
        session: of its system.
        evaluations: executions in all.
        confirmations: how many of them may be spent on repeating promising placements.
    """
    kind = run.spec.system.kind

    def keep(placement: Placement, seconds: float) -> None:
        run.directory.keep_best(placement, seconds, kind)

    return Evaluator(
        session=session,
        confirmations=confirmations_within(evaluations, confirmations),
        seed=run.spec.seed,
        on_best=keep,
    )


@dataclass(frozen=True, kw_only=True)
class LearningBudget:
    """Executions that a training and the search after it share.

    Attributes:
        evaluations: total number.
        option: key of the configuration that sets it, for messages.
        includes_teacher: whether executions that the teacher of stage I used count.
    """

    evaluations: int
    option: str
    includes_teacher: bool

    def left(self, used: int, inherited: int) -> int:
        """Return the number of executions that are left.

        Args:
            used: by this training so far.
            inherited: by the training of its first weights.
        """
        return self.evaluations - used - (inherited if self.includes_teacher else 0)

    def left_to_train(self, used: int, inherited: int) -> int:
        """Return the number of executions that are left before the training begins.

        Args:
            used: by this training so far.
            inherited: by the training of its first weights.

        Raises:
            InputError: the teacher has used all of them.
        """
        left = self.left(used, inherited)
        if left < 1 and self.includes_teacher:
            raise InputError(
                f"stage.teacher: {self.evaluations - left:,} evaluations are used, which leaves "
                f"none of {self.option}={self.evaluations:,} to train with"
            )
        return left

    def num_updates(self, algorithm: DictConfig, evaluations: int, confirmations: int = 0) -> int:
        """Return the number of updates; 0 if less than one batch is left beside the search.

        Args:
            algorithm: the key ``algorithm`` of the configuration.
            evaluations: executions that are left.
            confirmations: how many of them repeat promising placements.

        Raises:
            InputError: not even one batch fits, and there is no search either.
        """
        options = instantiate(algorithm.reinforcement)
        for_training = evaluations - int(algorithm.search_share * evaluations)
        num_updates = options.updates_within(for_training, confirmations)
        if num_updates == 0 and algorithm.search_share == 0:
            raise InputError(
                f"{self.option}: {evaluations} evaluations are left to train with, fewer than one "
                f"batch of {options.batch_episodes} needs with its confirmations, and "
                "algorithm.search_share=0 leaves no search"
            )
        return num_updates

    def check(self, spec: Specification, algorithm: DictConfig) -> None:
        """Refuse a budget that is too small, and options that contradict each other.

        Args:
            spec: of the training.
            algorithm: its settings, such as those of stage III.

        Raises:
            InputError: names the option.
        """
        confirmations = 0
        if algorithm.search_share == 0 and spec.is_random:  # else training may be left out
            confirmations = confirmations_within(self.evaluations, algorithm.confirmations)
        self.num_updates(algorithm, self.evaluations, confirmations)
