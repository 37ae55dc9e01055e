"""What a configuration leaves open until it is known what executes: cluster size, preset, costs."""

import platform
from copy import deepcopy
from pathlib import Path

from hydra.utils import instantiate
from omegaconf import DictConfig
from rich.console import Console

EXECUTING = ("calibrate", "rl_real")  # stages whose system is the executor


def settled(cfg: DictConfig, console: Console) -> DictConfig:
    """The configuration with these choices made; the run says which preset it is.

    Where a stage executes, the simulator lets ready ops run in the executor's order.
    """
    cfg = deepcopy(cfg)
    executes = cfg.stage.name in EXECUTING
    if executes and "queue" in cfg.simulator:
        cfg.simulator.queue = cfg.executor.queue
    if cfg.workload.get("preset") == "auto":
        on_cpus = (executes or cfg.cluster.name == "host") and _is_cpu(cfg)
        cfg.workload.preset = "small" if on_cpus else "paper"
        if executes or on_cpus:
            reason = "CPUs execute" if on_cpus else "GPUs execute"
            told = f"workload.preset: {cfg.workload.preset} ({reason})"
            console.print(told, highlight=False, soft_wrap=True)
    return cfg


def _is_cpu(cfg: DictConfig) -> bool:
    return instantiate(cfg.executor).name == "threads"


def costs_path(cfg: DictConfig) -> Path:
    """The file of cost tables: what ``costs`` names, else that of this host."""
    if cfg.costs is not None:
        return Path(str(cfg.costs))
    return Path(str(cfg.output_dir), "costs", f"{platform.node()}.json")
