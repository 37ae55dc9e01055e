"""What holds for every problem and placement, checked on random ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import (
    cluster_of,
    graph_of,
    random_device,
    random_problem,
    random_ranking,
)

from doppler.cluster import Cluster
from doppler.graph.levels import longest_paths
from doppler.problem import Placement, Problem, build
from doppler.simulator import Published, WorkConserving
from doppler.support.errors import InputError
from doppler.trace import check

# Compiling takes its time in the first example: no deadline.
many = settings(max_examples=150, deadline=None)
few = settings(max_examples=40, deadline=None)

seeds = st.integers(0, 2**32 - 1)
num_ops = st.integers(1, 40)
num_devices = st.integers(1, 5)
costs = st.sampled_from(["tied", "distinct"])
problems = st.builds(random_problem, seeds, num_ops=num_ops, num_devices=num_devices, costs=costs)
uniform_problems = st.builds(
    random_problem,
    seeds,
    num_ops=num_ops,
    num_devices=num_devices,
    costs=costs,
    identical_devices=st.just(True),
)
contentions = st.sampled_from(["none", "fifo", "engines"])
streams = st.integers(1, 3)
work_conserving = st.builds(
    WorkConserving,
    queue=st.sampled_from(["fifo", "priority", "strict", "random"]),
    contention=contentions,
    streams=streams,
)
senders = st.builds(
    WorkConserving,
    queue=st.sampled_from(["fifo", "priority", "strict", "random"]),
    contention=st.just("sender"),
)
published = st.builds(
    Published, queue=st.sampled_from(["fifo", "priority"]), streams=st.integers(1, 3)
)
systems = st.one_of(work_conserving, senders, published)


def placement_of(problem: Problem, seed: int) -> Placement:
    rng = np.random.default_rng(seed)
    return Placement.make(problem, random_device(problem, rng), random_ranking(problem, rng))


def batch_of(problem: Problem, seed: int, num: int) -> tuple[np.ndarray, np.ndarray]:
    placements = [placement_of(problem, seed + b) for b in range(num)]
    return np.stack([p.device for p in placements]), np.stack([p.priority for p in placements])


def transfer_seconds(problem: Problem, device: np.ndarray) -> np.ndarray:
    """Seconds [E] that the region of each edge takes under a placement, 0 on one device."""
    a, edges = problem.arrays, problem.graph.edges
    src, dst, region = device[edges.src], device[edges.dst], problem.graph.regions.of_edge
    seconds = a.latency_s[src, dst] + a.size[region] * a.seconds_per_size[src, dst]
    return np.where(src == dst, 0.0, seconds)


@many
@given(problems, seeds, systems)
def test_every_trace_keeps_the_rules(problem, seed, system):
    with system.open(problem) as session:
        trace = session.trace(placement_of(problem, seed))
    check(trace)


@many
@given(problems, seeds, systems)
def test_bytes_are_conserved(problem, seed, system):
    placement = placement_of(problem, seed)
    with system.open(problem) as session:
        trace = session.trace(placement)
    edges, device = problem.graph.edges, placement.device
    needed = {
        (src, region, device[dst]): num_bytes
        for src, region, dst, num_bytes in zip(
            edges.src, edges.region, edges.dst, edges.bytes, strict=True
        )
        if device[src] != device[dst]
    }
    moved = problem.graph.regions.bytes[trace.transfer_region].sum()
    assert moved == sum(needed.values())
    assert trace.num_transfers == len(needed)


@many
@given(problems, seeds, systems)
def test_no_schedule_is_shorter_than_its_load_or_its_longest_path(problem, seed, system):
    placement = placement_of(problem, seed)
    with system.open(problem) as session:
        makespan = session.trace(placement).makespan_s
    seconds_V = problem.arrays.op_seconds[np.arange(problem.num_ops), placement.device]
    load_D = np.bincount(placement.device, weights=seconds_V) / system.streams
    edges = problem.graph.edges
    path_V, _ = longest_paths(
        problem.num_ops,
        edges.src,
        edges.dst,
        seconds_V,
        transfer_seconds(problem, placement.device),
    )
    assert makespan >= max(load_D.max(), path_V.max()) * (1 - 1e-12)


@many
@given(seeds, num_ops, costs, work_conserving)
def test_one_device_takes_the_serial_sum(seed, num_ops, costs, system):
    problem = random_problem(seed, num_ops=num_ops, num_devices=1, costs=costs)
    serial = type(system)(queue=system.queue, contention=system.contention)
    with serial.open(problem) as session:
        trace = session.trace(placement_of(problem, seed))
    assert trace.makespan_s == pytest.approx(problem.arrays.op_seconds.sum(), rel=1e-12)
    assert trace.num_transfers == 0


def renamed(cluster: Cluster, order: np.ndarray) -> Cluster:
    return Cluster(
        name=cluster.name,
        devices=tuple(cluster.devices[d] for d in order),
        bytes_per_s=cluster.bytes_per_s[np.ix_(order, order)],
        latency_s=cluster.latency_s[np.ix_(order, order)],
    )


# Ties between transfers go by destination, and with shared engines that is a choice of device:
# there only ranks, which never tie between destinations, make devices exchangeable.
exchangeable = st.one_of(
    st.builds(
        WorkConserving,
        queue=st.sampled_from(["fifo", "priority", "strict"]),
        contention=st.sampled_from(["none", "fifo"]),
        streams=streams,
    ),
    st.builds(WorkConserving, contention=st.just("engines"), streams=streams),
    published,
)


@many
@given(uniform_problems, seeds, exchangeable)
def test_exchanging_identical_devices_changes_nothing(problem, seed, system):
    placement = placement_of(problem, seed)
    order = np.random.default_rng(seed).permutation(problem.num_devices)
    with system.open(problem) as session:
        one = session.measure(placement.device[None], placement.priority[None])
        other = session.measure(order[placement.device][None], placement.priority[None])
    assert one.seconds.tolist() == other.seconds.tolist()
    np.testing.assert_array_equal(one.peak_bytes[0], other.peak_bytes[0, order])


@many
@given(problems, seeds, exchangeable)
def test_renaming_devices_with_their_links_changes_nothing(problem, seed, system):
    placement = placement_of(problem, seed)
    order = np.random.default_rng(seed).permutation(problem.num_devices)
    other = build(problem.graph, renamed(problem.cluster, order))
    with system.open(problem) as session:
        before = session.measure(placement.device[None], placement.priority[None])
    with system.open(other) as session:
        after = session.measure(np.argsort(order)[placement.device][None], placement.priority[None])
    assert before.seconds.tolist() == after.seconds.tolist()


@few
@given(problems, seeds, contentions)
def test_noise_zero_is_no_noise(problem, seed, contention):
    placement = placement_of(problem, seed)
    rng = np.random.default_rng(seed)
    with WorkConserving(contention=contention).open(problem) as session:
        plain = session.measure(placement.device[None], placement.priority[None], 3)
    with WorkConserving(contention=contention, noise=0.0).open(problem) as session:
        zero = session.measure(placement.device[None], placement.priority[None], 3, rng)
    with WorkConserving(contention=contention, noise=0.3).open(problem) as session:
        trace = session.trace(placement)
    assert plain.seconds.tolist() == zero.seconds.tolist() == [[trace.makespan_s] * 3]


@few
@given(
    seeds,
    st.one_of(
        st.builds(WorkConserving, noise=st.just(0.1)),
        st.builds(WorkConserving, queue=st.just("random")),
        st.builds(Published, noise=st.just(0.1)),
    ),
)
def test_equal_seeds_give_equal_seconds(seed, system):
    problem = random_problem(seed, num_ops=30, num_devices=3, costs="distinct")
    device_BV, priority_BV = batch_of(problem, seed, 4)
    with system.open(problem) as session:
        first = session.measure(device_BV, priority_BV, 5, np.random.default_rng(seed))
        again = session.measure(device_BV, priority_BV, 5, np.random.default_rng(seed))
        other = session.measure(device_BV, priority_BV, 5, np.random.default_rng(seed + 1))
    assert first.seconds.tolist() == again.seconds.tolist()
    if system.queue != "random":  # an order may make no difference, a time does
        assert not np.any(first.seconds == other.seconds)
        assert len(np.unique(first.seconds[0])) == 5


def test_a_repeat_draws_the_same_for_every_placement():
    # Two chains of one op each on identical devices: it matters to no op where it is.
    problem = build(graph_of([1e6, 0, 0]), cluster_of([1, 1]))
    device_BV = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 1]])
    with WorkConserving(noise=0.2).open(problem) as session:
        seconds = session.measure(device_BV, None, 7, np.random.default_rng(0)).seconds
    assert np.all(seconds == seconds[0])
    assert len(np.unique(seconds[0])) == 7


@pytest.mark.parametrize("noise", [0.05, 0.5])
@pytest.mark.parametrize("what", ["op", "transfer"])
def test_noise_is_lognormal_with_mean_one(noise, what):
    flops, num_bytes = ([1, 0], 0) if what == "op" else ([0, 0], 1)
    problem = build(graph_of(flops, [(0, 1, num_bytes)]), cluster_of([1, 1]))
    repeats = 40_000
    with WorkConserving(noise=noise).open(problem) as session:
        device_BV, rng = np.array([[0, 1]]), np.random.default_rng(1)
        factor = session.measure(device_BV, None, repeats, rng).seconds[0]
    deviation = np.sqrt(np.expm1(noise**2))  # of a lognormal of mean 1
    assert abs(factor.mean() - 1) < 4 * deviation / np.sqrt(repeats)
    assert np.log(factor).std() == pytest.approx(noise, rel=0.02)


def test_noise_of_two_ops_is_independent():
    problem = build(graph_of([1, 1]), cluster_of([1, 1]))
    with WorkConserving(noise=0.1).open(problem) as session:
        rng = np.random.default_rng(2)
        device_BV = np.array([[0, 0]])
        both = session.measure(device_BV, None, 20_000, rng).seconds[0]
    # The variance of a sum of two equal, independent factors is twice that of one.
    assert both.std() == pytest.approx(np.sqrt(2 * np.expm1(0.1**2)), rel=0.03)


@few
@given(problems, seeds, systems)
def test_a_batch_equals_one_by_one(problem, seed, system):
    device_BV, priority_BV = batch_of(problem, seed, 5)
    with system.open(problem) as session:
        rng = np.random.default_rng(seed)
        batch = session.measure(device_BV, priority_BV, 1, rng)
        for b in range(5):
            rng = np.random.default_rng(seed)
            one = session.measure(device_BV[b : b + 1], priority_BV[b : b + 1], 1, rng)
            assert one.seconds[0].tolist() == batch.seconds[b].tolist()
            np.testing.assert_array_equal(one.peak_bytes[0], batch.peak_bytes[b])
            assert one.feasible[0] == batch.feasible[b]


@few
@given(problems, seeds, systems)
def test_a_trace_agrees_with_a_measurement(problem, seed, system):
    placement = placement_of(problem, seed)
    if system.queue == "random":
        return
    with system.open(problem) as session:
        trace = session.trace(placement)
        measured = session.measure(placement.device[None], placement.priority[None])
    assert measured.seconds[0, 0] == trace.makespan_s
    np.testing.assert_array_equal(measured.peak_bytes[0], trace.peak_bytes)


@pytest.mark.parametrize("system", [WorkConserving(noise=0.1), Published(noise=0.1)])
def test_threads_change_nothing(system):
    problem = random_problem(5, num_ops=100, num_devices=4, costs="distinct")
    device_BV, priority_BV = batch_of(problem, 0, 301)
    results = []
    for num_threads in (1, 2, 3):
        with system.open(problem, num_threads=num_threads) as session:
            rng = np.random.default_rng(0)
            results.append(session.measure(device_BV, priority_BV, 3, rng))
            assert len(session._states) == num_threads, "the batch is too small to be divided"
    for result in results[1:]:
        assert np.array_equal(result.seconds, results[0].seconds)
        np.testing.assert_array_equal(result.peak_bytes, results[0].peak_bytes)


@pytest.mark.parametrize("system", [WorkConserving(), WorkConserving(queue="strict")])
def test_too_little_memory_is_infeasible(system):
    graph = graph_of([1, 1], inputs=[(6, [0]), (6, [1])])
    problem = build(graph, cluster_of([1, 1], memory_bytes=10))
    with system.open(problem) as session:
        measured = session.measure(np.array([[0, 0], [0, 1]]))
    assert measured.peak_bytes.tolist() == [[12, 0], [6, 6]]
    assert measured.feasible.tolist() == [False, True]
    assert measured.cost_s().tolist() == [np.inf, 1.0]


def test_results_that_pile_up_are_infeasible():
    graph = graph_of([1, 1], output_bytes=[6, 6])
    problem = build(graph, cluster_of([1, 1], memory_bytes=10))
    with WorkConserving().open(problem) as session:
        measured = session.measure(np.array([[0, 0], [0, 1]]))
    assert measured.feasible.tolist() == [False, True]


@pytest.mark.parametrize("system", [WorkConserving(), Published(), WorkConserving(noise=0.1)])
def test_an_op_where_it_cannot_run_is_infeasible(system):
    graph = graph_of([1, 1, 1], [(0, 1, 1), (1, 2, 1)], kinds=["a", "b", "a"])
    problem = build(graph, cluster_of([1, 1], unsupported_kinds=[["b"], []]))
    with system.open(problem) as session:
        rng = np.random.default_rng(0)
        measured = session.measure(np.array([[0, 0, 0], [0, 1, 0]]), None, 2, rng)
    assert measured.seconds[0].tolist() == [np.inf, np.inf]
    assert np.isfinite(measured.seconds[1]).all()
    assert measured.feasible.tolist() == [False, True]
    with pytest.raises(InputError, match=r"op 1 \('op1'\) is on device 0, which cannot run"):
        Placement.make(problem, np.array([0, 0, 0]))
