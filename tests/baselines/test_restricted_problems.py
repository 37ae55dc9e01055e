"""Groups, pins, seconds by device and by kind of link, memory: every method keeps to all of them.

On problems small enough to try everything, nothing undercuts the best and no bound exceeds it.
"""

from collections import Counter

import numpy as np
import pytest
import torch
from problems import REPOSITORY, restricted_problem
from test_tiny_problems import (
    IDLING,
    ROUNDING,
    SIZES,
    TICKS,
    best_of,
    configured_methods,
    everything,
)

from doppler.baselines import CPSAT
from doppler.baselines.bounds import lower_bounds
from doppler.env import make_view
from doppler.policies import DualPolicy
from doppler.problem import Problem
from doppler.search import Budget, Evaluator, policy_steps, search, search_settings, steps_of
from doppler.simulator import BulkSynchronous, Published, WorkConserving
from doppler.trace.checks import check

NUM_PROBLEMS = 12  # 150 were tried
SYSTEMS = (WorkConserving(contention="none"), WorkConserving())


def small(seed: int) -> Problem:
    num_ops, num_devices = SIZES[seed % len(SIZES)]
    # Every third without a group: pins and seconds alone.
    return restricted_problem(
        seed, num_ops=num_ops, num_devices=num_devices, groups=seed % 3 != 2, memory=seed % 2 == 0
    )


def is_legal(problem: Problem, device_V: np.ndarray) -> bool:
    """As the graph says it, op by op."""
    ops = problem.graph.ops
    home: dict[int, int] = {}
    for v, d in enumerate(device_V.tolist()):
        if ops.kinds[v] in problem.cluster.devices[d].unsupported_kinds:
            return False
        if ops.pinned[v] not in (-1, d):
            return False
        if ops.group[v] >= 0 and home.setdefault(int(ops.group[v]), d) != d:
            return False
        given = problem.graph.given_costs
        if given is not None and given.op_seconds is not None and given.op_seconds[v, d] == np.inf:
            return False
    return True


def check_methods(seed: int, methods: dict) -> Counter:
    """Everything about one problem; returns what occurred."""
    problem = small(seed)
    rows = everything(problem)
    best_s = best_of(IDLING, problem, rows)
    bounds = lower_bounds(problem)
    for name, seconds in bounds.items():
        assert seconds <= best_s * (1 + ROUNDING), (seed, name)
    for system in SYSTEMS:
        best_here_s = best_of(system, problem, rows)
        for name, method in methods.items():
            with system.open(problem) as session:
                result = method.place(session, np.random.default_rng(seed))
                placed = result.placement
                row = placed.device[None], placed.priority[None]
                placed_s = float(session.measure(*row).cost_s()[0])
                check(session.trace(placed))
            assert is_legal(problem, placed.device), (seed, name)
            assert placed_s >= best_here_s * (1 - ROUNDING), (seed, name)
            assert (result.lower_bound_s or 0.0) <= best_here_s, (seed, name)
    has_room = bool(np.isinf(problem.arrays.memory_bytes).all())
    if has_room:
        with IDLING.open(problem) as session:
            result = methods["cp_sat"].place(session, np.random.default_rng(seed))
        assert best_s * (1 - ROUNDING) <= result.makespan_s <= best_s * (1 + TICKS), seed
        assert best_s * (1 - TICKS) <= (result.lower_bound_s or 0.0) <= best_s, seed
    group_s = bounds.pop("group", 0.0)
    return Counter(
        room=has_room,
        tight=not has_room and np.isfinite(best_s),
        groups=problem.has_groups,
        pins=(problem.graph.ops.pinned >= 0).any(),
        kinds=len(problem.arrays.kind_seconds) > 0,
        group_decides=group_s > max(bounds.values()),
        attained=max(group_s, *bounds.values()) >= best_s * (1 - 1e-9),
    )


def check_all(seeds: range) -> None:
    methods = configured_methods()
    assert isinstance(methods["cp_sat"], CPSAT)
    seen = sum((check_methods(seed, methods) for seed in seeds), Counter())
    expected = ("room", "tight", "groups", "pins", "kinds", "group_decides", "attained")
    assert all(seen[what] > 0 for what in expected), seen


def test_every_method_places_as_it_may_and_no_better_than_the_best():
    check_all(range(NUM_PROBLEMS))


def test_placements_that_break_a_rule_take_forever_everywhere():
    for seed in range(12):
        problem = small(seed)
        device_BV = np.random.default_rng(seed).integers(
            problem.num_devices, size=(60, problem.num_ops)
        )
        legal_B = [is_legal(problem, device_V) for device_V in device_BV]
        assert problem.allows(device_BV).tolist() == legal_B
        for system in (*SYSTEMS, BulkSynchronous(), Published()):
            with system.open(problem) as session:
                seconds_B = session.measure(device_BV).seconds[:, 0]
            assert np.isfinite(seconds_B).tolist() == legal_B


@pytest.mark.parametrize("confirmations", [0, 3])
def test_every_step_of_a_search_keeps_to_the_rules(confirmations):
    torch.manual_seed(0)
    policy = DualPolicy()
    methods = [path.stem for path in (REPOSITORY / "conf" / "baseline").glob("*.yaml")]
    for seed in range(6):
        problem, budget = small(seed), Budget(evaluations=60)
        lists = [
            steps_of("auto"),
            policy_steps(search_settings(), policy, make_view(problem)),
            *(steps_of(name) for name in methods if name not in ("cp_sat", "enumerative")),
        ]
        for steps in lists:
            with WorkConserving(noise=0.05).open(problem) as session:
                best = Evaluator(session=session, confirmations=confirmations, seed=seed)
                search(steps, best, budget, np.random.default_rng(seed))
                if best.placement is not None:
                    assert is_legal(problem, best.placement.device)
                    check(session.trace(best.placement))
