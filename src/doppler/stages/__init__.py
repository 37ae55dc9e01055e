"""Training stages as Lightning modules, and the wiring of a run."""

from pathlib import Path

from omegaconf import OmegaConf

from doppler.executor import host_device_type, num_host_devices
from doppler.stages.imitation import Imitation
from doppler.stages.inference import Inference, Sampling
from doppler.stages.procedures import execute
from doppler.stages.reinforcement import Reinforcement
from doppler.stages.set_reinforcement import SetReinforcement

# For conf/workload/file.yaml and conf/cluster/host.yaml.
OmegaConf.register_new_resolver("stem", lambda path: Path(path).stem, replace=True)
OmegaConf.register_new_resolver("host_device_type", host_device_type, replace=True)
OmegaConf.register_new_resolver("num_host_devices", num_host_devices, replace=True)

__all__ = ["Imitation", "Inference", "Reinforcement", "Sampling", "SetReinforcement", "execute"]
