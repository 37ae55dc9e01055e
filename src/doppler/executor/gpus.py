"""GPUs as devices; if there are fewer GPUs than devices, several devices are streams of one GPU.

Each device computes on its own stream, and each channel copies on its own streams on both sides:
torch orders a copy after everything else in its two streams.

A called action is issued and waited for by a thread that sleeps meanwhile. A task is issued only
when the host knows that everything it waits for is done, so no stream waits for another. The price
is one round trip from GPU to host per task, about 60 microseconds on an H100: kernels should take
longer. issuing.py instead issues tasks ahead without waiting.

This was run on one GPU, never on several; a machine with several should run `make gpu`. Tests for
machines without a GPU fake torch.cuda.
"""

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache, partial
from typing import Any, NamedTuple

import torch

from doppler.cluster.nvml import read_machine
from doppler.executor.captures import capturing
from doppler.executor.devices import Use, repeat
from doppler.executor.recording import Action
from doppler.support.errors import InputError

# Large, because a damaged copy is not damaged in every byte.
TEST_BYTES = 1 << 24
HOST = -1  # the end of a channel to another process

# Streams share the hardware queues of a GPU (8 unless set before CUDA is first used), and streams
# in one queue wait for each other.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


class Part(NamedTuple):
    """Calls of torch on some streams, which are made current; the last one issues the action."""

    streams: tuple[Any, ...]
    action: Action

    def issue(self) -> None:
        """Give the calls to the streams."""
        with ExitStack() as stack:
            for stream in self.streams:
                stack.enter_context(torch.cuda.stream(stream))
            self.action()


class StreamAction(NamedTuple):
    """Parts that are executed one after another."""

    parts: tuple[Part, ...]

    def __call__(self) -> None:
        """Issue each part and wait for it."""
        for part in self.parts:
            part.issue()
            for stream in part.streams:
                stream.synchronize()


class Gpus:
    """GPUs as devices, see `devices.Devices`.

    Args:
        gpus: [D] the GPU of each device; by default device d is on GPU d modulo their number.

    Raises:
        InputError: copies between two GPUs arrive damaged, directly and through the host.
    """

    sender_copies = False

    def __init__(self, num_devices: int, gpus: Sequence[int] | None = None) -> None:
        num_gpus = min(torch.cuda.device_count(), num_devices)
        self.num_devices = num_devices
        self._gpu_of = [d % num_gpus for d in range(num_devices)] if gpus is None else list(gpus)
        self._gpus = sorted(set(self._gpu_of))
        self._num_streams = dict.fromkeys(self._gpus, 0)
        self._streams = [self._new_stream(d) for d in range(num_devices)]
        self._channels: dict[tuple[int, int], tuple[Any, ...]] = {}
        self._through_host: set[tuple[int, int]] = set()
        self._test_copies()

    @property
    def locks(self) -> Sequence[str]:
        """One per GPU."""
        return [f"cuda-{gpu}" for gpu in self._gpus]

    def place(self, device: int) -> str:
        """Its GPU."""
        return f"cuda:{self._gpu_of[device]}"

    def room_bytes(self, device: int) -> float:
        """An equal share of the memory of its GPU."""
        sharing = self._gpu_of.count(self._gpu_of[device])
        return torch.cuda.get_device_properties(self.place(device)).total_memory / sharing

    def computing(self, device: int, action: Action) -> StreamAction:
        """On the device's own stream."""
        return StreamAction((Part((self._streams[device],), action),))

    def repeating(self, device: int, action: Action, num: int) -> StreamAction:
        """As one CUDA graph, which the host starts at once; one by one if that fails."""
        self.computing(device, action)()  # loads what may not be loaded during a capture
        try:
            with capturing(self._streams[device]) as graph:
                repeat(action, num)
        except RuntimeError:
            return self.computing(device, partial(repeat, action, num))
        return self.computing(device, graph.replay)

    def copying(self, src: int, dst: int, here: torch.Tensor, there: torch.Tensor) -> StreamAction:
        """Copy from GPU to GPU, through host memory if direct copies fail their test.

        Within a GPU a channel has one stream, because streams are few.
        """
        gpus = self._gpu_of[src], self._gpu_of[dst]
        streams = self._of_channel((src, dst), (src,) if gpus[0] == gpus[1] else (dst, src))
        if gpus not in self._through_host:
            copy = partial(there.copy_, here, non_blocking=True)
            return StreamAction((Part(streams, copy),))
        into, out = streams
        between = _on_host(here)
        away = partial(between.copy_, here, non_blocking=True)
        back = partial(there.copy_, between, non_blocking=True)
        return StreamAction((Part((out,), away), Part((into,), back)))

    def staging(self, num_bytes: int) -> torch.Tensor:
        """Pinned host memory, which GPUs reach directly."""
        return _on_host(torch.empty(num_bytes, dtype=torch.uint8))

    def leaving(self, device: int, here: torch.Tensor, there: torch.Tensor) -> StreamAction:
        """On a stream of the device."""
        copy = partial(there.copy_, here, non_blocking=True)
        return StreamAction((Part(self._of_channel((device, HOST), (device,)), copy),))

    def entering(self, device: int, here: torch.Tensor, there: torch.Tensor) -> StreamAction:
        """On another stream of the device."""
        copy = partial(there.copy_, here, non_blocking=True)
        return StreamAction((Part(self._of_channel((HOST, device), (device,)), copy),))

    def use(self) -> list[Use]:
        """What NVML reports, if its Python package is installed; energy is the total so far."""
        found = []
        for gpu in self._gpus:
            try:
                busy = torch.cuda.utilization(gpu) / 100.0
                used = float(torch.cuda.device_memory_used(gpu))
                found.append(Use(f"cuda:{gpu}", busy, used))
            except ModuleNotFoundError:
                return _unknown_use("nvidia-ml-py is not installed")
            except Exception as error:  # NVML's own, which has no name without its package
                return _unknown_use(f"NVML says {str(error) or type(error).__name__}")
        if (facts := read_machine()) is None:
            return found
        energies = [facts.gpus[gpu].energy_j for gpu in self._gpus]
        return [use._replace(energy_j=one) for use, one in zip(found, energies, strict=True)]

    def _of_channel(self, channel: tuple[int, int], ends: Sequence[int]) -> tuple[Any, ...]:
        """The streams of a channel, one on each GPU at its ends."""
        if channel not in self._channels:
            self._channels[channel] = tuple(self._new_stream(d) for d in ends)
        return self._channels[channel]

    def _new_stream(self, device: int) -> Any:
        """One more stream on the GPU of a device."""
        gpu = self._gpu_of[device]
        self._num_streams[gpu] += 1
        return _stream(gpu, self._num_streams[gpu])

    def _test_copies(self) -> None:
        """Test copies: peer copies can be damaged although the driver calls peers reachable."""
        firsts = [self._gpu_of.index(gpu) for gpu in self._gpus]
        for src in firsts:
            for dst in firsts:
                if src == dst or self._arrives(src, dst):
                    continue
                self._through_host.add((self._gpu_of[src], self._gpu_of[dst]))
                names = f"{self.place(src)} to {self.place(dst)}"
                if not self._arrives(src, dst):
                    raise InputError(
                        f"system=cuda: copies from {names} arrive damaged, also through the "
                        "memory of the host"
                    )
                logging.getLogger(__name__).warning(
                    "direct copies from %s arrive damaged: they go through the memory of the host",
                    names,
                )

    def _arrives(self, src: int, dst: int) -> bool:
        """Whether a copy equals the original bit by bit."""
        sent = torch.randint(256, (TEST_BYTES,), dtype=torch.uint8)
        here = sent.to(self.place(src))
        there = torch.zeros_like(sent, device=self.place(dst))
        for place in (src, dst):
            torch.cuda.synchronize(self.place(place))
        self.copying(src, dst, here, there)()
        return torch.equal(there.cpu(), sent)


def names() -> list[str]:
    """Return the names of the visible GPUs in their order; names are unique on a machine."""
    if not torch.cuda.is_available():
        return []
    of = torch.cuda.get_device_properties
    return [str(of(gpu).uuid) for gpu in range(torch.cuda.device_count())]


@cache
def _stream(gpu: int, number: int) -> Any:
    """The streams of a GPU by number, the same in all sessions of a process.

    Streams are reused because torch has only 32, memory freed on one stream serves no other, and
    cuBLAS keeps memory for each stream that it has worked on.
    """
    return torch.cuda.Stream(device=f"cuda:{gpu}")


def _unknown_use(reason: str) -> list[Use]:
    message = "%s: the use of the GPUs is unknown"
    logging.getLogger(__name__).warning(message, reason.splitlines()[0])
    return []


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Pinned host memory of the same shape and dtype as a tensor."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
