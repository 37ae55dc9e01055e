"""The executors on several hosts, by the names that configurations use.

Shape suffix: D devices.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self

import numpy as np

from doppler.executor.systems import Inputs
from doppler.executor.tensors import check_executable
from doppler.extensions.hosts import torchrun
from doppler.extensions.hosts.launchers import Launcher, LocalLauncher
from doppler.extensions.hosts.members import Group, group_of
from doppler.extensions.hosts.ray_agents import RayLauncher
from doppler.extensions.hosts.session import Emulation, HostSettings, HostsSession
from doppler.extensions.hosts.torchrun import TorchrunLauncher
from doppler.problem import Problem
from doppler.support.errors import InputError
from doppler.support.options import (
    Amount,
    Name,
    Natural,
    Positive,
    PositiveSeconds,
    checked,
    within,
)
from doppler.system import SystemKind
from doppler.trace import ExecutionRules

Queue = Literal["priority", "fifo", "strict"]
_MOST_AGENTS = 64
Agents = Annotated[int, within(1, _MOST_AGENTS)]


@dataclass(frozen=True, kw_only=True)
class _OnHosts:
    """Options that all executors on hosts share.

    Attributes:
        agents: number of processes that share the devices; each has the devices of one or several
            hosts. None: as many as the cluster has hosts, or as torchrun has started.
        queue: which ready task goes first.
        launcher: what starts the agents. ``local``: this process, on this machine; ``torchrun``: it
            has started this process, too; ``ray``: a Ray cluster, on its nodes.
        timeout_s: how long an op or a message may take, and an agent may be silent.
        restarts: how often a session restarts its agents after an agent or a message is lost.
        address: at which this process listens.
    """

    agents: Agents | None = None
    queue: Queue = "priority"
    launcher: Literal["local", "torchrun", "ray"] = "local"
    timeout_s: PositiveSeconds = 60.0
    restarts: Natural = 0
    address: Name = "127.0.0.1"
    kind: ClassVar[SystemKind] = "measured"
    streams: ClassVar[int] = 1

    def with_noise(self, noise: float) -> Self:
        """Return the system itself: measurements have noise of their own (see `system.System`).

        Args:
            noise: not used.
        """
        return self

    def _group(self, agent_of: list[int], *, computes: bool, on_gpus: bool = False) -> Group:
        """Return the agents; ``computes``: each device needs a core, ``on_gpus``: and a GPU."""
        launcher: Launcher
        if self.launcher == "ray":
            most = max(Counter(agent_of).values())
            launcher = RayLauncher(self.address, most if computes else 1, most if on_gpus else 0)
        else:
            kind = TorchrunLauncher if self.launcher == "torchrun" else LocalLauncher
            launcher = kind(self.address)
        return group_of(launcher, max(agent_of) + 1)

    def agent_of(self, problem: Problem) -> list[int]:
        """Return the rank of the agent that has each device [D].

        If there are as many agents as hosts, each has one host. With fewer agents, each has several
        hosts in a row. The agents of a single host share its devices evenly.

        Args:
            problem: whose cluster has the devices.

        Raises:
            InputError: there are more agents than hosts (or than devices of a single host), or
                torchrun has started another number of processes.
        """
        cluster, num_hosts = problem.cluster, problem.cluster.num_hosts
        by_torchrun = self.launcher == "torchrun" and torchrun.rank() is not None
        num = self.agents or (torchrun.world_size() if by_torchrun else num_hosts)
        most, what = (cluster.num_devices, "devices") if num_hosts == 1 else (num_hosts, "hosts")
        if num > most:
            raise InputError(
                f"system.agents: {num}, but cluster {cluster.name!r} has {most} {what}"
            )
        if by_torchrun and num != torchrun.world_size():
            raise InputError(
                f"system.agents: {num}, but torchrun has started {torchrun.world_size()} processes"
            )
        if self.launcher == "torchrun" and not by_torchrun:
            raise InputError("system.launcher: torchrun has not started this process")
        if cluster.hosts is None:
            return [d * num // most for d in range(most)]
        return [host * num // num_hosts for host in cluster.hosts]


@checked
@dataclass(frozen=True, kw_only=True)
class Hosts(_OnHosts):
    """The work-conserving system on the cores or GPUs of several hosts.

    If an agent has more devices than GPUs, or a machine more agents than GPUs, the devices share
    the GPUs through streams. This has never run on several GPUs.

    Attributes:
        devices: kind of the devices.
        verify: compare the results of every run with plain torch, outside the measured time.
        warm_up: number of runs of a session before the first that counts.
    """

    devices: Literal["cores", "gpus"] = "cores"
    verify: bool = False
    warm_up: Natural = 3
    name: ClassVar[str] = "hosts"

    def check(self, problem: Problem) -> None:
        """Refuse problems that cannot be run (see `system.check_hosts`).

        Args:
            problem: to check.

        Raises:
            InputError: says what cannot be run.
        """
        self.agent_of(problem)
        check_executable(problem.graph)

    def open(self, problem: Problem, *, inputs: Inputs | None = None) -> HostsSession:
        """Open a session for one problem (see `executor.Threads`).

        Args:
            problem: to execute.
            inputs: of its graph, by name; None: random ones.

        Raises:
            InputError: the graph cannot be executed, agents cannot be started, or one is lost.
        """
        agent_of = self.agent_of(problem)
        return HostsSession(
            problem=problem,
            execution=ExecutionRules(queue=self.queue, interfaces="none"),
            group=self._group(agent_of, computes=True, on_gpus=self.devices == "gpus"),
            agent_of=agent_of,
            settings=HostSettings(
                verify=self.verify,
                timeout_s=self.timeout_s,
                warm_up=self.warm_up,
                restarts=self.restarts,
                on_gpus=self.devices == "gpus",
            ),
            inputs=inputs,
        )


@checked
@dataclass(frozen=True, kw_only=True)
class Emulated(_OnHosts):
    """A machine whose devices wait instead of computing, in real time, between real processes.

    An op takes the time that the problem says. A transfer occupies its link, and an interface of
    the sender's host, for the time that the problem says. The time that messages between agents
    take comes on top. Measured times are given in seconds of the emulated machine.

    Attributes:
        time_scale: real seconds per second of the emulated machine.
        noise: standard deviation of the logarithm of the time that an op or transfer takes; drawn
            anew for every run.
        slow_host: number of a host whose ops take longer by the share ``slower``; None: no host.
        slower: share by which these ops take longer.
    """

    time_scale: Positive = 100.0
    noise: Amount = 0.0
    slow_host: Natural | None = None
    slower: Amount = 0.3
    name: ClassVar[str] = "emulated"

    def check(self, problem: Problem) -> None:
        """Refuse problems that cannot be run (see `system.check_hosts`).

        Args:
            problem: to check.

        Raises:
            InputError: says what cannot be run.
        """
        self.agent_of(problem)
        self._slowness(problem)

    def open(self, problem: Problem, *, inputs: Inputs | None = None) -> HostsSession:
        """Open a session for one problem (see `Hosts`).

        Args:
            problem: to execute.
            inputs: not used: nothing is computed.

        Raises:
            InputError: agents cannot be started, or one is lost.
        """
        agent_of = self.agent_of(problem)
        several = problem.cluster.num_hosts > 1
        return HostsSession(
            problem=problem,
            execution=ExecutionRules(
                queue=self.queue, interfaces="outgoing" if several else "both"
            ),
            group=self._group(agent_of, computes=False),
            agent_of=agent_of,
            settings=HostSettings(
                verify=False, timeout_s=self.timeout_s, warm_up=0, restarts=self.restarts
            ),
            emulation=Emulation(self.time_scale, self.noise, self._slowness(problem)),
        )

    def _slowness(self, problem: Problem) -> np.ndarray:
        cluster = problem.cluster
        host_D = np.array(cluster.hosts or (0,) * cluster.num_devices)
        if self.slow_host is not None and self.slow_host >= cluster.num_hosts:
            raise InputError(
                f"system.slow_host: {self.slow_host}, but cluster {cluster.name!r} has "
                f"{cluster.num_hosts} hosts, numbered from 0"
            )
        return np.where(host_D == self.slow_host, 1.0 + self.slower, 1.0)
