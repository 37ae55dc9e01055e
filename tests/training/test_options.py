"""Options of the policy gradient: what they cost, what longer training makes of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainings import LEARNING

from doppler.support.errors import InputError
from doppler.training import ReinforcementOptions


def learning(**changes) -> ReinforcementOptions:
    return ReinforcementOptions(**{**LEARNING, **changes})


@given(st.integers(2, 40), st.floats(0, 1), st.floats(0, 1))
def test_no_episode_is_compared_with_itself_alone(batch_episodes, share, done):
    options = learning(batch_episodes=batch_episodes, returning_share=share)
    returning = options.num_returning(done)
    assert 0 <= returning <= share * done * batch_episodes
    assert batch_episodes - returning >= 2
    assert options.num_returning(0.0) == 0


def test_episodes_that_return_become_more():
    options = learning(batch_episodes=8, returning_share=0.75)
    assert [options.num_returning(done) for done in (0.0, 0.25, 0.5, 1.0)] == [0, 1, 3, 6]


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 5000),
    st.integers(1, 100),
    st.integers(1, 50),
    st.integers(0, 9),
    st.integers(0, 5),
)
def test_the_budget_is_kept_and_used_up_to_less_than_one_more_update(
    evaluations, batch_episodes, try_every, beside, confirmations
):
    def used(num_updates: int) -> int:
        """Episodes, a greedy one before every try_every-th update and one at the end."""
        greedy = sum(1 for update in range(num_updates) if update % try_every == 0) + 1
        grouped = 2 * beside * min(num_updates, 7)
        confirmed = num_updates * confirmations
        return num_updates * batch_episodes + confirmed + grouped + greedy * max(1, confirmations)

    options = learning(
        **{"batch_episodes": batch_episodes, "try_every": try_every, "extra_candidates": beside},
        **{"advantage": "running_mean", "tuned_updates": 7},
    )
    num_updates = options.updates_within(evaluations, confirmations)
    assert used(num_updates + 1) > evaluations
    executed = options.evaluations(num_updates, confirmations)
    assert executed == (used(num_updates) if num_updates else 0) <= evaluations


@pytest.mark.parametrize(
    ("tuned_updates", "rate", "entropy"),
    [(None, 1.0, 0.5), (200, 1.0, 0.5), (50, 1 / np.sqrt(2), 1.0), (1, 0.1, 1.5)],
)
def test_longer_training_learns_slower_and_explores_more(tuned_updates, rate, entropy):
    given = learning(learning_rate=[1.0, 0.1], entropy=0.5, tuned_updates=tuned_updates)
    tuned = given.tuned_for(100)
    assert tuned.learning_rate == pytest.approx((rate, 0.1 * rate))
    assert tuned.entropy == pytest.approx(entropy)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("exploration", -0.1, "must be a number from 0 to 1 or null, got -0.1"),
        ("tuned_updates", 0, "must be a whole number of at least 1 or null, got 0"),
        ("try_every", 0, "must be a whole number of at least 1, got 0"),
        ("batch_problems", 0, "must be a whole number of at least 1"),
        ("extra_candidates", -1, "must be a whole number of at least 0"),
        ("extra_candidates", 1.5, "must be a whole number of at least 0, got 1.5"),
        ("batch_episodes", True, "must be a whole number of at least 1, got True"),
        ("batch_episodes", 10**7, "must be at most 1,000,000, got 10000000"),
        ("merged_share", -1, "must be a number from 0 to 1"),
        ("network_rate", float("nan"), "must be a number of at least 0, got nan"),
        ("entropy", "much", "must be a number of at least 0, got 'much'"),
        ("learning_rate", [1e-3, -1], r"must be two numbers of at least 0, \[first, last\], got"),
        ("learning_rate", 1e-3, r"must be two numbers of at least 0, \[first, last\], got 0.001"),
        ("learning_rate", [1e-3], "must be two numbers of at least 0"),
        ("learning_rate", "ab", "must be two numbers of at least 0"),
        ("advantage", "median", "must be one of batch, running_mean, got 'median'"),
    ],
)
def test_what_training_cannot_do_is_refused_by_name(key, value, message):
    with pytest.raises(InputError, match=rf"^ReinforcementOptions\.{key}: {message}"):
        learning(**{key: value})


def test_a_batch_of_one_has_no_advantage():
    with pytest.raises(InputError, match=r"batch_episodes: advantage=batch needs two, got 1$"):
        learning(batch_episodes=1)
