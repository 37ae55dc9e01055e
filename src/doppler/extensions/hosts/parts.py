"""Cuts the tasks of a placement by host: what each agent runs, and what it waits for.

Shape suffixes: N tasks of an agent, O its ops, T its transfers, K tasks of all agents.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.executor.tasks import NOWHERE, Tasks

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

WITHIN, OUT, IN = 0, 1, 2  # direction of a transfer: inside the agent, to another, from another


class HostPart(NamedTuple):
    """The tasks of one agent, as plain arrays. They are numbered from 0, ops first.

    A task that comes from another agent has no resource: it ends when its message arrives.

    Attributes:
        task: [N] number of each task among the tasks of all agents.
        resource: [N] as in `Tasks`.
        key: [N] as in `Tasks`.
        number: [N] as in `Tasks`.
        num_waits: [N] as in `Tasks`.
        successor_ptr: [N + 1] where each task's successors begin in ``successors``.
        successors: tasks that wait for each task, all in a row.
        region: [T] region that each transfer moves.
        src: [T] device that it comes from.
        dst: [T] device that it goes to.
        way: [T] WITHIN, OUT or IN.
        peer: [T] rank of the other agent; -1 for WITHIN.
    """

    task: IntArray
    resource: IntArray
    key: FloatArray
    number: IntArray
    num_waits: IntArray
    successor_ptr: IntArray
    successors: IntArray
    region: IntArray
    src: IntArray
    dst: IntArray
    way: IntArray
    peer: IntArray

    @property
    def num_ops(self) -> int:
        """Number of ops, O."""
        return len(self.task) - len(self.region)

    def tasks(self, num_devices: int) -> Tasks:
        """Return the tasks in the form that the dispatcher takes.

        Args:
            num_devices: of the cluster.
        """
        ptr, successors = self.successor_ptr.tolist(), self.successors.tolist()
        return Tasks(
            num_ops=self.num_ops,
            num_devices=num_devices,
            resource=self.resource.tolist(),
            key=self.key.tolist(),
            number=self.number.tolist(),
            num_waits=self.num_waits.tolist(),
            successors=[successors[begin:end] for begin, end in pairwise(ptr)],
            region=self.region.tolist(),
            ends=list(zip(self.src.tolist(), self.dst.tolist(), strict=True)),
        )


def cut_by_host(tasks: Tasks, agent_of: list[int], num_agents: int) -> list[HostPart]:
    """Return what each agent runs.

    A transfer between two agents is a task of both: the sender's ends when it has been sent, the
    receiver's when it has arrived.

    Args:
        tasks: of a whole placement, of the work-conserving system.
        agent_of: [D] rank of the agent that has each device.
        num_agents: number of agents.
    """
    parts = [_Growing() for _ in range(num_agents)]
    for v in range(tasks.num_ops):
        parts[agent_of[tasks.resource[v]]].add(tasks, v, tasks.num_waits[v], tasks.resource[v])
    for task, region in enumerate(tasks.region, start=tasks.num_ops):
        src, dst = tasks.channel(task)
        sender, receiver = agent_of[src], agent_of[dst]
        if sender == receiver:
            parts[sender].add(tasks, task, tasks.num_waits[task], tasks.resource[task])
            parts[sender].ways.append((region, src, dst, WITHIN, -1))
            continue
        parts[sender].add(tasks, task, tasks.num_waits[task], tasks.resource[task], leads_on=False)
        parts[sender].ways.append((region, src, dst, OUT, receiver))
        parts[receiver].add(tasks, task, 1, NOWHERE)  # it ends only when its message arrives
        parts[receiver].ways.append((region, src, dst, IN, sender))
    return [part.done() for part in parts]


class _Growing:
    """A part under construction."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, float, int, int]] = []
        self.successors: list[list[int]] = []
        self.ways: list[tuple[int, int, int, int, int]] = []

    def add(
        self, tasks: Tasks, task: int, num_waits: int, resource: int, *, leads_on: bool = True
    ) -> None:
        row = (task, resource, tasks.key[task], tasks.number[task], num_waits)
        self.rows.append(row)
        self.successors.append(tasks.successors[task] if leads_on else [])

    def done(self) -> HostPart:
        local = {row[0]: i for i, row in enumerate(self.rows)}
        task, resource, key, number, num_waits = (
            zip(*self.rows, strict=True) if self.rows else 5 * ((),)
        )
        successors = [[local[one] for one in each] for each in self.successors]
        ways = np.array(self.ways, dtype=np.int64).reshape(-1, 5).T
        ints = [np.array(column, dtype=np.int64) for column in (task, resource, number, num_waits)]
        return HostPart(
            task=ints[0],
            resource=ints[1],
            key=np.array(key, dtype=np.float64),
            number=ints[2],
            num_waits=ints[3],
            successor_ptr=np.cumsum([0, *map(len, successors)], dtype=np.int64),
            successors=np.array([one for each in successors for one in each], dtype=np.int64),
            region=ways[0],
            src=ways[1],
            dst=ways[2],
            way=ways[3],
            peer=ways[4],
        )


@dataclass(frozen=True, eq=False)
class HostTimes:
    """When the tasks of a run started and finished.

    Attributes:
        start_s: [K] seconds from the start of the run.
        finish_s: [K] seconds from the start of the run.
        late_s: largest time from a message's arrival until its sender knew that it was sent.
        under_way_s: largest time from when a sender knew that its message was sent to its arrival.
    """

    start_s: FloatArray
    finish_s: FloatArray
    late_s: float
    under_way_s: float


def merged(
    tasks: Tasks, parts: list[HostPart], seconds: list[tuple[FloatArray, FloatArray]]
) -> HostTimes:
    """Merge the times of all agents.

    A transfer between hosts ends when it has arrived, and occupies its channel from when it is
    sent. If another message of its channel is still on its way, it starts when that one arrives.

    Args:
        tasks: of the whole placement.
        parts: of the agents.
        seconds: for each part, start and finish [N] in seconds from the common start; NaN where a
            task never ran.
    """
    start_s, finish_s = (np.full(len(tasks.resource), np.nan) for _ in range(2))
    sent_s = np.full(len(tasks.resource), -np.inf)
    for part, (start_N, finish_N) in zip(parts, seconds, strict=True):
        way_N = np.concatenate([np.zeros(part.num_ops, dtype=np.int64), part.way])
        begins, ends, leaves = (
            part.task[way_N != IN],
            part.task[way_N != OUT],
            part.task[way_N == OUT],
        )
        start_s[begins], finish_s[ends] = start_N[way_N != IN], finish_N[way_N != OUT]
        sent_s[leaves] = finish_N[way_N == OUT]
    crossing = np.flatnonzero(np.isfinite(sent_s))
    ahead_s = (sent_s - finish_s)[crossing]
    arrived: dict[int, float] = {}
    for k in crossing[np.argsort(start_s[crossing], kind="stable")].tolist():
        channel = tasks.resource[k]
        start_s[k] = max(float(start_s[k]), arrived.get(channel, 0.0))
        arrived[channel] = max(float(finish_s[k]), arrived.get(channel, 0.0))
    return HostTimes(
        start_s,
        finish_s,
        late_s=float(ahead_s.max(initial=0.0)),
        under_way_s=float((-ahead_s).max(initial=0.0)),
    )
