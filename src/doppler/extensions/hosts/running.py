"""An agent's sessions and runs: kernels on the cores or GPUs of its host, and messages."""

import queue
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from doppler.executor.devices import Cores, Devices
from doppler.executor.elementwise import TORCH_DTYPES
from doppler.executor.gpus import Gpus
from doppler.executor.memory import Memory
from doppler.executor.recording import Action
from doppler.executor.session import LOADING_S, reason_of
from doppler.executor.tasks import Unroller
from doppler.executor.tensors import check_executable, random_inputs
from doppler.executor.workers import TaskError, TaskTimeoutError, Workers
from doppler.extensions.hosts.channels import Arrival, ChannelError, as_bytes, code_of
from doppler.extensions.hosts.crossing import Crossing, why_not
from doppler.extensions.hosts.parts import IN, OUT, WITHIN, FloatArray, HostPart
from doppler.extensions.hosts.peers import Peers
from doppler.graph import DataflowGraph
from doppler.graph.json_format import parse_graph
from doppler.support.files import parse_json

Fields = dict[str, Any]


class TaskFailedError(Exception):
    """A task of an agent failed.

    Attributes:
        reason: in words.
        task: number of the task among the tasks of all agents.
        hangs: whether it still runs.
    """

    def __init__(self, reason: str, task: int, *, hangs: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.task, self.hangs = reason, task, hangs


class _Scheduled(Protocol):
    """An execution on any kind of devices (see `workers.TaskRun`)."""

    dispatcher: Any

    def arrive(self, task: int) -> None: ...

    def abandon(self) -> None: ...


class AgentRun:
    """One run of an agent's part.

    Args:
        fields: of the request: ``run`` (its number) and ``timeout_s``.
        part: what this agent runs.
        scheduled: the execution.
        expected: as the attribute; None: messages bring no data.

    Attributes:
        number: of the run.
        timeout_s: limit for one task.
        go: receives the time at which the run begins, on this agent's clock; None if it never
            begins.
        is_abandoned: whether the run was aborted.
        expected: what to do with each message, by the number of its task among all tasks.
    """

    def __init__(
        self,
        fields: Fields,
        part: HostPart,
        scheduled: _Scheduled,
        expected: dict[int, Arrival] | None = None,
    ) -> None:
        self.number, self.timeout_s = int(fields["run"]), float(fields["timeout_s"])
        self.go: queue.SimpleQueue[float | None] = queue.SimpleQueue()
        self.is_abandoned = False
        self._part, self._scheduled = part, scheduled
        num_ops, way = part.num_ops, part.way.tolist()
        self._leaving = [num_ops + t for t, one in enumerate(way) if one == OUT]
        self._coming = [num_ops + t for t, one in enumerate(way) if one == IN]
        if expected is None:
            ends = list(zip(part.src.tolist(), part.dst.tolist(), strict=True))
            expected = {
                int(part.task[local]): Arrival(None, local, code_of(ends[local - num_ops]))
                for local in self._coming
            }
        self.expected = expected

    def arrive(self, local: int) -> None:
        """Record that a message has arrived.

        Args:
            local: number of its task in this agent's part.
        """
        self._scheduled.arrive(local)

    def abandon(self) -> None:
        """Start no more tasks."""
        self.is_abandoned = True
        self._scheduled.abandon()

    def carry_out(self, at_s: float) -> list[FloatArray]:
        """Execute the run.

        Args:
            at_s: when it begins, on time.perf_counter.

        Returns:
            Start and finish [N] of each task, in seconds from ``at_s``.

        Raises:
            TaskFailedError: a task failed, or hangs.
        """
        raise NotImplementedError

    def times(self, at_s: float) -> list[FloatArray]:
        """Return start and finish [N] of each task.

        Args:
            at_s: the time that counts as 0, on time.perf_counter.
        """
        dispatcher = self._scheduled.dispatcher
        start_N, finish_N = np.array(dispatcher.start_s), np.array(dispatcher.finish_s)
        return [start_N - at_s, finish_N - at_s]

    def status(self) -> Fields:
        """Return the state of the run; tasks have their number among all tasks.

        Returns:
            ``run``, its number; ``sent``, transfers that were sent and how many seconds ago;
            ``awaited``, transfers that have not arrived; ``ended`` and ``begun``, tasks.
        """
        now, task = time.perf_counter(), self._part.task
        start_s, finish_s = self._scheduled.dispatcher.start_s, self._scheduled.dispatcher.finish_s
        sent = [(int(task[k]), now - finish_s[k]) for k in self._leaving]
        ended = [int(task[k]) for k in range(len(task)) if finish_s[k] == finish_s[k]]
        begun = [int(task[k]) for k in range(len(task)) if start_s[k] == start_s[k]]
        return {
            "run": self.number,
            "sent": [[one, age_s] for one, age_s in sent if age_s == age_s],
            "awaited": [int(task[k]) for k in self._coming if finish_s[k] != finish_s[k]],
            "ended": ended,
            "begun": begun,
        }


class _KernelRun(AgentRun):
    """A run of a kernel session."""

    def __init__(self, *args: Any, workers: Workers) -> None:
        super().__init__(*args)
        self._workers = workers

    def carry_out(self, at_s: float) -> list[FloatArray]:
        run: Any = self._scheduled
        try:
            self._workers.carry_out(run, self.timeout_s, at_s)
        except TaskError as failure:
            if not self.is_abandoned:
                task = int(self._part.task[failure.task])
                raise TaskFailedError(reason_of(failure.__cause__), task) from None
        except TaskTimeoutError as failure:
            reason, task = f"still runs after {self.timeout_s:g} s", self._part.task[failure.task]
            raise TaskFailedError(reason, int(task), hangs=True) from None
        return self.times(at_s)


class KernelSession:
    """A graph on the cores or GPUs of this host; every op is planned on each of them.

    Args:
        fields: of the request that opens the session, among them ``devices`` (numbers of this
            agent's devices in the cluster) and ``gpus`` (of each device; None: cores).
        arrays: the graph as JSON, and the inputs if they are given.

    Raises:
        InputError: the graph cannot be executed here.
        TaskFailedError: an op failed.
    """

    def __init__(self, fields: Fields, arrays: Sequence[np.ndarray]) -> None:
        graph = parse_graph(parse_json(bytes(arrays[0]).decode(), "graph"), Path("graph"))
        check_executable(graph)
        devices: list[int] = fields["devices"]
        self._local = {device: i for i, device in enumerate(devices)}
        self._num_devices, self._is_fifo = int(fields["num_devices"]), bool(fields["fifo"])
        if len(arrays) == 1:
            inputs = random_inputs(graph, np.random.default_rng(0))
        else:
            inputs = _tensors(graph, fields["inputs"], arrays[1:])
        gpus: list[int] | None = fields["gpus"]
        self._devices: Devices = Cores(len(devices)) if gpus is None else Gpus(len(devices), gpus)
        self._memory = Memory(graph, self._devices, inputs)
        self._crossing = Crossing(
            self._memory,
            self._devices,
            self._local,
            num_devices=self._num_devices,
            direct=[(src, dst) for src, dst in fields["direct"]],
            num_regions=len(graph.regions),
        )
        self._workers = Workers()
        self._plan(graph, float(fields["timeout_s"]))

    def _plan(self, graph: DataflowGraph, timeout_s: float) -> None:
        unroller = Unroller(graph, len(self._local))
        for d in range(len(self._local)):  # every op runs once on every device
            tasks = unroller.synchronous([d] * graph.num_ops)
            actions = [partial(self._memory.plan, v, d) for v in range(graph.num_ops)]
            try:
                self._workers.run(
                    tasks, actions, fifo=False, sender_copies=True, timeout_s=timeout_s + LOADING_S
                )
            except TaskError as failure:
                raise TaskFailedError(reason_of(failure.__cause__), failure.task) from None
            except TaskTimeoutError as failure:
                reason = f"still runs after {timeout_s + LOADING_S:g} s"
                raise TaskFailedError(reason, failure.task, hangs=True) from None

    def prepare(self, fields: Fields, part: HostPart, peers: Peers) -> AgentRun:
        """Make a run that has not begun.

        Args:
            fields: of the request: ``run`` (its number), ``timeout_s`` and ``fails`` (for tests).
            part: what this agent runs.
            peers: the other agents.

        Raises:
            TaskFailedError: a channel to or from another agent cannot be connected.
        """
        tasks, memory, local = part.tasks(self._num_devices), self._memory, self._local
        number = int(fields["run"])
        try:  # first, because the other agents wait for it
            self._crossing.connect(part, peers, float(fields["timeout_s"]) + LOADING_S)
        except ChannelError as error:
            why, task = why_not(error, part)
            raise TaskFailedError(why, task, hangs=True) from None
        actions: list[Action] = []
        ops, resource = part.task[: part.num_ops].tolist(), tasks.resource
        actions += [
            _fail if v in fields["fails"] else memory.computation(v, local[d])
            for v, d in zip(ops, resource[: len(ops)], strict=True)
        ]
        expected: dict[int, Arrival] = {}
        columns = (part.task[part.num_ops :], part.region, part.src, part.dst, part.way, part.peer)
        for task, region, src, dst, way, peer in np.stack(columns, axis=1).tolist():
            if way == WITHIN:
                actions.append(memory.move(region, local[src], local[dst]))
            elif way == OUT:
                send = self._crossing.sending(region, src, dst, peer, peers)
                actions.append(partial(send, number, task))
            else:
                expected[task] = self._crossing.arrival(len(actions), region, src, dst, peers)
                actions.append(_nothing)
        run = self._workers.prepare(
            tasks,
            actions,
            fifo=self._is_fifo,
            sender_copies=self._devices.sender_copies,
            num_arrivals=len(expected),
        )
        return _KernelRun(fields, part, run, expected, workers=self._workers)

    def outputs(self, ops: Sequence[int], devices: Sequence[int]) -> list[np.ndarray]:
        """Return the results of ops of the last run, as bytes.

        Args:
            ops: whose results are wanted.
            devices: that executed each of them, numbered as in the cluster.
        """
        return [
            as_bytes(self._memory.result(v, self._local[d]).cpu().contiguous()).numpy()
            for v, d in zip(ops, devices, strict=True)
        ]

    def wipe(self) -> None:
        """Overwrite all results."""
        self._memory.wipe()

    def close(self) -> None:
        """End the session's threads."""
        self._workers.close()


def _fail() -> None:
    raise RuntimeError("told to fail")


def _nothing() -> None:
    raise AssertionError("a transfer from another host has no action here")


def _tensors(
    graph: DataflowGraph, names: Sequence[str], arrays: Sequence[np.ndarray]
) -> dict[str, torch.Tensor]:
    """Restore inputs from bytes; the graph knows their dtypes and shapes."""
    known = {tensor.name: tensor for tensor in graph.tensors}
    return {
        name: torch.from_numpy(data.copy())
        .view(TORCH_DTYPES[known[name].dtype])
        .view(known[name].shape)
        for name, data in zip(names, arrays, strict=True)
    }
