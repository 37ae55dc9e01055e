"""A process that has imported what agents need, and forks an agent whenever one is requested.

Importing takes seconds, forking milliseconds. The process has one thread and computes nothing, so
that it can be forked safely. It reads requests from standard input, one line of JSON for each
agent, and writes a line of JSON when it is ready and when an agent has ended. When standard input
ends it kills all agents and ends.
"""

import ctypes
import json
import os
import select
import signal
import sys
from contextlib import suppress
from typing import Any

import torch

from doppler.extensions.hosts.agent import serve
from doppler.support.errors import InputError

# Linux kills an agent when its parent ends, however that ends.
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve requests until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    torch.set_num_threads(1)
    hears, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    ranks: dict[int, int] = {}
    _say({"loaded": True})
    rest = b""
    while True:
        ready, _, _ = select.select([0, hears], [], [])
        if hears in ready:
            os.read(hears, 4096)
            _bury(ranks)
        if 0 not in ready:
            continue
        read = os.read(0, 65536)
        if not read:
            break
        *lines, rest = (rest + read).split(b"\n")
        for line in lines:
            told = json.loads(line)
            pid = os.fork()
            if pid == 0:
                _be_agent(told, hears, woken)
            ranks[pid] = told["rank"]
    for pid in ranks:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _be_agent(told: dict[str, Any], *inherited: int) -> None:
    """Become an agent, in the forked process; does not return."""
    with suppress(OSError, AttributeError):  # only Linux has prctl
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for file in inherited:
        os.close(file)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    try:
        serve((told["address"], int(told["port"])), bytes.fromhex(told["secret"]), told["rank"])
    except InputError as error:
        print(error, file=sys.stderr, flush=True)
    finally:
        os._exit(1)


def _bury(ranks: dict[int, int]) -> None:
    """Report the agents that have ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        code = os.waitstatus_to_exitcode(status)
        _say({"ended": ranks.pop(pid, -1), "pid": pid, "code": code})


def _say(fields: dict[str, Any]) -> None:
    os.write(1, json.dumps(fields).encode() + b"\n")


if __name__ == "__main__":
    main()
