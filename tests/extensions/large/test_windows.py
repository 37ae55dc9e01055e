"""Annealing of windows: what a window is, what is kept, executed and counted."""

from dataclasses import replace

import numpy as np
import pytest
from plain_schedule import with_less_memory
from problems import cluster_of, graph_of, hosted_problem, random_problem, restricted_problem

import doppler
from doppler.baselines import HEFT
from doppler.cluster import preset
from doppler.extensions.large import AnnealWindows, windows
from doppler.extensions.large.window import window_of
from doppler.extensions.large.windows import scheduled
from doppler.extensions.memory import MODES
from doppler.graph import synthetic
from doppler.precompile import _ToldSession
from doppler.problem import Placement, Problem, build, topological_priority
from doppler.search import AnnealFromBest, Budget, Evaluator, PlaceOnce, search
from doppler.simulator import WorkConserving, open_estimates

PROBLEM = build(
    synthetic(family="map_reduce", num_ops=300, transfer_ratio=3.0, seed=1), preset(name="h100x8")
)
STEP = AnnealWindows(ops=20, behind=10, steps=60, at_most=8, share=None)


def start_of(problem: Problem, seed: int = 0) -> Placement:
    """Groups at random, each where it may be, in topological order."""
    rng, p = np.random.default_rng(seed), problem.arrays
    able = np.isfinite(p.op_seconds)
    chosen = np.array([rng.choice(np.flatnonzero(row)) for row in able])
    return Placement.make(problem, chosen[p.group])


def improved(problem: Problem, step=STEP, *, seed=0, evaluations=8, **system) -> Evaluator:
    with WorkConserving(**system).open(problem) as session:
        best = Evaluator(session=session, confirmations=2, seed=0)
        best.confirm(start_of(problem))
        search([step], best, Budget(evaluations=evaluations), np.random.default_rng(seed))
        assert best.evaluations == session.evaluations <= evaluations + best.num_confirming
    return best


@pytest.mark.parametrize("make", [random_problem, hosted_problem])
@pytest.mark.parametrize("seed", range(8))
def test_a_window_of_everything_takes_what_the_whole_takes(make, seed):
    problem = make(seed)
    with open_estimates(problem, limited=False) as estimates:
        placement = start_of(problem, seed)
        now = scheduled(estimates, placement.device, placement.priority)
        window = window_of(problem, now, 0, problem.num_ops, problem.num_ops)
    with open_estimates(window.problem) as part:
        own = window.placement
        seconds = part.measure(own.device[None], own.priority[None]).seconds[0, 0]
    assert seconds == pytest.approx(now.seconds, rel=1e-12)


def test_a_window_begins_when_its_devices_are_free_and_ends_with_what_waits_for_it():
    one = Placement.make(PROBLEM, np.zeros(PROBLEM.num_ops, np.int64))
    with open_estimates(PROBLEM) as estimates:
        now = scheduled(estimates, one.device, one.priority)
    window = window_of(PROBLEM, now, 100, 120, 150)
    with open_estimates(window.problem) as part:
        own = window.placement
        seconds = part.measure(own.device[None], own.priority[None]).seconds[0, 0]
    ops = now.ranked[100:150]
    assert seconds == pytest.approx(now.finish[ops].max() - now.start[ops].min())
    able = np.isfinite(window.problem.arrays.op_seconds).sum(axis=1)
    assert (able[window.number[:20]] == PROBLEM.num_devices).all()
    assert (np.delete(able, window.number[:20]) == 1).all()


def test_ops_that_take_nothing_do_not_hide_when_a_device_is_free():
    problem = build(graph_of([1, 0, 0, 1, 1]), cluster_of([1.0, 1.0]))
    with open_estimates(problem) as estimates:
        now = scheduled(estimates, np.array([0, 1, 1, 0, 1]), np.arange(5))
    window = window_of(problem, now, 3, 5, 5)
    busy = window.problem.arrays.op_seconds[-2:].diagonal()
    assert busy.tolist() == [now.finish[0], 0.0]


@pytest.mark.parametrize("seed", range(12))
def test_what_may_not_move_stays_and_no_op_comes_before_its_producers(seed):
    problem = restricted_problem(seed, num_ops=40, num_devices=3)
    start = start_of(problem)
    with open_estimates(problem, limited=False) as estimates:
        now = scheduled(estimates, start.device, topological_priority(problem))
        found = STEP._improved(
            estimates,
            now,
            STEP._all_windows(40, np.random.default_rng(seed)),
            np.random.default_rng(seed),
        )
    Placement.make(problem, found.device, found.priority)  # raises where it may not be
    edges = problem.graph.edges
    assert (found.priority[edges.src] < found.priority[edges.dst]).all()
    assert found.seconds <= now.seconds


def test_windows_are_all_ops_once():
    for seed in range(5):
        pairs = sorted(STEP._all_windows(103, np.random.default_rng(seed)))
        assert [v for begin, end in pairs for v in range(begin, end)] == list(range(103))
        assert max(end - begin for begin, end in pairs) <= STEP.ops


@pytest.mark.parametrize("at_once", [1, 3])
def test_a_placement_becomes_better_the_same_for_equal_seeds(monkeypatch, at_once):
    monkeypatch.setattr(windows, "_ONE_BY_ONE", PROBLEM.num_ops // at_once)
    rows = [improved(PROBLEM, seed=seed).found.plain() for seed in (1, 1, 2)]
    assert rows[0] == rows[1] != rows[2]
    with WorkConserving().open(PROBLEM) as session:
        start = start_of(PROBLEM)
        before_s = session.measure(start.device[None], start.priority[None]).seconds[0, 0]
    assert rows[0]["seconds"] < 0.9 * before_s
    assert rows[0]["source"] == "given, windows"


def test_no_more_is_executed_than_asked_for():
    assert improved(PROBLEM, evaluations=3).evaluations == 1 + 3
    assert improved(PROBLEM, evaluations=20).evaluations == 1 + STEP.at_most
    assert improved(PROBLEM, evaluations=5, noise=0.1).evaluations == 2 + 4


def test_what_does_not_fit_is_not_kept():
    problem = with_less_memory(random_problem(5, num_ops=39, num_devices=4), 0.4)
    best = improved(problem)
    with WorkConserving().open(problem) as session:
        found = best.placement
        assert found is not None
        assert session.measure(found.device[None], found.priority[None]).feasible[0]


def test_without_a_placement_or_a_simulator_that_keeps_orders_nothing_is_done():
    with WorkConserving().open(PROBLEM) as session:
        best = Evaluator(session=session, confirmations=0, seed=0)
        STEP.search(best, 8, np.random.default_rng(0))
        assert best.evaluations == 0
    assert improved(PROBLEM, queue="fifo").evaluations == 1
    for opened in (
        _ToldSession(WorkConserving().open(PROBLEM)),
        MODES["offload"].applied(WorkConserving()).open(PROBLEM),
    ):
        with opened as session:
            best = Evaluator(session=session, confirmations=0, seed=0)
            best.confirm(start_of(PROBLEM))
            STEP.search(best, 8, np.random.default_rng(0))
            assert best.evaluations == 1


def test_searches_of_large_graphs_have_windows_before_their_last_step(monkeypatch):
    anneal = AnnealFromBest(hot=0.1, cold=0.1)
    before = PlaceOnce(baseline=HEFT(evaluations=1), share=0.5)
    assert AnnealWindows.within([before, anneal], PROBLEM) == [before, anneal]
    monkeypatch.setattr(windows, "_LEAST_OPS", 100)
    assert AnnealWindows.within([before, anneal], PROBLEM) == [before, AnnealWindows(), anneal]
    for alone in ([anneal], [before, before], [replace(before, share=0.7), anneal]):
        assert AnnealWindows.within(alone, PROBLEM) == alone
    placed = doppler.place(PROBLEM.graph, cluster="h100x8", evaluations=40)
    assert placed.evaluations == 40
