"""Starts agents: processes of this machine. torchrun.py and ray_agents.py start them elsewhere."""

import json
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from doppler.extensions.hosts.wire import Wire, WireError, admit
from doppler.support.child_processes import import_path
from doppler.support.errors import InputError

# Limit for starting an agent; importing torch is slow on a busy machine.
START_S = 120.0
# Largest number of connections that have not yet proved that they know the secret (each has a
# thread), and the pause after a failed accept.
_MOST_ASKED, _AGAIN_S = 64, 0.1
_NURSERY = "from doppler.extensions.hosts.nursery import main; main()"


class Started(Protocol):
    """Agents that have been started.

    Attributes:
        boot: identifies this machine's boot; an agent that reports the same value reads the same
            clock. None if unknown.
    """

    boot: str | None

    def hellos(self) -> list[tuple[Wire, dict[str, Any]]]:
        """Return, by rank, the connection of each agent and the fields of its introduction."""
        ...

    def how_it_ended(self, rank: int) -> str:
        """Return how an agent ended, in words; an empty string while it runs.

        Args:
            rank: of the agent.
        """
        ...

    def end(self, patience_s: float) -> None:
        """Make sure that all agents end.

        Args:
            patience_s: how long they may take before they are killed.
        """
        ...


class Launcher(Protocol):
    """Starts agents. Sessions with equal launchers share their agents."""

    def start(self, num: int) -> Started:
        """Start agents.

        Args:
            num: of agents.
        """
        ...


class Door:
    """A listening socket; it admits the agents that know the secret.

    Args:
        address: host name or IP address to listen at.
        secret: which agents have to know.

    Raises:
        InputError: the address is not one of this machine.
    """

    def __init__(self, address: str, secret: bytes) -> None:
        try:
            self._socket = socket.create_server((address, 0))
        except OSError as error:
            raise InputError(f"system.address: {address}: {error.strerror or error}") from None
        self.secret = secret
        self.address, self.port = self._socket.getsockname()[:2]
        self._came: queue.SimpleQueue[tuple[Wire, dict[str, Any]]] = queue.SimpleQueue()
        self._is_closed, self._guard = False, threading.Lock()
        self._asked: list[socket.socket] = []
        threading.Thread(target=self._listen, name="door", daemon=True).start()

    def _listen(self) -> None:
        while not self._is_closed:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed, or out of file descriptors, perhaps only for now
                time.sleep(_AGAIN_S)
                continue
            self._make_room()
            threading.Thread(target=self._ask, args=(connection,), daemon=True).start()

    def _make_room(self) -> None:
        """Close the oldest unproved connection if there are too many; agents are not affected."""
        with self._guard:
            if len(self._asked) >= _MOST_ASKED:
                with suppress(OSError):
                    self._asked[0].shutdown(socket.SHUT_RDWR)
                del self._asked[0]

    def _ask(self, connection: socket.socket) -> None:
        with self._guard:
            self._asked.append(connection)
        try:
            wire = admit(connection, self.secret)
            self._came.put((wire, wire.receive().fields))
        except (WireError, OSError):  # a stranger
            connection.close()
        finally:
            with self._guard, suppress(ValueError):
                self._asked.remove(connection)

    def admitted(self, timeout_s: float) -> tuple[Wire, dict[str, Any]] | None:
        """Return the next agent that has connected, None if none has come in time.

        Args:
            timeout_s: how long to wait.

        Returns:
            The connection of the agent, and the fields of its introduction.
        """
        with suppress(queue.Empty):
            return self._came.get(timeout=timeout_s)
        return None

    def close(self) -> None:
        """Stop listening."""
        self._is_closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@dataclass(frozen=True)
class LocalLauncher:
    """Starts agents as processes of this machine.

    Attributes:
        address: at which this process listens, and the agents do, too.
    """

    address: str = "127.0.0.1"

    def start(self, num: int) -> "LocalAgents":
        """Start agents (see `Launcher`).

        Args:
            num: of agents.
        """
        return LocalAgents(self.address, range(num), num)


class Comers:
    """Agents that connect to this process, wherever they were started.

    Args:
        address: at which this process listens.
        num: of agents.
        secret: which they have to know.
    """

    def __init__(self, address: str, num: int, secret: bytes) -> None:
        self._door, self._num = Door(address, secret), num
        self.address, self.port = self._door.address, self._door.port
        self.boot = _boot()
        self._came: dict[int, tuple[Wire, dict[str, Any]]] = {}

    def hellos(self) -> list[tuple[Wire, dict[str, Any]]]:
        """Wait for all agents (see `Started`).

        Raises:
            InputError: an agent ended, or did not come in time.
        """
        until_s = time.monotonic() + START_S
        while len(self._came) < self._num:
            self.check()
            missing = min(set(range(self._num)) - self._came.keys())
            if time.monotonic() > until_s:
                raise InputError(
                    f"executor: agent {missing} has not connected within {START_S:g} s"
                )
            if found := self._door.admitted(0.1):
                self._came[int(found[1]["rank"])] = found
        self._door.close()
        return [self._came[rank] for rank in range(self._num)]

    def check(self) -> None:
        """Raise an InputError if an agent that has not come cannot come any more."""

    def _pid(self, rank: int) -> int:
        return int(self._came[rank][1]["pid"])


class LocalAgents(Comers):
    """Agents of which this process starts some; the others are started elsewhere and connect.

    Args:
        address: at which this process listens.
        ranks: of the agents to start here.
        num: of all agents.
        secret: which they have to know; None: a random one.
    """

    def __init__(
        self, address: str, ranks: Sequence[int], num: int, secret: bytes | None = None
    ) -> None:
        super().__init__(address, num, secret or secrets.token_bytes(32))
        self._nursery, self._ranks = _the_nursery(), set(ranks)
        told = {"address": self.address, "port": self.port, "secret": self._door.secret.hex()}
        for rank in ranks:
            self._nursery.ask_for({**told, "rank": rank})

    def check(self) -> None:
        self._nursery.check()

    def how_it_ended(self, rank: int) -> str:
        if rank not in self._ranks:
            return ""
        return how_a_process_ended(self._nursery.code_of(self._pid(rank), 0.5))

    def end(self, patience_s: float) -> None:
        self._door.close()
        until_s = time.monotonic() + patience_s
        for rank in self._ranks & self._came.keys():
            self._nursery.end(self._pid(rank), max(0.0, until_s - time.monotonic()))


def how_a_process_ended(code: int | None) -> str:
    """Return how a process ended, in words; an empty string while it runs.

    Args:
        code: its exit code, negative for a signal; None while it runs.
    """
    if code is None:
        return ""
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


class Nursery:
    """The process from which agents of this machine are forked (see nursery.py)."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": import_path()}
        environment.setdefault("OMP_NUM_THREADS", "1")
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _NURSERY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._ended = threading.Condition()
        self._codes: dict[int, int] = {}
        threading.Thread(target=self._hear, name="nursery", daemon=True).start()

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def check(self) -> None:
        """Raise an InputError if the process has ended."""
        if not self.is_alive:
            raise InputError(
                f"executor: agents cannot be started (exit code {self._process.returncode})"
            )

    def ask_for(self, told: dict[str, Any]) -> None:
        """Request another agent.

        Args:
            told: its ``address``, ``port``, ``secret`` (hexadecimal) and ``rank``.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(told).encode() + b"\n")
            self._process.stdin.flush()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            fields = json.loads(line)
            if "ended" in fields:
                with self._ended:
                    self._codes[int(fields["pid"])] = int(fields["code"])
                    self._ended.notify_all()

    def code_of(self, pid: int, timeout_s: float) -> int | None:
        """Return the exit code of an agent; None while it runs.

        Args:
            pid: process ID of the agent.
            timeout_s: how long to wait for its end.
        """
        with self._ended:
            self._ended.wait_for(lambda: pid in self._codes, timeout_s)
            return self._codes.get(pid)

    def end(self, pid: int, patience_s: float) -> None:
        """Make sure that an agent ends; kill it if it does not end by itself.

        Args:
            pid: process ID of the agent.
            patience_s: how long it may take.
        """
        if self.code_of(pid, patience_s) is None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self.code_of(pid, 5.0)

    def close(self) -> None:
        """End the process, and with it all agents that are left."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


_nurseries: list[Nursery] = []


def _the_nursery() -> Nursery:
    while _nurseries and not _nurseries[0].is_alive:
        _nurseries.pop()
    if not _nurseries:
        _nurseries.append(Nursery())
    return _nurseries[0]


def close_nursery() -> None:
    """End the process from which agents are forked; the next agent starts a new one."""
    while _nurseries:
        _nurseries.pop().close()


def _boot() -> str | None:
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
        return file.read().strip()
    return None
