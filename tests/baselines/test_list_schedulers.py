"""HEFT, CPOP, ETF and what they share, against the papers' example, plain Python and anrg-saga."""

from collections import Counter
from functools import partial
from itertools import pairwise, permutations

import numpy as np
import pytest
from plain_schedule import (
    PlainSchedule,
    problems,
    published_schedule,
    steps,
    with_arrays,
    with_less_memory,
)
from problems import (
    cluster_of,
    graph_of,
    hosted_problem,
    published_graph,
    random_device,
    random_problem,
)

from doppler.baselines import (
    CPOP,
    ETF,
    HEFT,
    PEFT,
    CriticalPath,
    NearETF,
    QueuedETF,
    etf,
    etf_queued,
    list_scheduling,
    ready_ops_kernels,
)
from doppler.baselines.best_of_runs import in_order_of_start
from doppler.baselines.levels import b_levels, static_levels, t_levels
from doppler.baselines.list_scheduling import make_schedule, schedule_ops
from doppler.cluster import preset
from doppler.graph import load_graph, synthetic
from doppler.problem import Placement, Problem, build
from doppler.simulator import Published, WorkConserving
from doppler.support.errors import InputError

METHODS = {
    **{"critical_path": CriticalPath, "heft": HEFT, "cpop": CPOP, "peft": PEFT},
    **{"etf": ETF, "etf_near": NearETF, "etf_queued": QueuedETF},
}
PUBLISHED = [
    f"{prefix}{name}.txt"
    for prefix in ("", "gdp_")
    for name in ("chain_mm_112nodes", "ffnn_192nodes", "transformer_block_215nodes")
]


# --- The example of Topcuoglu, Hariri and Wu ------------------------------------------------------

COSTS = [
    *([14, 16, 9], [13, 19, 18], [11, 13, 19], [13, 8, 17], [12, 13, 10]),
    *([13, 16, 9], [7, 15, 11], [5, 11, 14], [18, 12, 20], [21, 7, 16]),
]
DATA = {
    **{(1, 2): 18, (1, 3): 12, (1, 4): 9, (1, 5): 11, (1, 6): 14, (2, 8): 19, (2, 9): 16},
    **{(3, 7): 23, (4, 8): 27, (4, 9): 23, (5, 9): 13, (6, 8): 15, (7, 10): 17, (8, 10): 11},
    (9, 10): 13,
}


def textbook_problem() -> Problem:
    """Edges of one producer carry different data: a region each."""
    edges = [(u - 1, v - 1, float(data), v) for (u, v), data in DATA.items()]
    problem = build(graph_of([1] * 10, edges), cluster_of([1.0] * 3))
    return with_arrays(problem, op_seconds=np.array(COSTS, dtype=float))


def test_upward_and_downward_ranks_are_those_of_the_paper():
    upward = [108.0, 77.0, 80.0, 80.0, 69.0, 63.333, 42.667, 35.667, 44.333, 14.667]
    downward = [0.0, 31.0, 25.0, 22.0, 24.0, 27.0, 62.333, 66.667, 63.667, 93.333]
    assert b_levels(textbook_problem()) == pytest.approx(upward, abs=1e-3)
    assert t_levels(textbook_problem()) == pytest.approx(downward, abs=1e-3)


def test_heft_gives_the_schedule_of_the_paper():
    problem = textbook_problem()
    decisions = HEFT(evaluations=1).schedule(problem, 100, np.random.default_rng(0))
    expected = {
        "P1": {2: (27, 40), 8: (57, 62)},
        "P2": {4: (18, 26), 6: (26, 42), 9: (56, 68), 10: (73, 80)},
        "P3": {1: (0, 9), 3: (9, 28), 5: (28, 38), 7: (38, 49)},
    }
    # Tasks 3 and 4 have the same rank, and task 4 ends at 26 on P2 and on P3: the paper takes task
    # 3 first. One of four draws has task 4 first, on P3.
    makespans = Counter()
    for run in range(100):
        schedule = published_schedule(problem, decisions, run)
        makespan = max(finish for rows in schedule.values() for _, finish in rows.values())
        assert (schedule == expected) == (makespan == 80)
        makespans[makespan] += 1
    assert makespans.keys() == {80, 86}
    assert 60 <= makespans[80] <= 90


def test_cpop_gives_the_makespan_of_the_paper_with_its_critical_path_on_the_second_processor():
    problem = textbook_problem()
    decisions = CPOP(evaluations=1).schedule(problem, 20, np.random.default_rng(0))
    for run in range(20):
        schedule = published_schedule(problem, decisions, run)
        assert max(finish for rows in schedule.values() for _, finish in rows.values()) == 86
        assert schedule["P2"].keys() >= {1, 2, 9, 10}


# --- Decisions against plain Python -----------------------------------------------------------


@pytest.mark.parametrize(
    ("insertion", "with_homes", "looks_ahead"),
    [(False, False, False), (False, True, False), (True, False, False), (True, True, True)],
)
def test_each_op_goes_home_or_to_the_best_device_that_has_room(insertion, with_homes, looks_ahead):
    seen = Counter()
    for seed, problem in problems(60):
        rng = np.random.default_rng(seed)
        level_V = b_levels(problem)
        home_BV = np.full((2, problem.num_ops), -1)
        if with_homes:
            drawn = rng.integers(-1, problem.num_devices, home_BV.shape)
            home_BV = np.where(np.isfinite(problem.arrays.op_seconds[:, 0]), drawn, -1)
        after_VD = np.zeros(problem.arrays.op_seconds.shape)
        if looks_ahead:
            after_VD = problem.scale_s * rng.random(after_VD.shape)
        options = {"insertion": insertion, "home_BV": home_BV, "after_VD": after_VD}
        decisions = schedule_ops(problem, level_V, 2, rng, **options)
        for run, rows in enumerate(steps(decisions)):
            plain = PlainSchedule(problem, regions_stay=run == 0)
            for v, d, start in rows:
                highest = max(level_V[u] for u in plain.candidates())
                assert v in plain.candidates()
                assert level_V[v] >= highest - plain.tie_s
                choices = {
                    on: (over, time + after_VD[v, on])
                    for on, (over, time) in plain.devices(v, insertion=insertion).items()
                }
                least = min(over for over, _ in choices.values())
                earliest = min(time for over, time in choices.values() if over == least)
                home = int(home_BV[run, v])
                if home in choices and choices[home][0] == 0:
                    assert d == home
                    seen["home"] += 1
                else:
                    assert choices[d][0] == least
                    assert choices[d][1] <= earliest + plain.tie_s
                    seen["driven out"] += home >= 0
                seen["avoided"] += least == 0 and any(over > 0 for over, _ in choices.values())
                seen["overflows"] += least > 0
                appended = plain.earliest_s(v, d, insertion=False)
                seen["in a gap"] += start < appended - plain.tie_s
                expected = plain.earliest_s(v, d, insertion=insertion)
                assert start == pytest.approx(expected, abs=plain.tie_s)
                plain.place(v, d, start)
    wanted = {"avoided", "overflows"}
    wanted |= {"in a gap"} if insertion else set()
    wanted |= {"home", "driven out"} if with_homes else set()
    assert all(seen[what] > 20 for what in wanted), seen


@pytest.mark.parametrize("method", [ETF, NearETF])
def test_etf_takes_the_earliest_op_and_among_ties_the_largest_static_level(method):
    seen = Counter()
    for seed, problem in problems(60):
        level_V = static_levels(problem)
        decisions = method(evaluations=1).schedule(problem, 2, np.random.default_rng(seed))
        for run, rows in enumerate(steps(decisions)):
            plain = PlainSchedule(problem, regions_stay=run == 0)
            for v, d, start in rows:
                options = {u: plain.devices(u, insertion=False) for u in plain.candidates()}
                time = {u: min(time for _, time in on.values()) for u, on in options.items()}
                come = {
                    u: min(
                        plain.incoming_s(u, on) if method is NearETF else 0.0
                        for on, (_, soonest) in options[u].items()
                        if soonest <= min(time.values()) + plain.tie_s
                    )
                    for u in options
                    if time[u] <= min(time.values()) + plain.tie_s
                }
                seen["by transfers"] += max(come.values()) > min(come.values()) + plain.tie_s
                assert come[v] <= min(come.values()) + plain.tie_s
                tied = {u for u in come if come[u] <= come[v] + plain.tie_s}
                assert level_V[v] >= max(level_V[u] for u in tied) * (1 - 1e-8)
                seen["by level"] += len({level_V[u] for u in tied}) > 1

                least = min(over for over, _ in options[v].values())
                first = min(time for over, time in options[v].values() if over == least)
                assert options[v][d][0] == least
                assert start == options[v][d][1] <= first + plain.tie_s
                if method is NearETF:
                    assert plain.incoming_s(v, d) <= plain.tie_s + min(
                        plain.incoming_s(v, on)
                        for on, (over, time) in options[v].items()
                        if over == least and time <= first + plain.tie_s
                    )
                seen["overflows"] += least > 0
                seen["driven out"] += start > time[v] + plain.tie_s
                plain.place(v, d, start)
    assert min(seen["by level"], seen["overflows"], seen["driven out"]) > 20
    assert (seen["by transfers"] > 20) == (method is NearETF)


def test_etf_draws_ties_evenly():
    problem = build(graph_of([1, 1, 1]), cluster_of([1.0] * 4))
    decisions = ETF(evaluations=1).schedule(problem, 6000, np.random.default_rng(0))
    first = Counter(zip(decisions.op[:, 0].tolist(), decisions.device[:, 0].tolist(), strict=True))
    assert len(first) == 12
    for times in first.values():  # binomial: mean 500, standard deviation 21
        assert abs(times - 500) < 6 * 21


def test_static_levels_leave_transfers_out():
    problem = build(
        graph_of([4, 8, 2], [(0, 1, 3), (1, 2, 5)]), cluster_of([1.0, 2.0], latency_s=1.0)
    )
    assert static_levels(problem).tolist() == [10.5, 7.5, 1.5]


def longest_path(problem: Problem) -> list[int]:
    """The ops of the longest path with mean costs, by walking every path."""
    best, edges = (-1.0, []), problem.graph.edges
    transfer_E = problem.mean_transfer_seconds[problem.graph.regions.of_edge]
    stack = [(problem.mean_op_seconds[v], [v]) for v in set(range(problem.num_ops))]
    while stack:
        length, path = stack.pop()
        best = max(best, (length, path))
        for e in np.flatnonzero(edges.src == path[-1]):
            longer = length + transfer_E[e] + problem.mean_op_seconds[edges.dst[e]]
            stack.append((longer, [*path, int(edges.dst[e])]))
    return best[1]


def test_cpop_keeps_the_longest_path_on_the_device_that_runs_it_fastest():
    compared = 0
    for seed in range(40):
        problem = random_problem(seed, num_ops=2 + seed % 12, costs="distinct")
        path = longest_path(problem)
        path_DP = problem.arrays.op_seconds[path].T
        decisions = CPOP(evaluations=1).schedule(problem, 2, np.random.default_rng(seed))
        for rows in steps(decisions):
            device = {v: d for v, d, _ in rows}
            able = [d for d in range(problem.num_devices) if np.isfinite(path_DP[d]).all()]
            if able:
                (d,) = {device[v] for v in path}
                assert path_DP[d].sum() == min(path_DP[other].sum() for other in able)
                compared += 1
    assert compared > 60


def test_cpop_draws_among_critical_paths():
    problem = build(graph_of([8] * 4, [(0, 1, 9), (2, 3, 9)]), cluster_of([1.0, 1.5]))
    fast = Counter()
    for rows in steps(CPOP(evaluations=1).schedule(problem, 200, np.random.default_rng(0))):
        fast[tuple(sorted(v for v, d, _ in rows if d == 1))] += 1
    # Where an op of the other chain is taken first, it may end first on the fast device too.
    assert fast.keys() == {(0, 1), (2, 3), (0, 1, 2, 3)}
    assert min(fast[0, 1], fast[2, 3]) > 20


def test_cpop_lends_out_what_the_device_of_its_path_cannot_run():
    # Device 0 runs two of the three ops, and of those that run the third device 1 is the fastest.
    cluster = cluster_of(
        [1.0, 8.0, 1.0], unsupported_kinds=[["b"], ["a"], ["a"]], bytes_per_s=1 / 64
    )
    graph = graph_of([8] * 3, [(0, 1, 1), (1, 2, 1)], kinds=["a", "b", "a"])
    for rows in steps(
        CPOP(evaluations=1).schedule(build(graph, cluster), 20, np.random.default_rng(0))
    ):
        assert [(v, d) for v, d, _ in rows] == [(0, 0), (1, 1), (2, 0)]


@pytest.mark.parametrize("method", [HEFT, CPOP])
def test_the_order_of_starts_keeps_producers_first(method):
    for seed in range(60):
        problem = random_problem(seed, num_ops=30, costs="tied")
        for rows in steps(method(evaluations=1).schedule(problem, 3, np.random.default_rng(seed))):
            starts = [start for _, _, start in rows]
            assert starts == sorted(starts)
            position = {v: i for i, (v, _, _) in enumerate(rows)}
            edges = problem.graph.edges
            for src, dst in zip(edges.src.tolist(), edges.dst.tolist(), strict=True):
                assert position[src] < position[dst]


def test_no_two_ops_of_a_device_overlap_in_the_schedule_of_heft():
    for seed in range(40):
        problem = random_problem(seed, num_ops=30, num_devices=2, costs="distinct")
        for rows in steps(HEFT(evaluations=1).schedule(problem, 2, np.random.default_rng(seed))):
            for (v, d, start), (_, other, later) in permutations(rows, 2):
                if d == other and start < later:
                    finish = start + problem.arrays.op_seconds[v, d]
                    assert finish <= later + 1e-9 * problem.scale_s


# --- As baselines and teachers --------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS.values())
def test_the_best_of_the_runs_is_kept_with_its_order_as_priority(method):
    for seed in range(6):
        problem = random_problem(seed, num_ops=25, num_devices=3)
        with WorkConserving().open(problem) as session:
            result = method(evaluations=20).place(session, np.random.default_rng(seed))
            assert result.evaluations == session.evaluations == 20
            costs = []
            op_BV, device_BV = method(evaluations=1).decide(
                problem, 20, np.random.default_rng(seed)
            )
            for op_V, device_V in zip(op_BV, device_BV, strict=True):
                placement = Placement.make(problem, device_V[np.argsort(op_V)], np.argsort(op_V))
                costs.append(session.trace(placement).op_finish_s.max())
            assert result.makespan_s == min(costs)
            assert session.trace(result.placement).op_finish_s.max() == min(costs)


@pytest.mark.parametrize("method", METHODS.values())
def test_the_same_seed_gives_the_same_runs_and_runs_differ(method):
    problem = random_problem(3, num_ops=30, num_devices=3)
    first, again, other = (
        [column.tolist() for column in method(evaluations=1).decide(problem, 5, rng)]
        for rng in map(np.random.default_rng, (1, 1, 2))
    )
    assert first == again != other
    assert len(set(map(tuple, first[0]))) > 1


@pytest.mark.parametrize("name", METHODS)
def test_less_than_one_run_is_refused(name):
    with pytest.raises(InputError) as error:
        METHODS[name](evaluations=0)
    line = "evaluations: must be a whole number of at least 1, got 0"
    assert str(error.value) == f"{METHODS[name].__name__}.{line}"


@pytest.mark.parametrize("method", METHODS.values())
def test_weights_that_fit_only_when_spread_are_spread(method):
    # A chain of free transfers draws every op to the fast device; it has room for two weights.
    edges = [(v, v + 1, 0) for v in range(3)]
    graph = graph_of([8] * 4, edges, inputs=[(10, [v]) for v in range(4)])
    unlimited = build(graph, cluster_of([4.0, 1.0], latency_s=9.0))
    problem = with_arrays(unlimited, memory_bytes=np.full(2, 20.0))
    with WorkConserving().open(unlimited) as session:
        result = method(evaluations=10).place(session, np.random.default_rng(0))
        assert np.bincount(result.placement.device).max() == 4
    with WorkConserving().open(problem) as session:
        for seed in range(10):
            result = method(evaluations=1).place(session, np.random.default_rng(seed))
            assert np.bincount(result.placement.device).tolist() == [2, 2]
            assert np.isfinite(result.makespan_s)


@pytest.mark.parametrize("method", METHODS.values())
def test_what_fits_in_a_cautious_run_fits_on_the_system(method):
    """In the first run nothing leaves the sum, so unless it overflows it bounds what is in use."""
    fitted = 0
    for seed in range(60):
        problem = random_problem(seed, num_ops=25, num_devices=3, given_costs=False)
        problem = with_less_memory(problem, 0.6)
        op_BV, device_BV = method(evaluations=1).decide(problem, 1, np.random.default_rng(seed))
        plain = PlainSchedule(problem, regions_stay=True)
        for v, d in zip(op_BV[0].tolist(), device_BV[0].tolist(), strict=True):
            plain.held[d].update(plain.brought(v))
        sums = [sum(held.values()) for held in plain.held]
        if all(sums <= problem.arrays.memory_bytes):
            with WorkConserving().open(problem) as session:
                priority_V = np.argsort(op_BV[0])
                measured = session.measure(device_BV[0][priority_V][None], priority_V[None])
            assert measured.feasible[0]
            fitted += 1
    assert fitted > 15


# --- The published graphs -------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_method_is_far_below_the_mean_random_placement_on_the_published_graphs(name):
    problem = build(load_graph(published_graph(name)), preset(name="p100x4"))
    rng = np.random.default_rng(0)
    with Published().open(problem) as session:
        device_BV = np.stack([random_device(problem, rng) for _ in range(50)])
        drawn = session.measure(device_BV).cost_s().mean()
        for method in METHODS.values():
            assert method(evaluations=50).place(session, rng).makespan_s < 0.8 * drawn


def saga_instance(problem: Problem, speed_D: np.ndarray, *, rank_only: bool = False):
    """The task graph of a problem whose op costs are given, and a network of devices and links.

    rank_only: saga's mean transfer counts every device's transfer to itself, as 0 s; links that
    are slower by as much undo this, in a network that is used for ranks alone.
    """
    saga = pytest.importorskip("saga")
    p, edges, num = problem.arrays, problem.graph.edges, problem.num_devices
    factor = (num - 1) / (num + 1) if rank_only else 1.0
    links = [
        (f"d{s}", f"d{d}", factor / p.seconds_per_size[s, d]) for s in range(num) for d in range(s)
    ]
    network = saga.Network.create([(f"d{d}", speed_D[d]) for d in range(num)], links)
    size_E = p.size[problem.graph.regions.of_edge]
    cost_V = p.op_seconds[:, 0] * speed_D[0]
    tasks = [(f"op{v}", cost_V[v]) for v in range(problem.num_ops)]
    data = zip(edges.src.tolist(), edges.dst.tolist(), size_E.tolist(), strict=True)
    graph = saga.TaskGraph.create(tasks, [(f"op{s}", f"op{d}", size) for s, d, size in data])
    return network, graph


@pytest.mark.parametrize("name", PUBLISHED)
def test_heft_equals_saga_where_costs_and_speeds_are_distinct(name, monkeypatch):
    heft = pytest.importorskip("saga.schedulers.heft")
    rng = np.random.default_rng(0)
    problem = build(load_graph(published_graph(name)), preset(name="p100x4"))
    speed_D = np.array([1.0, 1.13, 0.91, 1.29])
    p = problem.arrays
    cost_V = p.op_seconds[:, 0] + p.op_seconds.max() * rng.uniform(0.001, 0.02, problem.num_ops)
    slowness = rng.uniform(0.8, 1.2, (4, 4))
    problem = with_arrays(
        problem,
        op_seconds=cost_V[:, None] / speed_D,
        size=p.size * rng.uniform(0.98, 1.02, len(p.size)),
        seconds_per_size=slowness + slowness.T,
    )
    network, graph = saga_instance(problem, speed_D)
    rank_network, _ = saga_instance(problem, speed_D, rank_only=True)
    sort = heft.heft_rank_sort
    monkeypatch.setattr(heft, "heft_rank_sort", lambda _, graph: sort(rank_network, graph))
    schedule = heft.HeftScheduler().schedule(network, graph)
    expected = {task.name: (node, task.start) for node, tasks in schedule.items() for task in tasks}
    decisions = HEFT(evaluations=1).schedule(problem, 2, np.random.default_rng(1))
    for rows in steps(decisions):
        for v, d, start in rows:
            device, seconds = expected[f"op{v}"]
            assert device == f"d{d}"
            assert start == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_decision_of_heft_is_one_that_saga_could_take(name):
    """As published the graphs are full of ties: saga's state is given our decisions one by one."""
    saga = pytest.importorskip("saga")
    cpop = pytest.importorskip("saga.schedulers.cpop")
    problem = build(load_graph(published_graph(name)), preset(name="p100x4"))
    network, graph = saga_instance(problem, np.ones(4))
    rank = cpop.upward_rank(saga_instance(problem, np.ones(4), rank_only=True)[0], graph)
    rng = np.random.default_rng(0)
    decisions = schedule_ops(problem, b_levels(problem), 1, rng, insertion=True)
    again = HEFT(evaluations=1).schedule(problem, 1, np.random.default_rng(0))
    for ours, sorted_ours in zip(in_order_of_start(decisions), again, strict=True):
        assert np.array_equal(ours, sorted_ours)
    schedule = saga.Schedule(graph, network)
    if "__super_source__" in {task.name for task in graph.tasks}:
        source = saga.ScheduledTask(node="d0", name="__super_source__", start=0.0, end=0.0)
        schedule.add_task(source)
    tie_s = 1e-9 * max(rank.values())
    (rows,) = steps(decisions)
    ranks = [rank[f"op{v}"] for v, _, _ in rows]
    assert all(later <= earlier + tie_s for earlier, later in pairwise(ranks))
    for v, d, start in rows:
        task = graph.get_task(f"op{v}")
        earliest = {
            node.name: schedule.get_earliest_start_time(task, node) for node in network.nodes
        }
        assert start == pytest.approx(earliest[f"d{d}"], abs=tie_s)
        assert start <= min(earliest.values()) + tie_s
        end = start + task.cost
        schedule.add_task(saga.ScheduledTask(node=f"d{d}", name=task.name, start=start, end=end))


# --- Queues of ready ops --------------------------------------------------------------------------


def decided(method, module, few: int, problem: Problem, monkeypatch) -> list[bytes]:
    """What the method decides in three runs, with queues for graphs of more ops than ``few``."""
    made = partial(ready_ops_kernels.make_ready_ops, few=few)
    monkeypatch.setattr(module, "make_ready_ops", made)
    decisions = method(evaluations=1).schedule(problem, 3, np.random.default_rng(5))
    return [array.tobytes() for array in decisions]


@pytest.mark.parametrize(("method", "module"), [(ETF, etf), (QueuedETF, etf_queued)])
def test_queues_find_the_op_that_looking_at_all_finds(method, module, monkeypatch):
    made = [random_problem(seed, num_devices=1 + seed % 5) for seed in range(100)]
    made += [hosted_problem(seed) for seed in range(50)]
    made += [random_problem(seed, num_devices=4, costs="distinct") for seed in range(50)]
    made += [with_less_memory(problem, 0.2 + 0.004 * i) for i, problem in enumerate(made)]
    for problem in made:
        each = [decided(method, module, few, problem, monkeypatch) for few in (0, 10**6)]
        assert each[0] == each[1]


@pytest.mark.parametrize("method", [(ETF, etf), (QueuedETF, etf_queued)])
@pytest.mark.parametrize("family", ["layered", "elimination", "tree", "random"])
def test_queues_find_the_same_on_large_graphs(family, method, monkeypatch):
    graph = synthetic(family=family, num_ops=1500, transfer_ratio=1.0, seed=7)
    problem = build(graph, preset(name="mixed"))
    each = [decided(*method, few, problem, monkeypatch) for few in (0, 10**6)]
    assert each[0] == each[1]


def test_an_op_of_no_time_makes_no_gaps_of_the_joints_between_others(monkeypatch):
    """Or every op would look at all joints: minutes on ten thousand ops."""
    schedules = []

    def kept(*args, **options):
        schedules.append(make_schedule(*args, **options))
        return schedules[-1]

    monkeypatch.setattr(list_scheduling, "make_schedule", kept)
    problem = build(graph_of([1.0] * 20 + [0.0]), cluster_of([1.0, 1.0]))
    decisions = HEFT(evaluations=1).schedule(problem, 1, np.random.default_rng(0))
    assert decisions.start.max() == 9.0
    (schedule,) = schedules
    assert schedule.devices["gap"].tolist() == [-1, -1]


def test_an_op_of_no_time_goes_between_two_others_without_a_gap():
    # On device 0: op 0, then op 1; op 2 of no time reads op 0 and so fits at 4 s, before op 1.
    graph = graph_of([4.0, 5.0, 0.0, 1.0], [(0, 1, 50.0), (0, 2, 50.0), (2, 3, 50.0)])
    problem = build(graph, cluster_of([1.0]))
    decisions = HEFT(evaluations=1).schedule(problem, 1, np.random.default_rng(0))
    start = dict(zip(decisions.op[0].tolist(), decisions.start[0].tolist(), strict=True))
    assert (start[0], start[1], start[2]) == (0.0, 4.0, 4.0)
