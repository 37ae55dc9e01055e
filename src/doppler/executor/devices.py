"""What the devices of an executor are: where their tensors lie, and how they are made to work."""

import os
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol

import torch

from doppler.executor.recording import Action


class Use(NamedTuple):
    """What a GPU was busy with lately, as its driver says.

    busy: the share of the last sample period, of a sixth of a second to a second, in which any
    kernel ran. memory_bytes: in use, by whomever. energy_j: that the GPU has taken so far, or for
    one execution; None where it does not tell.
    """

    gpu: str
    busy: float
    memory_bytes: float
    energy_j: float | None = None


class Devices(Protocol):
    """The devices of a session, numbered as in its problem.

    An action made for devices returns when they have done it, and waits without the GIL. A device
    computes one thing at a time, and a pair copies one at a time; whatever an action reads has been
    made by actions that have returned.
    """

    num_devices: int
    sender_copies: bool  # whether the thread that has made a region also copies it

    @property
    def locks(self) -> Sequence[str]:
        """What no other process may use meanwhile."""
        ...

    def place(self, device: int) -> str:
        """Where the tensors of a device lie, as torch says it."""
        ...

    def room_bytes(self, device: int) -> float:
        """How much memory it has."""
        ...

    def computing(self, device: int, action: Action) -> Action:
        """Make calls of torch that work on tensors of one device."""
        ...

    def copying(self, src: int, dst: int, here: torch.Tensor, there: torch.Tensor) -> Action:
        """Copy a tensor of one device into a tensor of another."""
        ...

    def staging(self, num_bytes: int) -> torch.Tensor | None:
        """Bytes of the host by way of which tensors go to other processes; None: they lie there."""
        ...

    def leaving(self, device: int, here: torch.Tensor, there: torch.Tensor) -> Action:
        """Copy a tensor of a device into memory that `staging` gave."""
        ...

    def entering(self, device: int, here: torch.Tensor, there: torch.Tensor) -> Action:
        """Copy from memory that `staging` gave into a tensor of a device."""
        ...

    def use(self) -> list[Use]:
        """What the driver says of each GPU now; of cores it says nothing."""
        ...


class Cores:
    """Cores of this machine; each device has a part of the memory to itself."""

    sender_copies = True

    def __init__(self, num_devices: int) -> None:
        self.num_devices = num_devices

    @property
    def locks(self) -> list[str]:
        """One per device."""
        return [f"cpu-{d}" for d in range(self.num_devices)]

    def place(self, device: int) -> str:
        """The host."""
        return "cpu"

    def room_bytes(self, device: int) -> float:
        """An equal share."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / self.num_devices

    def computing(self, device: int, action: Action) -> Action:
        """The calling thread computes."""
        return action

    def copying(self, src: int, dst: int, here: torch.Tensor, there: torch.Tensor) -> Action:
        """The calling thread copies."""
        return partial(there.copy_, here)

    def staging(self, num_bytes: int) -> None:
        """Tensors lie in memory of the host."""

    def leaving(self, device: int, here: torch.Tensor, there: torch.Tensor) -> Action:
        """The calling thread copies."""
        return partial(there.copy_, here)

    entering = leaving

    def use(self) -> list[Use]:
        """Nothing."""
        return []
