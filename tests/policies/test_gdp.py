"""GDP: one pass for all ops, memory of one segment, and what tells ops and devices apart."""

import numpy as np
import pytest
import torch
from problems import cluster_of, graph_of, random_problem

from doppler.env import make_view
from doppler.policies import GDP
from doppler.problem import Problem, build
from doppler.support.errors import InputError

SIZES = {"hidden": 8, "rounds": 2, "layers": 2, "heads": 2, "segment": 4, "max_devices": 8}


def make_policy(seed: int = 0, **changes) -> GDP:
    torch.manual_seed(seed)
    policy = GDP(**{**SIZES, "positions": True, **changes})
    with torch.no_grad():
        policy.score.weight.mul_(20.0)
    return policy


def device_log_prob(policy: GDP, view) -> np.ndarray:
    """Log-probability [V, D] of each step's device, by following one episode per device."""
    num_ops, num_devices = view.problem.num_ops, view.problem.num_devices
    device_BV = np.repeat(np.arange(num_devices)[:, None], num_ops, axis=1)
    decisions = policy.decisions(view, device_BV, np.zeros(num_devices))
    with torch.no_grad():
        together = policy.log_prob(view, decisions)[0].numpy()
        log_prob_VD = policy._distributions(view, policy.choices(view))[0].numpy()
    np.testing.assert_allclose(log_prob_VD.sum(axis=0), together, atol=1e-4)
    return log_prob_VD


def blocks(num: int) -> Problem:
    """The same pair of ops several times over, on two devices of unequal speed."""
    edges = [(2 * i, 2 * i + 1, 4.0) for i in range(num)]
    return build(graph_of([1.0, 2.0] * num, edges), cluster_of([1.0, 2.0]))


def test_equal_ops_are_only_told_apart_by_their_positions():
    view = make_view(blocks(6))
    order_V = make_policy().order(view)
    apart = device_log_prob(make_policy(positions=True), view)
    alike = device_log_prob(make_policy(positions=False, segment=12), view)
    for kind in (0, 1):
        steps = np.flatnonzero(order_V % 2 == kind)
        assert np.ptp(alike[steps], axis=0).max() < 1e-4
        assert np.ptp(apart[steps], axis=0).max() > 1e-2
    assert np.ptp(alike, axis=0).max() > 1e-2, "unequal ops do differ"


def test_ops_attend_to_their_own_segment_and_the_one_before():
    """Eight ops without edges, two a segment, one layer: what may an op's features change?"""
    problem = build(graph_of([8, 7, 6, 5, 4, 3, 2, 1]), cluster_of([1.0, 2.0]))
    policy = make_policy(layers=1, segment=2)
    torch.manual_seed(1)
    h_VH = torch.randn(problem.num_ops, 8)
    with torch.no_grad():
        before_VH = policy._attend(h_VH, torch.zeros_like(h_VH))
        h_VH[3] += 1.0  # in the second segment
        changed_V = (policy._attend(h_VH, torch.zeros_like(h_VH)) != before_VH).any(dim=1)
    assert changed_V.tolist() == [False, False, True, True, True, True, False, False]


def test_memory_is_a_constant():
    policy = make_policy(layers=1, segment=2)
    h_VH = torch.randn(4, 8, requires_grad=True)
    policy._attend(h_VH, torch.zeros(4, 8))[2:].sum().backward()
    assert h_VH.grad is not None
    assert h_VH.grad[:2].abs().max() == 0.0
    assert h_VH.grad[2:].abs().max() > 0.0


def test_episodes_that_differ_by_the_names_of_identical_devices_teach_the_same():
    problem = random_problem(6, num_ops=8, num_devices=4, identical_devices=True)
    view, policy = make_view(problem), make_policy()
    op_V = policy.order(view)
    device_BV = np.array([[0, 1, 1, 2, 0, 3, 3, 0], [2, 3, 3, 0, 2, 1, 1, 2]])
    followed = policy.follow(view, np.stack([op_V, op_V]), device_BV)
    assert followed.device.tolist() == [device_BV[0].tolist()] * 2
    assert followed.log_prob[0] == followed.log_prob[1]


def test_devices_that_differ_keep_their_names():
    problem = build(graph_of([1] * 4), cluster_of([1.0, 2.0, 1.0, 2.0]))
    view, policy = make_view(problem), make_policy()
    # 0 and 2 are alike, 1 and 3 are; the second of a pair is used first, or alone.
    device_BV = np.array([[2, 0, 3, 3], [1, 3, 0, 2]])
    op_BV = np.tile(policy.order(view), (2, 1))
    assert policy.follow(view, op_BV, device_BV).device.tolist() == [[0, 2, 1, 1], [1, 3, 0, 2]]


def test_a_segment_that_holds_all_ops_is_as_good_as_a_longer_one():
    problem = random_problem(1, num_ops=20, num_devices=3)
    view = make_view(problem)
    whole, parts = make_policy(segment=20), make_policy(segment=5)
    assert not np.allclose(device_log_prob(whole, view), device_log_prob(parts, view), atol=1e-3)
    longer = make_policy(segment=64)
    np.testing.assert_allclose(
        device_log_prob(whole, view), device_log_prob(longer, view), atol=1e-5
    )


def test_more_devices_than_outputs_are_refused():
    view = make_view(build(graph_of([1.0]), cluster_of([1.0] * 9)))
    with pytest.raises(InputError, match=r"policy.build.max_devices: 8, the cluster has 9"):
        make_policy().rollout(view, 1, None, np.random.default_rng(0))


@pytest.mark.parametrize("key", sorted(SIZES))
def test_sizes_below_one_are_refused(key):
    with pytest.raises(
        InputError, match=rf"^GDP.{key}: must be a whole number of at least 1, got 0"
    ):
        make_policy(**{key: 0})


def test_the_width_must_suit_the_heads():
    with pytest.raises(InputError, match=r"policy.build.hidden: 6 is not divisible by 2 x 2 heads"):
        make_policy(hidden=6)
