"""SIGTERM and SIGINT end a command soon, by exit code 143 or 130, and say how to go on.

`Stopped` is raised in the main thread, so that what is open is closed. Where Python does not come
to that in time (compiled code, a solver, a long update of a training), the process is ended as it
is: what it has written survives a kill at any moment.
"""

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

# Seconds from a signal to the end of the process, whatever it is at: who presses keys waits less
# long than a scheduler. A second signal ends it at once.
PATIENCE_S: dict[int, float] = {signal.SIGINT: 0.9, signal.SIGTERM: 5.0}
# What must not be cut short, a checkpoint or a server that is told of the end, has so long.
CLOSING_S = 15.0


class Stopped(BaseException):
    """A signal asked for the end; no Exception, so that nothing that handles errors keeps it.

    number: of the signal. line: what the person who sent it is told.
    """

    def __init__(self, number: int, line: str) -> None:
        super().__init__(number, line)
        self.number, self.line = number, line

    @property
    def exit_code(self) -> int:
        """What shells and schedulers expect."""
        return 128 + self.number


class _Listener:
    """Hears the signals of this process.

    received, stopped: the signal that has come, and what was raised of it. deferred, closing: how
    many contexts say so, see `deferred` and `unhurried`. going_on: tell how the work that is
    interrupted goes on.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.stopped: Stopped | None = None
        self.deferred = self.closing = 0
        self.going_on: list[Callable[[str], str]] = []
        self.ends_children = False
        # Python writes the number of each signal there, also while the main thread runs other code.
        self._heard, self._told = socket.socketpair()
        self._told.setblocking(False)
        self._before: dict[int, Any] = {number: signal.getsignal(number) for number in PATIENCE_S}
        self._fd_before = signal.set_wakeup_fd(self._told.fileno(), warn_on_full_buffer=False)
        self.handle_signals()
        self._watcher = threading.Thread(target=self._watch, name="signals", daemon=True)
        self._watcher.start()

    def handle_signals(self) -> None:
        for number in PATIENCE_S:
            signal.signal(number, self._handle)

    def close(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        signal.set_wakeup_fd(self._fd_before)
        self._told.close()
        self._watcher.join()
        self._heard.close()

    def line(self, number: int) -> str:
        """What is told of the end."""
        how = ""
        for tell in reversed(self.going_on):
            how = tell(how)
        return f"stopped by {signal.Signals(number).name}{how and '; '}{how}"

    def stop(self) -> None:
        """Raise what has been received, if anything has."""
        if self.received is not None:
            self.stopped = self.stopped or Stopped(self.received, self.line(self.received))
            raise self.stopped

    def _handle(self, number: int, frame: object) -> None:
        if self.received is None:
            self.received = number
            if not self.deferred:
                self.stop()

    def _watch(self) -> None:
        """End the process if a signal does not end it."""
        number = self._next(None)
        begin_s = time.monotonic()
        while number:
            patience_s = CLOSING_S if self.closing else PATIENCE_S[number]
            again = self._next(0.02)
            if again is None:
                return
            if again or time.monotonic() > begin_s + patience_s:
                with suppress(OSError):
                    os.write(2, f"{self.line(number)}\n".encode())
                if self.ends_children:
                    end_children(wait_s=0.0)
                os._exit(128 + number)

    def _next(self, timeout_s: float | None) -> int | None:
        """The next signal that asks for the end; 0 if none came in time, None after the last."""
        while select.select([self._heard], [], [], timeout_s)[0]:
            byte = self._heard.recv(1)
            if not byte:
                return None
            if byte[0] in PATIENCE_S:
                return byte[0]
        return 0


_listener: _Listener | None = None


@contextmanager
def stoppable() -> Iterator[None]:
    """Signals end what runs here, by `Stopped`, also where that leads to another error.

    For commands: the process is ended if it does not end in time. Only the main thread hears
    signals, elsewhere nothing changes.
    """
    global _listener
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    outer = _listener
    listener = _listener = outer or _Listener()
    try:
        yield
    except Exception:  # a library that is interrupted may fail in its turn, and tell of that
        if listener.stopped is None:
            raise
        raise listener.stopped from None
    finally:
        if outer is None:
            _listener = None
            listener.close()


@contextmanager
def going_on(tell: Callable[[str], str]) -> Iterator[None]:
    """Who interrupts what runs here is told how it goes on.

    tell: is called when a signal has come, with what is told of the work inside of this; '' if none
    is. Returns the end of a line.
    """
    if (listener := _listener) is None:
        yield
        return
    listener.going_on.append(tell)
    try:
        yield
    finally:
        listener.going_on.remove(tell)


@contextmanager
def deferred() -> Iterator[Callable[[], bool]]:
    """Signals wait for the end of this context; what it yields says whether one has come.

    For work that may be interrupted between its parts only; the process ends where a part is longer
    than the patience. Libraries that have put handlers of their own in place are overruled.
    """
    if (listener := _listener) is None or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    listener.handle_signals()
    listener.deferred += 1
    try:
        yield lambda: listener.received is not None
    finally:
        listener.deferred -= 1
    listener.stop()


@contextmanager
def unhurried() -> Iterator[None]:
    """What runs here is brought to its end after a signal, unless it takes very long."""
    if (listener := _listener) is None:
        yield
        return
    listener.closing += 1
    try:
        yield
    finally:
        listener.closing -= 1


@contextmanager
def ending_children() -> Iterator[None]:
    """Processes that are started here, and theirs, end when a signal ends this one."""
    if (listener := _listener) is None:
        yield
        return
    listener.ends_children = True
    try:
        yield
    except Stopped as stopped:
        with unhurried():
            end_children(wait_s=PATIENCE_S[stopped.number])
        raise


def end_children(wait_s: float) -> None:
    """Terminate the children of this process, and kill what is left of them and of theirs.

    wait_s: how long they have to end. Who ignores signals is left alone: it ends with its parent.
    """
    for child in _children(os.getpid()):
        _send(child, signal.SIGTERM)
    until_s = time.monotonic() + wait_s
    while (left := _descendants(os.getpid())) and time.monotonic() < until_s:
        time.sleep(0.02)
    for process in left:
        _send(process, signal.SIGKILL)


def _send(process: int, number: int) -> None:
    with suppress(OSError):
        os.kill(process, number)


def _descendants(process: int) -> list[int]:
    return [each for child in _children(process) for each in (child, *_descendants(child))]


def _children(process: int) -> list[int]:
    """Those that still run and do not ignore SIGTERM."""
    found = []
    for path in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError, KeyError):  # it has ended meanwhile
            says = dict(line.split(":\t", 1) for line in path.read_text().splitlines())
            ignores = int(says["SigIgn"], 16) >> (signal.SIGTERM - 1) & 1
            if int(says["PPid"]) == process and says["State"][0] != "Z" and not ignores:
                found.append(int(path.parent.name))
    return found
