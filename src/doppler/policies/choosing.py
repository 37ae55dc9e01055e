"""One choice among several, compiled: how it is drawn, and how likely it was."""

import numpy as np

from doppler.support.compiled import compiled
from doppler.support.compiled.draws import uniform

SAMPLE = -1.0  # in place of the probability of a uniform choice: sample from the softmax


@compiled
def choose(logits, allowed, count, explore, seed, draw):
    """Index of the choice among the allowed of ``count`` logits; see contract.Policy.explore."""
    best, num_allowed, top = -1, 0, -np.inf
    for i in range(count):
        if allowed[i] != 0:
            num_allowed += 1
            if logits[i] > top:
                top = logits[i]
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
            total += np.exp(logits[i] - top)
    left = uniform(seed, 2 * draw) * total
    for i in range(count):
        if allowed[i] != 0:
            left -= np.exp(logits[i] - top)
            best = i
            if left < 0.0:
                break
    return best


@compiled
def log_prob_of(logits, allowed, count, index):
    """Log-probability of a choice among the allowed of ``count`` logits."""
    top = -np.inf
    for i in range(count):
        if allowed[i] != 0 and logits[i] > top:
            top = logits[i]
    total = 0.0
    for i in range(count):
        if allowed[i] != 0:
            total += np.exp(logits[i] - top)
    return logits[index] - top - np.log(total)
