"""What the configuration may ask for in ``${...}``; nothing heavy is imported before it asks."""

from pathlib import Path

from omegaconf import OmegaConf


def _host_device_type(executor: str) -> str:
    from doppler.executor import host_device_type

    return host_device_type(executor)


def _num_host_devices(executor: str) -> int:
    from doppler.executor import num_host_devices

    return num_host_devices(executor)


def register_resolvers() -> None:
    """Make them known to OmegaConf; once more does no harm."""
    # conf/workload/file.yaml, conf/cluster/host.yaml
    OmegaConf.register_new_resolver("stem", lambda path: Path(path).stem, replace=True)
    OmegaConf.register_new_resolver("host_device_type", _host_device_type, replace=True)
    OmegaConf.register_new_resolver("num_host_devices", _num_host_devices, replace=True)
