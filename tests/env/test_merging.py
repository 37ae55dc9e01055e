"""Ops that heavy edges join go to one device."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from new_weights import unlike_new
from problems import cluster_of, graph_of, random_problem

from doppler.env import (
    MANY_OPS,
    by_level,
    make_view,
    merged,
    merged_at_random,
    mergings,
    next_to,
    num_to_play,
    with_room,
    without_waiting,
)
from doppler.policies import DualPolicy
from doppler.problem import build
from doppler.support.errors import InputError


def make_policy() -> DualPolicy:
    torch.manual_seed(0)
    return unlike_new(DualPolicy(sel_hidden=4, plc_hidden=4, hidden=4, rounds=1), 0.03)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def diamond():
    """0 -> 1 -> 3 by heavy edges of 8 and 6 s, 0 -> 2 -> 3 by light ones of 2 and 1 s; and op 4."""
    edges = [(0, 1, 8), (0, 2, 2, 1), (1, 3, 6), (2, 3, 1)]
    return build(graph_of([1, 2, 3, 4, 5], edges), cluster_of([1.0] * 3))


@pytest.mark.parametrize(
    ("least", "cap", "groups"),
    [
        (9, 100, [{0}, {1}, {2}, {3}, {4}]),
        (8, 100, [{0, 1}, {2}, {3}, {4}]),
        (6, 100, [{0, 1, 3}, {2}, {4}]),
        (0, 100, [{0, 1, 2, 3}, {4}]),
        (6, 6.9, [{0, 1}, {2}, {3}, {4}]),  # 3 s and 4 s are too much
        (0, 6.9, [{0, 1, 2}, {3}, {4}]),  # but 3 s and 3 s are not
        (0, 2.9, [{0}, {1}, {2}, {3}, {4}]),
    ],
)
def test_edges_join_their_ends_from_the_heaviest_down_under_the_cap(least, cap, groups):
    view = merged(make_view(diamond()), least_weight_s=least, cap_s=cap)
    found: dict[int, set[int]] = {}
    for v, root in enumerate(view.arrays.group.tolist()):
        found.setdefault(root, set()).add(v)
    assert sorted(found.values(), key=min) == groups
    assert all(root in ops for root, ops in found.items())


def test_no_group_is_more_than_one_device_can_run():
    cluster = cluster_of([1.0, 1.0], unsupported_kinds=[["a"], ["b"]])
    problem = build(graph_of([1, 1, 1], [(0, 1, 9), (1, 2, 9)], kinds=["a", "b", "b"]), cluster)
    view = merged(make_view(problem), least_weight_s=0.0, cap_s=100.0)
    assert view.arrays.group.tolist()[0] == 0
    assert view.arrays.group[1] == view.arrays.group[2] != 0


@pytest.mark.parametrize("explore", [None, 0.0, 1.0])
def test_episodes_of_a_merged_view_keep_groups_together(explore):
    apart = 0
    for seed in range(5):
        view = make_view(random_problem(seed, num_ops=25, num_devices=4, costs="distinct"))
        policy, group_V = make_policy(), merged_at_random(view, generator(seed)).arrays.group
        seen = merged_at_random(view, generator(seed))
        device_BV, _ = policy.rollout(seen, 5, explore, generator(seed)).placements()
        assert (device_BV == device_BV[:, group_V]).all()
        device_BV, _ = policy.rollout(view, 5, explore, generator(seed)).placements()
        apart += int((device_BV != device_BV[:, group_V]).sum())
    assert apart > 0, "unmerged ones would have done the same"


def test_a_merged_view_is_replayed_as_it_was_played_and_follows_no_decision_that_splits_a_group():
    view = make_view(diamond())
    whole = merged(view, least_weight_s=6.0, cap_s=100.0)
    policy = make_policy()
    played = policy.rollout(whole, 4, None, generator())
    with torch.no_grad():
        log_prob_B, _ = policy.log_prob(whole, played)
    np.testing.assert_allclose(log_prob_B.numpy(), played.log_prob, atol=1e-4)
    assert (played.log_prob > policy.follow(view, played.op, played.device).log_prob).all()
    op_BV, split_BV = np.array([[0, 1, 2, 3, 4]]), np.array([[0, 1, 0, 0, 0]])
    policy.follow(view, op_BV, split_BV)
    with pytest.raises(InputError, match="decisions of episode 0"):
        policy.follow(whole, op_BV, split_BV)


def test_random_merging_is_sometimes_none_and_sometimes_all_that_the_cap_allows():
    problem = diamond()
    view = make_view(problem)
    numbers = {len(set(merged_at_random(view, generator(s)).arrays.group)) for s in range(200)}
    assert {5, 4} <= numbers
    work = problem.arrays.op_seconds[:, 0]
    for seed in range(50):
        group_V = merged_at_random(view, generator(seed)).arrays.group
        for root in set(group_V.tolist()):
            ops = group_V == root
            assert ops.sum() == 1 or work[ops].sum() <= work.sum() / 3


def test_mergings_are_of_edges_that_take_several_ops_to_move_under_caps_of_several_ops():
    # Ops take 1 s each; on 2 devices 35% of a device's share are 7 ops.
    edges = [(0, 1, 9), (1, 2, 4.5), (2, 3, 4.1), (3, 4, 3.9), (4, 5, 3), (5, 6, 0.5)]
    problem = build(graph_of([1] * 40, edges), cluster_of([1.0] * 2))
    views = mergings(make_view(problem))
    assert not views[0].is_merged and not views[1].is_merged
    assert views[1].arrays.level_counts > views[0].arrays.level_counts == 1
    groups = [frozenset(np.flatnonzero(view.arrays.group == 0).tolist()) for view in views[2:]]
    assert frozenset({0, 1}) in groups, "8 ops and more"
    assert frozenset({0, 1, 2, 3}) in groups, "4 ops and more"
    assert {len(group) for group in groups} <= {2, 3, 4, 5, 6}, "the last edge is too light"
    assert len({view.arrays.group.tobytes() for view in views[1:]}) == len(views) - 1, "each once"


def test_the_more_ops_there_are_the_fewer_views_are_merged_and_played():
    num_merged, num_ops_of = {}, (100, 5000, 20_000)
    for num_ops in num_ops_of:
        edges = [(v, v + 1, 0.5 * (1 + v % 19)) for v in range(num_ops - 1)]
        view = make_view(build(graph_of([1] * num_ops, edges), cluster_of([1.0] * 4)))
        num_merged[num_ops] = sum(one.is_merged for one in mergings(view))
    assert num_merged[100] > 4 >= num_merged[5000] > num_merged[20_000] == 1
    numbers = [num_to_play(num_ops) for num_ops in (10, *num_ops_of)]
    assert numbers == sorted(numbers, reverse=True) and numbers[-1] == 0 < numbers[-2]


def test_of_many_ops_none_waits_for_one_of_a_longer_path(monkeypatch):
    # On device 1 op 2 can start at once; op 1, which is longer, waits for what device 0 makes.
    cluster = cluster_of([1.0, 1.0], unsupported_kinds=[["b"], ["a"]])

    def view_of(transfer_s):
        graph = graph_of([1, 10, 1], [(0, 1, transfer_s)], kinds=["a", "b", "b"])
        return make_view(build(graph, cluster))

    policy, view, dear = make_policy(), view_of(0.1), view_of(10.0)
    with torch.no_grad():
        policy.sel_out.weight.zero_()
        policy.sel_scheduler_weights.copy_(
            torch.tensor([-1.0, -50.0])
        )  # what can start, and b_level

    def order(seen):
        return policy.rollout(seen, 1, 0.0, generator()).op[0].tolist()

    assert view.problem.num_ops <= MANY_OPS and without_waiting(view) is view
    assert order(view) == order(mergings(view)[0]) == [0, 1, 2]
    monkeypatch.setattr("doppler.env.merging.MANY_OPS", 2)
    assert order(without_waiting(view)) == [0, 2, 1]
    assert without_waiting(dear) is dear and order(dear) == [0, 1, 2]
    views = mergings(view)
    views += [next_to(views[0], views[0], np.array([0, 1, 1]), generator(s)) for s in range(4)]
    assert [order(one) for one in views] == [[0, 2, 1]] * len(views)


def test_next_to_the_best_are_other_groups_and_pieces_of_what_is_on_its_devices():
    problem = random_problem(1, num_ops=40, num_devices=4, costs="distinct")
    view, rng = make_view(problem), generator()
    cap_s = float(problem.mean_op_seconds.sum()) / 4
    best, device_V = merged(view, least_weight_s=0.0, cap_s=cap_s), np.arange(40) % 2
    others = [next_to(view, best, device_V, rng) for _ in range(60)]
    pieces = [
        one for one in others if one.is_merged and (device_V == device_V[one.arrays.group]).all()
    ]
    assert 10 < len(pieces) < 60
    assert len({one.arrays.group.tobytes() for one in others}) > 30
    assert {one.arrays.level_counts for one in others} == {1.0, 4.0}
    near = {one.least_weight_s for one in others} | {best.least_weight_s}
    assert near == {0.0}, "from the same weight on"
    again = [next_to(view, best, device_V, rng) for rng in [generator()] for _ in range(60)]
    for one, other in zip(others, again, strict=True):
        np.testing.assert_array_equal(one.arrays.group, other.arrays.group)


def test_next_to_a_view_without_groups_some_are_merged():
    view = make_view(diamond())
    rng, device_V = generator(), np.array([0, 1, 2, 0, 1])
    others = [next_to(view, view, device_V, rng) for _ in range(60)]
    assert len({one.arrays.group.tobytes() for one in others}) > 3
    assert any(np.isfinite(one.least_weight_s) for one in others)


def test_by_level_an_op_that_can_start_later_but_is_far_from_the_end_comes_before():
    policy = make_policy()
    with torch.no_grad():
        policy.sel_out.weight.zero_()
    differ = 0
    for seed in range(10):
        view = make_view(random_problem(seed, num_ops=25, num_devices=3, costs="distinct"))
        orders = [
            policy.rollout(seen, 1, 0.0, generator()).op[0] for seen in (view, by_level(view))
        ]
        level_V, step = view.arrays.b_level, np.arange(25)
        plain, by = (float(np.corrcoef(level_V[order], step)[0, 1]) for order in orders)
        differ += int(by < plain) - int(by > plain)
    assert differ > 0


@pytest.mark.parametrize("num_devices", [3, 6])
def test_where_moving_costs_most_one_device_may_have_what_several_would_have(num_devices):
    # A chain of 12 ops, of which each device would have 4 or 2: caps of one, two and four shares.
    edges = [(v, v + 1, 9 - 0.1 * v) for v in range(11)]
    problem = build(graph_of([1] * 12, edges), cluster_of([1.0] * num_devices))
    views = mergings(make_view(problem))
    largest = {int(np.bincount(view.arrays.group).max()) for view in views if view.is_merged}
    share = 12 // num_devices
    assert {share, 2 * share, min(4 * share, 12)} <= largest


def test_mergings_do_not_depend_on_the_unit_of_time_nor_on_how_large_the_rest_of_the_graph_is():
    def labels(num_ops: int, unit: float) -> list[list[int]]:
        edges = [(v, v + 1, unit * (3 + v)) for v in range(5)]
        problem = build(graph_of([unit] * num_ops, edges), cluster_of([1.0] * 2))
        return [view.arrays.group[:6].tolist() for view in mergings(make_view(problem))]

    assert labels(100, 1.0) == labels(100, 8.0) == labels(1000, 1.0)


def test_groups_mean_nothing_to_new_weights_and_nothing_ever_to_episodes_without_them():
    view = make_view(random_problem(3, num_ops=25, num_devices=4, costs="distinct"))
    whole = merged(view, least_weight_s=0.0, cap_s=float(view.arrays.scale_s / 4))

    def log_probs(policy: DualPolicy) -> list[np.ndarray]:
        return [policy.rollout(seen, 4, None, generator()).log_prob for seen in (view, whole)]

    policy = make_policy()
    plain, of_groups = log_probs(policy)
    assert not policy.plc_group.weight.any() and not policy.sel_group.weight.any()
    with torch.no_grad():
        policy.sel_group.weight.copy_(torch.randn(4, 2))
        policy.plc_group.weight.fill_(0.3)
        policy.plc_group.weight[:, 2:] = torch.randn(4, 3)
    other_plain, other_of_groups = log_probs(policy)
    np.testing.assert_array_equal(other_plain, plain)
    assert (other_of_groups != of_groups).any()


@pytest.mark.parametrize("of_the_problem", [False, True])
def test_an_op_leaves_its_group_where_it_has_no_room_but_no_group_of_the_problem(of_the_problem):
    # 3 reads all that 0, 1 and 2 make: three times 8 bytes, of which a device has room for two.
    graph = graph_of([1, 1, 1, 1], [(0, 3, 8), (1, 3, 8), (2, 3, 8)])
    if of_the_problem:
        graph = replace(graph, ops=replace(graph.ops, group=np.zeros(4, np.int64)))
    problem = build(graph, cluster_of([1.0, 1.0], memory_bytes=25.5))
    arrays = problem.arrays._replace(memory_bytes=np.full(2, 20.0))  # as if others were there
    view = merged(make_view(replace(problem, arrays=arrays)), least_weight_s=8.0, cap_s=4.0)
    assert len(set(view.arrays.group.tolist())) == 1
    for share, num_devices in ((np.inf, 1), (1.0, 1 if of_the_problem else 2), (2.0, 1)):
        for explore in (None, 0.0):
            episodes = make_policy().rollout(with_room(view, share), 4, explore, generator())
            device_BV, _ = episodes.placements()
            used = {len(set(device_V[:3].tolist())) for device_V in device_BV}
            assert used == {num_devices}, (share, explore)
