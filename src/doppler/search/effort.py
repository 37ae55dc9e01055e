"""The effort of a search or a training, and the random streams of a run."""

import zlib
from dataclasses import dataclass

import numpy as np


def seeded_generator(seed: int, purpose: str) -> np.random.Generator:
    """Return a separate random stream for each purpose of a run.

    Args:
        seed: of the run.
        purpose: name of the stream.
    """
    return np.random.default_rng([seed, zlib.crc32(purpose.encode())])


@dataclass(frozen=True)
class Effort:
    """Executions of a system, and wall seconds, that were needed for a result."""

    evaluations: int
    seconds: float


NO_EFFORT = Effort(0, 0.0)
