"""GPUs as devices; where there are fewer GPUs than devices, several devices are streams of one.

A task is issued when the host knows that all it waits for is done, by a thread that then sleeps
until the GPU has done it. So no stream ever waits for another, memory is never touched by two
streams at one time, and copies, which torch would order behind whatever else the two GPUs do, find
nothing to wait for: they have streams of their own on both sides. The price is one round trip from
GPU to host per task, presumably some tens of microseconds: kernels should take longer.

Not yet run on a GPU: its tests make torch.cuda up, but for those that only `make test-gpu` runs.
"""

import logging
from collections.abc import Sequence

import torch

from doppler.errors import InputError
from doppler.executor.devices import Use
from doppler.executor.recording import Action

# A damaged copy is not damaged in every byte.
TEST_BYTES = 1 << 24


class Gpus:
    """See devices.Devices. Device d is on GPU d modulo their number.

    Raises:
        InputError: copies between two GPUs arrive damaged, whichever way they take.
    """

    sender_copies = False

    def __init__(self, num_devices: int) -> None:
        self._num_gpus = min(torch.cuda.device_count(), num_devices)
        self.num_devices = num_devices
        self._streams = [torch.cuda.Stream(device=self.place(d)) for d in range(num_devices)]
        self._through_host: set[tuple[int, int]] = set()
        self._test_copies()

    @property
    def locks(self) -> Sequence[str]:
        """One per GPU."""
        return [f"cuda-{gpu}" for gpu in range(self._num_gpus)]

    def place(self, device: int) -> str:
        """Its GPU."""
        return f"cuda:{device % self._num_gpus}"

    def room_bytes(self, device: int) -> float:
        """An equal share of its GPU's memory."""
        sharing = -(-self.num_devices // self._num_gpus)
        return torch.cuda.get_device_properties(self.place(device)).total_memory / sharing

    def computing(self, device: int, action: Action) -> Action:
        """Issue it on the device's own stream, and wait."""
        stream = self._streams[device]

        def compute() -> None:
            with torch.cuda.stream(stream):
                action()
            stream.synchronize()

        return compute

    def copying(self, src: int, dst: int, here: torch.Tensor, there: torch.Tensor) -> Action:
        """From GPU to GPU; through memory of the host where direct copies fail their test."""
        out, into = (torch.cuda.Stream(device=self.place(d)) for d in (src, dst))
        if (src % self._num_gpus, dst % self._num_gpus) not in self._through_host:

            def copy() -> None:
                with torch.cuda.stream(into), torch.cuda.stream(out):
                    there.copy_(here, non_blocking=True)
                out.synchronize()
                into.synchronize()

            return copy
        between = _on_host(here)

        def copy_through_host() -> None:
            with torch.cuda.stream(out):
                between.copy_(here, non_blocking=True)
            out.synchronize()
            with torch.cuda.stream(into):
                there.copy_(between, non_blocking=True)
            into.synchronize()

        return copy_through_host

    def use(self) -> list[Use]:
        """From NVML, where its Python package is installed."""
        found = []
        for gpu in range(self._num_gpus):
            try:
                busy = torch.cuda.utilization(gpu) / 100.0
                found.append(Use(f"cuda:{gpu}", busy, float(torch.cuda.device_memory_used(gpu))))
            except ModuleNotFoundError:
                logging.getLogger(__name__).warning(
                    "nvidia-ml-py is not installed: nothing is known of the use of GPUs"
                )
                return []
        return found

    def _test_copies(self) -> None:
        """Peer copies can be damaged although the driver says that peers can reach each other."""
        for src in range(self._num_gpus):
            for dst in range(self._num_gpus):
                if src == dst or self._arrives(src, dst):
                    continue
                self._through_host.add((src, dst))
                names = f"{self.place(src)} to {self.place(dst)}"
                if not self._arrives(src, dst):
                    raise InputError(
                        f"executor=cuda: copies from {names} arrive damaged, also through the "
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


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Memory of the host that GPUs reach directly, for a tensor like this."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
