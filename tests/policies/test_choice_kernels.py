"""How one choice is drawn, and its log-probability, against plain numpy."""

import numpy as np
import plain_draws
import pytest
from scipy.special import log_softmax

from doppler.policies.choice_kernels import SAMPLE, choose, log_prob_of


def plain_choice(logits, allowed, explore: float, seed: int, draw: int) -> int:
    """Sample from the softmax, or take the best unless a uniform choice is drawn."""
    open_ones = np.flatnonzero(allowed)
    best = int(open_ones[np.argmax(logits[open_ones])])
    first, second = (plain_draws.uniform(seed, 2 * draw + i) for i in range(2))
    if explore == SAMPLE:
        weights = np.exp(logits[open_ones] - logits[best])
        return int(open_ones[np.argmax(weights.cumsum() > first * weights.sum())])
    if first < explore:
        return int(open_ones[int(second * len(open_ones))])
    return best


@pytest.mark.parametrize("explore", [SAMPLE, 0.0, 0.4, 1.0])
def test_choices_are_those_of_plain_numpy(explore):
    for seed in range(300):
        rng = np.random.default_rng(seed)
        num = int(rng.integers(1, 9))
        logits = rng.choice([rng.normal(size=num), np.round(rng.normal(size=num))])
        allowed = (rng.random(num) < 0.7).astype(np.int64)
        allowed[rng.integers(num)] = 1
        found = choose(logits, allowed, num, explore, seed, 3)
        assert found == plain_choice(logits, allowed, explore, seed, 3)


def test_log_probabilities_are_those_of_a_masked_softmax():
    for seed in range(100):
        rng = np.random.default_rng(seed)
        num = int(rng.integers(1, 9))
        logits, allowed = 10.0 * rng.normal(size=num), (rng.random(num) < 0.7).astype(np.int64)
        allowed[index := int(rng.integers(num))] = 1
        expected = log_softmax(np.where(allowed == 1, logits, -np.inf))[index]
        assert log_prob_of(logits, allowed, num, index) == pytest.approx(expected, abs=1e-12)
