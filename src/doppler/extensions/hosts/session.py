"""A session on the devices of several hosts: each agent runs the ops placed on its own devices.

Shape suffixes: V ops, D devices, K tasks, T transfers.
"""

import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from doppler.executor.devices import Use
from doppler.executor.elementwise import TORCH_DTYPES
from doppler.executor.reference import run_graph
from doppler.executor.session import LOADING_S, Execution, ExecutionError, ExecutorSession
from doppler.executor.tasks import Tasks
from doppler.executor.tensors import Outputs, check_executable, random_inputs
from doppler.extensions.hosts.attempt import Attempt, LostRunError
from doppler.extensions.hosts.channels import as_bytes
from doppler.extensions.hosts.dealing import Dealt, deal_among
from doppler.extensions.hosts.members import AgentLostError, Group, RefusedError
from doppler.extensions.hosts.parts import IN, HostPart, cut_by_host, merged
from doppler.graph.json_format import render_json
from doppler.problem import Placement, Problem
from doppler.problem.transfer_kernels import move_seconds
from doppler.support.errors import InputError
from doppler.trace import ExecutionRules


class Emulation(NamedTuple):
    """Settings of devices that wait instead of computing.

    Attributes:
        scale: real seconds per second of the emulated machine.
        noise: standard deviation of the logarithm of the time that an op or transfer takes.
        slow_D: [D] factor by which the ops of each device take longer.
    """

    scale: float
    noise: float
    slow_D: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class HostSettings:
    """Settings of a session (see `systems.Hosts`).

    Attributes:
        verify: compare the results of every run with plain torch.
        timeout_s: how long an op or a message may take, and an agent may be silent.
        warm_up: number of runs before the first that counts.
        restarts: how often the session restarts its agents after one is lost.
        on_gpus: devices are GPUs, not cores.
    """

    verify: bool
    timeout_s: float
    warm_up: int
    restarts: int
    on_gpus: bool = False


class HostsSession(ExecutorSession):
    """A session (`system.Session`) on several hosts; peak memory is as in `ExecutorSession`.

    Args:
        problem: to execute.
        execution: its rules.
        group: the agents.
        agent_of: [D] rank of the agent that has each device.
        settings: of the session.
        emulation: how devices wait; None: they compute.
        inputs: of the graph, by name; None: random ones.

    Raises:
        InputError: the graph cannot be executed, or agents cannot be started.
        ExecutionError: an op failed, or an agent is lost.
    """

    def __init__(
        self,
        *,
        problem: Problem,
        execution: ExecutionRules,
        group: Group,
        agent_of: Sequence[int],
        settings: HostSettings,
        emulation: Emulation | None = None,
        inputs: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        self._describe_problem(problem, execution, settings.timeout_s)
        self._group, self._settings, self._emulation = group, settings, emulation
        self._agent_of = list(agent_of)
        self._num_agents = max(agent_of) + 1
        self._generation, self._number, self._restarts = -1, 0, 0
        self._rng = np.random.default_rng(0)  # for the noise of an emulation
        self._inputs = None if inputs is None else dict(inputs)
        self._graph_text = b""
        if emulation is None:
            check_executable(problem.graph)
            self._graph_text = render_json(problem.graph).encode()
        self._memory: Any = self  # stands for the memory of all agents together
        self._expected = None
        if settings.verify and emulation is None:
            given = inputs or random_inputs(problem.graph, np.random.default_rng(0))
            self._expected = run_graph(problem.graph, given)
        self._opened: list[tuple[int, int]] = []
        self._locks: list[list[str]] = [[] for _ in range(self._num_agents)]  # of each agent
        held = self._opened, self._locks
        self.close = weakref.finalize(self, _close, group, *held, settings.timeout_s)
        try:
            self._open()
            for _ in range(settings.warm_up):
                in_turns_V = np.arange(problem.num_ops) % problem.num_devices
                self._execute(in_turns_V, self._topological)
        except BaseException:
            self.close()
            raise

    def _free(self) -> None:
        """Nothing: agents do it when the session is closed."""

    def _cores(self) -> list[list[str]]:
        """Return the locks of each agent on the cores that it runs on."""
        if self._emulation is not None:
            return [[f"cpu-{rank}"] for rank in range(self._num_agents)]
        of = self._agent_of
        return [[f"cpu-{d}" for d in np.flatnonzero(np.equal(of, r))] for r in range(max(of) + 1)]

    def _devices_of(self, rank: int, dealt: Dealt | None) -> dict[str, Any]:
        """Return what an agent is told about its own devices."""
        own = [d for d, agent in enumerate(self._agent_of) if agent == rank]
        if dealt is None:
            return {"devices": own, "gpus": None, "direct": []}
        direct = [channel for channel in dealt.direct if set(channel) & set(own)]
        return {"devices": own, "gpus": [dealt.gpu_D[d] for d in own], "direct": direct}

    # --- Opening ----------------------------------------------------------------------------------

    def _open(self) -> None:
        """Start the agents if needed, and let all of them prepare the problem."""
        self._group.ensure()
        self._generation, self._number = self._group.generation, self._group.number()
        hosts = self.problem.cluster.hosts
        fields = {
            "ask": "open",
            "session": self._number,
            "emulated": self._emulation is not None,
            "num_devices": self.problem.num_devices,
            "fifo": self.execution.queue == "fifo",
            "hosts": None if hosts is None else list(hosts),
            "nics": self.problem.cluster.nics,
            "timeout_s": self._settings.timeout_s,
            "inputs": list(self._inputs or ()),
        }
        ranks = range(self._num_agents)
        arrays: list[np.ndarray] = []
        if self._emulation is None:
            arrays.append(np.frombuffer(self._graph_text, dtype=np.uint8))
            for tensor in (self._inputs or {}).values():
                arrays.append(as_bytes(tensor.detach().cpu().contiguous()).numpy())
        try:
            dealt = self._deal() if self._settings.on_gpus else None
            self._locks[:] = self._cores() if dealt is None else dealt.locks
            for rank, locks in zip(ranks, self._locks, strict=True):  # in a fixed order
                self._ask([rank], {"ask": "lock", "locks": locks})
            self._opened.append((self._generation, self._number))
            each = [self._devices_of(rank, dealt) for rank in ranks]
            self._group.ask(
                ranks,
                fields,
                [arrays] * self._num_agents,
                each=each,
                timeout_s=self._settings.timeout_s + LOADING_S,
            )
        except AgentLostError as failure:
            raise self._lost(failure) from None
        except RefusedError as refused:
            raise self._refused(refused) from None

    def _deal(self) -> Dealt:
        """Assign a GPU to each device (see `dealing.deal`)."""
        answers = self._ask(range(self._num_agents), {"ask": "gpus"})
        boots = [member.boot for member in self._group.members]
        told = [answer.fields for answer in answers]
        return deal_among(self._agent_of, boots, told, self._host)

    def _ask(self, ranks: Sequence[int], fields: Any, arrays: Any = None, each: Any = None) -> Any:
        timeout_s = self._settings.timeout_s
        return self._group.ask(ranks, fields, arrays, each=each, timeout_s=timeout_s)

    def _refused(self, refused: RefusedError) -> InputError:
        """Make an error from the refusal of an agent that was planning ops."""
        if refused.hangs:
            self._group.close(wait=False)
        if refused.task is None:
            return InputError(f"{self._host(refused.rank)}: {refused.why}")
        name = self.problem.graph.ops.names[refused.task]
        where = self._host(refused.rank)
        return ExecutionError(f"op {refused.task} ({name!r}) on {where}: {refused.why}")

    def _host(self, rank: int) -> str:
        members = self._group.members
        if rank >= len(members):
            return f"host {rank}"
        return f"host {rank} ({members[rank].host}, process {members[rank].pid})"

    def _lost(self, failure: AgentLostError) -> ExecutionError:
        """Make an error from the loss of an agent that was planning ops; end the other agents."""
        where = self._host(failure.rank)
        self._group.close(wait=False)
        name = self.problem.graph.ops.names[0]
        at = f"at op 0 ({name!r}) or one of those after it, while they were planned"
        return ExecutionError(f"{where}: {failure.why} {at}")

    # --- Running ----------------------------------------------------------------------------------

    def _execute(self, device_V: NDArray[np.int64], priority_V: NDArray[np.int64]) -> Execution:
        tasks = self._unroller.work_conserving(
            device_V.tolist(), priority_V.tolist(), queue=self.execution.queue
        )
        if self.execution.queue == "strict" and tasks.wait_for_themselves():
            never_K = np.full(len(tasks.resource), np.inf)
            return Execution(tasks=tasks, start_s=never_K, finish_s=never_K)
        while True:
            try:
                execution = self._execute_once(tasks)
                break
            except LostRunError as failure:
                self._group.close(wait=False)
                lost = ExecutionError(str(failure))
            if self._restarts >= self._settings.restarts:
                raise lost from None
            self._restarts += 1
        if self._expected is not None:
            self._verify(device_V)
        return execution

    def _execute_once(self, tasks: Tasks) -> Execution:
        if self._generation != self._group.generation or not self._group.members:
            self._open()
        parts = cut_by_host(tasks, self._agent_of, self._num_agents)
        seconds_K = self._seconds(tasks)
        extra = [] if seconds_K is None else [[seconds_K[part.task]] for part in parts]
        attempt = Attempt(
            group=self._group,
            session=self._number,
            tasks=tasks,
            timeout_s=self._settings.timeout_s,
            agent_of=self._agent_of,
            describe=lambda task: self._describe(tasks, task),
            host=self._host,
        )
        if self._expected is not None:
            try:
                self.wipe()
            except AgentLostError as failure:
                raise attempt.lost(failure) from None
        told = attempt.carry_out(parts, extra)
        scale = 1.0 if self._emulation is None else self._emulation.scale
        times = merged(tasks, parts, [(each[0] / scale, each[1] / scale) for each in told])
        errors = [member.error_s / scale for member in self._group.members[: self._num_agents]]
        outlet = _outlets(tasks, parts, told)
        return Execution(
            tasks=tasks,
            start_s=times.start_s,
            finish_s=times.finish_s,
            tolerance_s=2 * max(errors) + (times.late_s if outlet is None else times.under_way_s),
            outlet=outlet,
        )

    def _seconds(self, tasks: Tasks) -> NDArray[np.float64] | None:
        """Real seconds [K] that each task of an emulation takes; None if devices compute."""
        if self._emulation is None:
            return None
        arrays, emulation, num_ops = self.problem.arrays, self._emulation, tasks.num_ops
        device_V = np.array(tasks.resource[:num_ops], dtype=np.int64)
        op_V = arrays.op_seconds[np.arange(num_ops), device_V] * emulation.slow_D[device_V]
        moves = [
            move_seconds(arrays, region, *tasks.channel(task))
            for task, region in enumerate(tasks.region, start=num_ops)
        ]
        seconds_K = np.concatenate([op_V, np.array(moves, dtype=np.float64)])
        if emulation.noise:
            seconds_K *= np.exp(emulation.noise * self._rng.standard_normal(len(seconds_K)))
        return seconds_K * emulation.scale

    # --- The memory of all agents -----------------------------------------------------------------

    def wipe(self) -> None:
        """Overwrite all results, so that a run cannot find results of an earlier one."""
        self._ask(range(self._num_agents), {"ask": "wipe", "session": self._number})

    def outputs(self, device_V: Sequence[int]) -> dict[str, torch.Tensor]:
        """Return the results of the program after a run, by name.

        Args:
            device_V: [V] device that executed each op.
        """
        graph, outputs = self.problem.graph, Outputs(self.problem.graph)
        for rank in range(self._num_agents):
            own = [v for v in outputs.ops if self._agent_of[device_V[v]] == rank]
            devices = [device_V[v] for v in own]
            fields = {"ask": "outputs", "session": self._number, "ops": own, "devices": devices}
            (answer,) = self._ask([rank], fields)
            for v, data in zip(own, answer.arrays, strict=True):
                kernel = graph.ops.kernels[v]
                assert kernel is not None
                result = torch.from_numpy(data.copy()).view(TORCH_DTYPES[kernel.dtype])
                outputs.take(v, result.view(kernel.output_shape))
        return outputs.tensors

    def use(self, placement: Placement, seconds: float) -> list[Use]:
        """Return an empty list: the use of GPUs of other hosts is not measured.

        Args:
            placement: not used.
            seconds: not used.
        """
        return []

    def bandwidths(self) -> None:
        """Return None: links between hosts are not measured by themselves."""


def _outlets(
    tasks: Tasks, parts: Sequence[HostPart], told: Sequence[Sequence[NDArray[np.float64]]]
) -> NDArray[np.int64] | None:
    """Return the interface through which each transfer [T] left its host, if agents report it."""
    if len(told[0]) < 3:
        return None
    outlet_K = np.full(len(tasks.resource), -1)
    for part, arrays in zip(parts, told, strict=True):
        way_N = np.concatenate([np.zeros(part.num_ops, dtype=np.int64), part.way])
        leaves = way_N != IN
        outlet_K[part.task[leaves]] = arrays[2][leaves].astype(np.int64)
    return outlet_K[tasks.num_ops :]


def _close(
    group: Group,
    opened: Sequence[tuple[int, int]],
    locks: Sequence[Sequence[str]],
    timeout_s: float,
) -> None:
    """Release what the agents that still run hold for a session."""
    with suppress(AgentLostError, RefusedError):
        for generation, session in opened:
            if generation == group.generation and group.members:
                each = [{"locks": one} for one in locks]
                fields = {"ask": "close", "session": session}
                group.ask(range(len(locks)), fields, each=each, timeout_s=timeout_s)
