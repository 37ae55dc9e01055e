"""Who starts the agents: this process, on this machine; torchrun or Ray, wherever they run."""

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

from doppler.errors import InputError
from doppler.executor.hosts.wire import Wire, WireError, admit

# Importing torch, on a busy machine.
START_S = 120.0
_AGENT = "from doppler.executor.hosts.agent import main; main()"


class Started(Protocol):
    """Agents that have been started.

    address: where they listen for each other. boot: what agents on this machine say of its clock.
    """

    address: str
    boot: str | None

    def hellos(self) -> list[tuple[Wire, dict[str, Any]]]:
        """The connection of each agent, by rank, and what it says of itself."""
        ...

    def how_it_ended(self, rank: int) -> str:
        """What is known of one that is gone; nothing while it runs."""
        ...

    def end(self, patience_s: float) -> None:
        """See to it that none is left."""
        ...


class Launcher(Protocol):
    """Starts agents; equal ones share them."""

    def start(self, num: int) -> Started:
        """Start so many."""
        ...


class Door:
    """Where agents come to, and are asked for the secret."""

    def __init__(self, address: str, secret: bytes) -> None:
        try:
            self._socket = socket.create_server((address, 0))
        except OSError as error:
            raise InputError(f"executor.address: {address}: {error.strerror or error}") from None
        self.secret = secret
        self.address, self.port = self._socket.getsockname()[:2]
        self._came: queue.SimpleQueue[tuple[Wire, dict[str, Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="door", daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._ask, args=(connection,), daemon=True).start()

    def _ask(self, connection: socket.socket) -> None:
        try:
            wire = admit(connection, self.secret)
            self._came.put((wire, wire.receive().fields))
        except WireError:  # a stranger
            connection.close()

    def admitted(self, timeout_s: float) -> tuple[Wire, dict[str, Any]] | None:
        """The next agent that has come; None if none has."""
        with suppress(queue.Empty):
            return self._came.get(timeout=timeout_s)
        return None

    def close(self) -> None:
        """Nobody comes any more."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@dataclass(frozen=True)
class LocalLauncher:
    """Processes of this machine. address: where they listen, and this process does."""

    address: str = "127.0.0.1"

    def start(self, num: int) -> "Processes":
        """See Launcher."""
        return Processes(self.address, range(num), num)


class Processes:
    """Agents of some ranks, as children of this process; others may come by themselves."""

    def __init__(
        self, address: str, ranks: Sequence[int], num: int, secret: bytes | None = None
    ) -> None:
        self._door = Door(address, secret or secrets.token_bytes(32))
        self.address, self._num = self._door.address, num
        self.boot = _boot()
        self._processes: dict[int, subprocess.Popen] = {}
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        environment.setdefault("OMP_NUM_THREADS", "1")
        for rank in ranks:
            process = subprocess.Popen(
                [sys.executable, "-c", _AGENT], stdin=subprocess.PIPE, env=environment
            )
            self._processes[rank] = process
            told = {"address": self.address, "port": self.port, "secret": self._door.secret.hex()}
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps({**told, "rank": rank}).encode() + b"\n")
                process.stdin.close()

    @property
    def port(self) -> int:
        """Where others come to."""
        return self._door.port

    def hellos(self) -> list[tuple[Wire, dict[str, Any]]]:
        """See Started.

        Raises:
            InputError: one ended, or did not come.
        """
        came: dict[int, tuple[Wire, dict[str, Any]]] = {}
        until_s = time.monotonic() + START_S
        while len(came) < self._num:
            for rank, process in self._processes.items():
                if rank not in came and process.poll() is not None:
                    raise InputError(f"executor: agent {rank}: {self.how_it_ended(rank)}")
            if time.monotonic() > until_s:
                missing = min(set(range(self._num)) - came.keys())
                raise InputError(f"executor: agent {missing} has not come within {START_S:g} s")
            if found := self._door.admitted(0.1):
                came[int(found[1]["rank"])] = found
        self._door.close()
        return [came[rank] for rank in range(self._num)]

    def how_it_ended(self, rank: int) -> str:
        """See Started."""
        process = self._processes.get(rank)
        if process is None:
            return ""
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(0.5)
            if code < 0:
                return f"was ended by {signal.Signals(-code).name}"
            return f"ended with exit code {code}"
        return ""

    def end(self, patience_s: float) -> None:
        """See Started."""
        self._door.close()
        until_s = time.monotonic() + patience_s
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until_s - time.monotonic()))
            if process.poll() is None:
                process.kill()
                process.wait()


def _boot() -> str | None:
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
    return None
