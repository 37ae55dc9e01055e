"""Episodes that return to a good one: what they repeat, where they are free, what counts."""

from dataclasses import replace

import numpy as np
import torch
from new_weights import unlike_new
from problems import cluster_of, graph_of, random_problem

from doppler.env import make_view
from doppler.env.merging import with_room
from doppler.policies import DualPolicy, Returns
from doppler.problem import build

SMALL = {"sel_hidden": 8, "plc_hidden": 8, "hidden": 8, "rounds": 1, "pairs": 4}


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def a_policy() -> DualPolicy:
    torch.manual_seed(0)
    return unlike_new(DualPolicy(**SMALL), 0.1)


def returned(windows, seed: int = 0):
    """The episode that is returned to, and those that return, one for each window."""
    view = make_view(random_problem(seed, num_ops=25, num_devices=4, costs="distinct"))
    first = a_policy().rollout(view, 1, None, generator(seed))
    arguments = view, first.op[0], first.device[0], np.array(windows), generator(seed + 1)
    return view, first, a_policy().return_to(*arguments)


def test_an_episode_that_is_free_nowhere_repeats_all_and_decides_nothing():
    view, first, again = returned([[25, 25], [3, 3]])
    for b in range(2):
        np.testing.assert_array_equal(again.op[b], first.op[0])
        np.testing.assert_array_equal(again.device[b], first.device[0])
    log_prob_B, entropy_B = a_policy().log_prob(view, again)
    assert not log_prob_B.any() and not entropy_B.any()


def test_outside_of_the_window_devices_and_order_are_repeated():
    windows = [[first, first + length] for first in range(20) for length in (1, 3, 8)]
    for seed in range(3):
        _, first, again = returned(windows, seed)
        rank_V = np.argsort(first.op[0])
        device_V = first.device[0][rank_V]
        num_changed = 0
        for (low, high), op_V, device_of_T in zip(windows, again.op, again.device, strict=True):
            ranks = rank_V[op_V]
            is_free = (low <= ranks) & (ranks < high)
            assert (np.diff(ranks[~is_free]) > 0).all()
            np.testing.assert_array_equal(device_of_T[~is_free], device_V[op_V[~is_free]])
            num_changed += (device_of_T != device_V[op_V]).any()
        assert num_changed > len(windows) / 2, "what is known is not played again and again"


def test_only_what_was_played_anew_counts_and_learns():
    view, _, again = returned([[0, 25], [5, 12]])
    policy = a_policy()
    log_prob_B, entropy_B = policy.log_prob(view, again)
    whole = policy.log_prob(view, policy.follow(view, again.op, again.device))
    torch.testing.assert_close(log_prob_B[0], whole[0][0])
    assert whole[0][1] < log_prob_B[1] < 0 < entropy_B[1] < whole[1][1]
    np.testing.assert_allclose(log_prob_B.detach().numpy(), again.log_prob, atol=1e-4)
    num_candidates_BS = np.diff(again.record.candidate_ptr, axis=1)
    has_choice_BS = (num_candidates_BS > 1) | (again.record.device_mask.sum(axis=2) > 1)
    assert not has_choice_BS[1, :5].any() and not has_choice_BS[1, 12:].any()
    assert has_choice_BS[1, 5:12].all()


def test_the_policy_decides_where_a_device_has_no_room_left():
    # 3 reads all that 0, 1 and 2 make: three times 8 bytes, of which a device has room for two.
    graph = graph_of([1, 1, 1, 1], [(0, 3, 8), (1, 3, 8), (2, 3, 8)])
    problem = build(graph, cluster_of([1.0, 1.0], memory_bytes=25.5))
    arrays = problem.arrays._replace(memory_bytes=np.full(2, 20.0))  # as if others were there
    view = make_view(replace(problem, arrays=arrays))
    all_on_one = np.arange(4), np.zeros(4, np.int64), np.full((3, 2), 4)
    for share, num_devices in ((np.inf, 1), (1.0, 2)):
        again = a_policy().return_to(with_room(view, share), *all_on_one, generator())
        assert {len(set(device_V)) for device_V in again.device.tolist()} == {num_devices}


def test_the_dual_policy_returns():
    assert isinstance(a_policy(), Returns)
