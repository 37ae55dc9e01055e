"""Makes Lightning treat a training as a single process, whatever started it.

Many processes have environment variables of SLURM, torchrun and other launchers without being part
of a distributed training. Lightning would take these seriously: fail because of the number of
tasks, log nothing because the rank is above 0, or requeue the job on a signal.

Other modules import Lightning after this one, because Lightning reads some of the variables when it
is imported.
"""

import os
from typing import Any

_RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")
_hidden = {name: os.environ.pop(name) for name in _RANKS if name in os.environ}
try:
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment
    from lightning_fabric.utilities.rank_zero import rank_zero_only
finally:
    os.environ.update(_hidden)


class OneProcess(LightningEnvironment):
    """The environment of a training in a single process."""

    def __init__(self) -> None:
        super().__init__()
        rank_zero: Any = rank_zero_only
        rank_zero.rank = 0

    @property
    def creates_processes_externally(self) -> bool:
        """Nothing does."""
        return False

    def local_rank(self) -> int:
        """The first."""
        return 0

    def node_rank(self) -> int:
        """The first."""
        return 0

    def teardown(self) -> None:
        """Leave the variables of others alone."""
