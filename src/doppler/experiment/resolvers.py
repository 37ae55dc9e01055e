"""What a configuration asks of the machine, as it is resolved."""

from pathlib import Path

from omegaconf import OmegaConf

from doppler.executor import host_device_type, num_host_devices


def default_preset(cluster: str, stage: str, executor: str) -> str:
    """Sizes of a workload: ``small`` where CPUs execute it, else ``paper``.

    Args:
        cluster: its name; ``host`` stands for this machine.
        stage: target of the stage; some execute.
        executor: target of the executor.
    """
    executes = stage.endswith(("Calibrate", "StageThree")) or cluster == "host"
    return "small" if executes and host_device_type(executor) == "cpu" else "paper"


def register_resolvers() -> None:
    """Make them known: for conf/workload and conf/cluster."""
    OmegaConf.register_new_resolver("stem", lambda path: Path(path).stem, replace=True)
    OmegaConf.register_new_resolver("host_device_type", host_device_type, replace=True)
    OmegaConf.register_new_resolver("num_host_devices", num_host_devices, replace=True)
    OmegaConf.register_new_resolver("default_preset", default_preset, replace=True)
