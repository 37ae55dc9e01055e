"""Runs baselines on the system of a run, to compare with the policy or to teach it."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from doppler.baselines import Baseline, SearchResult
from doppler.experiment.judging import Method, nominal_s
from doppler.experiment.specification import Specification, as_container
from doppler.precompile import warm_up
from doppler.search import Effort, seeded_generator
from doppler.support.errors import InputError
from doppler.support.waiting import waiting
from doppler.system import honours_order


def search_with(
    spec: Specification, baseline: Baseline, purpose: str
) -> tuple[SearchResult, Effort]:
    """Run a baseline on the system of a specification.

    Code is compiled before the clock starts.

    Args:
        spec: gives the system, the problem and the seed.
        baseline: the method to run.
        purpose: names the random stream, so that each search of a run has its own.

    Returns:
        What the baseline found, and its evaluations and wall seconds.

    Raises:
        InputError: the baseline miscounts its executions.
    """
    warm_up(spec.system, [baseline])
    begin = time.perf_counter()
    with spec.system.open(spec.problem) as session:
        result = baseline.place(session, seeded_generator(spec.seed, purpose))
        if result.evaluations != session.evaluations:
            raise InputError(
                f"{purpose}: place() of {type(baseline).__name__} returned evaluations="
                f"{result.evaluations}, but executed {session.evaluations} placements"
            )
    return result, Effort(result.evaluations, time.perf_counter() - begin)


def is_pointless(spec: Specification, baseline: Baseline) -> bool:
    """Whether a baseline searches for an order of ops that the system ignores.

    Args:
        spec: gives the system.
        baseline: the method.
    """
    return baseline.needs_order and not honours_order(spec.system.queue)


def found_by(spec: Specification, baseline: Baseline, name: str, settings: Any) -> Method:
    """Run a baseline and return its placement and makespan on the specification's system.

    Args:
        spec: gives the system and the problem.
        baseline: the method to run.
        name: of the method in tables; also names its random stream.
        settings: of the method, as plain values.
    """
    result, effort = search_with(spec, baseline, name)
    return Method(
        name=name,
        settings=settings,
        placement=result.placement,
        makespan_s=result.makespan_s,
        uses_order=baseline.uses_order,
        evaluations=effort.evaluations,
        wall_s=effort.seconds,
        lower_bound_s=result.lower_bound_s,
    )


def compare_baselines(spec: Specification, say: Callable[[str], None]) -> list[Method]:
    """Run each configured baseline and report its makespan without jitter.

    Args:
        spec: gives the baselines, the system and the problem.
        say: prints a line for the user.

    Returns:
        One method per baseline that found a placement which fits in memory.
    """
    methods = []
    for name, baseline in spec.baselines.items():
        if is_pointless(spec, baseline):
            say(f"{name} is left out: it searches for an order of ops, which this system ignores")
            continue
        with waiting(say, f"{name} searches"):
            method = found_by(spec, baseline, name, as_container(spec.cfg.baseline[name]))
        nominal = nominal_s(spec, method.placement)
        if not np.isfinite(nominal):
            say(f"{name} is left out: it found no placement that fits in memory")
            continue
        methods.append(replace(method, makespan_s=nominal))
    return methods
