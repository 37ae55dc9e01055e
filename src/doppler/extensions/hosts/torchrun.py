"""Agents that torchrun has started: one command on every machine.

    torchrun --standalone --nproc-per-node 2 src/run.py system=hosts system.launcher=torchrun

The process of rank 0 is the driver: it executes the command. The process of every other rank learns
through torchrun's key-value store where the driver listens, and forks one agent after another. The
store answers anyone. So it holds no secrets, and its entries are not trusted: the driver also has
to prove that it knows the secret.
"""

import logging
import os
import secrets
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import torch.distributed

from doppler.extensions.hosts.agent import serve
from doppler.extensions.hosts.launchers import LocalAgents
from doppler.support.errors import InputError

_dist: Any = torch.distributed
_NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT")
_VARIABLES = (*_NUMBERS, "MASTER_ADDR", "TORCHELASTIC_RUN_ID")
# The variables that torchrun has set, as they were when the process began.
_variables: dict[str, str] = {}
SECRET = "DOPPLER_SECRET"  # environment variable, needed if agents are on several machines
_LEAST_BYTES = 16
# Limits for reaching torchrun's store: during the run, and at its end.
_STORE_S, _END_S = 60.0, 5.0
# How often a waiting rank checks whether torchrun still runs.
_LOOK_S = 30.0


def has_started(*, asked_for: bool) -> bool:
    """Whether torchrun has started this process.

    Its environment variables are not enough: an editor or a scheduler that torchrun once started
    passes them on. So torchrun has to be among the ancestors of this process. If another program
    starts processes in the same way, the user asks for it with ``system.launcher=torchrun``.

    Args:
        asked_for: the command line has ``system.launcher=torchrun``.

    Raises:
        InputError: names a variable of torchrun that is missing or not a number.
    """
    is_real = asked_for or any(map(_is_torchrun, psutil.Process().parents()))
    if not is_real:
        logging.getLogger(__name__).warning(
            "TORCHELASTIC_RUN_ID is set, but torchrun has not started this process: ignored"
        )
        return False
    told = {name: os.environ.get(name, "") for name in _VARIABLES}
    for name in _NUMBERS:
        if not told[name].isdecimal():
            raise InputError(f"{name}: torchrun sets a number, found {told[name]!r}")
    if not told["MASTER_ADDR"]:
        raise InputError("MASTER_ADDR: torchrun sets an address, found none")
    _variables.update(told)
    return True


def _is_torchrun(process: psutil.Process) -> bool:
    try:
        words = process.cmdline()[:6]
    except psutil.Error:
        return False
    return any(
        Path(word).name == "torchrun" or word.startswith("torch.distributed.") for word in words
    )


def rank() -> int | None:
    """Return the rank of this process; None if torchrun has not started it."""
    return int(_variables["RANK"]) if _variables else None


def world_size() -> int:
    """Return how many processes torchrun has started."""
    return int(_variables["WORLD_SIZE"])


@dataclass(frozen=True)
class TorchrunLauncher:
    """Uses the processes that torchrun has started as agents.

    Attributes:
        address: at which this process, of rank 0, listens.
    """

    address: str = "127.0.0.1"

    def start(self, num: int) -> LocalAgents:
        """Start one agent here and the others in torchrun's processes (see `launchers.Launcher`).

        Args:
            num: of agents; as many as torchrun has started processes.

        Raises:
            InputError: the secret is not known here.
        """
        started = LocalAgents(self.address, [0], num, _secret(makes=True))
        _tell(f"{started.address} {started.port}")
        return started


_told: list[str] = []


def _tell(where: str, timeout_s: float = _STORE_S) -> None:
    """Tell the other ranks where the driver listens next."""
    _told.append(where)
    _store(timeout_s).set(f"doppler/{len(_told)}", where)


def end() -> None:
    """In the process of rank 0, let the processes of the other ranks end."""
    with suppress(OSError):
        _secret_file().unlink()
    with suppress(Exception):  # torchrun itself ends processes that cannot be reached
        _tell("", _END_S)


def serve_all() -> int:
    """In the process of another rank, fork one agent after another until the driver ends.

    Returns:
        The exit code.

    Raises:
        InputError: the secret is not known here, or torchrun is gone.
    """
    store, own, number = _store(), rank(), 0
    assert own is not None
    while True:
        number += 1
        where = _told_next(store, f"doppler/{number}")
        if not where:
            return 0
        secret = _secret(makes=False)
        address, port = where.split()
        pid = os.fork()
        if pid == 0:
            try:
                serve((address, int(port)), secret, own)
            finally:
                os._exit(1)
        os.waitpid(pid, 0)


def _told_next(store: Any, key: str) -> str:
    """Return the next entry of the driver; wait for it as long as torchrun runs."""
    parent = os.getppid()
    while True:
        try:
            store.wait([key], timedelta(seconds=_LOOK_S))
            return store.get(key).decode()
        except _dist.DistStoreError:  # nothing yet
            if os.getppid() != parent:
                raise InputError("torchrun has ended, so no run can begin") from None
        except RuntimeError as error:
            raise InputError(f"torchrun's store: {str(error).splitlines()[0]}") from None


def _store(timeout_s: float = _STORE_S) -> Any:
    address, port = _variables["MASTER_ADDR"], int(_variables["MASTER_PORT"])
    try:
        return _dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=timeout_s))
    except RuntimeError:
        raise InputError(
            f"system.launcher: torchrun cannot be reached at {address}:{port} (MASTER_ADDR and "
            f"MASTER_PORT) within {timeout_s:g} s"
        ) from None


def _secret_file() -> Path:
    name = f"doppler-{os.getuid()}-{_variables['TORCHELASTIC_RUN_ID']}.secret"
    return Path(tempfile.gettempdir()) / name.replace("/", "_")


def _secret(*, makes: bool) -> bytes:
    """Return the secret: from the environment or, on one machine, from a file of this user."""
    if given := os.environ.get(SECRET):
        if len(given) < _LEAST_BYTES:
            raise InputError(f"{SECRET}: has fewer than {_LEAST_BYTES} characters")
        return given.encode()
    if _variables["LOCAL_WORLD_SIZE"] != _variables["WORLD_SIZE"]:
        raise InputError(
            f"{SECRET}: is not in the environment; agents on several machines need one secret"
        )
    path = _secret_file()
    if makes and not path.exists():
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "wb") as stream:
            stream.write(secrets.token_bytes(32))
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    with os.fdopen(file, "rb") as stream:
        status = os.fstat(file)
        if status.st_uid != os.getuid() or not stat.S_ISREG(status.st_mode):
            raise InputError(f"{path}: belongs to another user")
        return stream.read()
