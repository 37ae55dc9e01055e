"""Compiled: draws one choice among several, and computes how likely it was.

Index: i position among the choices.
"""

import numpy as np

from doppler.support.compiled import compiled
from doppler.support.compiled.draws import uniform

SAMPLE = -1.0  # instead of a probability of uniform choices: sample from the softmax


@compiled
def choose(logits, allowed, count, explore, seed, draw):
    """Draw an allowed choice from the softmax of the logits; for ``explore`` see contract.Policy.

    Args:
        logits: float64, at least ``count``.
        allowed: int64, at least ``count``, 1 if a choice is allowed.
        count: number of choices.
        explore: SAMPLE, or the probability of a uniform choice.
        seed: of the episode.
        draw: number of the choice in its episode.

    Returns:
        The index of the choice.
    """
    best, num_allowed, largest = -1, 0, -np.inf
    for i in range(count):
        if allowed[i] != 0:
            num_allowed += 1
            if logits[i] > largest:
                largest = logits[i]
                best = i
    if explore == 0.0 or num_allowed == 1:
        return best
    if explore > 0.0:
        if uniform(seed, 2 * draw) >= explore:
            return best
        left = int(uniform(seed, 2 * draw + 1) * num_allowed)
        for i in range(count):
            if allowed[i] != 0:
                if left == 0:
                    return i
                left -= 1
        return best
    total = 0.0
    for i in range(count):
        if allowed[i] != 0:
            total += np.exp(logits[i] - largest)
    left = uniform(seed, 2 * draw) * total
    for i in range(count):
        if allowed[i] != 0:
            left -= np.exp(logits[i] - largest)
            best = i
            if left < 0.0:
                break
    return best


@compiled
def log_prob_of(logits, allowed, count, index):
    """Log-probability of a choice under the softmax of the allowed logits.

    Args:
        logits: float64, at least ``count``.
        allowed: int64, at least ``count``, 1 where a choice is allowed.
        count: number of choices.
        index: of the choice.
    """
    largest = -np.inf
    for i in range(count):
        if allowed[i] != 0 and logits[i] > largest:
            largest = logits[i]
    total = 0.0
    for i in range(count):
        if allowed[i] != 0:
            total += np.exp(logits[i] - largest)
    return logits[index] - largest - np.log(total)
