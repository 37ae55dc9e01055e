"""Searches of baselines on a run's system: to compare with, and to teach."""

import time

import numpy as np

from doppler.baselines import Baseline, SearchResult
from doppler.stages.optimisation import Effort, seeded_generator
from doppler.stages.run import Method, Run, plain


def search(run: Run, baseline: Baseline, purpose: str) -> tuple[SearchResult, Effort]:
    """Search on the run's system; the random stream is that of the purpose."""
    begin = time.perf_counter()
    with run.open() as session:
        result = baseline.place(session, seeded_generator(run.cfg.seed, purpose))
        assert result.evaluations == session.evaluations, f"{purpose} miscounts"
    return result, Effort(result.evaluations, time.perf_counter() - begin)


def is_pointless(run: Run, baseline: Baseline) -> bool:
    """Whether it searches for an order that the run's system does not keep."""
    return baseline.needs_order and not run.honours_order


def compare_baselines(run: Run, baselines: dict[str, Baseline]) -> list[Method]:
    """Search with each baseline; those that choose an order need a system that honours it."""
    methods = []
    for name, baseline in baselines.items():
        if is_pointless(run, baseline):
            run.say(f"{name} is left out: it searches for an order, and this system keeps none")
            continue
        result, effort = search(run, baseline, name)
        nominal_s = run.nominal_s(result.placement)
        if not np.isfinite(nominal_s):
            run.say(f"{name} is left out: it found no placement that fits in memory")
            continue
        methods.append(
            Method(
                name=name,
                settings=plain(run.cfg.baseline[name]),
                placement=result.placement,
                makespan_s=nominal_s,
                uses_order=baseline.uses_order and run.honours_order,
                evaluations=effort.evaluations,
                wall_s=effort.seconds,
                lower_bound_s=result.lower_bound_s,
            )
        )
    return methods
