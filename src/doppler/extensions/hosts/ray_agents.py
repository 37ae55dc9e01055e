"""Agents on the nodes of a Ray cluster: one actor for each agent starts and watches it.

Ray finds free resources, starts the actors, and reports when an actor is gone with its node.
Messages between agents and with the driver do not go through Ray.
"""

import ipaddress
import logging
import math
import secrets
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from doppler.extensions.hosts.launchers import START_S, Comers, Nursery, how_a_process_ended
from doppler.extensions.hosts.ray_cluster import (
    at_disconnection,
    connected,
    is_elsewhere,
    num_cpus,
    num_gpus,
)
from doppler.support.errors import InputError

_ASKED_BY = "system.launcher"
_TOLD_S = 2.0  # after this, a warning says that the cluster has no free resources yet
_HEARD_S = 3.0  # until Ray knows that a node is gone


@dataclass(frozen=True)
class RayLauncher:
    """Starts agents on a Ray cluster.

    Attributes:
        address: at which this process listens, and the agents reach it.
        cores: that each agent asks for; if the cluster has too few, agents share them.
        gpus: that each agent asks for; if the cluster has too few, agents share them.
    """

    address: str = "127.0.0.1"
    cores: int = field(default=1, compare=False)
    gpus: int = 0

    def start(self, num: int) -> "RayAgents":
        """Start agents (see `launchers.Launcher`).

        Args:
            num: of agents.

        Raises:
            InputError: Ray is not installed, the cluster has no free resources, or agents on other
                machines could not reach ``address``.
        """
        ray = connected(_ASKED_BY)
        if is_elsewhere(ray) and _is_loopback(self.address):
            raise InputError(
                "system.address: the other machines of the Ray cluster cannot reach "
                f"{self.address}: use another address of this machine"
            )
        return RayAgents(self.address, _places(ray, num, self.cores, self.gpus), ray)


def _is_loopback(address: str) -> bool:
    with suppress(OSError):  # reported later, when this process listens at the address
        return ipaddress.ip_address(socket.gethostbyname(address)).is_loopback
    return False


class _Host:
    """The class of the Ray actors: it starts agents on its node."""

    def __init__(self) -> None:
        self._nursery = Nursery()

    def check(self) -> str:
        """Return what is wrong; an empty string if nothing is."""
        try:
            self._nursery.check()
        except InputError as error:
            return str(error)
        return ""

    def start(self, told: dict[str, Any]) -> None:
        """Start an agent."""
        self._nursery.ask_for(told)

    def end(self, pid: int, patience_s: float) -> None:
        """Make sure that an agent ends."""
        self._nursery.end(pid, patience_s)

    def code_of(self, pid: int, timeout_s: float) -> int | None:
        """Return the exit code of an agent; None while it runs."""
        return self._nursery.code_of(pid, timeout_s)


# The actors of this process by rank, and the placement groups that reserve their resources.
_hosts: list[Any] = []
_groups: list[Any] = []
_gpus: list[int] = []  # that each actor asked for


def _places(ray: Any, num: int, cores: int, gpus: int) -> list[Any]:
    """Return running actors, on different nodes as far as possible.

    They stay until this process ends, so that restarting an agent takes milliseconds. If one is
    gone, all are replaced, with the resources that the cluster then has.
    """
    try:
        ray.get([host.check.remote() for host in _hosts[:num]], timeout=_HEARD_S)
    except Exception:
        _leave(ray)
    if _gpus != [gpus] * len(_hosts):  # an actor sees only the GPUs that it asked for
        _leave(ray)
    if len(_hosts) < num:
        at_disconnection(lambda: _leave(ray))
        try:
            _add(ray, num - len(_hosts), cores, gpus)
        except BaseException:
            _leave(ray)
            raise
    return _hosts[:num]


def _add(ray: Any, num: int, cores: int, gpus: int) -> None:
    """Start more actors once the cluster has free resources for them."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as InGroup

    begin_s, is_told, each = time.monotonic(), False, {"CPU": 0.0}
    have: tuple[list[float], ...] = ()
    while True:
        if have != (now := (num_cpus(ray), num_gpus(ray) if gpus else [])):  # nodes came or left
            if have:
                ray.util.remove_placement_group(_groups.pop())
            have, each = now, {"CPU": units_each(now[0], num, cores, "CPU")}
            if gpus:
                each["GPU"] = units_each(now[1], num, gpus, "GPU")
            group = ray.util.placement_group([each] * num, strategy="SPREAD")
            _groups.append(group)
        if group.wait(timeout_seconds=0.5):
            break
        waited_s = time.monotonic() - begin_s
        parts = " and ".join(f"{share:g} {name}s" for name, share in each.items())
        what = f"{num} x {parts} of the Ray cluster"
        if waited_s > START_S:
            raise InputError(f"{_ASKED_BY}: agents had no {what} for {START_S:g} s")
        if waited_s > _TOLD_S and not is_told:
            is_told = True
            logging.getLogger(__name__).warning("agents: waiting for %s", what)
    for index in range(num):
        place = InGroup(group, placement_group_bundle_index=index)
        # An actor may have two calls at a time, because `code_of` waits.
        options = {"num_cpus": each["CPU"], "num_gpus": each.get("GPU", 0)}
        options |= {"max_concurrency": 2, "scheduling_strategy": place}
        _hosts.append(ray.remote(_Host).options(**options).remote())
        _gpus.append(gpus)


def _leave(ray: Any) -> None:
    for host in _hosts:
        with suppress(Exception):
            ray.kill(host)
    for group in _groups:
        with suppress(Exception):
            ray.util.remove_placement_group(group)
    _hosts.clear()
    _groups.clear()
    _gpus.clear()


def units_each(have: list[float], num: int, wanted: int, name: str) -> float:
    """Return how many CPUs or GPUs each agent gets: as many as it asks for, or as many as possible.

    Args:
        have: number of units of each node.
        num: of agents.
        wanted: units that each agent asks for.
        name: of the resource, for errors.

    Returns:
        The number of units; less than 1 if agents have to share them.

    Raises:
        InputError: no node has any unit.
    """
    for each in range(wanted, 0, -1):
        if sum(int(units // each) for units in have) >= num:
            return float(each)
    if max(have, default=0.0) < 1:
        raise InputError(f"{_ASKED_BY}: no node of the Ray cluster has a {name}")
    return 1.0 / math.ceil(num / sum(int(units) for units in have))


class RayAgents(Comers):
    """Agents that actors start, one each (see `launchers.Started`).

    Args:
        address: at which this process listens.
        hosts: the actors.
        ray: the module ``ray``.
    """

    def __init__(self, address: str, hosts: list[Any], ray: Any) -> None:
        super().__init__(address, len(hosts), secrets.token_bytes(32))
        self._ray, self._hosts = ray, hosts
        told = {"address": self.address, "port": self.port, "secret": self._door.secret.hex()}
        self._checked_s = time.monotonic()
        for rank, host in enumerate(hosts):
            host.start.remote({**told, "rank": rank})

    def check(self) -> None:
        """Check the actors (see `launchers.Comers`), but only every few seconds."""
        if time.monotonic() < self._checked_s + _HEARD_S:
            return
        for rank, host in enumerate(self._hosts):
            try:
                wrong = self._ray.get(host.check.remote(), timeout=START_S)
            except Exception as error:
                wrong = self._gone(error)
            if wrong:
                raise InputError(f"executor: agent {rank} cannot be started: {wrong}")
        self._checked_s = time.monotonic()

    def how_it_ended(self, rank: int) -> str:
        try:
            asked = self._hosts[rank].code_of.remote(self._pid(rank), 0.5)
            code = self._ray.get(asked, timeout=_HEARD_S)
        except Exception as error:
            return self._gone(error)
        return how_a_process_ended(code)

    def _gone(self, error: Exception) -> str:
        if isinstance(error, self._ray.exceptions.RayActorError):
            return "its node has left the Ray cluster, or what Ray ran there was ended"
        return f"Ray does not answer ({type(error).__name__})"

    def end(self, patience_s: float) -> None:
        self._door.close()
        if not self._ray.is_initialized():  # this process is ending, and Ray has ended the actors
            return
        with suppress(Exception):
            came = [(self._hosts[rank], self._pid(rank)) for rank in self._came]
            ended = [host.end.remote(pid, patience_s) for host, pid in came]
            self._ray.wait(ended, num_returns=len(ended), timeout=patience_s + _HEARD_S)
