"""The bulk-synchronous system: by hand, against a slow oracle, and beside the work-conserving one.

In the drawings every character of a row is one second; a digit is the op that runs, a letter the
region that moves, a bar a barrier.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import cluster_of, graph_of, random_device, random_problem
from test_schedules import run

from doppler.cluster import preset
from doppler.einsum import load_workload
from doppler.graph import depth
from doppler.problem import Placement, build
from doppler.simulator import BulkSynchronous, WorkConserving
from doppler.support.errors import InputError
from doppler.trace import check, explain


def test_a_level_waits_for_the_slowest_device():
    #            0123456
    # device 0   0  |22
    # device 1   111|3
    graph = graph_of([1, 3, 2, 1], [(0, 2, 9), (1, 3, 9)])
    _, ops, transfers = run(graph, cluster_of([1, 1]), [0, 1, 0, 1], BulkSynchronous())
    assert ops == {0: (0, 1), 1: (0, 3), 2: (3, 5), 3: (3, 4)}
    assert transfers == {}


def test_an_exchange_goes_in_rounds_and_a_message_takes_latency_once():
    #            0123456789
    # device 0   0|        |3
    # device 1   1|        |2
    # 0 -> 1      |Laabbb  |        one message: latency 1, then 2 and 3 seconds
    # 1 -> 0      |Lc      |        the same round: distances 1 and -1 are equal for 2 devices
    graph = graph_of(
        [1, 1, 1, 1],
        [(0, 2, 2, 0), (0, 2, 3, 1), (1, 3, 1)],
    )
    cluster = cluster_of([1, 1], latency_s=1, bytes_per_s=1)
    trace, ops, transfers = run(graph, cluster, [0, 1, 1, 0], BulkSynchronous())
    assert transfers == {(0, 1): [(1, 4), (4, 7)], (1, 0): [(1, 3)]}
    assert ops == {0: (0, 1), 1: (0, 1), 2: (7, 8), 3: (7, 8)}
    assert trace.makespan_s == 8


def test_rounds_follow_each_other():
    #            01234567
    # device 0   0|     |
    # 0 -> 1      |aa   |1          round 1
    # 0 -> 2      |  bbb|2          round 2
    graph = graph_of([1, 1, 1], [(0, 1, 2, 0), (0, 2, 3, 1)])
    cluster = cluster_of([1, 1, 1], bytes_per_s=1)
    _, ops, transfers = run(graph, cluster, [0, 1, 2], BulkSynchronous())
    assert transfers == {(0, 1): [(1, 3)], (0, 2): [(3, 6)]}
    assert ops == {0: (0, 1), 1: (6, 7), 2: (6, 7)}


def test_a_region_moves_before_the_first_level_that_reads_it_and_only_once():
    #            0123456
    # device 0   0|1|   |
    # 0 -> 1      | |aaa|           op 3 reads it one level later: not again
    # device 1             2|3
    graph = graph_of([1, 1, 1, 1], [(0, 1, 3), (1, 2, 0), (0, 2, 3), (0, 3, 3), (2, 3, 0)])
    cluster = cluster_of([1, 1], bytes_per_s=1)
    _, ops, transfers = run(graph, cluster, [0, 0, 1, 1], BulkSynchronous())
    assert transfers == {(0, 1): [(2, 5)], (1, 1): [(5, 5)]}
    assert ops == {0: (0, 1), 1: (1, 2), 2: (5, 6), 3: (6, 7)}


def test_memory_by_hand():
    # Device 0 holds the input (5) and op 0's output (4) until it has been moved; device 1 the copy
    # (4) and, while op 1 runs, its output (2).
    graph = graph_of([1, 1], [(0, 1, 4)], output_bytes=[4, 2], inputs=[(5, [0])])
    problem = build(graph, cluster_of([1, 1], bytes_per_s=1))
    with BulkSynchronous().open(problem) as session:
        measured = session.measure(np.array([[0, 1], [0, 0]]))
    assert measured.peak_bytes.tolist() == [[9, 6], [11, 0]]


def slow_makespan(problem, device_V):
    """The same rules, written anew over dictionaries."""
    graph, arrays, now = problem.graph, problem.arrays, 0.0
    level_V = depth(graph.num_ops, graph.edges.src, graph.edges.dst)
    region_E, num_devices, moved = graph.regions.of_edge, problem.num_devices, set()
    for level in range(level_V.max() + 1):
        messages: dict[tuple[int, int], float] = {}
        for e in np.flatnonzero(level_V[graph.edges.dst] == level):
            src, dst = (int(device_V[op[e]]) for op in (graph.edges.src, graph.edges.dst))
            if src != dst and (region_E[e], dst) not in moved:
                moved.add((region_E[e], dst))
                seconds = arrays.size[region_E[e]] * arrays.seconds_per_size[src, dst]
                before = messages.get((src, dst), arrays.latency_s[src, dst])
                messages[src, dst] = before + seconds
        for distance in range(1, num_devices):
            now += max(
                (s for (a, b), s in messages.items() if (b - a) % num_devices == distance),
                default=0.0,
            )
        load = np.zeros(num_devices)
        for v in np.flatnonzero(level_V == level):
            load[device_V[v]] += arrays.op_seconds[v, device_V[v]]
        now += load.max()
    return now


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), num_devices=st.integers(1, 5))
def test_it_agrees_with_a_slow_oracle_and_its_traces_pass_the_checks(seed, num_devices):
    problem = random_problem(seed, num_ops=seed % 40 + 1, num_devices=num_devices)
    device_V = random_device(problem, np.random.default_rng(seed))
    with BulkSynchronous().open(problem) as session:
        measured = session.measure(device_V[None])
        trace = session.trace(Placement.make(problem, device_V))
    assert measured.seconds[0, 0] == pytest.approx(slow_makespan(problem, device_V), rel=1e-9)
    assert trace.makespan_s == pytest.approx(measured.seconds[0, 0], rel=1e-12)
    np.testing.assert_array_equal(measured.peak_bytes[0], trace.peak_bytes)
    check(trace)


def test_synchronous_is_slower_on_chainmm_for_the_same_placements():
    graph = load_workload(program="workloads/chainmm.einsum")
    problem = build(graph, preset(name="p100x4"))
    rng = np.random.default_rng(0)
    device_BV = rng.integers(4, size=(200, problem.num_ops))
    with BulkSynchronous().open(problem) as synchronous, WorkConserving().open(problem) as free:
        ratio = synchronous.measure(device_BV).seconds / free.measure(device_BV).seconds
        lines = explain(synchronous.trace(Placement.make(problem, device_BV[0]))).lines()
    assert (ratio > 1).all()
    assert any("waiting at barriers" in line for line in lines)


def test_noise_is_drawn_and_checked():
    problem = build(graph_of([1, 1], [(0, 1, 4)]), cluster_of([1, 1]))
    with BulkSynchronous(noise=0.1).open(problem) as session:
        seconds = session.measure(np.array([[0, 1]]), None, 500, np.random.default_rng(0)).seconds
    assert len(np.unique(seconds)) == 500
    with BulkSynchronous().open(problem) as session:
        assert seconds.mean() == pytest.approx(
            session.measure(np.array([[0, 1]])).seconds[0, 0], rel=0.02
        )
    with pytest.raises(InputError, match=r"BulkSynchronous\.noise"):
        BulkSynchronous(noise=-1)
