"""stage=inference: places a problem with a trained policy, greedily and with a search."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from doppler.experiment.comparison import compare_baselines
from doppler.experiment.directory import Summary
from doppler.experiment.judging import Method, nominal_s
from doppler.experiment.learned_rows import trainer_settings
from doppler.experiment.policy_training import (
    check_policy,
    make_policy,
    open_evaluator,
    searches_of,
)
from doppler.experiment.results import finish
from doppler.experiment.run import Run, Stage
from doppler.experiment.specification import Specification, as_container
from doppler.precompile import warm_up
from doppler.report.rows import format_seconds
from doppler.search import (
    AnnealFromBest,
    AnnealOnEstimates,
    Budget,
    GreedyEpisode,
    SearchStep,
    policy_steps,
    search,
    seeded_generator,
)
from doppler.support.errors import InputError
from doppler.support.options import FilePath
from doppler.support.waiting import waiting
from doppler.training import effort_of

# Search steps after which a table has a row, and the suffix of its method name.
_TOLD: dict[type[SearchStep], str] = {
    GreedyEpisode: " at once",
    AnnealOnEstimates: " on estimates",
    AnnealFromBest: "",
}


@dataclass(frozen=True, kw_only=True)
class Inference(Stage):
    """Place with the policy of a checkpoint, whatever problems it was trained on.

    Attributes:
        init_from: path of the checkpoint, or ``pretrained``.
    """

    init_from: FilePath
    name: ClassVar[str] = "inference"
    unused: ClassVar[tuple[str, ...]] = (
        *("algorithm", "trainer"),
        *("budget.imitation_episodes", "budget.measured_evaluations"),
    )

    def check(self, spec: Specification) -> None:
        super().check(spec)
        check_policy(spec, self.init_from)

    def run(self, run: Run) -> Summary:
        return apply_policy(run, self.init_from, compare_baselines(run.spec, run.say))


def apply_policy(run: Run, path: str | Path, others: list[Method]) -> Summary:
    """Place with a trained policy: greedily, by a search on estimates, and with all evaluations.

    The evaluations of its training are reported separately and do not count against the budget.

    Args:
        run: gives problem and policy.
        path: of the checkpoint.
        others: methods to compare with.
    """
    spec = run.spec
    evaluations = spec.evaluations
    policy, effort = make_policy(run, path), effort_of(path)
    run.say(
        f"{path}: trained with {effort.evaluations:,} evaluations, {format_seconds(effort.seconds)}"
    )
    name, rng = spec.policy_name, seeded_generator(spec.seed, "inference")
    settings = [
        *(as_container(spec.cfg.policy), as_container(spec.cfg.search), spec.origin),
        *_training_settings(spec),
    ]
    methods: list[Method] = []
    with waiting(run.say, "compiling"):
        warm_up(spec.system, searches_of(run), policy)
    begin = time.perf_counter()

    def keep(step: SearchStep) -> None:
        if type(step) in _TOLD and best.placement is not None:
            methods.append(
                Method(
                    name=f"{name}{_TOLD[type(step)]}",
                    settings=settings,
                    placement=best.placement,
                    makespan_s=nominal_s(spec, best.placement),
                    uses_order=True,
                    evaluations=best.evaluations,
                    wall_s=time.perf_counter() - begin,
                    source=best.found.source,
                )
            )

    with waiting(run.say, f"{name} searches, {evaluations:,} evaluations"), run.open() as session:
        best = open_evaluator(run, session, evaluations, spec.cfg.search.confirmations)
        steps = policy_steps(spec.cfg.search, policy, spec.view)
        search(steps, best, Budget(evaluations=evaluations), rng, after=keep)
    if not methods:
        raise InputError(f"{name}: no placement of {best.evaluations} fits in memory")
    beside = [*methods[-2::-1], *others]
    extra = {"trained": asdict(effort), "source": best.found.source}
    return finish(run, methods[-1], beside, extra)


def _training_settings(spec: Specification) -> list[Any]:
    """Settings of the training on a set of problems that made the weights; none without one."""
    stage = spec.cfg.stage
    if not stage.get("problems"):
        return []
    return [
        *(as_container(stage.problems), as_container(stage.held_out), stage.updates),
        *(as_container(spec.cfg.algorithm.reinforcement), trainer_settings(spec)),
        spec.settings().get("compute"),  # jobs draw numbers of their own
    ]
