"""An agent: the process that executes, on one host, the ops that are placed on its devices.

The process that started it (the driver) sends it requests over a connection of its own. During a
run the driver sends nothing: ops become ready when messages of other agents arrive. An agent ends
when its connection to the driver does.
"""

import gc
import os
import platform
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
import torch.distributed

from doppler.executor import gpus
from doppler.executor.locks import acquire, release
from doppler.extensions.hosts.channels import Arrival
from doppler.extensions.hosts.delays import Delays
from doppler.extensions.hosts.emulation import EmulatedSession
from doppler.extensions.hosts.parts import HostPart
from doppler.extensions.hosts.peers import Peers
from doppler.extensions.hosts.running import AgentRun, KernelSession, TaskFailedError
from doppler.extensions.hosts.wire import Message, Wire, WireError, connect
from doppler.support.errors import InputError

# Limit for connecting to the other agents.
_JOIN_S = 180.0


class Agent:
    """Answers requests of the driver.

    Requests that take time are queued; a second thread carries them out one after another.

    Args:
        wire: the connection to the driver.
        rank: number of this agent.
        secret: which all agents and the driver know.
    """

    def __init__(self, wire: Wire, rank: int, secret: bytes) -> None:
        self._wire, self._rank, self._secret = wire, rank, secret
        self._peers: Peers | None = None
        self._sessions: dict[int, Any] = {}
        self._locks: list[str] = []
        self._run: AgentRun | None = None
        self._aborted = -1  # the number of a run that was aborted, perhaps before it began
        self._lost: tuple[int, str] | None = None
        self._todo: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._delays = Delays(self._deliver)
        # For tests: by how much its clock is ahead, and ops that fail.
        self._skew_s, self._fails = 0.0, list[int]()
        threading.Thread(target=self._work, name="work", daemon=True).start()

    def serve(self) -> None:
        """Introduce this agent to the driver, and answer requests until the driver ends it.

        Raises:
            WireError: the connection is lost.
        """
        self._wire.send(
            {"rank": self._rank, "host": platform.node(), "pid": os.getpid(), "boot": _boot()}
        )
        at_once: dict[str, Callable[[Message], None]] = {
            **{"join": self._join, "clock": self._clock, "status": self._status},
            **{"go": self._go, "abort": self._abort, "disturb": self._disturb},
        }
        while True:
            asked = self._wire.receive()
            what = str(asked.fields["ask"])
            if what == "end":
                return
            if what in at_once:
                at_once[what](asked)
            else:
                self._todo.put(asked)

    def _answer(self, asked: Message, fields: dict[str, Any], arrays: Any = ()) -> None:
        self._wire.send({"answers": asked.fields["number"], **fields}, arrays)

    # --- At once ----------------------------------------------------------------------------------

    def _join(self, asked: Message) -> None:
        # While gloo connects, the agent cannot notice that the driver, which waits for a shorter
        # time, has given up. So the process ends itself.
        limit = threading.Timer(_JOIN_S, os._exit, [1])
        limit.daemon = True
        limit.start()
        try:
            self._peers = Peers(
                self._wire,
                self._rank,
                int(asked.fields["size"]),
                secret=self._secret,
                address=self._wire.socket.getsockname()[0],  # at which the driver reaches it
            )
        except (WireError, RuntimeError) as error:
            self._answer(asked, {"error": f"agents cannot reach each other: {_line(error)}"})
            return
        finally:
            limit.cancel()
        self._peers.listen(self._expected, self._delays.put, self._note_lost)
        self._answer(asked, {})

    def _clock(self, asked: Message) -> None:
        self._answer(asked, {"now_s": time.perf_counter() + self._skew_s})

    def _status(self, asked: Message) -> None:
        run = self._run
        found = {} if run is None else run.status()
        if self._lost is not None:
            found["lost"] = list(self._lost)
        self._answer(asked, found)

    def _go(self, asked: Message) -> None:
        run = self._run
        if run is not None and run.number == asked.fields["run"]:
            run.go.put(float(asked.fields["at_s"]) - self._skew_s)

    def _abort(self, asked: Message) -> None:
        self._aborted = int(asked.fields["run"])
        run = self._run
        if run is not None and run.number == self._aborted:
            run.abandon()
            run.go.put(None)

    def _disturb(self, asked: Message) -> None:
        self._skew_s = float(asked.fields.get("skew_s", 0.0))
        self._delays.set(float(asked.fields.get("delay_s", 0.0)), asked.fields.get("drops", ()))
        self._fails = list(asked.fields.get("fails", ()))
        self._answer(asked, {})

    # --- Messages ---------------------------------------------------------------------------------

    def _expected(self, run: int, task: int) -> Arrival | None:
        current = self._run
        return current.expected.get(task) if current and current.number == run else None

    def _deliver(self, run: int, task: int) -> None:
        current = self._run
        if current is not None and current.number == run and task in current.expected:
            current.arrive(current.expected[task].local)

    def _note_lost(self, other: int, why: str) -> None:
        self._lost = other, why
        with suppress(WireError):
            self._wire.send({"lost": other, "why": why})

    # --- One after another ------------------------------------------------------------------------

    def _work(self) -> None:
        torch.set_num_threads(1)
        doing: dict[str, Callable[[Message], None]] = {
            **{
                "lock": self._lock,
                "open": self._open,
                "close": self._close,
                "run": self._carry_out,
            },
            **{"outputs": self._outputs, "wipe": self._wipe, "gpus": self._gpus},
        }
        while True:
            asked = self._todo.get()
            try:
                doing[str(asked.fields["ask"])](asked)
            except TaskFailedError as failure:
                told = {"error": failure.reason, "task": failure.task, "hangs": failure.hangs}
                self._answer(asked, told)
            except WireError:
                return
            except Exception as error:
                self._answer(asked, {"error": _line(error)})

    def _gpus(self, asked: Message) -> None:
        has_nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
        self._answer(asked, {"gpus": gpus.names(), "nccl": has_nccl})

    def _lock(self, asked: Message) -> None:
        acquire(asked.fields["locks"])
        self._locks += asked.fields["locks"]
        self._answer(asked, {})

    def _open(self, asked: Message) -> None:
        fields = asked.fields
        kind = EmulatedSession if fields["emulated"] else KernelSession
        session = kind(fields, asked.arrays)
        self._sessions[fields["session"]] = session
        self._answer(asked, {})

    def _close(self, asked: Message) -> None:
        session = self._sessions.pop(asked.fields["session"], None)
        if session is not None:
            session.close()
        locks = asked.fields["locks"]
        if locks and all(lock in self._locks for lock in locks):
            release(locks)
            for lock in locks:
                self._locks.remove(lock)
        self._answer(asked, {})

    def _carry_out(self, asked: Message) -> None:
        fields, peers = asked.fields, self._peers
        assert peers is not None
        session = self._sessions[fields["session"]]
        part = HostPart(*asked.arrays[: len(HostPart._fields)])
        rest = asked.arrays[len(HostPart._fields) :]
        run = session.prepare({**fields, "fails": self._fails}, part, peers, *rest)
        self._run = run
        try:
            self._wire.send({"answers": fields["number"], "ready": True})
            at_s = None if self._aborted == run.number else run.go.get()
            if at_s is None:
                self._answer(asked, {"aborted": True})
                return
            collects = gc.isenabled()
            gc.disable()
            try:
                told = run.carry_out(at_s)
            finally:
                if collects:
                    gc.enable()
        finally:
            self._run = None
        if run.is_abandoned:
            self._answer(asked, {"aborted": True})
        else:
            self._answer(asked, {}, told)

    def _outputs(self, asked: Message) -> None:
        session = self._sessions[asked.fields["session"]]
        self._answer(asked, {}, session.outputs(asked.fields["ops"], asked.fields["devices"]))

    def _wipe(self, asked: Message) -> None:
        self._sessions[asked.fields["session"]].wipe()
        self._answer(asked, {})


def _line(error: BaseException) -> str:
    if isinstance(error, InputError):
        return str(error)
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _boot() -> str:
    """Identify the boot of this machine: agents with equal results read the same clock."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
        return file.read().strip()
    return f"{platform.node()}-{os.getpid()}"


def serve(address: tuple[str, int], secret: bytes, rank: int) -> None:
    """Be an agent until the driver ends it; then end the process.

    Args:
        address: host and port at which the driver listens.
        secret: which the driver knows, too.
        rank: number of this agent.

    Raises:
        InputError: nobody listens at the address, or the listener does not know the secret.
    """
    wire = connect(address, secret)
    code = 0
    try:
        Agent(wire, rank, secret).serve()
    except WireError:
        code = 1  # the driver is gone
    finally:
        os._exit(code)  # threads that wait for other agents would never end
