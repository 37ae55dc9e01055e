"""Episodes that return to a good one: what they repeat, where they are free, what counts."""

import numpy as np
import torch
from new_weights import unlike_new
from problems import random_problem

from doppler.env import make_view
from doppler.policies import DualPolicy, Returns

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
    assert again.record.own.sum(axis=1).tolist() == [25, 7]


def test_the_dual_policy_returns():
    assert isinstance(a_policy(), Returns)
