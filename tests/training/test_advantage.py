"""How much less an episode cost than was to be expected."""

import numpy as np
import pytest

from doppler.training.advantage import (
    NO_HISTORY,
    CostHistory,
    batch_advantage,
    running_mean_advantage,
)


def batch(costs: list[float], lacks: list[float] | None = None) -> np.ndarray:
    return batch_advantage(np.array(costs), np.array(lacks or [0.0] * len(costs)))


def running(costs: list[float], history: CostHistory) -> np.ndarray:
    return running_mean_advantage(np.array(costs), np.zeros(len(costs)), history)


# --- Within a batch -------------------------------------------------------------------------------


def test_the_advantage_is_the_distance_below_the_mean_in_standard_deviations():
    # Mean 5, deviations -3, -1, 1, 3: standard deviation sqrt(5).
    advantage = batch([2.0, 4.0, 6.0, 8.0])
    assert advantage.tolist() == pytest.approx([3 / 5**0.5, 1 / 5**0.5, -1 / 5**0.5, -3 / 5**0.5])


def test_an_infeasible_episode_counts_as_the_worst_and_the_spread_more():
    # Feasible costs 2 to 4: the infeasible one counts 6.
    advantage = batch([2.0, np.inf, 4.0])
    deviation = (8 / 3) ** 0.5
    assert advantage.tolist() == pytest.approx([2 / deviation, -2 / deviation, 0])


def test_among_equal_feasible_costs_an_infeasible_one_counts_a_tenth_more():
    assert batch([5.0, np.inf]).tolist() == pytest.approx([1, -1])
    three = batch([5.0, 5.0, np.inf])
    assert three.tolist() == pytest.approx([0.5**0.5, 0.5**0.5, -(2**0.5)])


@pytest.mark.parametrize("costs", [[3.0, 3.0], [np.inf, np.inf], [0.0, 0.0], [7.0], [0.1 * 3, 0.3]])
def test_where_nothing_is_better_than_anything_else_there_is_no_advantage(costs):
    assert batch(costs).tolist() == [0.0] * len(costs)


def test_the_advantage_does_not_depend_on_the_unit_of_time():
    seconds, nanoseconds = ([unit * cost for cost in (1.0, 5.0, np.inf, 2.0)] for unit in (1, 1e-9))
    np.testing.assert_allclose(batch(seconds), batch(nanoseconds))


def test_the_more_memory_an_episode_lacks_the_worse_it_is():
    # Feasible costs 2 to 4: the others count 4 + 2 * 1.5 and 4 + 2 * 1.25.
    expected = batch([2.0, 7.0, 4.0, 6.5])
    np.testing.assert_allclose(batch([2.0, np.inf, 4.0, np.inf], [0, 0.5, 0, 0.25]), expected)


def test_where_nothing_fits_what_lacks_least_is_best():
    np.testing.assert_allclose(batch([np.inf] * 3, [0.1, 0.5, 0.3]), batch([0.1, 0.5, 0.3]))


# --- Against the running mean ---------------------------------------------------------------------


def test_the_past_counts_feasible_episodes():
    history = NO_HISTORY.with_batch(np.array([2.0, np.inf])).with_batch(np.array([4.0, 6.0]))
    assert history == CostHistory(3, 12.0)


def test_the_running_mean_is_over_all_episodes_so_far_this_batch_included():
    # Two episodes of 10 s in all, then 2 s and 8 s: the mean is 5.
    advantage = running([2.0, 8.0], CostHistory(2, 10.0))
    assert advantage.tolist() == pytest.approx([0.6, -0.6])


def test_against_the_running_mean_the_first_episode_is_as_expected():
    assert running([3.0], NO_HISTORY).tolist() == [0.0]


def test_against_the_running_mean_an_infeasible_episode_counts_twice_the_mean():
    assert running([np.inf], CostHistory(1, 4.0)).tolist() == [-1.0]
    # 4 s, then 1 s and one that is infeasible: the mean is 2.5.
    advantage = running([1.0, np.inf], CostHistory(1, 4.0))
    assert advantage.tolist() == pytest.approx([0.6, -1.0])


def test_against_no_feasible_past_and_against_free_ops_there_is_no_advantage():
    assert running([np.inf], NO_HISTORY).tolist() == [0.0]
    assert running([0.0], CostHistory(3, 0.0)).tolist() == [0.0]
