"""Large graphs in doppler.place: what is left out, and what comes first."""

import numpy as np
from baselines.test_dealing import PARTS, blocks
from problems import cluster_of

import doppler
from doppler.api import placing
from doppler.baselines import ETF, HEFT
from doppler.cluster import preset
from doppler.env import make_view, mergings
from doppler.extensions.large import AtOnce, at_once
from doppler.graph import synthetic
from doppler.problem import build
from doppler.search import (
    AnnealFromBest,
    Budget,
    DealBlocks,
    Evaluator,
    GreedyEpisode,
    InParts,
    KeepToHosts,
    load_policy,
    steps_of,
)
from doppler.simulator import WorkConserving


def test_of_a_graph_too_large_for_the_seconds_one_list_scheduler_is_executed(monkeypatch):
    monkeypatch.setattr(placing, "_LARGE", 100)
    monkeypatch.setattr(HEFT, "most_ops", 100)
    graph = synthetic(family="layered", num_ops=150, transfer_ratio=1.0, seed=3)
    placed = doppler.place(graph, cluster="p100x4", seconds=1e-9)
    with WorkConserving().open(placed.problem) as session:
        once = ETF(evaluations=1).place(session, np.random.default_rng(0))
    assert placed.evaluations == 1 and placed.makespan_s == once.makespan_s


def test_of_many_ops_a_policy_places_once_all_that_its_search_runs_is_compiled(monkeypatch):
    monkeypatch.setattr("doppler.search.configured.MANY_OPS", 100)
    graph = synthetic(family="layered", num_ops=101, transfer_ratio=0.1, seed=3)
    placed = doppler.place(graph, cluster="p100x4", method="policy", evaluations=1)
    assert placed.evaluations == 1 and placed.speed_up > 1.0


def test_large_graphs_begin_with_what_the_policy_places_at_once(monkeypatch):
    monkeypatch.setattr(placing, "_LARGE_COUNTED", 100)
    graph = synthetic(family="layered", num_ops=150, transfer_ratio=1.0, seed=3)
    problem = build(graph, preset(name="p100x4"))
    with WorkConserving().open(problem) as session:
        best = Evaluator(session=session, confirmations=0, seed=0)
        step = GreedyEpisode(policy=load_policy(), views=mergings(make_view(problem)))
        step.search(best, 1, np.random.default_rng(0))
    placed = doppler.place(graph, cluster="p100x4", evaluations=1)
    assert placed.makespan_s == best.seconds
    assert placed.evaluations == 1
    assert doppler.place(graph, cluster="p100x4", evaluations=40).makespan_s <= best.seconds


def test_views_are_made_of_what_is_executed_alone(monkeypatch):
    monkeypatch.setattr(placing, "_LARGE_COUNTED", 100)
    graph, made = synthetic(family="layered", num_ops=150, transfer_ratio=1.0, seed=3), []
    monkeypatch.setattr(at_once, "make_view", lambda *a: made.append(a) or make_view(*a))
    for evaluations in (1, 2):
        made.clear()
        doppler.place(graph, cluster="dgx_h100x16", evaluations=evaluations)
        assert len(made) == evaluations


def test_within_seconds_a_large_graph_begins_with_list_schedulers(monkeypatch):
    for most in ("_LARGE", "_LARGE_COUNTED"):
        monkeypatch.setattr(placing, most, 100)
    graph = synthetic(family="layered", num_ops=150, transfer_ratio=1.0, seed=3)
    problem = build(graph, preset(name="dgx_h100x16"))
    steps = steps_of("auto")
    kinds = [type(step) for step in placing._automatic(steps, problem, Budget(seconds=1.0))]
    assert kinds == [KeepToHosts, InParts, *[AtOnce] * 3, AnnealFromBest]
    counted = placing._automatic(steps, problem, Budget(evaluations=9))
    assert [type(step) for step in counted[:4]] == [*[AtOnce] * 3, KeepToHosts]
    assert counted[0].way == 0, "free first, as one execution may be all there is"


def test_blocks_of_split_nodes_are_dealt_first(monkeypatch):
    problem = build(blocks(), cluster_of([1.0] * PARTS))
    for most in ("_LARGE", "_LARGE_COUNTED"):
        monkeypatch.setattr(placing, most, 50)
    for budget in (Budget(seconds=1.0), Budget(evaluations=9)):
        steps = placing._automatic(steps_of("auto"), problem, budget)
        assert isinstance(steps[0], DealBlocks)
    placed = doppler.place(problem.graph, cluster=problem.cluster, evaluations=1)
    with WorkConserving().open(problem) as session:
        best = Evaluator(session=session, confirmations=0, seed=0)
        DealBlocks().search(best, 9, np.random.default_rng(0))
    assert best.evaluations == placed.evaluations == 1
    assert placed.makespan_s == best.seconds
