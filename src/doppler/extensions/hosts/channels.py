"""Channels between GPUs of two agents: NCCL messages without tags, matched by their order.

A channel goes from one device to another. It is an NCCL communicator of two members, so that
directions and devices do not wait for each other. A small message, the head, announces each tensor
by gloo once the tensor is in the sender's queue. The receiver calls NCCL only after the head has
arrived, so no GPU ever waits for a tensor that nobody has sent. A channel sends one tensor at a
time, so both ends see the same order.

NVIDIA warns of using several communicators at the same time: all their kernels have to fit on a
GPU, and nothing may wait for the whole GPU meanwhile. Therefore each communicator gets a share of
the multiprocessors, and all are connected, and used once, before a run begins. This code has never
run on several GPUs.
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

# Internal names of torch.distributed are used only here and in peers.py.
_dist: Any = torch.distributed
NEVER = timedelta(days=30)  # the driver watches for messages that take too long
SENDER, RECEIVER = 0, 1
_MOST_CTAS = 32
# Turns off torch's watchdogs for NCCL, which would end the process before it can report an error.
_QUIET = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "0",
}

Key = tuple[int, int]  # a channel: its source and destination device


class ChannelError(Exception):
    """A channel cannot be connected; the message says why in one line.

    Attributes:
        channel: its source and destination device.
        why: the reason.
    """

    def __init__(self, channel: Key, why: str) -> None:
        super().__init__(why)
        self.channel, self.why = channel, why


class Wanted(NamedTuple):
    """A channel to connect.

    Attributes:
        other: rank of the agent at the other end.
        member: which end is here, SENDER or RECEIVER.
        place: name of the GPU at this end, such as ``cuda:0``.
        most: largest number of channels that may end on this GPU.
    """

    other: int
    member: int
    place: str
    most: int


class Arrival(NamedTuple):
    """What to do with a message that arrives.

    Attributes:
        into: memory that the message is copied into; None: the message brings no data.
        local: number of the task, in this agent's part, that ends when the message has arrived.
        channel: as one number (see `code_of`).
        then: called after the data has arrived; None: nothing is left to do.
    """

    into: torch.Tensor | None
    local: int
    channel: int
    then: Callable[[], Any] | None = None


def code_of(channel: Key) -> int:
    """Return a channel as one number.

    Args:
        channel: its source and destination device.
    """
    return channel[0] << 32 | channel[1]


def communicator(store: Any, wanted: Wanted) -> Any:
    """Make a communicator of two members, and return it once the other member is connected.

    Args:
        store: through which the two find each other.
        wanted: the channel.
    """
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
    """The store through which the ends of channels find each other.

    Entries that are set here are also sent to the other agent.

    Args:
        tell: sends a key and its value to the other agent.
    """

    def __init__(self, tell: Callable[[str, bytes], None]) -> None:
        super().__init__()
        self._tell = tell
        self._words: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def hear(self, key: str, value: bytes) -> None:
        """Set an entry that the other agent has sent.

        Args:
            key: of the entry.
            value: of the entry.
        """
        with self._changed:
            self._words[key] = value
            self._changed.notify_all()

    def set(self, key: str, value: Any) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        self.hear(key, data)
        self._tell(key, data)

    def get(self, key: str) -> bytes:
        """Return the value of a key; wait until it is set.

        Args:
            key: of the entry.
        """
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
    """One end of a connected channel. It has its own stream, and moves one tensor at a time.

    Args:
        group: the communicator.
        place: name of the GPU at this end.
    """

    def __init__(self, group: Any, place: str) -> None:
        self._group, self._place = group, place
        self._stream: Any = torch.cuda.Stream(device=place, priority=-1)
        self._packed = torch.empty(0, dtype=torch.uint8, device=place)

    def packed(self, like: torch.Tensor | int) -> torch.Tensor:
        """Return contiguous memory for a tensor; every call returns the same memory.

        Args:
            like: a tensor of the same shape and dtype, or the number of bytes.
        """
        num_bytes = like if isinstance(like, int) else like.nbytes
        if num_bytes > self._packed.nbytes:
            self._packed = torch.empty(num_bytes, dtype=torch.uint8, device=self._place)
        found = self._packed[:num_bytes]
        return found if isinstance(like, int) else found.view(like.dtype).view(like.shape)

    def send(self, tensor: torch.Tensor, announce: Callable[[], Any]) -> None:
        """Send a tensor; return when it has been sent.

        Args:
            tensor: on the GPU of this end.
            announce: sends the head; returns None, or an object whose ``wait`` returns once the
                head is sent.
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
        """Receive the next tensor; return when it has arrived.

        Args:
            into: where it is written.
        """
        with torch.cuda.stream(self._stream):
            whole = into if into.is_contiguous() else self.packed(into)
            self._group.recv([as_bytes(whole)], SENDER, 0).wait()
            if whole is not into:
                into.copy_(whole, non_blocking=True)
        self._stream.synchronize()


class Channels:
    """All channels that end at this agent.

    Args:
        others: ranks of the other agents.
        tell: sends an entry (rank of the agent, key, value) to another agent.
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
        """Set the functions that are called about messages.

        Args:
            arrived: called with run, task and channel when a tensor has arrived.
            lost: called with the rank of the other agent and the reason when receiving failed.
        """
        self._arrived, self._lost = arrived, lost

    def hear(self, other: int, key: str, value: bytes) -> None:
        """Take in an entry that another agent has sent.

        Args:
            other: rank of that agent.
            key: of the entry.
            value: of the entry.
        """
        self._stores[other].hear(key, value)

    def __getitem__(self, channel: Key) -> Channel:
        """Return a connected channel."""
        return self._connected[channel]

    # --- Connecting -------------------------------------------------------------------------------

    def connect(self, wanted: Mapping[Key, Wanted], timeout_s: float) -> None:
        """Connect the channels that are not connected yet.

        All agents connect channels in the same order, so that they do not wait for each other in a
        circle.

        Args:
            wanted: channels by source and destination device.
            timeout_s: limit for one channel, counted from when the previous one was connected.

        Raises:
            ChannelError: names a channel that was not connected in time; this process cannot be
                used any more.
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
        # The first message allocates memory and loads kernels.
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
        """Note a head that has arrived; its tensor is received after those announced before it.

        Args:
            code: the channel (see `code_of`).
            run: number of the run.
            task: number of the transfer among the tasks of all agents.
            size: of the tensor, bytes.
            found: what to do with the tensor; None: nobody needs it any more.
        """
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
    """Return a view of the memory of a contiguous tensor as bytes.

    Args:
        tensor: contiguous.
    """
    return tensor.reshape(-1).view(torch.uint8)


def _line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
