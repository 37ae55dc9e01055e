"""ETF behind queues, against plain Python: who starts first, and where it ends first."""

from collections import Counter

import numpy as np
from plain_schedule import PlainQueues, PlainSchedule, problems, steps
from problems import cluster_of, graph_of, hosted_problem

from doppler.baselines import ETF, QueuedETF
from doppler.baselines.levels import b_levels
from doppler.problem import build
from doppler.simulator import WorkConserving


def test_the_op_that_starts_first_goes_where_it_ends_first():
    seen = Counter()
    hosted = [(seed, hosted_problem(seed, costs="distinct")) for seed in range(15)]
    for seed, problem in [*problems(60), *hosted]:
        level_V, seconds_VD = b_levels(problem), problem.arrays.op_seconds
        decisions = QueuedETF(evaluations=1).schedule(problem, 2, np.random.default_rng(seed))
        for run, rows in enumerate(steps(decisions)):
            plain = PlainSchedule(problem, regions_stay=run == 0)
            queues = PlainQueues(problem)
            for v, d, start in rows:
                starts = {
                    u: min(queues.start_s(u, on)[0] for on in plain.able(u))
                    for u in plain.candidates()
                }
                first = min(starts.values())
                assert starts[v] <= first + plain.tie_s
                tied = [u for u in starts if starts[u] <= first + plain.tie_s]
                assert level_V[v] >= max(level_V[tied]) * (1 - 1e-8)
                ends = {
                    on: (plain.overflow(v, on), queues.start_s(v, on)[0] + seconds_VD[v, on])
                    for on in plain.able(v)
                }
                least = min(over for over, _ in ends.values())
                end = min(end for over, end in ends.values() if over == least)
                assert ends[d][0] == least
                assert ends[d][1] <= end + plain.tie_s
                assert abs(start - queues.start_s(v, d)[0]) <= plain.tie_s
                seen["by level"] += len({level_V[u] for u in tied}) > 1
                seen["overflows"] += least > 0
                seen["waits"] += starts[v] > plain.earliest_s(v, d, insertion=False) + plain.tie_s
                plain.place(v, d, start)
                queues.place(v, d)
    assert min(seen["by level"], seen["overflows"], seen["waits"]) > 20, seen


def test_where_one_interface_carries_all_what_would_wait_stays_on_its_host():
    """As below, but each reader would have a link of its own to a device of the other host."""
    graph = graph_of([1, *[4] * 8], [(0, v, 8, v) for v in range(1, 9)], kinds=["first", *"r" * 8])
    makespans = {}
    for hosts in (None, (0, 0, *[1] * 8)):
        cluster = cluster_of(
            [1.0] * 10, hosts=hosts, bytes_per_s=4, unsupported_kinds=[[], *[["first"]] * 9]
        )
        problem = build(graph, cluster)
        with WorkConserving().open(problem) as session:
            for method in (ETF, QueuedETF):
                result = method(evaluations=1).place(session, np.random.default_rng(0))
                makespans[method, hosts is None] = result.makespan_s
    assert makespans[QueuedETF, True] == makespans[ETF, True]
    assert makespans[QueuedETF, False] < makespans[ETF, False]


def test_where_one_link_carries_all_what_would_wait_is_run_where_its_data_is():
    """Eight ops read a region each from one device; each alone would be worth sending."""
    edges = [(0, v, 8) for v in range(1, 9)]
    graph = graph_of([1, *[4] * 8], [(u, v, size, v) for u, v, size in edges])
    problem = build(graph, cluster_of([1.0, 1.0]))
    found = {}
    with WorkConserving().open(problem) as session:
        for method in (ETF, QueuedETF):
            result = method(evaluations=1).place(session, np.random.default_rng(0))
            found[method] = result.makespan_s
    assert found[QueuedETF] < found[ETF]


def test_devices_that_tie_are_drawn_evenly():
    problem = build(graph_of([1, 1, 1]), cluster_of([1.0] * 4))
    decisions = QueuedETF(evaluations=1).schedule(problem, 6000, np.random.default_rng(0))
    first = Counter(zip(decisions.op[:, 0].tolist(), decisions.device[:, 0].tolist(), strict=True))
    assert len(first) == 12
    for times in first.values():  # binomial: mean 500, standard deviation 21
        assert abs(times - 500) < 6 * 21
