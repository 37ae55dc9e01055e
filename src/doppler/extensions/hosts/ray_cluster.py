"""Connects a process to a Ray cluster: one that runs, or one that is started on this machine.

Ray is used for control: it starts, watches and restarts processes, on this machine or on others.
Its own traffic is not encrypted and needs no secret: anyone who reaches its ports can run code. Its
dashboard and usage statistics are turned off.
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

# Size of the object store of a cluster that is started here; it holds problems and weights.
_STORE_BYTES = 512 << 20
_OFF = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # a call after the end must not start another cluster
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # avoids a warning that users cannot act on
}


def connected(asked_by: str) -> Any:
    """Return the module ``ray``, connected to a cluster.

    The environment variable ``RAY_ADDRESS`` names the cluster. Without it, the cluster of
    ``ray start`` on this machine is used if there is one. Otherwise a cluster is started here, with
    this machine's cores; it ends with this process.

    Args:
        asked_by: the option that needs Ray, for errors.

    Raises:
        InputError: Ray is not installed, or the cluster cannot be reached.
    """
    for name, value in _OFF.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        if (error.name or "").split(".")[0] not in ("ray", "msgpack"):
            raise
        raise InputError(f"{asked_by}: needs Ray: pip install '.[ray]'") from None
    if not ray.is_initialized():
        _connect(ray, asked_by)
    return ray


class _ImportPath(list[str]):
    """The import path of Ray's workers; it stays as it is made."""

    def extend(self, more: Iterable[str]) -> None:
        """Ignore what Ray adds: the working directory, where unrelated modules may lie."""


def _connect(ray: Any, asked_by: str) -> None:
    where = _ImportPath([str(Path(__file__).parents[3])])
    options: dict[str, Any] = {
        "configure_logging": False,
        "log_to_driver": False,
        "job_config": ray.job_config.JobConfig(_py_driver_sys_path=where),
    }
    logging.getLogger("ray").setLevel(logging.CRITICAL)  # this package reports errors itself
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
    except SystemExit:  # raised by Ray's signal handler, which is active during ray.init
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
    with suppress(AttributeError, ImportError):  # this package reports dead workers in one line
        ray._private.worker._worker_logs_enabled = False
    atexit.register(disconnect)


_last: list[Callable[[], None]] = []


def at_disconnection(function: Callable[[], None]) -> None:
    """Register a function that is called once, before this process leaves the cluster.

    Args:
        function: to call.
    """
    _last.append(function)


def disconnect() -> None:
    """Leave the cluster; a cluster that was started here ends."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        while _last:
            _last.pop()()
        with suppress(Exception):
            ray.shutdown()


def num_cpus(ray: Any) -> list[float]:
    """Return the number of CPUs of each live node, largest first.

    Args:
        ray: the module ``ray``, connected.
    """
    return _resources(ray, "CPU")


def num_gpus(ray: Any) -> list[float]:
    """Return the number of GPUs of each live node, largest first.

    Args:
        ray: the module ``ray``, connected.
    """
    return _resources(ray, "GPU")


def _resources(ray: Any, name: str) -> list[float]:
    nodes = [node for node in ray.nodes() if node["Alive"]]
    return sorted((node["Resources"].get(name, 0.0) for node in nodes), reverse=True)


def is_elsewhere(ray: Any) -> bool:
    """Whether the cluster has a node on another machine.

    Args:
        ray: the module ``ray``, connected.
    """
    here = ray.util.get_node_ip_address()
    return any(node["Alive"] and node["NodeManagerAddress"] != here for node in ray.nodes())
