"""What the configuration may ask for in ``${...}``; nothing heavy is imported before it asks."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from doppler.hooks import contributed


def _host_device_type(executor: str, *, _root_: Any) -> str:
    from doppler.executor import host_device_type

    return host_device_type(executor, _devices(_root_))


def _contention_of(executor: str) -> str:
    from doppler.executor import contention_of

    return contention_of(executor)


def _num_host_devices(executor: str, *, _root_: Any) -> int:
    from doppler.executor import num_host_devices

    return num_host_devices(executor, _devices(_root_))


def _devices(root: Any) -> str:
    """What the executor's are said to be."""
    return str((root.get("executor") or {}).get("devices") or "cores")


def _default_preset(cluster: str, stage: str, executor: str, *, _root_: Any) -> str:
    """Sizes of a workload: ``small`` where CPUs execute it, else ``paper``.

    An emulation computes nothing.

    Args:
        cluster: its name; ``host`` stands for this machine.
        stage: target of the stage; some execute.
        executor: target of the executor.
    """
    executes = stage.endswith((".Calibrate", ".StageThree")) or bool(_root_.get("executes"))
    if executor.endswith(".Emulated"):
        executes = False
    return (
        "small"
        if (executes or cluster == "host") and _host_device_type(executor, _root_=_root_) == "cpu"
        else "paper"
    )


def _num_processors(path: str | None) -> int | None:
    from doppler.graph.optima import num_processors

    return num_processors(path)


def register_resolvers() -> None:
    """Make them known to OmegaConf; once more does no harm."""
    # conf/workload/, conf/cluster/host.yaml, conf/simulator/as_executed.yaml
    OmegaConf.register_new_resolver("stem", lambda path: Path(path).stem, replace=True)
    OmegaConf.register_new_resolver("num_processors", _num_processors, replace=True)
    OmegaConf.register_new_resolver("host_device_type", _host_device_type, replace=True)
    OmegaConf.register_new_resolver("contention_of", _contention_of, replace=True)
    OmegaConf.register_new_resolver("num_host_devices", _num_host_devices, replace=True)
    OmegaConf.register_new_resolver("default_preset", _default_preset, replace=True)
    for added in contributed("resolvers"):
        for name, function in added.items():
            OmegaConf.register_new_resolver(name, function, replace=True)
