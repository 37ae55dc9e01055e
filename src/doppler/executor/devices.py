"""The interface to devices of an executor: where tensors are, and how to compute and copy."""

import os
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol

import torch

from doppler.executor.recording import Action


class Use(NamedTuple):
    """How busy a GPU was recently, as its driver reports.

    Attributes:
        gpu: its name.
        busy: share of the last sample period (1/6 s to 1 s) in which any kernel ran.
        memory_bytes: memory in use, by all processes.
        energy_j: joules since the driver was loaded, or of one execution; None if not reported.
    """

    gpu: str
    busy: float
    memory_bytes: float
    energy_j: float | None = None


def repeat(action: Action, num: int) -> None:
    """Do an action so often."""
    for _ in range(num):
        action()


class Devices(Protocol):
    """The devices of a session, numbered as in its problem.

    An action returns when the devices have done it, and waits without holding the GIL. A device
    computes one thing at a time, and a pair of devices copies one at a time. Whatever an action
    reads was made by actions that have returned.
    """

    num_devices: int
    sender_copies: bool  # whether the thread that computed a region also copies it

    @property
    def locks(self) -> Sequence[str]:
        """Names of locks that keep other processes off the devices."""
        ...

    def place(self, device: int) -> str:
        """Where the tensors of a device are, in torch's notation."""
        ...

    def room_bytes(self, device: int) -> float:
        """How much memory a device has."""
        ...

    def computing(self, device: int, action: Action) -> Action:
        """Make an action that calls torch on tensors of one device."""
        ...

    def repeating(self, device: int, action: Action, num: int) -> Action:
        """Make an action that calls torch as `computing`, so often, at the least cost to the host.

        It may call torch once at once.
        """
        ...

    def copying(self, src: int, dst: int, here: torch.Tensor, there: torch.Tensor) -> Action:
        """Make an action that copies a tensor of one device into a tensor of another."""
        ...

    def staging(self, num_bytes: int) -> torch.Tensor | None:
        """Allocate host memory through which tensors go to other processes; None if not needed."""
        ...

    def leaving(self, device: int, here: torch.Tensor, there: torch.Tensor) -> Action:
        """Make an action that copies a device's tensor into memory that `staging` gave."""
        ...

    def entering(self, device: int, here: torch.Tensor, there: torch.Tensor) -> Action:
        """Make an action that copies from memory that `staging` gave into a device's tensor."""
        ...

    def use(self) -> list[Use]:
        """What the driver reports of each GPU now; empty for cores."""
        ...


class Cores:
    """Cores of this machine as devices; each has its own part of the memory."""

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
        """An equal share of the memory."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / self.num_devices

    def computing(self, device: int, action: Action) -> Action:
        """The calling thread computes."""
        return action

    def repeating(self, device: int, action: Action, num: int) -> Action:
        """The calling thread computes."""
        return self.computing(device, partial(repeat, action, num))

    def copying(self, src: int, dst: int, here: torch.Tensor, there: torch.Tensor) -> Action:
        """The calling thread copies."""
        return partial(there.copy_, here)

    def staging(self, num_bytes: int) -> None:
        """None: tensors are in host memory already."""

    def leaving(self, device: int, here: torch.Tensor, there: torch.Tensor) -> Action:
        """The calling thread copies."""
        return partial(there.copy_, here)

    entering = leaving

    def use(self) -> list[Use]:
        """Nothing is reported for cores."""
        return []
