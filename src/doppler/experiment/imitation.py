"""stage=imitation: stage I, then the greedy placement executed once."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from hydra.utils import instantiate

from doppler.baselines import Baseline, Teacher
from doppler.experiment.directory import RunDirectory, Summary
from doppler.experiment.judging import Method, nominal_s
from doppler.experiment.learning import check_training_left, make_policy, make_teacher, train
from doppler.experiment.results import finish, identity
from doppler.experiment.run import Run, Stage
from doppler.experiment.specification import Specification, plain
from doppler.problem import Placement
from doppler.search import seeded_generator
from doppler.support.errors import InputError
from doppler.training import Imitation, peak_bytes


@dataclass(frozen=True, kw_only=True)
class ImitationStage(Stage):
    """Imitate a teacher.

    teacher: any baseline; one that searches teaches the placement that it finds.
    """

    teacher: Baseline
    name: ClassVar[str] = "imitation"
    # Equal weights come of any value of these: runs that need them find them again.
    unused: ClassVar[tuple[str, ...]] = (
        *("executor", "baseline", "search", "budget.evaluations", "budget.measured_evaluations"),
        *("algorithm.reinforcement", "algorithm.search_share"),
        "trainer.checkpoint_every_s",
    )

    def check_left(self, directory: RunDirectory) -> None:
        """See Stage."""
        super().check_left(directory)
        check_training_left(directory)

    def check(self, spec: Specification) -> None:
        """See Stage."""
        super().check(spec)
        instantiate(spec.cfg.policy.build)

    def __post_init__(self) -> None:
        if isinstance(self.teacher, Teacher):  # it executes nothing, however much it might
            object.__setattr__(self, "unused", (*self.unused, "stage.teacher.evaluations"))

    def run(self, run: Run) -> Summary:
        """Train; leaves last.ckpt."""
        spec = run.spec
        teacher, *inherited = make_teacher(run, self.teacher)
        module: Imitation = instantiate(spec.cfg.algorithm.imitation)(
            policy=make_policy(run),
            view=spec.view,
            teacher=teacher,
            episodes=spec.cfg.budget.imitation_episodes,
            seed=spec.seed,
            inherited=tuple(inherited),
        )
        train(run, module, [self.teacher])
        method = _greedy(run, module)
        own_s = module.elapsed_s - module.inherited.seconds
        fits = bool(np.isfinite(method.makespan_s))
        extra: dict[str, Any] = {
            "greedy_makespan_s": method.makespan_s if fits else None,
            "episodes": module.num_episodes,
            "episodes_per_s": module.num_episodes / max(own_s, 1e-9),
            "peak_memory_bytes": peak_bytes(),
        }
        if fits:
            return finish(run, method, [], extra)
        if not run.is_step:
            raise InputError(f"{method.name}: the greedy placement does not fit in memory")
        # Weights to go on from, which is what was asked for.
        summary = {**identity(run), **extra}
        run.directory.write_summary(summary)
        return summary


def _greedy(run: Run, module: Imitation) -> Method:
    """What the policy decides where it does not draw."""
    spec, rng = run.spec, seeded_generator(run.spec.seed, "greedy")
    device_BV, priority_BV = module.policy.rollout(spec.view, 1, 0.0, rng).placements()
    placement = Placement.make(spec.problem, device_BV[0], priority_BV[0])
    return Method(
        name=f"{spec.policy_name} imitation",
        settings=[
            *(plain(spec.cfg.policy), plain(spec.cfg.algorithm.imitation)),
            spec.settings(run.stage.unused)["stage"]["teacher"],
        ],
        placement=placement,
        makespan_s=nominal_s(spec, placement),
        uses_order=True,
        evaluations=module.inherited.evaluations + 1,
        wall_s=module.elapsed_s,
    )
