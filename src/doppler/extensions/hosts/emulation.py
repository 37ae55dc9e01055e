"""Devices that wait instead of computing: large machines emulated in real time, on any machine.

An op occupies its device for its modelled time; a transfer occupies its link and an outgoing
network interface of the sender's host for its modelled time. Then the tasks that wait for it may
start. The recorded end of a task is exactly its start plus this time, however late the waiting
thread wakes up. So only messages between agents take real time.
"""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from doppler.executor.dispatcher import Dispatcher
from doppler.executor.tasks import Tasks
from doppler.extensions.hosts.parts import OUT, FloatArray, HostPart
from doppler.extensions.hosts.peers import Peers
from doppler.extensions.hosts.running import AgentRun, Fields


class OutletDispatcher(Dispatcher):
    """A dispatcher whose transfers to another host also occupy an outgoing network interface.

    If several transfers wait for an interface, the first one in queue order gets it. Interfaces of
    the receiver are not modelled, because no single process knows their state.

    Args:
        tasks: of this agent.
        fifo: ready tasks run in order of arrival instead of priority.
        host_D: [D] host of each device.
        nics: number of outgoing interfaces of a host.

    Attributes:
        outlet: [N] number of the interface that each task used, -1 for none.
    """

    def __init__(self, tasks: Tasks, *, fifo: bool, host_D: Sequence[int], nics: int) -> None:
        self._hosts, self._num_devices = host_D, tasks.num_devices
        self._free_outlets = {host: list(range(nics)) for host in set(host_D)}
        self._waiting: dict[int, set[int]] = {host: set() for host in set(host_D)}
        self.outlet = [-1] * len(tasks.resource)
        super().__init__(tasks, fifo=fifo)

    def _sending_host(self, resource: int) -> int:
        """Return the host whose outgoing interface a resource needs; -1 if it needs none."""
        if resource < self._num_devices:
            return -1
        src, dst = divmod(resource - self._num_devices, self._num_devices)
        return self._hosts[src] if self._hosts[src] != self._hosts[dst] else -1

    def retire(self, task: int, now: float) -> None:
        if self.outlet[task] >= 0:
            host = self._sending_host(self._tasks.resource[task])
            heappush(self._free_outlets[host], self.outlet[task])
        super().retire(task, now)

    def start(self, now: float) -> list[int]:
        waits = [one for one in self._touched if self._sending_host(one) >= 0]
        self._touched = [one for one in self._touched if self._sending_host(one) < 0]
        started = super().start(now)
        for resource in waits:
            if self._is_free[resource] and self._queues[resource]:
                self._waiting[self._sending_host(resource)].add(resource)
        for host, resources in self._waiting.items():
            while resources and self._free_outlets[host]:
                first = min(resources, key=lambda one: (self._queues[one][0][:2], one))
                resources.remove(first)
                self._touched.append(first)
                (task,) = super().start(now)
                self.outlet[task] = heappop(self._free_outlets[host])
                started.append(task)
        return started


class _Clockwork:
    """One run in one thread, which sleeps until a task ends or a message arrives."""

    def __init__(
        self, dispatcher: Dispatcher, seconds_N: FloatArray, sends: dict[int, Callable[[], None]]
    ) -> None:
        self.dispatcher = dispatcher
        self._seconds, self._sends = seconds_N.tolist(), sends
        self._ends: list[tuple[float, int]] = []
        self._changed = threading.Condition()
        self._num_left = 0
        self._is_abandoned = False

    def arrive(self, task: int) -> None:
        with self._changed:
            heappush(self._ends, (time.perf_counter(), task))
            self._changed.notify()

    def abandon(self) -> None:
        with self._changed:
            self._is_abandoned = True
            self._changed.notify()

    def carry_out(self, at_s: float, num_tasks: int) -> None:
        """Run until all tasks have ended, or the run is abandoned."""
        self._num_left = num_tasks
        with self._changed:
            for task in self.dispatcher.start(at_s):
                heappush(self._ends, (at_s + self._seconds[task], task))
        now = at_s
        while self._num_left:
            with self._changed:
                if self._is_abandoned:
                    return
                left_s = self._ends[0][0] - time.perf_counter() if self._ends else None
                if left_s is None or left_s > 0:
                    self._changed.wait(left_s)
                    continue
                end_s, ended = self._ends[0][0], []
                now = max(now, end_s)
                while self._ends and self._ends[0][0] == end_s:  # ends come before starts
                    ended.append(heappop(self._ends)[1])
                    self.dispatcher.retire(ended[-1], now)
                self._num_left -= len(ended)
                for task in self.dispatcher.start(now):
                    heappush(self._ends, (now + self._seconds[task], task))
            for task in ended:
                if task in self._sends:
                    self._sends[task]()


class _EmulatedRun(AgentRun):
    """A run of an emulated session."""

    def carry_out(self, at_s: float) -> list[FloatArray]:
        clockwork: Any = self._scheduled
        clockwork.carry_out(at_s, len(self._part.task))
        outlet: Any = getattr(clockwork.dispatcher, "outlet", None)
        found = self.times(at_s)
        return found if outlet is None else [*found, np.array(outlet, dtype=np.float64)]


class EmulatedSession:
    """The emulated devices of an agent.

    Args:
        fields: of the request that opens the session: ``num_devices`` of the cluster, ``fifo``,
            ``hosts`` (the host of each device, or None) and ``nics``.
        arrays: not used.
    """

    def __init__(self, fields: Fields, arrays: Sequence[NDArray]) -> None:
        self._num_devices, self._is_fifo = int(fields["num_devices"]), bool(fields["fifo"])
        self._hosts, self._nics = fields["hosts"], int(fields["nics"])

    def prepare(
        self, fields: Fields, part: HostPart, peers: Peers, seconds_N: FloatArray
    ) -> _EmulatedRun:
        """Make a run that has not begun.

        Args:
            fields: of the request: ``run`` (its number) and ``timeout_s``.
            part: what this agent runs.
            peers: the other agents.
            seconds_N: [N] real seconds that each task takes.
        """
        tasks = part.tasks(self._num_devices)
        if self._hosts is None:
            dispatcher = Dispatcher(tasks, fifo=self._is_fifo)
        else:
            dispatcher = OutletDispatcher(
                tasks, fifo=self._is_fifo, host_D=self._hosts, nics=self._nics
            )
        sends: dict[int, Callable[[], None]] = {}
        for t in np.flatnonzero(part.way == OUT).tolist():
            local = part.num_ops + t
            send = peers.sending(int(part.peer[t]), None)
            sends[local] = partial(send, int(fields["run"]), int(part.task[local]))
        return _EmulatedRun(fields, part, _Clockwork(dispatcher, seconds_N, sends))

    def close(self) -> None:
        """Do nothing: an emulated session holds no resources."""
