"""Channels between GPUs of two agents: messages without tags, in the order of their heads (NCCL).

A channel, from one device to another, is a communicator of two, so that directions and devices do
not wait for each other. A head travels ahead, as for any other message, once what it announces is
in the sender's queue; only then is it received: nothing waits on a GPU for what nobody has issued.
As a channel sends one at a time, both ends see one order.

NVIDIA warns of communicators that are used at one time: all their kernels have to fit on a GPU, and
nothing may wait for the whole GPU meanwhile. So each takes a share of the processors, and all are
connected, and used once, before a run begins. Never run on several GPUs.
"""

import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed

from doppler.extensions.hosts.wire import WireError

# Internal names of torch.distributed: here and in peers.py alone.
_dist: Any = torch.distributed
NEVER = timedelta(days=30)  # who waits too long is told by the one who watches
SENDER, RECEIVER = 0, 1
_MOST_CTAS = 32
# What NCCL's own watchers would do of themselves: end the process, before anyone can say why.
_QUIET = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "0",
}

Key = tuple[int, int]  # the devices that a channel goes from and to


class ChannelError(Exception):
    """A channel that cannot be connected, and why, in one line."""

    def __init__(self, channel: Key, why: str) -> None:
        super().__init__(why)
        self.channel, self.why = channel, why


class Wanted(NamedTuple):
    """A channel to be connected: the other agent, which end is here, where its tensors lie.

    Attributes:
        most: how many channels may end on the GPU of either.
    """

    other: int
    member: int
    place: str
    most: int


class Arrival(NamedTuple):
    """What a message is for: memory that it is copied into, the task that it ends, its channel.

    Attributes:
        then: what is left to do when it is there.
    """

    into: torch.Tensor | None
    local: int
    channel: int
    then: Callable[[], Any] | None = None


def code_of(channel: Key) -> int:
    """A channel as one number."""
    return channel[0] << 32 | channel[1]


def communicator(store: Any, wanted: Wanted) -> Any:
    """A communicator of two that finds its other end by a store; returns once that is there."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    options = _dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options._timeout = NEVER
    processors = torch.cuda.get_device_properties(wanted.place).multi_processor_count
    options.config.max_ctas = max(1, min(_MOST_CTAS, processors // wanted.most))
    group = _dist.ProcessGroupNCCL(store, wanted.member, 2, options)
    group.eager_connect_single_device(torch.device(wanted.place))
    return group


class WordStore(_dist.Store):
    """How the ends of channels find each other: what one agent says, the other hears.

    Args:
        tell: says a word to the other.
    """

    def __init__(self, tell: Callable[[str, bytes], None]) -> None:
        super().__init__()
        self._tell = tell
        self._words: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def hear(self, key: str, value: bytes) -> None:
        """The other has said it."""
        with self._changed:
            self._words[key] = value
            self._changed.notify_all()

    def set(self, key: str, value: Any) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        self.hear(key, data)
        self._tell(key, data)

    def get(self, key: str) -> bytes:
        """See dist.Store; waits."""
        with self._changed:
            self._changed.wait_for(lambda: key in self._words)
            return self._words[key]

    def check(self, keys: list[str]) -> bool:
        with self._changed:
            return all(key in self._words for key in keys)

    def wait(self, keys: list[str], timeout: Any = None) -> None:
        for key in keys:
            self.get(key)

    def has_extended_api(self) -> bool:
        return False


class Channel:
    """One end of a connected channel; it has a stream to itself, and moves one tensor at a time."""

    def __init__(self, group: Any, place: str) -> None:
        self._group, self._place = group, place
        self._stream: Any = torch.cuda.Stream(device=place, priority=-1)
        self._packed = torch.empty(0, dtype=torch.uint8, device=place)

    def packed(self, like: torch.Tensor | int) -> torch.Tensor:
        """Memory in one piece for a tensor like this, or for so many bytes; the same every time."""
        num_bytes = like if isinstance(like, int) else like.nbytes
        if num_bytes > self._packed.nbytes:
            self._packed = torch.empty(num_bytes, dtype=torch.uint8, device=self._place)
        found = self._packed[:num_bytes]
        return found if isinstance(like, int) else found.view(like.dtype).view(like.shape)

    def send(self, tensor: torch.Tensor, announce: Callable[[], Any]) -> None:
        """Send a tensor; returns when it has been taken.

        announce: sends the head; returns what waits until it is sent.
        """
        with torch.cuda.stream(self._stream):
            whole = tensor
            if not tensor.is_contiguous():
                whole = self.packed(tensor)
                whole.copy_(tensor, non_blocking=True)
            work = self._group.send([as_bytes(whole)], RECEIVER, 0)
            announced = announce()
            work.wait()
        self._stream.synchronize()
        if announced is not None:
            announced.wait()

    def receive(self, into: torch.Tensor) -> None:
        """Take the next tensor in; returns when it is there."""
        with torch.cuda.stream(self._stream):
            whole = into if into.is_contiguous() else self.packed(into)
            self._group.recv([as_bytes(whole)], SENDER, 0).wait()
            if whole is not into:
                into.copy_(whole, non_blocking=True)
        self._stream.synchronize()


class Channels:
    """All channels that end at this agent.

    tell: says a word to another agent, by its rank.
    """

    def __init__(self, others: Sequence[int], tell: Callable[[int, str, bytes], None]) -> None:
        def telling(other: int) -> Callable[[str, bytes], None]:
            return lambda key, value: tell(other, key, value)

        self._stores = {other: WordStore(telling(other)) for other in others}
        self._connected: dict[Key, Channel] = {}
        self._announced: dict[int, queue.SimpleQueue[tuple[int, int, int, Arrival | None]]] = {}
        self._arrived: Callable[[int, int, int], None] | None = None
        self._lost: Callable[[int, str], None] | None = None

    def listen(
        self, arrived: Callable[[int, int, int], None], lost: Callable[[int, str], None]
    ) -> None:
        self._arrived, self._lost = arrived, lost

    def hear(self, other: int, key: str, value: bytes) -> None:
        """A word of another agent."""
        self._stores[other].hear(key, value)

    def __getitem__(self, channel: Key) -> Channel:
        """A connected one."""
        return self._connected[channel]

    # --- Connecting -------------------------------------------------------------------------------

    def connect(self, wanted: Mapping[Key, Wanted], timeout_s: float) -> None:
        """Connect those that are not; all agents go by one order, so that none waits for ever.

        timeout_s: for one, after those before it.

        Raises:
            ChannelError: names the one that is not connected in time; this process is lost then.
        """
        new = sorted(wanted.keys() - self._connected.keys())
        if not new:
            return
        failed: list[ChannelError] = []

        def connect_all() -> None:
            torch.set_num_threads(1)
            for channel in new:
                try:
                    self._connect(channel, wanted[channel])
                except BaseException as error:
                    failed.append(ChannelError(channel, _line(error)))
                    return

        thread = threading.Thread(target=connect_all, name="connecting", daemon=True)
        thread.start()
        while thread.is_alive():
            num_before = len(self._connected)
            thread.join(timeout_s)
            if thread.is_alive() and len(self._connected) == num_before:
                late = next(channel for channel in new if channel not in self._connected)
                raise ChannelError(late, f"not connected within {timeout_s:g} s")
        if failed:
            raise failed[0]

    def _connect(self, channel: Key, wanted: Wanted) -> None:
        store = _dist.PrefixStore(f"{channel[0]}-{channel[1]}", self._stores[wanted.other])
        end = Channel(communicator(store, wanted), wanted.place)
        # The first message takes memory, and loads kernels.
        first = torch.zeros(1, dtype=torch.uint8, device=wanted.place)
        if wanted.member == SENDER:
            end.send(first, lambda: None)
        else:
            end.receive(first)
            code = code_of(channel)
            self._announced[code] = queue.SimpleQueue()
            threading.Thread(
                target=self._receive_all,
                args=(end, code, wanted.other),
                name="channel",
                daemon=True,
            ).start()
        self._connected[channel] = end

    # --- Receiving --------------------------------------------------------------------------------

    def announce(self, code: int, run: int, task: int, size: int, found: Arrival | None) -> None:
        """A head has come; what it announces is taken in after what was announced before."""
        self._announced[code].put((run, task, size, found))

    def _receive_all(self, end: Channel, code: int, other: int) -> None:
        torch.set_num_threads(1)
        try:
            with torch.inference_mode():
                while True:
                    run, task, size, found = self._announced[code].get()
                    into = None if found is None else found.into
                    if into is not None and into.nbytes != size:
                        raise WireError(f"a message of {size} bytes instead of {into.nbytes}")
                    end.receive(end.packed(size) if into is None else into)
                    if found is not None and self._arrived is not None:
                        self._arrived(run, task, found.channel)
        except BaseException as error:
            if self._lost is not None:
                self._lost(other, _line(error))


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as bytes; the tensor is contiguous."""
    return tensor.reshape(-1).view(torch.uint8)


def _line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
