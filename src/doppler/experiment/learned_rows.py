"""Rows and summary entries for what a training and the search after it have found."""

from pathlib import Path
from typing import Any

import numpy as np

from doppler.experiment.directory import Summary
from doppler.experiment.judging import Method, nominal_s
from doppler.experiment.run import Run
from doppler.experiment.specification import AUTO, Specification, as_container
from doppler.search import Effort, ScoredPlacement
from doppler.support.errors import InputError
from doppler.training import Reinforcement
from doppler.training.updates import EpisodeTraining


def learned_summary(
    module: Reinforcement, weights: str | Path | None, others: list[Method]
) -> Summary:
    """Summary entries of a run that trained.

    Args:
        module: the finished training.
        weights: the checkpoint that it started from.
        others: the methods other than the run's main one.
    """
    found = module.problem.greedy.placement
    greedy = [one.makespan_s for one in others if found is not None and one.placement is found]
    return {
        "init_from": str(weights) if weights else None,
        "greedy_makespan_s": greedy[0] if greedy else None,
        **sources_of(module),
        **training_speed(module),
        **memory_of(module),
    }


def training_speed(module: Reinforcement) -> Summary:
    """Number of episodes of a finished training, and episodes per second."""
    assert module.trained is not None, "training has ended"
    own_s = module.trained[1].seconds - module.inherited.seconds - module.settling_s
    return {
        "episodes": module.episodes_done,
        "episodes_per_s": module.episodes_done / max(own_s, 1e-9),
    }


def memory_of(module: EpisodeTraining) -> Summary:
    """Peak memory of a finished training, where the operating system records it."""
    return {} if module.peak_bytes is None else {"peak_memory_bytes": module.peak_bytes}


def sources_of(module: Reinforcement) -> Summary:
    """Which step found the best placement overall, and which the best one of the training."""
    assert module.trained is not None, "training has ended"
    found, best = module.trained[0], module.problem.best
    trained = (found.source or best.source) if module.num_updates else None
    return {"source": best.source, "trained_source": trained}


def learned_methods(run: Run, module: Reinforcement) -> list[Method]:
    """The best placement overall, the best of the training, and the greedy one of the best weights.

    If nothing was trained, only the first of them.

    Args:
        run: gives the problem and the policy's name.
        module: the finished training.

    Raises:
        InputError: no placement fits in memory.
    """
    spec, problem = run.spec, module.problem
    assert module.trained is not None, "training has ended"
    found, effort = module.trained
    imitates = spec.origin == AUTO or spec.cfg.algorithm.imitate_best
    settings = [
        *(
            as_container(spec.cfg.policy),
            as_container(spec.cfg.algorithm),
            as_container(spec.cfg.search),
            spec.origin,
        ),
        as_container(spec.cfg.stage.teacher) if spec.origin == AUTO else None,
        trainer_settings(spec),
        spec.cfg.budget.imitation_episodes if imitates else None,
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


def trainer_settings(spec: Specification) -> dict[str, Any]:
    """Return the settings of Lightning's trainer that change what is learned.

    Args:
        spec: gives the configuration.
    """
    return spec.settings(["trainer.checkpoint_every_s"])["trainer"]
