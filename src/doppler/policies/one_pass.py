"""A base for your own policies: one network scores all devices for all ops at once.

Shape suffixes: B episodes, V ops (or the steps that place them), D devices.
"""

from abc import abstractmethod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from doppler.env import ProblemView
from doppler.policies.contract import Decisions
from doppler.policies.fixed_order import Choices, FixedOrderPolicy, choose, distribution


class OnePassPolicy(FixedOrderPolicy):
    """Places ops by falling b_level; each op's device is drawn from its own distribution.

    A subclass implements `scores`. Everything else that training, search and tables need is here:
    episodes, log-probabilities with gradients, entropies, ops that must stay together, devices that
    cannot run an op, and teachers' decisions. ``examples/own_policy.py`` is one in thirty lines.
    """

    @abstractmethod
    def scores(self, view: ProblemView) -> Tensor:
        """Score every device for every op; a softmax over the devices makes them probabilities.

        Args:
            view: of the problem: ``view.op_features`` [V, F], float32, columns
                `doppler.env.OP_FEATURES`; ``view.problem.graph.edges`` with ``src`` and ``dst``;
                ``view.problem.arrays.op_seconds`` [V, D], inf where a device cannot run an op.

        Returns:
            [V, D], float32, with gradients. Scores of devices that cannot run an op are ignored.
        """

    def _distributions(self, view: ProblemView, choices: Choices) -> tuple[Tensor, Tensor]:
        """Log-probability [V, D] of the device of each step's op, and entropy [V]."""
        score_VD = self.scores(view)[torch.from_numpy(self.order(view))]
        return distribution(score_VD, choices.closed_VD)

    def rollout(
        self, view: ProblemView, num_episodes: int, explore: float | None, rng: np.random.Generator
    ) -> Decisions:
        """Play episodes without gradients (see `contract.Policy`)."""
        choices = self.choices(view)
        with torch.no_grad():
            log_prob_VD, _ = self._distributions(view, choices)
        num_ops, num_devices = log_prob_VD.shape
        draw_BV2 = rng.random((num_episodes, num_ops, 2))
        log_prob_BVD = log_prob_VD.expand(num_episodes, num_ops, num_devices)
        device_BV = choose(log_prob_BVD, explore, draw_BV2)[:, choices.leader_V]
        chosen_BV = np.take_along_axis(log_prob_BVD.numpy(), device_BV[..., None], axis=2)[..., 0]
        chosen_BV = chosen_BV[:, choices.decides_V]
        return self.decisions(view, device_BV, chosen_BV.sum(axis=1, dtype=np.float64))

    def named(self, view: ProblemView, device_BV: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rename identical devices by the order of their first use.

        It is arbitrary which of them a teacher takes first, but this policy has separate outputs
        for them. Episodes that differ only in this should teach the same.
        """
        renamed_BV = device_BV.copy()
        num_devices = view.problem.num_devices
        used_BVD = device_BV[..., None] == np.arange(num_devices)
        first_BD = np.where(used_BVD.any(axis=1), used_BVD.argmax(axis=1), device_BV.shape[1])
        for device_class in np.unique(view.arrays.device_class):
            (members,) = np.nonzero(view.arrays.device_class == device_class)
            ranked_BD = members[first_BD[:, members].argsort(axis=1, kind="stable")]
            for new, old_B in zip(members, ranked_BD.T, strict=True):
                renamed_BV[device_BV == old_B[:, None]] = new
        return renamed_BV

    def log_prob(self, view: ProblemView, *decisions: Decisions) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy with gradients (see `contract.Policy`)."""
        choices = self.choices(view)
        log_prob_VD, entropy_V = self._distributions(view, choices)
        judged_BV = np.concatenate([each.judged[1] for each in decisions])
        log_prob_VB = log_prob_VD.gather(1, torch.from_numpy(judged_BV.T))
        decides_V = torch.from_numpy(choices.decides_V)
        return log_prob_VB[decides_V].sum(0), entropy_V[decides_V].sum().expand(len(judged_BV))
