"""Annealing: the moves, the walk, both of its loops, and what it reaches.

Costs and placements of the compiled loop are those of the plain one around ``session.measure``,
on every system, if this one is told the schedules; so what is shown of one holds for the other.
"""

from dataclasses import replace

import numpy as np
import pytest
from problems import (
    cluster_of,
    graph_of,
    optimum,
    published_graph,
    random_placement,
    random_problem,
)

from doppler.baselines import Annealing, SearchResult
from doppler.baselines.annealing_kernels import MAX_TOGETHER, change, look_around, settle
from doppler.baselines.annealing_kernels import search as search_simulator
from doppler.baselines.annealing_walk import Walk, WalkPlan, make_neighbours
from doppler.baselines.levels import b_level_priority
from doppler.cluster import preset
from doppler.graph import load_graph
from doppler.problem import Placement, Problem, build
from doppler.simulator import BulkSynchronous, Published, WorkConserving
from doppler.support.errors import InputError
from doppler.system import Measurement

ORDER = pytest.mark.parametrize("order", [False, True])
SYSTEMS = (
    *(WorkConserving(), WorkConserving(contention="none"), WorkConserving(queue="fifo")),
    *(WorkConserving(queue="strict"), WorkConserving(streams=2)),
    *(Published(), Published(queue="priority"), BulkSynchronous()),
)


def annealing(evaluations: int, **settings) -> Annealing:
    defaults = {"order": False, "starts": 1, "draws": 1, "hot": 0.02, "cold": 0.0001}
    return Annealing(evaluations=evaluations, **{**defaults, **settings})


def search(problem: Problem, method: Annealing, *, seed: int = 0, system=None) -> SearchResult:
    with (system or WorkConserving()).open(problem) as session:
        result = method.place(session, np.random.default_rng(seed))
        assert result.evaluations == session.evaluations
    return result


def is_same(one: SearchResult, other: SearchResult) -> bool:
    return (
        one.makespan_s == other.makespan_s
        and one.evaluations == other.evaluations
        and np.array_equal(one.placement.device, other.placement.device)
        and np.array_equal(one.placement.priority, other.placement.priority)
    )


class PlainSession:
    """A session that nothing is known of but the protocol; it keeps what was executed."""

    def __init__(self, session) -> None:
        self.session, self.problem = session, session.problem
        self.devices: list[np.ndarray] = []
        self.priorities: list[np.ndarray] = []
        self.costs: list[float] = []

    @property
    def evaluations(self) -> int:
        return self.session.evaluations

    def measure(self, device_BV, priority_BV, repeats, rng) -> Measurement:
        measured = self.session.measure(device_BV, priority_BV, repeats, rng)
        self.devices.append(device_BV[0].copy())
        self.priorities.append(priority_BV[0].copy())
        self.costs.append(float(measured.cost_s()[0]))
        return measured


@pytest.fixture
def tell_schedules(monkeypatch):
    """Let the plain loop know what only the compiled one knows: the schedule of what it keeps."""

    def tell(session) -> None:
        def settle_and_tell(p, plan, step, seconds, walk):
            kept = settle(p, plan, step, seconds, walk)
            if session.execution.streams > 1:
                plan = plan._replace(most_drawn=1)
            if kept and seconds < np.inf:
                look_around(p, plan, seconds, session._states[0].tasks, walk)
            return kept

        monkeypatch.setattr("doppler.baselines.annealing.settle", settle_and_tell)

    return tell


# --- Both loops -----------------------------------------------------------------------------------


@pytest.mark.parametrize("system", SYSTEMS, ids=str)
@ORDER
def test_compiled_searches_are_those_of_the_plain_loop(system, order, tell_schedules):
    for seed in range(6):
        problem = random_problem(seed, num_ops=20, num_devices=3)
        method = annealing(120, order=order, starts=2)
        with system.open(problem) as session:
            plain_session = PlainSession(session)
            tell_schedules(session)
            plain = method.place(plain_session, np.random.default_rng(seed))
        assert len(plain_session.costs) == plain_session.evaluations == 120
        assert plain.makespan_s == min(plain_session.costs)
        assert is_same(search(problem, method, seed=seed, system=system), plain)


@pytest.mark.parametrize("make", [WorkConserving, Published, BulkSynchronous])
def test_draws_are_means_over_one_set_of_jitter_at_five_percent(make, tell_schedules):
    problem = random_problem(3, num_ops=20, num_devices=3, costs="distinct")
    method = annealing(400, draws=4)
    noisy = search(problem, method, system=make(noise=0.05))
    with make(noise=0.05).open(problem) as session:
        tell_schedules(session)
        plain = method.place(PlainSession(session), np.random.default_rng(0))
    assert is_same(noisy, plain)
    quiet = search(problem, annealing(401, draws=4), system=make())
    found = quiet.placement
    assert found.device.tolist() == noisy.placement.device.tolist()
    with make().open(problem) as session:
        nominal_s = session.measure(found.device[None], found.priority[None]).seconds.item()
    assert quiet.makespan_s == nominal_s, "of the system that was searched, which has no jitter"
    assert quiet.evaluations == 401
    assert noisy.makespan_s != nominal_s
    assert noisy.makespan_s == pytest.approx(nominal_s, rel=0.1)


def test_a_random_queue_is_lent_no_jitter():
    problem = random_problem(3, num_ops=20, num_devices=3, costs="distinct")
    quiet = search(problem, annealing(400, draws=4), system=WorkConserving(queue="random"))
    assert quiet.evaluations == 400, "none is needed to tell the seconds without"


def test_there_is_something_to_search():
    with pytest.raises(InputError, match="order and devices are both false"):
        annealing(10, devices=False)


def test_a_noisy_system_is_met_with_other_draws_at_every_evaluation():
    problem = build(graph_of([1]), cluster_of([1.0]))
    best = [search(problem, annealing(n), system=WorkConserving(noise=0.1)) for n in (1, 100)]
    assert best[1].makespan_s < best[0].makespan_s, "a single placement, but never the same time"


@ORDER
def test_starts_are_independent_of_the_threads_that_run_them(order):
    problem = random_problem(5, num_ops=30, num_devices=3)
    results = []
    for threads in (1, 3):
        with WorkConserving().open(problem, num_threads=threads) as session:
            method = annealing(500, order=order, starts=5)
            results.append(method.place(session, np.random.default_rng(0)))
            assert session.evaluations == 500
    assert is_same(*results)


def test_a_search_goes_on_after_a_stretch_as_if_there_were_none(monkeypatch):
    problem = random_problem(5, num_ops=20, num_devices=3)
    method = annealing(500, order=True, starts=3)
    whole = search(problem, method)
    monkeypatch.setattr("doppler.baselines.annealing._STRETCH", 20 * 7)
    assert is_same(search(problem, method), whole)


@pytest.mark.parametrize("starts", [1, 3, 7])
@pytest.mark.parametrize("draws", [1, 3])
def test_starts_share_the_evaluations_and_the_best_counts(starts, draws):
    problem = random_problem(5, num_ops=15, num_devices=3, costs="distinct")
    with WorkConserving(noise=0.05).open(problem) as session:
        plain = PlainSession(session)
        result = annealing(100, starts=starts, draws=draws).place(plain, np.random.default_rng(0))
    num_costs = 100 // draws
    assert len(plain.costs) == num_costs
    assert result.evaluations == session.evaluations == num_costs * draws
    best = int(np.argmin(plain.costs))
    assert result.makespan_s == plain.costs[best]
    assert result.placement.device.tolist() == plain.devices[best].tolist()
    # A step moves ops from one device; a start draws all anew.
    anew = [
        i
        for i in range(1, num_costs)
        if len(set(plain.devices[i - 1][plain.devices[i - 1] != plain.devices[i]])) > 1
    ]
    sizes = np.diff([0, *(i for i in anew if i in np.cumsum(shares(num_costs, starts))), num_costs])
    assert sizes.tolist() == shares(num_costs, starts)


def shares(num: int, starts: int) -> list[int]:
    """``num`` in equal parts, the larger ones last."""
    return sorted(len(part) for part in np.array_split(np.arange(num), starts))


@ORDER
def test_it_repeats_itself_with_the_same_random_numbers(order):
    problem = random_problem(6, num_ops=15, num_devices=3)
    one, same, other = (search(problem, annealing(20, order=order), seed=s) for s in (3, 3, 4))
    assert is_same(one, same)
    assert not is_same(one, other)


# --- Moves and acceptance -------------------------------------------------------------------------


def went_to(before: np.ndarray, after: np.ndarray) -> list[tuple[int, int]]:
    """(from, to) device of what has moved, each pair once."""
    moved = before != after
    return sorted(set(zip(before[moved].tolist(), after[moved].tolist(), strict=True)))


def reordered(problem: Problem, before: np.ndarray) -> set[tuple[int, ...]]:
    """Ops by rank after each change of the order that a step may make.

    One op goes forward with all between that it needs, or back with all between that need it.
    """
    edges, old = problem.graph.edges, np.argsort(before).tolist()
    needs = np.eye(problem.num_ops, dtype=bool)
    for v in old:
        for u in edges.src[edges.dst == v]:
            needs[v] |= needs[u]
    orders = set()
    for low in range(len(old)):
        for high in range(low, len(old)):
            head, between, tail = old[:low], old[low : high + 1], old[high + 1 :]
            with_last = [u for u in between if needs[between[-1], u]]
            with_first = [u for u in between if needs[u, between[0]]]
            without_last = [u for u in between if u not in with_last]
            without_first = [u for u in between if u not in with_first]
            orders.add((*head, *with_last, *without_last, *tail))
            orders.add((*head, *without_first, *with_first, *tail))
    return orders


@ORDER
@pytest.mark.parametrize("heat", [1e-12, 1e12])
def test_a_cold_walk_goes_on_from_its_best_state_and_a_hot_one_from_its_last(order, heat):
    problem = random_problem(6, num_ops=20, num_devices=3, costs="distinct")
    with WorkConserving().open(problem) as session:
        plain = PlainSession(session)
        annealing(400, order=order, hot=heat, cold=heat).place(plain, np.random.default_rng(0))
    device, priority, current = plain.devices[0], plain.priorities[0], plain.costs[0]
    went_up, num_groups, num_reorderings = 0, 0, 0
    rows = zip(plain.devices, plain.priorities, plain.costs, strict=True)
    for new_device, new_priority, cost in list(rows)[1:]:
        if np.array_equal(priority, new_priority):
            assert len(went_to(device, new_device)) <= 1
            num_groups += (device != new_device).sum() > 1
        else:
            assert np.array_equal(device, new_device)
            assert tuple(np.argsort(new_priority).tolist()) in reordered(problem, priority)
            num_reorderings += 1
        if cost <= current or heat > 1:
            went_up += cost > current
            device, priority, current = new_device, new_priority, cost
    assert (went_up > 0) == (heat > 1)
    assert num_groups > 20
    assert (num_reorderings > 20) == order
    edges = problem.graph.edges
    assert (priority[edges.src] < priority[edges.dst]).all(), "no op ranks before what it needs"


def test_acceptance_is_that_of_metropolis_at_a_temperature_that_falls_geometrically():
    # One op goes from a device to one that is a tenth slower and back again: every step is a move.
    problem = build(graph_of([11]), cluster_of([1.1, 1.0]))
    num, quarters = 8000, 4
    with WorkConserving().open(problem) as session:
        plain = PlainSession(session)
        annealing(num, hot=1.0, cold=0.01).place(plain, np.random.default_rng(0))
    device = np.array([int(row[0]) for row in plain.devices])
    # After a step up that was accepted comes a step down, after one that was refused another up.
    steps_up = np.flatnonzero(device[:-1] == 1)
    accepted = device[steps_up + 1] == 0
    expected = np.exp(-0.1 / 0.01 ** (steps_up / num))
    quarter = quarters * steps_up // num
    for i in range(quarters):
        rows = quarter == i
        spread = np.sqrt((expected * (1 - expected))[rows].sum())
        assert abs(accepted[rows].sum() - expected[rows].sum()) < 4 * spread + 1
    assert expected[quarter == 0].mean() > 0.8 > 0.1 > expected[quarter == 3].mean()


def test_neighbours_are_weighed_by_the_seconds_of_all_transfers_between_two_ops():
    graph = graph_of([1] * 4, [(0, 1, 3, 0), (0, 1, 2, 1), (0, 2, 5, 2), (2, 3, 0, 0)])
    problem = build(graph, cluster_of([1.0, 1.0]))
    near = make_neighbours(problem)
    assert near.ptr.tolist() == [0, 2, 3, 5, 6]
    assert near.op.tolist() == [1, 2, 0, 0, 3, 2]
    seconds = dict(zip([(0, 1), (0, 2)], np.diff([0.0, *near.share[:2]]), strict=True))
    assert near.share[[1, 2, 4, 5]].tolist() == [1.0] * 4
    assert seconds[0, 1] == pytest.approx(5 / 10)
    assert near.share[3] == 1.0, "from 2 nobody goes to 3, at no cost"


@pytest.mark.parametrize("works", [[1] * 9 + [91], [0] * 10], ids=["one is heavy", "no work"])
def test_where_no_schedule_is_known_half_of_the_moves_begin_at_an_op_in_proportion_to_its_work(
    works,
):
    # Nobody has neighbours and all is accepted: what a step changed is the op that it drew.
    problem = build(graph_of(works), cluster_of([1.0, 1.0]))
    num = 4000
    with WorkConserving().open(problem) as session:
        plain = PlainSession(session)
        annealing(num, hot=1e9, cold=1e9).place(plain, np.random.default_rng(0))
    changed = np.diff(np.array(plain.devices), axis=0) != 0
    assert (changed.sum(1) == 1).all()
    share = 0.5 * np.array(works) / max(1, sum(works)) + (0.05 if any(works) else 0.1)
    assert share.sum() == pytest.approx(1.0)
    assert abs(changed.mean(0) - share).max() < 4 * np.sqrt(0.25 / num)


def test_otherwise_half_of_them_begin_at_an_op_in_proportion_to_its_share_of_the_critical_chain():
    # One device runs 0, 1, 1 and 6 seconds behind each other, the other one op of 7 beside.
    problem = build(graph_of([0, 1, 1, 6, 7]), cluster_of([1.0, 1.0]))
    start = Placement.make(problem, np.array([0, 0, 0, 0, 1]))
    rng, num, began_at = np.random.default_rng(0), 4000, np.zeros(5)
    with WorkConserving().open(problem) as session:
        session.measure(start.device[None], start.priority[None])
        for seed in rng.integers(2**62, size=num):
            near = make_neighbours(problem)
            temperatures = {"hot": 0.1, "cold": 0.1}
            plan = WalkPlan(int(seed), 2, order=False, **temperatures, near=near, most_drawn=1)
            walk = Walk.begin(problem, start)
            rules, state = session.rules, session._states[0]
            seeds = np.zeros(1, np.int64)
            everything = session.engine, True, problem.arrays, rules, plan, seeds, True
            search_simulator(*everything, 0, 2, walk, None, state)
            began_at[walk.moved[0]] += 1
    share = 0.5 * np.array([0, 1, 1, 6, 0]) / 8 + 0.1
    assert abs(began_at / num - share).max() < 4 * np.sqrt(0.25 / num)


def test_moves_that_make_no_path_too_long_go_together_and_are_taken_back_together():
    # A long chain on one device, and what runs beside it anywhere: most moves make nothing longer.
    works = [10.0] * 10 + [1.0] * 20
    problem = build(graph_of(works, [(i, i + 1, 0.0) for i in range(9)]), cluster_of([1.0] * 4))
    device = np.array([0] * 10 + [1, 2] * 10)
    walk, plan = _walk_of(problem, Placement.make(problem, device))
    most_groups = 0
    for _ in range(200):
        before, walk.status["together"] = walk.device.copy(), MAX_TOGETHER
        change(problem.arrays, plan, walk)
        (num,) = walk.status["num_moved"]
        most_groups = max(most_groups, len(np.unique(walk.group[walk.moved[:num]])))
        assert set(np.flatnonzero(walk.device != before)) <= set(walk.moved[:num])
        assert not settle(problem.arrays, plan, 1, 1e9, walk)
        assert np.array_equal(walk.device, before)
    assert 4 < most_groups <= MAX_TOGETHER


def test_the_more_steps_are_kept_the_more_moves_go_together():
    problem = build(graph_of([10.0] + [1.0] * 5), cluster_of([1.0] * 3))
    walk, plan = _walk_of(problem, Placement.make(problem, np.array([0, 1, 1, 1, 1, 1])))
    for seconds, expected in ((10.0, MAX_TOGETHER), (1e9, 1.0)):
        told = [float(walk.status["together"].item())]
        for _ in range(60):
            change(problem.arrays, plan, walk)
            assert settle(problem.arrays, plan, 1, seconds, walk) == (seconds == 10.0)
            told.append(float(walk.status["together"].item()))
        assert told[-1] == expected
        assert told == sorted(told, reverse=expected == 1.0)


def _walk_of(problem: Problem, start: Placement) -> tuple[Walk, WalkPlan]:
    """A walk that has executed its start."""
    near = make_neighbours(problem)
    plan = WalkPlan(5, 100, order=False, hot=1e-9, cold=1e-9, near=near)
    walk = Walk.begin(problem, start)
    with WorkConserving().open(problem) as session:
        rules, state = session.rules, session._states[0]
        everything = session.engine, True, problem.arrays, rules, plan, np.zeros(1, np.int64), True
        search_simulator(*everything, 0, 1, walk, None, state)
    return walk, plan


# --- Results --------------------------------------------------------------------------------------


@ORDER
def test_it_reaches_the_enumerated_optimum_of_tiny_problems(order):
    for seed in range(20):
        problem = random_problem(seed, num_ops=4 if order else 6, num_devices=2)
        # Few ops, so one move changes much: it must begin hot to get anywhere.
        found = search(problem, annealing(1000, order=order, hot=0.5))
        assert found.makespan_s == pytest.approx(optimum(problem, WorkConserving(), orders=order))


@ORDER
def test_it_is_never_above_its_first_state(order):
    for seed in range(20):
        problem = random_problem(seed, num_ops=20, num_devices=3)
        first, last = (search(problem, annealing(n, order=order), seed=seed) for n in (1, 60))
        assert last.makespan_s <= first.makespan_s


@ORDER
def test_what_it_returns_is_what_was_measured(order):
    problem = random_problem(5, num_ops=15, num_devices=3)
    for evaluations in (1, 2, 77):
        result = search(problem, annealing(evaluations, order=order))
        assert result.evaluations == evaluations
        kept = result.placement
        with WorkConserving().open(problem) as session:
            again = session.measure(kept.device[None], kept.priority[None]).cost_s()[0]
        assert again == result.makespan_s


def test_without_order_priorities_are_those_of_b_levels():
    problem = random_problem(6, num_ops=15, num_devices=3)
    unordered, ordered = (search(problem, annealing(50, order=o)).placement for o in (False, True))
    assert unordered.priority.tolist() == b_level_priority(problem).tolist()
    assert ordered.priority.tolist() != b_level_priority(problem).tolist()
    for order in (False, True):
        assert (
            annealing(1, order=order).uses_order == annealing(1, order=order).needs_order == order
        )


@pytest.mark.parametrize(
    ("name", "evaluations", "within_s"),
    [
        # Mean of 5 seeds; annealing by single ops reached 1400, 72 and 211, then 1240, 63 and 180.
        ("chain_mm_112nodes", 1000, 1300),
        ("ffnn_192nodes", 1000, 66),
        ("transformer_block_215nodes", 1000, 180),
        ("chain_mm_112nodes", 4000, 1220),
        ("ffnn_192nodes", 4000, 59),
        ("transformer_block_215nodes", 4000, 167.5),
    ],
)
def test_the_published_graphs_are_placed_well_within_few_evaluations(name, evaluations, within_s):
    problem = build(load_graph(published_graph(f"{name}.txt")), preset(name="p100x4"))
    found = [
        search(problem, annealing(evaluations), seed=seed, system=Published()).makespan_s
        for seed in range(5)
    ]
    assert np.mean(found) < within_s


def test_an_order_beats_the_best_placement_without_one():
    problem = build(
        load_graph(published_graph("transformer_block_215nodes.txt")), preset(name="p100x4")
    )
    found = search(problem, annealing(40_000, order=True), system=Published(queue="priority"))
    assert found.makespan_s < 150  # 166.7 at best where ops are served first in, first out


def test_robust_placements_lose_less_to_jitter():
    problem = build(load_graph(published_graph("chain_mm_112nodes.txt")), preset(name="p100x4"))
    noisy = Published(noise=0.05)
    means = []
    for draws in (1, 8):
        found = [
            search(problem, annealing(4000 * draws, draws=draws), seed=s, system=Published())
            for s in range(10)
        ]
        rows = np.stack([result.placement.device for result in found])
        with noisy.open(problem) as session:
            fresh = session.measure(rows, None, 500, np.random.default_rng(1))
        means.append(fresh.cost_s().mean())
    assert means[1] < 0.995 * means[0]


# --- Polishing ------------------------------------------------------------------------------------


@ORDER
def test_a_given_placement_is_where_every_start_begins(order):
    for seed in range(10):
        problem = random_problem(seed, num_ops=20, num_devices=3)
        initial = random_placement(problem, seed)
        with WorkConserving().open(problem) as session:
            begun = PlainSession(session)
            method = annealing(90, order=order, starts=3)
            result = method.place(begun, np.random.default_rng(0), initial)
        for i in (0, 30, 60):
            assert begun.devices[i].tolist() == initial.device.tolist()
            assert begun.priorities[i].tolist() == initial.priority.tolist()
        assert result.makespan_s <= begun.costs[0]
        if not order:
            assert result.placement.priority.tolist() == initial.priority.tolist()


def test_polishing_begins_colder():
    problem = random_problem(6, num_ops=30, num_devices=3, costs="distinct")
    best = search(problem, annealing(20_000)).placement
    highest = []
    for initial in (best, None):
        with WorkConserving().open(problem) as session:
            plain = PlainSession(session)
            annealing(600, hot=0.2, cold=0.19 if initial is None else 0.0001).place(
                plain, np.random.default_rng(0), initial
            )
        highest.append(np.median(plain.costs[300:]))
    assert highest[0] < highest[1]


# --- Limits ---------------------------------------------------------------------------------------


def test_no_op_goes_to_a_device_that_cannot_run_it():
    kinds = ["a", "b", "a", "b", "c", "c"]
    cluster = cluster_of([1.0] * 3, unsupported_kinds=[["a"], ["b"], ["a", "c"]])
    problem = build(graph_of([1] * 6, [(v, v + 1, 1) for v in range(5)], kinds=kinds), cluster)
    for seed in range(20):
        with WorkConserving().open(problem) as session:
            plain = PlainSession(session)
            annealing(40).place(plain, np.random.default_rng(seed))
        for device in plain.devices:
            Placement.make(problem, device)  # raises where an op cannot run


def test_faster_devices_are_found():
    problem = build(graph_of([4] * 6), cluster_of([1.0, 4.0, 1.0]))
    result = search(problem, annealing(300))
    assert result.makespan_s == 4.0  # an op takes 1 on device 1, 4 on the others
    assert np.bincount(result.placement.device).tolist() == [1, 4, 1]


def test_it_leaves_a_start_that_does_not_fit_in_memory():
    # Outputs stay to the end: only two ops fit on each device.
    problem = build(
        graph_of([1] * 4, output_bytes=[10] * 4), cluster_of([1.0, 1.0], memory_bytes=20.0)
    )
    bad_starts = 0
    for seed in range(10):
        bad_starts += not np.isfinite(search(problem, annealing(1), seed=seed).makespan_s)
        result = search(problem, annealing(60), seed=seed)
        assert sorted(result.placement.device.tolist()) == [0, 0, 1, 1]
        assert result.makespan_s == 2.0
    assert bad_starts > 0


def test_what_fits_is_found_though_far_from_where_it_is_fast():
    # Ten ops of ten bytes: eight of them must leave the fast device, against the temperature.
    problem = build(
        graph_of([1] * 10, output_bytes=[10] * 10),
        cluster_of([10.0, 1.0], memory_bytes=[20.0, 80.0]),
    )
    for seed in range(10):
        result = search(problem, annealing(200), seed=seed)
        assert result.makespan_s == 8.0
        plain = search(problem, annealing(200, hot=1e-9, cold=1e-9), seed=seed)
        assert plain.makespan_s == 8.0


def test_what_fits_nowhere_ends_at_infinity():
    # Each op fits on either device, all of them on none.
    problem = build(
        graph_of([1] * 5, output_bytes=[10] * 5), cluster_of([1.0, 1.0], memory_bytes=20)
    )
    result = search(problem, annealing(50, starts=2))
    assert result.makespan_s == np.inf
    assert result.evaluations == 50


class FailingSession(PlainSession):
    """A system that cannot run op 0 on device 0, for a reason of its own."""

    def measure(self, device_BV, priority_BV, repeats, rng) -> Measurement:
        measured = super().measure(device_BV, priority_BV, repeats, rng)
        failed = device_BV[:, 0] == 0
        return replace(measured, feasible=measured.feasible & ~failed)


def test_a_system_may_fail_without_running_out_of_memory():
    problem = build(graph_of([1, 8], [(0, 1, 8)]), cluster_of([4.0, 1.0]))
    for seed in range(10):
        with WorkConserving().open(problem) as session:
            result = annealing(30).place(FailingSession(session), np.random.default_rng(seed))
        assert result.placement.device.tolist() == [1, 1]


@ORDER
def test_ops_and_transfers_that_take_no_time(order):
    problem = build(graph_of([0, 0], [(0, 1, 0)]), cluster_of([1.0, 1.0]))
    for seed in range(10):
        assert search(problem, annealing(20, order=order), seed=seed).makespan_s == 0.0


@ORDER
@pytest.mark.parametrize("num_ops", [1, 5])
def test_one_device_leaves_nothing_to_choose(order, num_ops):
    problem = build(graph_of([1] * num_ops), cluster_of([1.0]))
    result = search(problem, annealing(30, order=order, starts=2))
    assert result.makespan_s == num_ops
    assert result.evaluations == 30


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"evaluations": 0}, "evaluations: must be a whole number of at least 1, got 0"),
        (
            {"evaluations": 5, "starts": 2, "draws": 3},
            "evaluations: at least 6, one for each of 3 draws of 2 starts, got 5",
        ),
        ({"evaluations": 5, "starts": 0}, "starts: must be a whole number of at least 1, got 0"),
        ({"evaluations": 5, "draws": 0}, "draws: must be a whole number of at least 1, got 0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(InputError) as error:
        annealing(**settings)
    assert str(error.value).endswith(f"nnealing.{message}")


@pytest.mark.parametrize(
    ("hot", "cold", "line"),
    [
        (0.0, 0.0, "hot: must be a number above 0, got 0.0"),
        (0.1, 0.2, "needs cold <= hot, got 0.2 and 0.1"),
        (0.1, 0.0, "cold: must be a number above 0, got 0.0"),
    ],
)
def test_temperatures_fall_and_stay_above_zero(hot, cold, line):
    with pytest.raises(InputError, match=line):
        annealing(5, hot=hot, cold=cold)
