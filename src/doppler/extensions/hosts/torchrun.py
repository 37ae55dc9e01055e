"""Agents that torchrun has started: one command on every machine, and one of them has the run.

    torchrun --standalone --nproc-per-node 2 src/run.py system=hosts system.launcher=torchrun

The process of rank 0 has the run; that of each other rank is told through torchrun's own store
where it is, and makes one agent after another. As the store lets in whoever asks, it tells nothing
that is secret, and nothing of it is trusted: who has the run proves that it knows the secret too.
"""

import os
import secrets
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed

from doppler.extensions.hosts.agent import serve
from doppler.extensions.hosts.launchers import LocalAgents
from doppler.support.errors import InputError

_dist: Any = torch.distributed
SECRET = "DOPPLER_SECRET"  # of the environment, where the agents are on several machines
_LEAST_BYTES = 16
_STORE_S = 60.0
_A_LONG_TIME = timedelta(days=30)


def rank() -> int | None:
    """Which of torchrun's processes this is; None if it is none."""
    return int(os.environ["RANK"]) if "TORCHELASTIC_RUN_ID" in os.environ else None


def world_size() -> int:
    """How many processes torchrun has started."""
    return int(os.environ["WORLD_SIZE"])


@dataclass(frozen=True)
class TorchrunLauncher:
    """The processes of torchrun. address: where this one, of rank 0, listens."""

    address: str = "127.0.0.1"

    def start(self, num: int) -> LocalAgents:
        """See launchers.Launcher; it has started this process, and as many.

        Raises:
            InputError: the secret is not known here.
        """
        started = LocalAgents(self.address, [0], num, _secret(makes=True))
        _tell(f"{started.address} {started.port}")
        return started


_told: list[str] = []


def _tell(where: str) -> None:
    """Tell the other ranks where to go next."""
    _told.append(where)
    _store().set(f"doppler/{len(_told)}", where)


def end() -> None:
    """In the process of rank 0, when the command is over: the others end, too."""
    with suppress(Exception):  # torchrun ends them where they are not reached
        _tell("")
    with suppress(OSError):
        _secret_file().unlink()


def serve_all() -> int:
    """In the process of another rank: agents, one after another, until there is no more to do.

    Returns the exit code.

    Raises:
        InputError: the secret is not known here.
    """
    store, own, number = _store(_A_LONG_TIME), rank(), 0
    assert own is not None
    while True:
        number += 1
        where = store.get(f"doppler/{number}").decode()
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


def _store(timeout: timedelta | None = None) -> Any:
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    waits = timeout or timedelta(seconds=_STORE_S)
    return _dist.TCPStore(address, port, is_master=False, timeout=waits)


def _secret_file() -> Path:
    name = f"doppler-{os.getuid()}-{os.environ['TORCHELASTIC_RUN_ID']}.secret"
    return Path(tempfile.gettempdir()) / name.replace("/", "_")


def _secret(*, makes: bool) -> bytes:
    """The secret of the run: of the environment, or, on one machine, of a file of this user's."""
    if given := os.environ.get(SECRET):
        if len(given) < _LEAST_BYTES:
            raise InputError(f"{SECRET}: has fewer than {_LEAST_BYTES} characters")
        return given.encode()
    if os.environ["LOCAL_WORLD_SIZE"] != os.environ["WORLD_SIZE"]:
        raise InputError(
            f"{SECRET}: is not in the environment; agents on several machines need one secret"
        )
    path = _secret_file()
    if makes and not path.exists():
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "wb") as stream:
            stream.write(secrets.token_bytes(32))
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(file, "rb") as stream:
        if os.fstat(file).st_uid != os.getuid():
            raise InputError(f"{path}: belongs to another user")
        return stream.read()
