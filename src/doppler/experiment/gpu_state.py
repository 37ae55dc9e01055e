"""Reports the state of the GPUs before a run measures on them."""

from doppler.cluster.nvml import read_machine
from doppler.executor import Cuda, SynchronousCuda
from doppler.experiment.run import Run
from doppler.experiment.specification import Specification


def gpu_lines(spec: Specification) -> list[str]:
    """Describe the GPUs of this machine by NVML; empty if the run uses another machine."""
    conf = spec.cfg.cluster
    if conf.get("device_type") != "cuda":
        return []
    facts = read_machine()
    return [] if facts is None else ["GPUs (NVML):", *facts.lines(), *facts.warnings()]


def warn_of_gpus(run: Run) -> None:
    """Warn of what may distort measurements: other processes on a GPU, throttled clocks."""
    if not isinstance(run.spec.system, Cuda | SynchronousCuda):
        return
    facts = read_machine()
    for line in facts.warnings() if facts is not None else []:
        run.say(f"warning: {line}")
