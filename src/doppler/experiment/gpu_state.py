"""What runs say of the GPUs that they measure on, before they do."""

from doppler.cluster.nvml import read_machine
from doppler.executor import Cuda, SynchronousCuda
from doppler.experiment.run import Run
from doppler.experiment.specification import Specification


def gpu_lines(spec: Specification) -> list[str]:
    """The GPUs of this machine as NVML sees them; empty where the machine is another one."""
    conf = spec.cfg.cluster
    if conf.get("device_type") != "cuda":
        return []
    facts = read_machine()
    return [] if facts is None else ["GPUs (NVML):", *facts.lines(), *facts.warnings()]


def warn_of_gpus(run: Run) -> None:
    """Say what may falsify measurements: other processes on a GPU, clocks that are throttled."""
    if not isinstance(run.spec.system, Cuda | SynchronousCuda):
        return
    facts = read_machine()
    for line in facts.warnings() if facts is not None else []:
        run.say(f"warning: {line}")
