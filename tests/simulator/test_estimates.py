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


def test_where_devices_send_by_themselves_what_they_do_next_is_later():
    # Device 0 makes 0, sends it to 1 and to 2, and then runs 3; what 1 and 2 run waits for that.
    graph = graph_of([1, 4, 4, 20], [(0, 1, 8), (0, 2, 8)])
    problem = build(graph, cluster_of([1.0] * 3))
    device_V, priority_V = np.array([0, 1, 2, 0]), np.arange(4)
    assert estimated(problem, device_V, priority_V, "fifo").seconds[0, 0] == 1 + 20
    assert estimated(problem, device_V, priority_V, "sender").seconds[0, 0] == 1 + 8 + 8 + 20
    with WorkConserving(contention="sender").open(problem) as session:
        assert session.measure(device_V[None], priority_V[None]).seconds[0, 0] == 1 + 8 + 8 + 20
    # Placed before it is sent, 3 has no later end, but the device has.
    early_V = np.array([0, 2, 3, 1])
    assert estimated(problem, device_V, early_V, "sender").seconds[0, 0] == 1 + 20 + 8 + 8


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


def held_bytes(problem: Problem, device_V, priority_V) -> list[np.ndarray]:
    """Of each device what it holds in each of 512 equal parts of the time, by plain queues."""
    p, edges, of_edge = problem.arrays, problem.graph.edges, problem.graph.regions.of_edge
    plain = PlainQueues(problem)
    for v in np.argsort(priority_V).tolist():
        plain.place(v, int(device_V[v]))
    ends, part_s = plain.finish, max(plain.finish.values()) / 512
    held = [np.zeros(512) for _ in range(problem.num_devices)]

    def hold(d, begin_s, end_s, num_bytes):
        first = min(int(begin_s / part_s), 511)
        held[d][first : max(int(end_s / part_s), first + 1)] += num_bytes

    for i, consumers in enumerate(problem.graph.inputs.consumers):
        for d in {int(device_V[v]) for v in consumers}:
            held[d] += p.input_bytes[i]
    for v in range(problem.num_ops):
        d = int(device_V[v])
        held[d][min(int((ends[v] - p.op_seconds[v, d]) / part_s), 511) :] += p.sink_bytes[v]
    for r, v in enumerate(p.region_src.tolist()):
        readers, home = edges.dst[of_edge == r].tolist(), int(device_V[v])
        uses = {d: [ends[c] for c in readers if device_V[c] == d] for d in range(len(held))}
        for d, there_s in ((d, plain.there[r, d]) for d in uses if d != home and uses[d]):
            move_s = p.latency_s[home, d] + p.size[r] * p.seconds_per_size[home, d]
            hold(d, there_s - move_s, max(uses[d]), p.region_bytes[r])
            uses[home].append(there_s)
        hold(home, ends[v] - p.op_seconds[v, home], max(uses[home]), p.region_bytes[r])
    return held


@pytest.mark.parametrize("hosts", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_peaks_are_those_of_the_schedule_that_is_estimated(seed, hosts):
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, num_ops=20, num_devices=3, given_costs=False)
    problem = with_less_memory(hosted_problem(seed) if hosts else problem, 0.5)
    device_V, priority_V = random_device(problem, rng), random_rank(problem, rng)
    peaks = [one.max() for one in held_bytes(problem, device_V, priority_V)]
    # A begin or an end at the edge of a part may count for either.
    assert estimated(problem, device_V, priority_V).peak_bytes[0] == pytest.approx(peaks, rel=0.02)


def test_where_nothing_overtakes_peaks_are_those_of_an_execution():
    num, equal = 20, 0
    for seed in range(num):
        drawn = random_problem(seed, num_ops=20, num_devices=3, costs="distinct", given_costs=False)
        problem, rng = with_less_memory(drawn, 0.9), np.random.default_rng(seed)
        device_V, priority_V = random_device(problem, rng), random_rank(problem, rng)
        found = estimated(problem, device_V, priority_V, "none")
        with WorkConserving(contention="none", queue="strict").open(problem) as session:
            exact = session.measure(device_V[None], priority_V[None])
        assert found.seconds == pytest.approx(exact.seconds, rel=1e-12)
        equal += found.peak_bytes == pytest.approx(exact.peak_bytes)
    assert equal >= num - 2, "an op may be shorter than a part of the time"


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
