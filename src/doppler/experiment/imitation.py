"""Stage I: the policy imitates a teacher. ``stage=imitation`` stops after it."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from hydra.utils import instantiate

from doppler.baselines import Baseline, Teacher, placements_of_steps
from doppler.experiment.directory import RunDirectory, Summary
from doppler.experiment.judging import Method, nominal_s
from doppler.experiment.learned_rows import memory_of, trainer_settings
from doppler.experiment.policy_training import (
    check_policy,
    check_training_left,
    fit_in_run,
    make_policy,
    make_teacher,
)
from doppler.experiment.results import finish
from doppler.experiment.run import Run, Stage
from doppler.experiment.specification import Specification, as_container
from doppler.problem import Placement
from doppler.report.rows import format_seconds
from doppler.search import GREEDY, seeded_generator
from doppler.support.errors import InputError
from doppler.training import Imitation

# Teacher episodes to execute for the check, and the slowdown against them that is tolerated.
_TEACHERS_EPISODES, _TOLERATED = 9, 0.05


def imitate(run: Run, baseline: Baseline) -> Imitation:
    """Run stage I in the run's directory and save its last checkpoint there.

    Args:
        run: gives policy, problem and directory.
        baseline: the teacher.

    Returns:
        The finished training.
    """
    spec = run.spec
    teacher, *inherited = make_teacher(run, baseline)
    module: Imitation = instantiate(spec.cfg.algorithm.imitation)(
        policy=make_policy(run),
        view=spec.view,
        teacher=teacher,
        episodes=spec.cfg.budget.imitation_episodes,
        seed=spec.seed,
        inherited=tuple(inherited),
    )
    fit_in_run(run, module, [baseline])
    for doubt in _doubts(spec, module, greedy_placement(spec, module)):
        run.say(f"warning: stage I: {doubt}")
    return module


def greedy_placement(spec: Specification, module: Imitation) -> Placement:
    """The placement that the policy chooses after stage I when it does not sample.

    Args:
        spec: gives the problem.
        module: the finished training.
    """
    rng = seeded_generator(spec.seed, "greedy")
    device_BV, priority_BV = module.policy.rollout(spec.view, 1, 0.0, rng).placements()
    return Placement.make(spec.problem, device_BV[0], priority_BV[0])


def imitated_method(run: Run, module: Imitation) -> Method:
    """The greedy placement after stage I, executed once, as a row of the table.

    Args:
        run: gives the system.
        module: the finished training.
    """
    spec, placement = run.spec, greedy_placement(run.spec, module)
    return Method(
        name=f"{spec.policy_name} imitation",
        settings=[
            *(as_container(spec.cfg.policy), as_container(spec.cfg.algorithm.imitation)),
            as_container(spec.cfg.stage.teacher),
            trainer_settings(spec),
            spec.cfg.budget.imitation_episodes,
        ],
        placement=placement,
        makespan_s=nominal_s(spec, placement),
        uses_order=True,
        evaluations=module.inherited.evaluations + 1,
        wall_s=module.elapsed_s,
        source=GREEDY,
    )


def _doubts(spec: Specification, module: Imitation, placement: Placement) -> list[str]:
    """Signs that the policy has not learned its teacher; this check counts no evaluations."""
    rng = seeded_generator(spec.seed, "doubts")
    decided = module.teacher.decide(spec.problem, _TEACHERS_EPISODES, rng)
    device_BV, priority_BV = placements_of_steps(*decided)
    with spec.system.with_noise(0.0).open(spec.problem) as session:
        teacher_B = session.measure(device_BV, priority_BV, rng=rng).cost_s()
    doubts = []
    if len(np.unique(placement.device)) == 1 and (np.ptp(device_BV, axis=1) > 0).all():
        doubts.append("the policy places every op on one device, its teacher does not")
    makespan_s, teacher_s = nominal_s(spec, placement), float(np.median(teacher_B))
    if makespan_s > teacher_s * (1.0 + _TOLERATED):
        doubts.append(
            f"the policy's placement takes {format_seconds(makespan_s)}, its teacher's "
            f"{format_seconds(teacher_s)}; more budget.imitation_episodes may help"
        )
    return doubts


@dataclass(frozen=True, kw_only=True)
class ImitationStage(Stage):
    """Imitate a teacher, then execute the greedy placement once.

    Attributes:
        teacher: any baseline. One that searches teaches the placement that it finds.
    """

    teacher: Baseline
    name: ClassVar[str] = "imitation"
    unused: ClassVar[tuple[str, ...]] = (
        *("baseline", "search", "budget.evaluations", "budget.measured_evaluations"),
        *("algorithm.reinforcement", "algorithm.search_share"),
        "trainer.checkpoint_every_s",
    )

    def __post_init__(self) -> None:
        if isinstance(self.teacher, Teacher):  # it executes nothing, whatever its budget
            object.__setattr__(self, "unused", (*self.unused, "stage.teacher.evaluations"))

    def check(self, spec: Specification) -> None:
        super().check(spec)
        check_policy(spec, weights=None)

    def check_left(self, directory: RunDirectory) -> None:
        super().check_left(directory)
        check_training_left(directory)

    def run(self, run: Run) -> Summary:
        """Train the policy and write last.ckpt."""
        module = imitate(run, self.teacher)
        method = imitated_method(run, module)
        if not np.isfinite(method.makespan_s):
            raise InputError(f"{method.name}: the greedy placement does not fit in memory")
        own_s = module.elapsed_s - module.inherited.seconds
        extra: dict[str, Any] = {
            "greedy_makespan_s": method.makespan_s,
            "episodes": module.episodes_done,
            "episodes_per_s": module.episodes_done / max(own_s, 1e-9),
            **memory_of(module),
        }
        return finish(run, method, [], extra)
