"""How regions of an agent's memory are sent to other agents, and received from them.

Between cores a region goes directly from memory to memory. Between GPUs of different hosts it goes
through an NCCL channel if there is one. Otherwise it is copied through staging memory of the host;
each channel has its own.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from doppler.executor.devices import Devices
from doppler.executor.memory import Memory
from doppler.extensions.hosts.channels import (
    RECEIVER,
    SENDER,
    Arrival,
    ChannelError,
    Key,
    Wanted,
    code_of,
)
from doppler.extensions.hosts.parts import IN, OUT, HostPart
from doppler.extensions.hosts.peers import Peers

Send = Callable[[int, int], None]  # called with the number of the run and of the task


class _Landing(NamedTuple):
    """Where a region is received, and what to do afterwards."""

    into: torch.Tensor
    then: Callable[[], Any] | None


class Crossing:
    """Sends regions of a session's memory to other agents, and receives regions from them.

    Args:
        memory: of the session.
        devices: of this agent.
        local: number of each of these devices here, by its number in the cluster.
        num_devices: number of devices of the cluster.
        direct: channels between GPUs that NCCL connects.
        num_regions: number of regions of the graph.
    """

    def __init__(
        self,
        memory: Memory,
        devices: Devices,
        local: dict[int, int],
        *,
        num_devices: int,
        direct: Sequence[Key],
        num_regions: int,
    ) -> None:
        self._memory, self._devices, self._local = memory, devices, local
        self._direct, self._num_devices = frozenset(direct), num_devices
        self._num_regions = num_regions
        self._staging: dict[Key, torch.Tensor | None] = {}
        self._sending: dict[tuple[int, int, int], Send] = {}
        self._landing: dict[tuple[int, int, int], _Landing] = {}

    def connect(self, part: HostPart, peers: Peers, timeout_s: float) -> None:
        """Connect the channels that a run needs and that are not connected yet.

        Args:
            part: what this agent runs.
            peers: the other agents.
            timeout_s: limit for one channel.

        Raises:
            ChannelError: a channel was not connected in time.
        """
        if not self._direct:
            return
        wanted: dict[Key, Wanted] = {}
        # A device may have a channel in both directions with every other device; a GPU has the
        # channels of all devices that share it.
        places = [self._devices.place(d) for d in range(len(self._local))]
        columns = part.src, part.dst, part.way, part.peer
        for src, dst, way, peer in np.stack(columns, axis=1).tolist():
            if way not in (IN, OUT) or (src, dst) not in self._direct:
                continue
            place = places[self._local[dst if way == IN else src]]
            member = RECEIVER if way == IN else SENDER
            most = 2 * (self._num_devices - 1) * places.count(place)
            wanted[src, dst] = Wanted(peer, member, place, most)
        peers.channels.connect(wanted, timeout_s)

    def sending(self, region: int, src: int, dst: int, peer: int, peers: Peers) -> Send:
        """Return a function that sends a region to another agent.

        Args:
            region: number of the region in the graph.
            src: device that has it.
            dst: device that it is sent to.
            peer: rank of the agent that has ``dst``.
            peers: the other agents.
        """
        key = region, src, dst
        if key not in self._sending:
            self._sending[key] = self._way_out(region, (src, dst), peer, peers)
        return self._sending[key]

    def _way_out(self, region: int, channel: Key, peer: int, peers: Peers) -> Send:
        device = self._local[channel[0]]
        here = self._memory.region(region, device)
        if channel in self._direct:
            _make_room(peers, channel, here)
            return peers.sending_by(channel, peer, here)
        staged = self._staged(channel, here)
        if staged is None:
            return peers.sending(peer, here)
        return peers.sending(peer, staged, self._devices.leaving(device, here, staged))

    def arrival(self, task: int, region: int, src: int, dst: int, peers: Peers) -> Arrival:
        """Return what to do with a region that another agent sends.

        Args:
            task: number, in this agent's part, of the task that ends when the region has arrived.
            region: number of the region in the graph.
            src: device that sends it.
            dst: device that receives it.
            peers: the other agents.
        """
        key = region, src, dst
        if key not in self._landing:
            self._landing[key] = self._way_in(region, (src, dst), peers)
        return Arrival(self._landing[key].into, task, code_of((src, dst)), self._landing[key].then)

    def _way_in(self, region: int, channel: Key, peers: Peers) -> _Landing:
        device = self._local[channel[1]]
        there = self._memory.region(region, device)
        if channel in self._direct:
            _make_room(peers, channel, there)
            return _Landing(there, None)
        staged = self._staged(channel, there)
        if staged is None:
            return _Landing(there, None)
        return _Landing(staged, self._devices.entering(device, staged, there))

    @cached_property
    def _largest_bytes(self) -> int:
        """Size of the largest region in bytes; all ops have been planned by now."""
        regions = (self._memory.region(region, 0) for region in range(self._num_regions))
        return max(region.nbytes for region in regions)

    def _staged(self, channel: Key, like: torch.Tensor) -> torch.Tensor | None:
        """Return the channel's staging memory as a tensor like this one; None if it needs none."""
        if channel not in self._staging:
            self._staging[channel] = self._devices.staging(self._largest_bytes)
        memory = self._staging[channel]
        if memory is None:
            return None
        return memory[: like.nbytes].view(like.dtype).view(like.shape)


def _make_room(peers: Peers, channel: Key, region: torch.Tensor) -> None:
    """Allocate the memory in which a non-contiguous region is packed before the run begins."""
    if not region.is_contiguous():
        peers.channels[channel].packed(region)


def why_not(error: ChannelError, part: HostPart) -> tuple[str, int]:
    """Describe why a channel is not connected, and find a task that needs it.

    Args:
        error: the failure.
        part: what this agent runs.

    Returns:
        The reason, and the number of a task among the tasks of all agents.
    """
    on = (part.src == error.channel[0]) & (part.dst == error.channel[1])
    return f"NCCL: {error.why}", int(part.task[part.num_ops + np.flatnonzero(on)[0]])
