"""Your own policy: a small network that scores devices from the features of each op.

    python examples/own_policy.py [evaluations]

It learns in stages I and II like the policies that come with the package; the base class does the
rest. `examples/conf/policy/own_policy.yaml` makes it a choice of the command line.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from doppler.cli import main as doppler
from doppler.env import OP_FEATURES, ProblemView
from doppler.policies import OnePassPolicy


class PerOp(OnePassPolicy):
    """Two layers over an op's features and its seconds on each device.

    Args:
        hidden: width.
        num_devices: of the machine.
    """

    def __init__(self, *, hidden: int, num_devices: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(len(OP_FEATURES) + num_devices, hidden),
            nn.ReLU(),
            nn.Linear(hidden, num_devices),
        )

    def scores(self, view: ProblemView) -> Tensor:
        """See OnePassPolicy."""
        seconds_VD = np.nan_to_num(view.problem.arrays.op_seconds, posinf=0.0)
        scaled_VD = (seconds_VD / seconds_VD.max()).astype(np.float32)
        x_VF = np.concatenate([view.op_features, scaled_VD], axis=1)
        return self.net(torch.from_numpy(x_VF))


def main(evaluations: int) -> int:
    """Train it on a chain of matrix products on four GPUs, and compare."""
    conf = Path(__file__).resolve().parent / "conf"
    words = [f"budget.evaluations={evaluations}", f"budget.imitation_episodes={evaluations}"]
    return doppler(["run", f"--config-dir={conf}", "policy=own_policy", *words])


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
