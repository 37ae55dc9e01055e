"""Random numbers in compiled code, each of which depends only on a seed and on its own number.

So a task draws the same number wherever it is placed and whenever it runs. Placements are compared
under equal draws, and results do not depend on threads.
"""

import numpy as np

from doppler.support.compiled.decorator import compiled


@compiled
def uniform(seed, counter):
    """Return number ``counter`` of a seed, uniform in (0, 1).

    Args:
        seed: of the sequence.
        counter: position in the sequence.

    Source: SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
    OOPSLA 2014).
    """
    z = np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15) * np.uint64(counter + 1)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return (np.float64(z >> np.uint64(11)) + 0.5) * (1.0 / 9007199254740992.0)


@compiled
def jitter(seed, counter, noise):
    """Return a lognormal factor with mean 1.

    Args:
        seed: of the sequence.
        counter: position in the sequence.
        noise: standard deviation of the factor's logarithm.
    """
    radius = np.sqrt(-2.0 * np.log(uniform(seed, 2 * counter)))
    normal = radius * np.cos(2.0 * np.pi * uniform(seed, 2 * counter + 1))
    return np.exp(noise * normal - 0.5 * noise * noise)
