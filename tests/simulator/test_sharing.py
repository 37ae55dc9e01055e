"""Tasks that share what a machine declares: by hand, by a slow oracle, SimPy and the checks."""

from dataclasses import replace

import numpy as np
import pytest
from problems import cluster_of, graph_of, random_placement, sharing_problem
from simulator import oracle, simpy_model

from doppler.baselines import lower_bound
from doppler.cluster import SharedResource
from doppler.problem import Placement, Problem, build
from doppler.problem.sharing import max_min_rates
from doppler.simulator import WorkConserving
from doppler.support.errors import InputError
from doppler.trace import check, explain
from doppler.trace.checks import violations

MODES = [("fifo", 1), ("priority", 1), ("strict", 1), ("priority", 2)]
PROCESSORS = SharedResource(name="processors", devices=(0, 1))


def switch(bytes_per_s: float, *links: tuple[int, int]) -> SharedResource:
    return SharedResource(name="switch", bytes_per_s=bytes_per_s, links=links)


def trace_of(problem: Problem, device, priority=None, **rules):
    with WorkConserving(contention="shared", **rules).open(problem) as session:
        trace = session.trace(Placement.make(problem, device, priority))
    check(trace)
    return trace


def test_two_transfers_share_a_switch_until_one_ends():
    cluster = cluster_of([1, 1, 1], shared=(switch(1.0, (0, 2), (1, 2)),))
    problem = build(graph_of([1, 2, 3], [(0, 2, 4), (1, 2, 4)]), cluster)
    trace = trace_of(problem, [0, 1, 2])
    # Alone until 2 s, then at half its speed: 3 bytes take 6 s, and the other has 1 left.
    assert trace.transfer_start_s.tolist() == [1, 2]
    assert trace.transfer_finish_s.tolist() == [8, 9]
    assert trace.op_finish_s.tolist() == [1, 2, 12]


def test_latency_uses_nothing_that_is_shared():
    latency_s = np.array([[0, 0, 3.0], [0, 0, 0], [0, 0, 0]])
    cluster = cluster_of([1, 1, 1], latency_s=latency_s, shared=(switch(1.0, (0, 2), (1, 2)),))
    problem = build(graph_of([1, 1, 0], [(0, 2, 4), (1, 2, 4)]), cluster)
    # The second has moved 3 bytes when the first begins, at 4 s; both are half as fast until 6 s.
    trace = trace_of(problem, [0, 1, 2])
    assert dict(zip(trace.transfer_src, trace.transfer_finish_s, strict=True)) == {0: 9, 1: 6}


def test_streams_of_one_gpu_share_its_processors():
    cluster = cluster_of([1, 1], shared=(PROCESSORS,))
    problem = build(graph_of([2, 3]), cluster)
    assert trace_of(problem, [0, 1]).op_finish_s.tolist() == [4, 5]
    assert trace_of(problem, [0, 0]).op_finish_s.tolist() == [2, 5]


def test_an_op_that_needs_little_keeps_its_speed():
    devices = cluster_of([1, 1], shared=(PROCESSORS,))
    slow_to_launch = replace(devices.devices[1], launch_overhead_s=3.0)
    cluster = replace(devices, devices=(devices.devices[0], slow_to_launch))
    problem = build(graph_of([8, 1]), cluster)
    # The second uses a quarter of the processors for 4 s; the first has what is left.
    assert trace_of(problem, [0, 1]).op_finish_s.tolist() == [9, 4]


def test_a_copy_within_one_memory_uses_it_twice():
    cluster = cluster_of([1, 1], shared=(switch(1.0, (0, 1), (0, 1)),))
    problem = build(graph_of([0, 0], [(0, 1, 4)]), cluster)
    assert trace_of(problem, [0, 1]).makespan_s == 8


def test_what_is_shared_bounds_a_makespan():
    cluster = cluster_of([1, 1], shared=(PROCESSORS,))
    problem = build(graph_of([2, 3]), cluster)
    assert lower_bound(problem).seconds == 3
    bound = lower_bound(problem, shares=True)
    assert (bound.seconds, bound.name) == (5, "shared")
    assert trace_of(problem, [0, 1]).makespan_s == 5
    apart = replace(cluster_of([1, 1, 1]), shared=(PROCESSORS,))  # the third shares nothing
    assert lower_bound(build(graph_of([2, 3]), apart), shares=True).seconds == 3


def test_explanations_say_what_sharing_costs():
    cluster = cluster_of([1, 1], shared=(PROCESSORS,))
    trace = trace_of(build(graph_of([2, 3]), cluster), [0, 1])
    explained = explain(trace)
    assert explained.slowed_s == 2  # the op of 3 s takes 5
    assert [(use.name, use.utilisation) for use in explained.shared] == [("processors", 1.0)]
    assert (
        "slowed down by others on the chain: 2 s (40%); shared: processors 100%"
        in explained.lines()
    )


def test_checks_find_a_task_at_another_rate():
    cluster = cluster_of([1, 1], shared=(PROCESSORS,))
    trace = trace_of(build(graph_of([2, 3]), cluster), [0, 1])
    trace = replace(trace, op_finish_s=np.array([3.0, 5.0]))
    assert any("op 0 takes 3.0 s" in line for line in violations(trace))


def test_a_machine_that_shares_nothing_is_refused():
    problem = build(graph_of([1]), cluster_of([1, 1]))
    with pytest.raises(InputError, match=r"cluster 'test': declares no shared resources"):
        WorkConserving(contention="shared").open(problem)


def assert_rates_are_max_min_fair(demands, weights, capacity, rates):
    """Each is at full speed, or uses something full of which no user has more."""
    used = [sum(d.get(k, 0) * x for d, x in zip(demands, rates, strict=True)) for k in range(3)]
    assert all(u <= room * (1 + 1e-6) for u, room in zip(used, capacity, strict=True))
    for demand, weight, rate in zip(demands, weights, rates, strict=True):
        assert 0 < rate <= 1
        full = [k for k in demand if used[k] >= capacity[k] * (1 - 1e-6)]
        most = [
            max(w * x for d, w, x in zip(demands, weights, rates, strict=True) if k in d)
            for k in full
        ]
        assert rate == 1 or any(weight * rate >= level * (1 - 1e-6) for level in most)


def test_rates_are_max_min_fair():
    rng = np.random.default_rng(0)
    num_slowed = 0
    for _ in range(300):
        num = int(rng.integers(1, 8))
        demands = [
            {k: float(rng.uniform(0.01, 1)) for k in range(3) if rng.random() < 0.7} or {0: 0.5}
            for _ in range(num)
        ]
        weights = [max(demand.values()) for demand in demands]
        capacity = rng.uniform(0.3, 2, 3).tolist()
        rates = max_min_rates(demands, weights, capacity)
        assert_rates_are_max_min_fair(demands, weights, capacity, rates)
        uses = {i: [(str(k), a) for k, a in demand.items()] for i, demand in enumerate(demands)}
        expected = oracle.fair_rates(uses, {str(k): room for k, room in enumerate(capacity)})
        assert rates == pytest.approx([expected[i] for i in range(num)], rel=1e-6)
        num_slowed += min(rates) < 1
    assert num_slowed > 150


def assert_equals_the_oracle(seed: int, queue: str, streams: int) -> bool:
    """Returns whether sharing makes a difference."""
    problem = sharing_problem(seed)
    streams = 1 if problem.cluster.cores else streams
    placement = random_placement(problem, seed)
    expected = oracle.simulate(
        problem, placement, contention="shared", queue=queue, streams=streams
    )
    waits = "sender" if problem.cluster.cores else "fifo"
    system = WorkConserving(contention="shared", queue=queue, streams=streams)
    alone = WorkConserving(contention=waits, queue=queue, streams=streams)
    row = placement.device[None], placement.priority[None]
    with system.open(problem) as session, alone.open(problem) as without:
        alone_s = without.measure(*row).seconds[0, 0]
        if not np.isfinite(expected.makespan_s):
            assert not session.measure(*row).feasible[0]
            return False
        trace = session.trace(placement)
    starts = [("op", v) for v in range(problem.num_ops)]
    assert trace.op_start_s == pytest.approx([expected.start[key] for key in starts], rel=1e-9)
    assert trace.op_finish_s == pytest.approx([expected.finish[key] for key in starts], rel=1e-9)
    moves = [
        ("transfer", int(r), int(d))
        for r, d in zip(trace.transfer_region, trace.transfer_dst, strict=True)
    ]
    assert trace.transfer_finish_s == pytest.approx(
        [expected.finish[key] for key in moves], rel=1e-9
    )
    assert trace.peak_bytes == pytest.approx(expected.peak_bytes, rel=1e-9)
    check(trace)
    bound_s = lower_bound(problem, streams=streams, shares=True).seconds
    assert trace.makespan_s >= bound_s * (1 - 1e-9)
    return trace.makespan_s > alone_s * (1 + 1e-9)


@pytest.mark.parametrize(("queue", "streams"), MODES)
def test_the_engine_equals_the_oracle(queue, streams):
    num_slower = sum(assert_equals_the_oracle(seed, queue, streams) for seed in range(60))
    assert num_slower > 20, num_slower


@pytest.mark.slow
def test_a_thousand_problems_equal_the_oracle():
    num_slower = 0
    for seed in range(1000, 2000):
        num_slower += assert_equals_the_oracle(seed, *MODES[seed % len(MODES)])
    assert num_slower > 300, num_slower


def assert_nothing_shared_changes_nothing(seed: int, queue: str, streams: int) -> None:
    problem = sharing_problem(seed, room=1e7)
    streams = 1 if problem.cluster.cores else streams
    placement = random_placement(problem, seed)
    row = placement.device[None], placement.priority[None]
    waits = "sender" if problem.cluster.cores else "fifo"
    found = []
    for contention in ("shared", waits):
        system = WorkConserving(contention=contention, queue=queue, streams=streams)
        with system.open(problem) as session:
            measured = session.measure(*row)
            noisy = system.with_noise(0.1)
            if not measured.feasible[0]:
                found.append((measured.seconds.tolist(),))
                continue
            trace = session.trace(placement)
        with noisy.open(problem) as session:
            jittered = session.measure(*row, 3, np.random.default_rng(seed)).seconds
        listed = np.lexsort((trace.transfer_dst, trace.transfer_region))
        moves = trace.transfer_start_s[listed], trace.transfer_finish_s[listed]
        times = trace.op_start_s, trace.op_finish_s, *moves, trace.peak_bytes
        found.append((measured.seconds.tolist(), jittered.tolist(), *(t.tolist() for t in times)))
    assert found[0] == found[1]


@pytest.mark.parametrize(("queue", "streams"), MODES)
def test_where_there_is_enough_for_all_nothing_changes_to_the_bit(queue, streams):
    for seed in range(60):
        assert_nothing_shared_changes_nothing(seed, queue, streams)


@pytest.mark.slow
def test_a_thousand_problems_with_enough_for_all_are_as_before_to_the_bit():
    for seed in range(1000, 2000):
        assert_nothing_shared_changes_nothing(seed, *MODES[seed % len(MODES)])


def assert_equals_simpy(seed: int) -> bool:
    """Returns whether the problem is one that SimPy's model knows."""
    problem = sharing_problem(seed)
    if problem.cluster.num_hosts > 1 or problem.cluster.cores or problem.has_given_costs:
        return False
    placement = random_placement(problem, seed)
    sharing = oracle.Sharing(problem, placement)
    capacity = {
        one.name: one.bytes_per_s / sharing.unit if one.bytes_per_s else 1.0
        for one in problem.cluster.shared
    }

    def rates(tasks: list) -> dict:
        uses = {task: sharing.uses(task) for task in tasks}
        found = oracle.fair_rates({task: one for task, one in uses.items() if one}, capacity)
        return {task: found.get(task, 1.0) for task in tasks}

    expected = simpy_model.with_sharing(
        simpy_model.Graph.of(problem),
        placement.device.tolist(),
        (problem.arrays.latency_s * simpy_model.COSTS_PER_SECOND).tolist(),
        rates,
    )
    trace = trace_of(problem, placement.device, queue="fifo")
    per_second = simpy_model.COSTS_PER_SECOND
    assert trace.op_start_s * per_second == pytest.approx(expected.start, rel=1e-9)
    assert trace.op_finish_s * per_second == pytest.approx(expected.finish, rel=1e-9)
    return True


def test_the_engine_equals_the_simpy_model():
    assert sum(assert_equals_simpy(seed) for seed in range(120)) > 30


@pytest.mark.slow
def test_a_thousand_problems_equal_the_simpy_model():
    assert sum(assert_equals_simpy(seed) for seed in range(3000)) > 1000


def test_threads_and_batches_change_nothing():
    problem = sharing_problem(3)
    placements = [random_placement(problem, seed) for seed in range(8)]
    device_BV = np.stack([one.device for one in placements])
    priority_BV = np.stack([one.priority for one in placements])
    system = WorkConserving(contention="shared", noise=0.1)
    with system.open(problem, num_threads=2) as session:
        batch = session.measure(device_BV, priority_BV, 2, np.random.default_rng(0)).seconds
        for b in range(8):
            rows = slice(b, b + 1)
            rng = np.random.default_rng(0)
            one = session.measure(device_BV[rows], priority_BV[rows], 2, rng).seconds
            assert one[0].tolist() == batch[b].tolist()
