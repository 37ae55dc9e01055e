"""No baseline reports less than the lower bound, whatever a small problem is made of."""

import numpy as np
import pytest
from conf_files import choice_of, files_of
from hydra.utils import instantiate
from problems import hosted_problem, random_problem, restricted_problem

from doppler.baselines import lower_bound
from doppler.simulator import WorkConserving

# CP-SAT takes a second each; it has bounds and tests of its own.
NAMES = sorted({choice_of(file) for file in files_of("baseline")} - {"cp_sat"})
MOST_PROBLEMS = 500


def problem_of(seed: int):
    """Plain, on several hosts, or with memory limits, groups and pins; mixed devices."""
    rng = np.random.default_rng([seed, 5])
    kind, num_ops, num_devices = seed % 4, int(rng.integers(1, 25)), int(rng.integers(1, 5))
    if kind == 0:
        return random_problem(seed, num_ops=num_ops, num_devices=num_devices)
    if kind == 1:
        return hosted_problem(seed)
    return restricted_problem(
        seed, num_ops=num_ops, num_devices=num_devices, memory=kind == 3, groups=True
    )


@pytest.fixture
def baselines(configure):
    cfg = configure(f"baseline=[{','.join(NAMES)}]", "budget.evaluations=20")
    return {name: instantiate(cfg.baseline[name]) for name in cfg.baseline}


def check(baselines, seeds: range) -> int:
    """Every method on each problem; how many placements were looked at."""
    num = 0
    for seed in seeds:
        problem = problem_of(seed)
        streams = 1 + seed % 2
        system = WorkConserving(streams=streams)
        bound_s = lower_bound(problem, streams=streams).seconds
        for name, baseline in baselines.items():
            if name == "enumerative" and (problem.graph.ops.node < 0).any():
                continue  # it needs nodes
            with system.open(problem) as session:
                result = baseline.place(session, np.random.default_rng(seed))
                placed = result.placement
                again = session.measure(placed.device[None], placed.priority[None]).cost_s()[0]
            assert result.makespan_s >= bound_s * (1 - 1e-9), (seed, name)
            assert result.makespan_s == pytest.approx(again, rel=1e-12), (seed, name)
            num += 1
    return num


def test_no_method_is_below_the_lower_bound(baselines):
    assert check(baselines, range(20)) > 100


@pytest.mark.slow
def test_no_method_is_below_the_lower_bound_on_many_problems(baselines):
    assert check(baselines, range(MOST_PROBLEMS)) > 2500
