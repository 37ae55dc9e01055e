"""Random draws in plain Python integers, to hold the compiled ones against."""

import math

_MASK = 2**64 - 1


def uniform(seed: int, counter: int) -> float:
    """SplitMix64's number ``counter`` of a stream, as the middle of one of 2^53 parts of (0, 1)."""
    z = (seed + 0x9E3779B97F4A7C15 * (counter + 1)) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    z ^= z >> 31
    return ((z >> 11) + 0.5) / 2**53


def jitter(seed: int, counter: int, noise: float) -> float:
    """A lognormal factor of mean 1, from two uniform numbers by Box and Muller."""
    one, two = uniform(seed, 2 * counter), uniform(seed, 2 * counter + 1)
    normal = math.sqrt(-2.0 * math.log(one)) * math.cos(2.0 * math.pi * two)
    return math.exp(noise * normal - noise**2 / 2)
