"""The Ray cluster that a process is a member of: one that runs, or one that is started here.

Ray is for control: it starts, watches and restarts processes, on this machine or on others. Its own
traffic is neither encrypted nor asked for a secret: whoever reaches its ports may run code. Its
dashboard and statistics of usage are off.
"""

import atexit
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from doppler.support.errors import InputError

# Of a cluster that is started here: what it shares are problems and weights.
_STORE_BYTES = 512 << 20
_OFF = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # what comes too late must not start a cluster
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else it warns of what is not our business
}


def connected(asked_by: str) -> Any:
    """The module ``ray``, connected to the cluster that runs, or to one that is started here.

    ``RAY_ADDRESS`` names the cluster, else it is the one of ``ray start`` on this machine; one that
    is started here has this machine's cores and ends with this process.

    Args:
        asked_by: the option that needs it, for errors.

    Raises:
        InputError: Ray is not installed, or the cluster is not reached.
    """
    for name, value in _OFF.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        if (error.name or "").split(".")[0] not in ("ray", "msgpack"):
            raise
        raise InputError(f"{asked_by}: needs Ray: pip install 'doppler[ray]'") from None
    if not ray.is_initialized():
        _connect(ray, asked_by)
    return ray


class _ImportPath(list[str]):
    """Where workers of Ray import from first: what is here from the beginning."""

    def extend(self, more: Iterable[str]) -> None:
        """Leave out what Ray adds: the working directory, where anybody's modules may lie."""


def _connect(ray: Any, asked_by: str) -> None:
    where = _ImportPath([str(Path(__file__).parents[3])])
    options: dict[str, Any] = {
        "configure_logging": False,
        "log_to_driver": False,
        "job_config": ray.job_config.JobConfig(_py_driver_sys_path=where),
    }
    logging.getLogger("ray").setLevel(logging.CRITICAL)  # what goes wrong is told here
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        try:
            ray.init(address="auto", **options)
        except ConnectionError:
            if given := os.environ.get("RAY_ADDRESS"):
                raise InputError(f"{asked_by}: no Ray cluster at RAY_ADDRESS={given}") from None
            ray.init(
                address="local",
                include_dashboard=False,
                object_store_memory=_STORE_BYTES,
                num_cpus=len(os.sched_getaffinity(0)),
                **options,
            )
    except SystemExit:  # Ray's own handler, while it was there
        if callable(before):
            before(signal.SIGTERM, None)
        sys.exit(128 + signal.SIGTERM)
    except (RuntimeError, OSError, ValueError, TimeoutError) as error:
        with suppress(Exception):
            ray.shutdown()
        line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"{asked_by}: Ray: {line}") from None
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before)
    with suppress(AttributeError, ImportError):  # that a worker died is told here, in one line
        ray._private.worker._worker_logs_enabled = False
    atexit.register(disconnect)


_last: list[Callable[[], None]] = []


def at_disconnection(function: Callable[[], None]) -> None:
    """Something to do once, before this process leaves the cluster."""
    _last.append(function)


def disconnect() -> None:
    """Leave the cluster; one that was started here ends."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        while _last:
            _last.pop()()
        with suppress(Exception):
            ray.shutdown()


def num_cpus(ray: Any) -> list[float]:
    """How many CPUs each node has that is there, by falling number."""
    return _resources(ray, "CPU")


def num_gpus(ray: Any) -> list[float]:
    """How many GPUs each node has that is there, by falling number."""
    return _resources(ray, "GPU")


def _resources(ray: Any, name: str) -> list[float]:
    nodes = [node for node in ray.nodes() if node["Alive"]]
    return sorted((node["Resources"].get(name, 0.0) for node in nodes), reverse=True)


def is_elsewhere(ray: Any) -> bool:
    """Whether some node is on another machine."""
    here = ray.util.get_node_ip_address()
    return any(node["Alive"] and node["NodeManagerAddress"] != here for node in ray.nodes())
