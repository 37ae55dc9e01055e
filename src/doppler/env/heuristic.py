"""The choices of the critical path heuristic in an episode: the op, and the device.

Source: Kwok and Ahmad, ACM Computing Surveys 1999, as used by DOPPLER (Yao et al., ICLR 2026):
the candidate with the largest b_level, the device on which it can start earliest.
"""

import numpy as np
from numpy.typing import NDArray

from doppler.env.episode import make_episode
from doppler.env.heuristic_kernels import advise_batch
from doppler.env.problem_view import ProblemView


def advice(
    view: ProblemView,
    op_BV: NDArray[np.int64],
    device_BV: NDArray[np.int64],
    rng: np.random.Generator,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the choices of the heuristic in every state of given episodes, ties at random.

    Args:
        view: of the problem.
        op_BV: the op that each step took.
        device_BV: the device that it went to.
        rng: breaks ties.

    Returns:
        The op for each step, and the device for the op that the step really took, [B, V] each. Of
        equal empty devices it is the first.
    """
    draw_BV2, arrays = rng.random((*op_BV.shape, 2)), view.problem.arrays
    advised_op_BV, advised_device_BV = np.empty_like(op_BV), np.empty_like(device_BV)
    advised = advised_op_BV, advised_device_BV
    episode = make_episode(arrays, view.arrays)
    mask_D = np.zeros(view.problem.num_devices, np.int64)
    advise_batch(arrays, view.arrays, episode, mask_D, draw_BV2, (op_BV, device_BV), advised)
    return advised
