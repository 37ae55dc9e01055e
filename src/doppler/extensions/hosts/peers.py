"""Messages between agents by torch.distributed (gloo), sent as soon as their regions are computed.

A message is a head of integers and, if it is short, its data. Longer data follows in a second
message with a tag of its own, which is received directly into its destination if that is
contiguous, or by a channel between two GPUs (channels.py). For each other agent, one thread
receives. Nothing is unpickled: bytes are copied into tensors of known size.
"""

import hmac
import json
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed

from doppler.extensions.hosts.channels import (
    NEVER,
    Arrival,
    Channel,
    Channels,
    Key,
    as_bytes,
    code_of,
)
from doppler.extensions.hosts.wire import Wire, WireError, proof

# Integers of a head: number of the run, of the task, bytes of the data, and 1 + number of the
# channel that the data comes by (0 if by none).
HEAD = 4
_WORDS = 0  # in place of a run's number: an entry of a store by which channels connect
# Internal names of torch.distributed are used only here and in channels.py.
_dist: Any = torch.distributed
_HEAD_BYTES = 8 * HEAD
# Data of at most this size is copied into its message: faster than a second message.
INLINE_BYTES = 1 << 16

Expected = Callable[[int, int], Arrival | None]


class _Store(_dist.Store):
    """The key-value store by which gloo's members find each other; the driver keeps it."""

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire

    def set(self, key: str, value: Any) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._wire.send({"store": "set", "key": key, "value": data.hex()})

    def get(self, key: str) -> bytes:
        """Return the value of a key; wait until it is set.

        Args:
            key: of the entry.
        """
        self._wire.send({"store": "get", "key": key})
        return bytes.fromhex(self._wire.receive().fields["value"])

    def wait(self, keys: list[str], timeout: Any = None) -> None:
        for key in keys:
            self.get(key)

    def has_extended_api(self) -> bool:
        return False


class Peers:
    """The other agents of a group.

    Args:
        wire: the connection to the driver.
        rank: of this agent.
        size: number of agents.
        secret: which all of them know.
        address: at which this agent listens for the others.

    Attributes:
        channels: NCCL channels that end at this agent.

    Raises:
        WireError: an agent does not know the secret.
    """

    def __init__(self, wire: Wire, rank: int, size: int, *, secret: bytes, address: str) -> None:
        options = _dist.ProcessGroupGloo._Options()
        options._devices = [_dist.ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = NEVER
        self.rank, self._others = rank, [one for one in range(size) if one != rank]
        self._group = _dist.ProcessGroupGloo(_Store(wire), rank, size, options)
        for other in self._others:
            self._recognise(other, secret)
        self.channels = Channels(self._others, self._tell)

    def _recognise(self, other: int, secret: bytes) -> None:
        """Prove to another agent that this one knows the secret, and check its proof."""
        own = torch.frombuffer(bytearray(os.urandom(32)), dtype=torch.uint8)
        theirs, shown = torch.empty_like(own), torch.empty_like(own)
        sent = [self._group.send([own], other, 1)]
        self._group.recv([theirs], other, 1).wait()
        numbers = bytes(own.tolist()), bytes(theirs.tolist())
        mine = bytearray(proof(secret, f"{self.rank}", numbers[1], numbers[0]))
        sent.append(self._group.send([torch.frombuffer(mine, dtype=torch.uint8)], other, 2))
        self._group.recv([shown], other, 2).wait()
        for each in sent:
            each.wait()
        if not hmac.compare_digest(bytes(shown.tolist()), proof(secret, f"{other}", *numbers)):
            raise WireError(f"agent {other} does not know the secret")

    def listen(
        self,
        expected: Expected,
        arrived: Callable[[int, int, int], None],
        lost: Callable[[int, str], None],
    ) -> None:
        """Start to receive messages, in one thread for each other agent.

        Args:
            expected: returns what to do with the message of a run and a task; None: nobody needs
                it.
            arrived: called with run, task and channel of a message that has arrived.
            lost: called with the rank of an agent that is lost, and the reason.
        """
        self.channels.listen(arrived, lost)
        for other in self._others:
            threading.Thread(
                target=self._take_in,
                args=(other, expected, arrived, lost),
                name="messages",
                daemon=True,
            ).start()

    def _take_in(self, other: int, expected: Expected, arrived: Any, lost: Any) -> None:
        torch.set_num_threads(1)
        try:
            with torch.inference_mode():
                self._take_all(other, expected, arrived)
        except BaseException as error:
            lost(other, str(error).splitlines()[0] if str(error) else type(error).__name__)

    def _take_all(self, other: int, expected: Expected, arrived: Any) -> None:
        buffer = torch.empty(_HEAD_BYTES + INLINE_BYTES, dtype=torch.uint8)
        head = buffer[:_HEAD_BYTES].view(torch.int64)
        while True:
            self._group.recv([buffer], other, 0).wait()
            run, task, size, by_channel = head.tolist()
            if run == _WORDS:
                self._hear(other, buffer[_HEAD_BYTES : _HEAD_BYTES + size])
                continue
            found = expected(run, task)
            if by_channel:
                self.channels.announce(by_channel - 1, run, task, size, found)
                continue
            into = found and found.into
            if size > INLINE_BYTES:
                self._take_long(other, task, size, into)
            elif into is not None:
                if size != into.nbytes:
                    raise WireError(f"a message of {size} bytes instead of {into.nbytes}")
                brought = buffer[_HEAD_BYTES : _HEAD_BYTES + size]
                into.copy_(brought.view(into.dtype).view(into.shape))
            if found is not None:
                if found.then is not None:
                    found.then()
                arrived(run, task, found.channel)

    def _take_long(self, other: int, task: int, size: int, into: torch.Tensor | None) -> None:
        if into is not None and size != into.nbytes:
            raise WireError(f"a message of {size} bytes instead of {into.nbytes}")
        if into is not None and into.is_contiguous():
            self._group.recv([as_bytes(into)], other, task + 1).wait()
            return
        data = torch.empty(size, dtype=torch.uint8)
        self._group.recv([data], other, task + 1).wait()
        if into is not None:
            into.copy_(data.view(into.dtype).view(into.shape))

    # --- Sending ----------------------------------------------------------------------------------

    def sending(
        self,
        other: int,
        region: torch.Tensor | None,
        fetch: Callable[[], Any] | None = None,
    ) -> "Sending":
        """Make a function that sends a region, or an empty message, each time it is called.

        Args:
            other: rank of the agent that it sends to.
            region: tensor to send; None: the message has no data.
            fetch: called first; it copies into the region what is to be sent.
        """
        return Sending(self._group, other, region, fetch)

    def sending_by(
        self, channel: Key, other: int, region: torch.Tensor
    ) -> Callable[[int, int], None]:
        """Make a function that sends a region by a connected channel each time it is called.

        Args:
            channel: source and destination device.
            other: rank of the agent that it sends to.
            region: tensor to send.
        """
        head = partial(self._announce, other, region.nbytes, 1 + code_of(channel))
        return partial(_send_by, self.channels[channel], region, head)

    def _announce(self, other: int, size: int, by_channel: int, run: int, task: int) -> Any:
        head = torch.tensor([run, task, size, by_channel])
        return self._group.send([as_bytes(head)], other, 0)

    def _tell(self, other: int, key: str, value: bytes) -> None:
        word = json.dumps({"key": key, "value": value.hex()}).encode()
        message = torch.empty(_HEAD_BYTES + len(word), dtype=torch.uint8)
        message[:_HEAD_BYTES].view(torch.int64).copy_(torch.tensor([_WORDS, 0, len(word), 0]))
        message[_HEAD_BYTES:] = torch.frombuffer(bytearray(word), dtype=torch.uint8)
        self._group.send([message], other, 0).wait()

    def _hear(self, other: int, word: torch.Tensor) -> None:
        said = json.loads(bytes(word.tolist()))
        self.channels.hear(other, str(said["key"]), bytes.fromhex(said["value"]))


def _send_by(
    channel: Channel, region: torch.Tensor, head: Callable[[int, int], Any], run: int, task: int
) -> None:
    channel.send(region, lambda: head(run, task))


class Sending:
    """Sends one region, or an empty message, to one agent, as often as it is called.

    Args:
        group: gloo's process group.
        other: rank of the other agent.
        region: tensor to send; None: the message has no data.
        fetch: called first; it copies into the region what is to be sent.
    """

    def __init__(
        self,
        group: Any,
        other: int,
        region: torch.Tensor | None,
        fetch: Callable[[], Any] | None,
    ) -> None:
        self._group, self._other, self._region, self._fetch = group, other, region, fetch
        size = 0 if region is None else region.nbytes
        self._is_long = size > INLINE_BYTES
        inline = 0 if self._is_long else size
        self._message = torch.empty(_HEAD_BYTES + inline, dtype=torch.uint8)
        self._head = self._message[:_HEAD_BYTES].view(torch.int64)
        self._head.copy_(torch.tensor([0, 0, size, 0]))
        self._copy: torch.Tensor | None = None  # contiguous copy of the region, if it needs one
        if region is not None and self._is_long and not region.is_contiguous():
            self._copy = torch.empty(region.shape, dtype=region.dtype)
        elif region is not None and not self._is_long and size:
            self._copy = self._message[_HEAD_BYTES:].view(region.dtype).view(region.shape)

    def __call__(self, run: int, task: int) -> None:
        """Send the region; return when the network has taken it.

        Args:
            run: number of the run.
            task: number of the transfer among the tasks of all agents.
        """
        self._head[0], self._head[1] = run, task
        if self._fetch is not None:
            self._fetch()
        if self._copy is not None and self._region is not None:
            self._copy.copy_(self._region)
        works = [self._group.send([self._message], self._other, 0)]
        if self._is_long and self._region is not None:
            whole = self._region if self._copy is None else self._copy
            works.append(self._group.send([as_bytes(whole)], self._other, task + 1))
        for work in works:
            work.wait()
