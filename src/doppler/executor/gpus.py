"""GPUs as devices; where there are fewer GPUs than devices, several devices are streams of one.

Each device computes on a stream of its own, and each channel copies on streams of its own, on both
sides: torch orders a copy behind whatever else its two streams do.

An action that is called is issued and waited for, by a thread that sleeps meanwhile. A task is then
issued when the host knows that all it waits for is done: no stream ever waits for another. The
price is one round trip from GPU to host per task, some 60 microseconds on an H100: kernels should
take longer. What is issued ahead instead, without waiting, is issuing.py.

Run on one GPU, never on several: `make gpu` is what to run there. Tests without one make torch.cuda
up.
"""

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache, partial
from typing import Any, NamedTuple

import torch

from doppler.cluster.nvml import read_machine
from doppler.executor.devices import Use
from doppler.executor.recording import Action
from doppler.support.errors import InputError

# A damaged copy is not damaged in every byte.
TEST_BYTES = 1 << 24
HOST = -1  # where a channel to other processes ends

# Streams share the queues of a GPU, 8 unless told otherwise before CUDA is first used, and what
# shares a queue waits for each other.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


class Part(NamedTuple):
    """Calls of torch on streams that are current meanwhile; the last one does what is called."""

    streams: tuple[Any, ...]
    action: Action

    def issue(self) -> None:
        """Give it to the streams."""
        with ExitStack() as stack:
            for stream in self.streams:
                stack.enter_context(torch.cuda.stream(stream))
            self.action()


class StreamAction(NamedTuple):
    """Parts, each of which follows the one before it; called, they are done one after another."""

    parts: tuple[Part, ...]

    def __call__(self) -> None:
        """Issue the parts, and wait for each."""
        for part in self.parts:
            part.issue()
            for stream in part.streams:
                stream.synchronize()


class Gpus:
    """See devices.Devices.

    gpus: [D] the GPU of each device; by default device d is on GPU d modulo their number.

    Raises:
        InputError: copies between two GPUs arrive damaged, whichever way they take.
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
        """An equal share of its GPU's memory."""
        sharing = self._gpu_of.count(self._gpu_of[device])
        return torch.cuda.get_device_properties(self.place(device)).total_memory / sharing

    def computing(self, device: int, action: Action) -> StreamAction:
        """On the device's own stream."""
        return StreamAction((Part((self._streams[device],), action),))

    def copying(self, src: int, dst: int, here: torch.Tensor, there: torch.Tensor) -> StreamAction:
        """From GPU to GPU; through memory of the host where direct copies fail their test.

        Within a GPU a channel has one stream, of the few that there are.
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
        """Memory of the host that GPUs reach directly."""
        return _on_host(torch.empty(num_bytes, dtype=torch.uint8))

    def leaving(self, device: int, here: torch.Tensor, there: torch.Tensor) -> StreamAction:
        """On a stream of the device."""
        copy = partial(there.copy_, here, non_blocking=True)
        return StreamAction((Part(self._of_channel((device, HOST), (device,)), copy),))

    def entering(self, device: int, here: torch.Tensor, there: torch.Tensor) -> StreamAction:
        """On another one."""
        copy = partial(there.copy_, here, non_blocking=True)
        return StreamAction((Part(self._of_channel((HOST, device), (device,)), copy),))

    def use(self) -> list[Use]:
        """From NVML, where its Python package is installed; energy so far."""
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
        """The streams of a channel, one on the GPU of each of some devices."""
        if channel not in self._channels:
            self._channels[channel] = tuple(self._new_stream(d) for d in ends)
        return self._channels[channel]

    def _new_stream(self, device: int) -> Any:
        """One more on the GPU of a device."""
        gpu = self._gpu_of[device]
        self._num_streams[gpu] += 1
        return _stream(gpu, self._num_streams[gpu])

    def _test_copies(self) -> None:
        """Peer copies can be damaged although the driver says that peers can reach each other."""
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
        """Whether a copy is the same bit by bit."""
        sent = torch.randint(256, (TEST_BYTES,), dtype=torch.uint8)
        here = sent.to(self.place(src))
        there = torch.zeros_like(sent, device=self.place(dst))
        for place in (src, dst):
            torch.cuda.synchronize(self.place(place))
        self.copying(src, dst, here, there)()
        return torch.equal(there.cpu(), sent)


def names() -> list[str]:
    """Of the GPUs that this process sees, in their order; no two of a machine have one name."""
    if not torch.cuda.is_available():
        return []
    of = torch.cuda.get_device_properties
    return [str(of(gpu).uuid) for gpu in range(torch.cuda.device_count())]


@cache
def _stream(gpu: int, number: int) -> Any:
    """The streams of a GPU by number, the same in all sessions of a process.

    torch has 32 of them, memory that was freed on one serves no other, and cuBLAS keeps memory for
    each on which it has worked.
    """
    return torch.cuda.Stream(device=f"cuda:{gpu}")


def _unknown_use(reason: str) -> list[Use]:
    message = "%s: nothing is known of the use of GPUs"
    logging.getLogger(__name__).warning(message, reason.splitlines()[0])
    return []


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Memory of the host that GPUs reach directly, for a tensor like this."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
