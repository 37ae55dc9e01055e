"""A placement unrolled into tasks: which resource each runs on, and what it waits for.

Task v < V is op v. Then come the transfers, then barriers, which take no time and no resource.
Resource d < D is device d, and resource D + s * D + d is the channel from device s to device d,
numbered as in the simulator's state.py.

Shape suffixes: V ops, T transfers, K tasks, D devices.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from doppler.graph import DataflowGraph
from doppler.graph.levels import depth
from doppler.trace import Queue

NOWHERE = -1  # the resource of barriers
BEFORE_OPS = 2.0**32  # as in state.py; negative keys go first in any queue


@dataclass(frozen=True, eq=False, kw_only=True)
class Tasks:
    """The tasks of one placement.

    Attributes:
        num_ops: V.
        num_devices: D.
        resource: [K] where each task runs.
        key: [K] place in the queue of the resource, small first.
        number: [K] breaks ties: of an op itself, of a transfer its region.
        num_waits: [K] tasks that must have finished before. A task counts as often as it is among
            the successors of another.
        successors: [K] tasks that wait for each task.
        region: [T] the region that each transfer moves.
        ends: [T] sending and receiving device of each transfer.
    """

    num_ops: int
    num_devices: int
    resource: list[int] = field(default_factory=list)
    key: list[float] = field(default_factory=list)
    number: list[int] = field(default_factory=list)
    num_waits: list[int] = field(default_factory=list)
    successors: list[list[int]] = field(default_factory=list)
    region: list[int] = field(default_factory=list)
    ends: list[tuple[int, int]] = field(default_factory=list)

    @property
    def num_transfers(self) -> int:
        """Number of transfers, T."""
        return len(self.region)

    def add(self, resource: int, key: float, number: int) -> int:
        """Add a task that waits for none yet; return its number."""
        self.resource.append(resource)
        self.key.append(key)
        self.number.append(number)
        self.num_waits.append(0)
        self.successors.append([])
        return len(self.resource) - 1

    def add_transfer(self, region: int, src: int, dst: int, key: float) -> int:
        """Add a transfer on a channel; return its task."""
        self.region.append(region)
        self.ends.append((src, dst))
        return self.add(self.num_devices + src * self.num_devices + dst, key, region)

    def wait(self, task: int, other: int) -> None:
        """Make ``task`` start after ``other`` has finished."""
        self.successors[other].append(task)
        self.num_waits[task] += 1

    def wait_for_themselves(self) -> bool:
        """Whether some tasks wait for each other in a circle."""
        waits = self.num_waits.copy()
        ready = [task for task, num in enumerate(waits) if num == 0]
        for task in ready:  # the list grows during the loop
            for other in self.successors[task]:
                waits[other] -= 1
                if waits[other] == 0:
                    ready.append(other)
        return len(ready) < len(waits)

    def channel(self, transfer: int) -> tuple[int, int]:
        """The devices that a transfer goes from and to."""
        return self.ends[transfer - self.num_ops]


class Unroller:
    """Makes tasks from placements of one graph."""

    def __init__(self, graph: DataflowGraph, num_devices: int) -> None:
        self._num_devices = num_devices
        regions = graph.regions
        ptr, consumers = regions.consumer_ptr.tolist(), regions.consumers.tolist()
        self._consumers = [consumers[ptr[r] : ptr[r + 1]] for r in range(len(regions))]
        self._src = regions.src.tolist()
        self._level = depth(graph.num_ops, graph.edges.src, graph.edges.dst).tolist()

    def work_conserving(
        self,
        device_V: Sequence[int],
        priority_V: Sequence[int],
        *,
        queue: Queue = "priority",
        sender: bool = False,
    ) -> Tasks:
        """Make the tasks of the work-conserving system.

        A region moves once to every other device that reads it. The transfer has the priority of
        the first of its readers.

        Args:
            device_V: device of each op.
            priority_V: rank of each op, small first.
            queue: which ready task goes first. With ``strict`` each device runs its ops in exactly
                the given order: an op also waits for the one before it.
            sender: the device that made a region moves it, before its next op.
        """
        num_devices = self._num_devices
        tasks = Tasks(num_ops=len(device_V), num_devices=num_devices)
        for v, (d, priority) in enumerate(zip(device_V, priority_V, strict=True)):
            tasks.add(d, priority, v)
        for r, (producer, consumers) in enumerate(zip(self._src, self._consumers, strict=True)):
            src = device_V[producer]
            brought_by = {src: producer}
            for v in consumers:
                dst, priority = device_V[v], priority_V[v]
                bringer = brought_by.get(dst)
                if bringer is None:
                    bringer = brought_by[dst] = tasks.add_transfer(r, src, dst, priority)
                    tasks.wait(bringer, producer)
                elif bringer != producer and priority < tasks.key[bringer]:
                    tasks.key[bringer] = priority
                tasks.wait(v, bringer)
        if sender:
            _send_first(tasks, by_rank=queue != "fifo")
        if queue == "strict":
            _chain(tasks)
        return tasks

    def synchronous(self, device_V: Sequence[int]) -> Tasks:
        """Make the tasks of the bulk-synchronous system, see simulator/bulk_synchronous_kernels.py.

        For each level: D - 1 rounds of pairwise exchange, then the ops, with a barrier after each.

        Args:
            device_V: device of each op.
        """
        num_devices = self._num_devices
        tasks = Tasks(num_ops=len(device_V), num_devices=num_devices)
        phases: dict[tuple[int, int], list[int]] = defaultdict(list)
        for v, d in enumerate(device_V):
            phases[self._level[v], num_devices].append(tasks.add(d, v, v))
        for r, (producer, consumers) in enumerate(zip(self._src, self._consumers, strict=True)):
            src = device_V[producer]
            for dst in {device_V[v] for v in consumers} - {src}:
                level = min(self._level[v] for v in consumers if device_V[v] == dst)
                distance = (dst - src) % num_devices
                phases[level, distance].append(tasks.add_transfer(r, src, dst, r))
        for before, after in pairwise(sorted(phases)):
            barrier = tasks.add(NOWHERE, 0, 0)
            for task in phases[before]:
                tasks.wait(barrier, task)
            for task in phases[after]:
                tasks.wait(task, barrier)
        return tasks


def _send_first(tasks: Tasks, *, by_rank: bool) -> None:
    """Let transfers run on the devices that send them, before all ops.

    Args:
        tasks: that are changed.
        by_rank: order transfers by their first readers; else as they are listed.
    """
    for t, (src, _) in enumerate(tasks.ends):
        k = tasks.num_ops + t
        tasks.resource[k] = src
        tasks.key[k] = (tasks.key[k] if by_rank else t) - BEFORE_OPS


def _chain(tasks: Tasks) -> None:
    last: dict[int, int] = {}
    for v in sorted(range(tasks.num_ops), key=tasks.key.__getitem__):
        d = tasks.resource[v]
        if d in last:
            tasks.wait(v, last[d])
        last[d] = v
