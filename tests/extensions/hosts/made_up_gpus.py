"""Agents on GPUs that are made up: their memory is the host's, their streams are never late.

In place of NCCL stands a group of gloo that is never given a tag: two messages that are not taken
in the order in which they were sent, or that are of different sizes, are damaged or refused.
"""

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed

from doppler.executor import gpus
from doppler.extensions.hosts import channels, nursery

_dist: Any = torch.distributed


class Stream:
    """Nothing is ever left to do on it."""

    def __init__(self, device: str, priority: int = 0) -> None:
        self.device, self.priority = device, priority

    def synchronize(self) -> None:
        """At once."""


@contextmanager
def current(stream: Stream):
    """As torch.cuda.stream."""
    yield stream


class Untagged:
    """A group of two; see channels.communicator."""

    def __init__(self, store: Any, wanted: channels.Wanted) -> None:
        options = _dist.ProcessGroupGloo._Options()
        options._devices = [_dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        self._group = _dist.ProcessGroupGloo(store, wanted.member, 2, options)

    def send(self, tensors: list[torch.Tensor], other: int, tag: int) -> Any:
        """One tensor of bytes in one piece."""
        assert tag == 0
        assert [(one.dtype, one.is_contiguous()) for one in tensors] == [(torch.uint8, True)]
        return self._group.send(tensors, other, 0)

    def recv(self, tensors: list[torch.Tensor], other: int, tag: int) -> Any:
        """See send."""
        assert tag == 0 and tensors[0].is_contiguous()
        return self._group.recv(tensors, other, 0)


def unreachable(store: Any, wanted: channels.Wanted) -> Any:
    """As NCCL where there is no way."""
    raise RuntimeError("no socket interface found\nmore of it")


def install(num: int, communicator: Any = Untagged) -> None:
    """From now on torch has so many GPUs."""
    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: num
    cuda.Stream, cuda.stream, cuda.synchronize = Stream, current, lambda place: None
    cuda.get_device_properties = lambda gpu: SimpleNamespace(
        total_memory=1 << 40, uuid=f"GPU-{gpu}", multi_processor_count=132
    )
    _dist.is_nccl_available = lambda: True
    made: Any = gpus
    made.TEST_BYTES, made._on_host = 1000, torch.empty_like
    made.Gpus.place = lambda self, device: "cpu"
    made_channels: Any = channels
    made_channels.communicator = communicator


def main(num: int, communicator: str) -> None:
    """In place of nursery.main: agents that are born here have such GPUs."""
    install(num, globals()[communicator])
    nursery.main()
