"""What a search or a training took, and the random streams of a run."""

import zlib
from dataclasses import dataclass

import numpy as np


def seeded_generator(seed: int, purpose: str) -> np.random.Generator:
    """A random stream of its own for each purpose of a run."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode())])


@dataclass(frozen=True)
class Effort:
    """What it took to get somewhere: executions of a system, and seconds."""

    evaluations: int
    seconds: float


NO_EFFORT = Effort(0, 0.0)
