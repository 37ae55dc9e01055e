"""A trained policy on a problem as it is: what it places at once, and what a search then finds."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hydra.utils import instantiate

from doppler.episode import heavy_merged
from doppler.errors import InputError
from doppler.report.rows import format_seconds
from doppler.stages.checkpoints import effort_of, load_policy_weights
from doppler.stages.inference import place_at_once, sample
from doppler.stages.optimisation import seeded_generator
from doppler.stages.run import Method, Run, plain
from doppler.stages.searching import compare_baselines
from doppler.stages.training import best_so_far, make_policy


def run_inference(run: Run) -> dict[str, Any]:
    """Place with the policy of a checkpoint."""
    return apply_policy(run, Path(run.cfg.stage.init_from))


def apply_policy(run: Run, path: Path) -> dict[str, Any]:
    """Place with a trained policy: at once, by samples, and with all evaluations of the budget.

    At once is with one evaluation, that of the most promising draft. Its training, on this problem
    or on others, is told apart and not counted.
    """
    evaluations = int(run.cfg.budget.evaluations)
    policy, inference = make_policy(run), instantiate(run.cfg.algorithm.inference)
    load_policy_weights(policy, path)  # type: ignore[arg-type]
    effort, rng = effort_of(path), seeded_generator(run.cfg.seed, "inference")
    run.say(
        f"{path}: trained with {effort.evaluations:,} evaluations, {format_seconds(effort.seconds)}"
    )
    name, methods, begin = str(run.cfg.policy.name), [], time.perf_counter()
    view = heavy_merged(run.view)
    settings = [*(plain(run.cfg.policy), plain(run.cfg.algorithm.inference)), run.origin]
    with run.open() as session:
        best = best_so_far(run, session)

        def method(label: str) -> None:
            if best.placement is not None:
                methods.append(
                    Method(
                        name=label,
                        settings=settings,
                        placement=best.placement,
                        makespan_s=run.nominal_s(best.placement),
                        uses_order=run.honours_order,
                        evaluations=best.evaluations,
                        wall_s=time.perf_counter() - begin,
                    )
                )

        best.confirm(place_at_once(policy, view, inference.unseen.drafts, rng))
        method(f"{name} at once")
        sample(policy, view, inference.unseen, best, evaluations - best.evaluations, rng)
        method(f"{name} samples")
        order = run.honours_order
        inference.polish(best, evaluations - best.evaluations, order=order, rng=rng)
        method(name)
    if not methods:
        raise InputError(f"{name}: no placement of {best.evaluations} fits in memory")
    others = [*methods[-2::-1], *compare_baselines(run, run.baselines)]
    return run.finish(methods[-1], others, {"trained": asdict(effort)})
