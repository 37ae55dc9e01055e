"""Two hundred problems small enough to try every placement in every order.

What no method may undercut is the best of its system. What no bound may exceed is the best of all
schedules, those that idle on purpose included: where transfers do not contend, some strict order
reaches it, and CP-SAT must find it.
"""

from collections import Counter
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from problems import REPOSITORY, random_problem

from doppler.baselines import CPSAT, Baseline
from doppler.baselines.bounds import lower_bounds
from doppler.graph.levels import depth
from doppler.problem import Problem
from doppler.simulator import WorkConserving

NUM_QUICK, NUM_PROBLEMS = 40, 200
SIZES = ((4, 2), (4, 3), (5, 2), (5, 3), (6, 2), (4, 3), (5, 3), (6, 2), (5, 2), (6, 3))
IDLING = WorkConserving(queue="strict", contention="none")
SYSTEMS = (WorkConserving(contention="none"), WorkConserving())
# Sums of the same seconds in another order; whole ticks of CP-SAT.
ROUNDING, TICKS = 1e-12, 1e-5

SMALL = {"deterministic_time": 2}


def tiny_problem(seed: int) -> Problem:
    """Unequal devices and links, forbidden kinds, latencies, regions with several readers.

    The ops of one depth are the blocks of one node.
    """
    num_ops, num_devices = SIZES[seed % len(SIZES)]
    costs = "distinct" if seed // len(SIZES) % 2 else "tied"
    problem = random_problem(seed, num_ops=num_ops, num_devices=num_devices, costs=costs)
    graph = problem.graph
    nodes = depth(num_ops, graph.edges.src, graph.edges.dst)
    return replace(problem, graph=replace(graph, ops=replace(graph.ops, node=nodes)))


def everything(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Devices and priorities [B, V]: all placements, each in all orders."""
    able = [np.flatnonzero(np.isfinite(row)) for row in problem.arrays.op_seconds]
    device_BV = np.array(list(product(*able)))
    priority_BV = np.array(list(permutations(range(problem.num_ops))))
    return (
        np.repeat(device_BV, len(priority_BV), axis=0),
        np.tile(priority_BV, (len(device_BV), 1)),
    )


def best_of(system: WorkConserving, problem: Problem, rows: tuple[np.ndarray, np.ndarray]) -> float:
    with system.open(problem) as session:
        return float(session.measure(*rows).cost_s().min())


def configured_methods() -> dict[str, Baseline]:
    """Every baseline that there is a configuration of, with a small budget."""
    conf = REPOSITORY / "conf"
    names = ",".join(path.stem for path in (conf / "baseline").glob("*.yaml"))
    with initialize_config_dir(str(conf), version_base="1.3"):
        cfg = compose("config", [f"baseline=[{names}]", "budget.evaluations=60"])
    for method in cfg.baseline.values():
        method.update({key: SMALL[key] for key in SMALL if key in method})
    return {str(name): instantiate(method) for name, method in cfg.baseline.items()}


def check(seed: int, methods: dict[str, Baseline]) -> list[str]:
    """Everything about one problem; returns the bounds that its optimum attains."""
    problem = tiny_problem(seed)
    rows = everything(problem)
    best_s = best_of(IDLING, problem, rows)
    bounds = lower_bounds(problem)
    for name, seconds in bounds.items():
        assert seconds <= best_s * (1 + ROUNDING), (seed, name)

    for system in SYSTEMS:
        best_here_s = best_of(system, problem, rows)
        assert best_here_s >= best_s * (1 - ROUNDING), seed
        for name, method in methods.items():
            with system.open(problem) as session:
                result = method.place(session, np.random.default_rng(seed))
                assert result.evaluations == session.evaluations
                placed = result.placement
                row = placed.device[None], placed.priority[None]
                placed_s = float(session.measure(*row).cost_s()[0])
            assert placed_s >= best_here_s * (1 - ROUNDING), (seed, name)
            if getattr(method, "draws", 1) == 1:  # else it tells the mean under jitter
                assert result.makespan_s >= best_here_s * (1 - ROUNDING), (seed, name)
            assert (result.lower_bound_s or 0.0) <= best_here_s, (seed, name)

    with IDLING.open(problem) as session:
        result = methods["cp_sat"].place(session, np.random.default_rng(seed))
    assert best_s * (1 - ROUNDING) <= result.makespan_s <= best_s * (1 + TICKS), seed
    assert best_s * (1 - TICKS) <= (result.lower_bound_s or 0.0) <= best_s, seed
    return [name for name, seconds in bounds.items() if seconds >= best_s * (1 - 1e-9)]


def check_all(seeds: range) -> None:
    methods = configured_methods()
    assert isinstance(methods["cp_sat"], CPSAT) and len(methods) >= 7
    attained = Counter(name for seed in seeds for name in check(seed, methods))
    # Bounds that nothing attains would pass the test, and be of no use.
    assert attained["join"] > attained["path"] > 0 and attained["window"] > attained["load"] > 0, (
        attained
    )


def test_nothing_undercuts_the_best_and_no_bound_exceeds_it():
    check_all(range(NUM_QUICK))


@pytest.mark.slow
def test_nothing_undercuts_the_best_and_no_bound_exceeds_it_on_many_problems():
    check_all(range(NUM_QUICK, NUM_PROBLEMS))
