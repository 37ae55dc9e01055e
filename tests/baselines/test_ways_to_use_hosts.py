"""List schedulers on several hosts: ops confined to hosts, and what that finds."""

from dataclasses import replace

import numpy as np
import pytest
from problems import graph_of, hosted_problem, random_problem

import doppler
from doppler.baselines import ETF, HEFT, Clustering, Judge, QueuedETF
from doppler.baselines.hosts import confined, num_ways, using_hosts
from doppler.cluster import preset
from doppler.env import make_view, mergings
from doppler.graph import synthetic
from doppler.problem import Problem, build, topological_priority
from doppler.search import (
    AnnealFromBest,
    Combined,
    Evaluator,
    GreedyEpisode,
    KeepToHosts,
    load_policy,
)
from doppler.simulator import WorkConserving


@pytest.mark.parametrize("seed", range(10))
def test_stages_are_in_topological_order_and_share_the_work(seed):
    problem = hosted_problem(seed)
    none = problem.arrays._replace(
        input_ptr=np.zeros(1, np.int64),
        input_consumers=np.zeros(0, np.int64),
        input_bytes=np.zeros(0),
    )
    problem = replace(problem, arrays=none)
    host_D, work_V = np.array(problem.cluster.hosts), problem.mean_op_seconds
    order_V = np.argsort(topological_priority(problem))
    for stages in range(1, problem.cluster.num_hosts + 1):
        able_VD = np.isfinite(confined(problem, stages).arrays.op_seconds)
        was_VD = np.isfinite(problem.arrays.op_seconds)
        assert able_VD.any(axis=1).all()
        assert not (able_VD & ~was_VD).any()
        done_s = 0.0
        for v in order_V:
            centre = (done_s + work_V[v] / 2) / work_V.sum()
            done_s += work_V[v]
            here_D = was_VD[v] & (host_D == min(int(centre * stages), stages - 1))
            if problem.arrays.group[v] == v and not problem.has_groups:
                expected_D = here_D if here_D.any() else was_VD[v]
                assert (able_VD[v] == expected_D).all()


def training_step(num_layers: int) -> Problem:
    """Layers forward, then back, each reads its weights twice; all read one table of angles.

    Op 2 l is the layer's, op 2 l + 1 adds what came into it; then the same back, and updates.
    """
    forward, back = np.arange(2 * num_layers), 2 * num_layers + np.arange(2 * num_layers)
    edges = [(v, v + 1, 4.0) for v in range(4 * num_layers - 1)]
    edges += [(v - 1, v + 1, 4.0) for v in range(2, 2 * num_layers, 2)]  # beside each layer
    update = 4 * num_layers + np.arange(num_layers)
    weights = []
    for layer in range(num_layers):
        backward = int(back[2 * (num_layers - 1 - layer)])
        edges += [(backward, int(update[layer]), 4.0), (int(forward[2 * layer]), backward, 4.0)]
        weights.append((1e6, [int(forward[2 * layer]), backward, int(update[layer])]))
    table = (2e6, list(range(4 * num_layers)))
    return build(
        graph_of([1.0] * 5 * num_layers, edges, inputs=[table, *weights]),
        preset(name="dgx_h100x32"),
    )


def stages_of(problem: Problem, num_stages: int) -> np.ndarray:
    able_VD = np.isfinite(confined(problem, num_stages).arrays.op_seconds)
    host_D = np.array(problem.cluster.hosts)
    assert (able_VD == (host_D == host_D[able_VD.argmax(axis=1)][:, None])).all()
    return host_D[able_VD.argmax(axis=1)]


@pytest.mark.parametrize("num_stages", [2, 4])
def test_in_training_the_backward_pass_goes_where_the_weights_are(num_stages):
    num_layers = 8
    stage_V = stages_of(training_step(num_layers), num_stages)
    layer_V = np.repeat(np.arange(num_layers), 2)
    expected_V = num_stages * layer_V // num_layers
    assert stage_V[: 2 * num_layers].tolist() == expected_V.tolist(), "in turn, residuals too"
    assert stage_V[2 * num_layers : 4 * num_layers].tolist() == expected_V[::-1].tolist()
    assert stage_V[4 * num_layers :].tolist() == expected_V[::2].tolist(), "updates"


def test_stages_by_inputs_that_are_uneven_are_not_taken():
    even = training_step(8)
    seconds_VD = even.arrays.op_seconds.copy()
    seconds_VD[0] *= 100.0  # a layer that takes longer than all others
    uneven = replace(even, arrays=even.arrays._replace(op_seconds=seconds_VD))
    rank_V = topological_priority(even)
    for problem, by_inputs in ((even, True), (uneven, False)):
        in_order = stages_of(problem, 2)[np.argsort(rank_V)]
        assert (np.diff(in_order) < 0).any() == by_inputs, "by work one host after the other"


def test_groups_stay_together_where_they_may_run():
    plain = hosted_problem(3)
    groups = np.arange(plain.num_ops) // 4
    ops = replace(plain.graph.ops, group=groups)
    problem = build(replace(plain.graph, ops=ops), plain.cluster)
    assert plain.num_ops > 8 and num_ways(problem) > 2
    for way in range(num_ways(problem)):
        found = HEFT(evaluations=2).draw(using_hosts(problem, way), 2, np.random.default_rng(0))
        assert problem.allows(found[0]).all()
        for device_V in found[0]:
            assert all(len(set(device_V[groups == group])) == 1 for group in groups)


@pytest.mark.parametrize("method", [HEFT, ETF, QueuedETF])
def test_the_first_run_is_free_and_others_are_confined(method):
    graph = synthetic(family="layered", num_ops=120, transfer_ratio=2.0, seed=1)
    problem = build(graph, preset(name="dgx_h100x16"))
    ways = num_ways(problem)
    device_BV, priority_BV = method(evaluations=1).draw(problem, 2 * ways, np.random.default_rng(0))
    host_BV = np.array(problem.cluster.hosts)[device_BV]
    assert (np.sort(priority_BV, axis=1) == np.arange(problem.num_ops)).all()
    assert (host_BV[[1, 1 + ways]] == 0).all()
    is_first_V = np.isfinite(confined(problem, 2).arrays.op_seconds[:, 0])
    assert (host_BV[[2, 2 + ways]] == np.where(is_first_V, 0, 1)).all()
    free = method(evaluations=1).schedule(problem, 1, np.random.default_rng(0)).placements()
    assert (method(evaluations=1).draw(problem, 1, np.random.default_rng(0))[0] == free[0]).all()


def test_one_host_has_one_way():
    assert num_ways(random_problem(0, num_ops=10, num_devices=3)) == 1


def test_a_judge_sees_that_one_host_is_enough():
    graph = synthetic(family="layered", num_ops=200, transfer_ratio=20.0, seed=2)
    problem = build(graph, preset(name="ethernet_4x1"))
    with WorkConserving().open(problem) as session:
        alone = Clustering(evaluations=1).place(session, np.random.default_rng(0)).makespan_s
        one_host = HEFT(evaluations=1).draw(confined(problem, 1), 1, np.random.default_rng(0))
        one_host_s = session.measure(*one_host).seconds[0, 0]
    judged_s = Judge(baseline=Clustering(evaluations=1), system=WorkConserving())(problem)
    assert judged_s <= one_host_s < alone


def test_the_ways_to_use_hosts_are_free_one_all_and_what_is_between():
    problem = build(
        synthetic(family="layered", num_ops=90, transfer_ratio=0.1, seed=3),
        preset(name="dgx_h100x32"),
    )
    host_D = np.array(problem.cluster.hosts)
    used = []
    for way in range(num_ways(problem)):
        able_VD = np.isfinite(using_hosts(problem, way).arrays.op_seconds)
        used.append(len(set(host_D[able_VD.any(axis=0)].tolist())))
    assert used == [4, 1, 4, 3, 2]


def test_searches_begin_with_hosts_where_there_are_several():
    graph = synthetic(family="layered", num_ops=150, transfer_ratio=20.0, seed=2)
    cluster = preset(name="ethernet_4x1")
    problem = build(graph, cluster)
    heft = HEFT(evaluations=num_ways(problem))
    with WorkConserving().open(problem) as session:
        expected_s = heft.place(session, np.random.default_rng(0)).makespan_s
        free_s = HEFT(evaluations=1).place(session, np.random.default_rng(0)).makespan_s
    placed = doppler.place(graph, cluster=cluster, evaluations=60, method="annealing_order")
    assert placed.makespan_s <= expected_s < free_s


def test_no_more_is_executed_than_allowed_and_shares_are_kept():
    anneal = AnnealFromBest(hot=0.1, cold=0.1)
    several = build(
        synthetic(family="layered", num_ops=60, transfer_ratio=1.0, seed=2),
        preset(name="dgx_h100x16"),
    )
    for evaluations in (1, 2, 19, 20, 40):
        with WorkConserving().open(several) as session:
            baseline = Combined(evaluations=evaluations, confirmations=4, steps=[anneal])
            baseline.place(session, np.random.default_rng(0))
            assert session.evaluations == evaluations
    full = [AnnealFromBest(hot=0.1, cold=0.1, share=0.95)]
    assert KeepToHosts.before(full, several) == full
    assert len(KeepToHosts.before([anneal], several)) == 2
    one = random_problem(0, num_ops=10, num_devices=3)
    assert KeepToHosts.before([anneal], one) == [anneal]


def test_a_policy_places_for_each_way_to_use_hosts():
    graph = synthetic(family="stencil", num_ops=120, transfer_ratio=3.0, seed=1)
    problem, policy = build(graph, preset(name="dgx_h100x16")), load_policy()
    view = make_view(problem)
    told = GreedyEpisode.of(policy, view)
    first = mergings(view)
    for one, expected in zip(told.views, first, strict=False):
        np.testing.assert_array_equal(one.arrays.group, expected.arrays.group)
    hosts = np.array(problem.cluster.hosts)
    rng = np.random.default_rng(0)
    others = [policy.rollout(one, 1, 0.0, rng).placements()[0] for one in told.views[len(first) :]]
    assert {len(set(hosts[device_BV[0]])) for device_BV in others} == {1, 2}

    def found_s(step: GreedyEpisode) -> float:
        with WorkConserving().open(problem) as session:
            best = Evaluator(session=session, confirmations=0, seed=0)
            step.search(best, 1, np.random.default_rng(0))
            assert best.evaluations == session.evaluations == 1
        return best.seconds

    assert found_s(told) < 0.9 * found_s(GreedyEpisode(policy=policy, views=first))
    alone = make_view(build(graph, preset(name="h100x8")))
    assert len(GreedyEpisode.of(policy, alone).views) == len(mergings(alone))
