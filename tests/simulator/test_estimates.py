"""Estimates of makespans: against plain Python, and where they are exact."""

import numpy as np
import pytest
from plain_schedule import PlainQueues, with_less_memory
from problems import cluster_of, graph_of, hosted_problem, random_device, random_problem

from doppler.baselines import Annealing
from doppler.baselines.levels import b_level_priority
from doppler.graph.levels import ranked_order
from doppler.problem import Placement, Problem, build
from doppler.simulator import WorkConserving, open_estimates


def random_rank(problem: Problem, rng: np.random.Generator) -> np.ndarray:
    """A ranking in which no op comes before its producers."""
    edges = problem.graph.edges
    op_V = ranked_order(problem.num_ops, edges.src, edges.dst, rng.permutation(problem.num_ops))
    return np.argsort(op_V)


def estimated(problem: Problem, device_V, priority_V, contention="fifo"):
    with open_estimates(problem, contention) as estimates:
        return estimates.measure(device_V[None], priority_V[None])


@pytest.mark.parametrize("hosts", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_estimates_are_those_of_plain_queues(seed, hosts):
    rng = np.random.default_rng(seed)
    problem = hosted_problem(seed) if hosts else random_problem(seed, num_ops=25, num_devices=3)
    device_V, priority_V = random_device(problem, rng), random_rank(problem, rng)
    plain = PlainQueues(problem)
    for v in np.argsort(priority_V).tolist():
        plain.place(v, int(device_V[v]))
    found = estimated(problem, device_V, priority_V)
    assert found.seconds[0, 0] == pytest.approx(max(plain.finish.values()), rel=1e-12)


def test_without_contention_transfers_wait_for_nothing():
    problem = build(graph_of([1, 4, 4], [(0, 1, 8, 1), (0, 2, 8, 2)]), cluster_of([1.0, 1.0]))
    device_V, priority_V = np.array([0, 1, 1]), np.arange(3)
    assert estimated(problem, device_V, priority_V).seconds[0, 0] == 1 + 8 + 8 + 4
    assert estimated(problem, device_V, priority_V, "none").seconds[0, 0] == 1 + 8 + 4 + 4


@pytest.mark.parametrize("seed", range(10))
def test_on_one_device_estimates_are_exact(seed):
    problem = random_problem(seed, num_ops=20, num_devices=1)
    device_V, priority_V = np.zeros(20, np.int64), b_level_priority(problem)
    with WorkConserving().open(problem) as session:
        exact = session.measure(device_V[None], priority_V[None])
    found = estimated(problem, device_V, priority_V)
    assert found.seconds[0, 0] == pytest.approx(exact.seconds[0, 0], rel=1e-12)


def test_an_op_before_its_producer_has_no_estimate():
    problem = build(graph_of([1, 1], [(0, 1, 1)]), cluster_of([1.0]))
    zeros = np.zeros(2, np.int64)
    assert estimated(problem, zeros, np.array([1, 0])).seconds[0, 0] == np.inf
    assert estimated(problem, zeros, np.array([0, 1])).seconds[0, 0] == 2.0


@pytest.mark.parametrize("seed", range(10))
def test_peaks_are_those_of_ops_that_run_one_by_one(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, num_ops=20, num_devices=3, given_costs=False)
    problem = with_less_memory(problem, 0.5)
    device_V, priority_V = random_device(problem, rng), random_rank(problem, rng)
    p, edges, of_edge = problem.arrays, problem.graph.edges, problem.graph.regions.of_edge
    readers = [set(edges.dst[of_edge == r].tolist()) for r in range(len(p.size))]
    done: set[int] = set()
    held = [{} for _ in range(3)]
    for i, consumers in enumerate(problem.graph.inputs.consumers):
        for v in consumers:
            held[device_V[v]]["input", i] = p.input_bytes[i]
    peaks = [sum(one.values()) for one in held]
    for v in np.argsort(priority_V).tolist():
        here = held[device_V[v]]
        here["sink", v] = p.sink_bytes[v]
        for r in range(len(p.size)):
            if p.region_src[r] == v or v in readers[r]:
                here["region", r] = p.region_bytes[r]
        peaks[device_V[v]] = max(peaks[device_V[v]], sum(here.values()))
        done.add(v)
        for r in range(len(p.size)):
            if readers[r] and readers[r] <= done:
                for one in held:
                    one.pop(("region", r), None)
    assert estimated(problem, device_V, priority_V).peak_bytes[0] == pytest.approx(peaks)


def test_annealing_on_estimates_keeps_to_the_memory_and_leaves_a_true_estimate():
    fitted = 0
    for seed in range(8):
        problem = random_problem(seed, num_ops=25, num_devices=3, given_costs=False)
        problem = with_less_memory(problem, 0.6)
        annealing = Annealing(evaluations=300, order=True, hot=0.02, cold=1e-3)
        with open_estimates(problem) as estimates:
            result = annealing.place(estimates, np.random.default_rng(seed))
        if not np.isfinite(result.makespan_s):
            continue
        placement: Placement = result.placement
        found = estimated(problem, placement.device, placement.priority)
        assert found.seconds[0, 0] == result.makespan_s
        assert (found.peak_bytes <= problem.arrays.memory_bytes).all()
        fitted += 1
    assert fitted > 3
