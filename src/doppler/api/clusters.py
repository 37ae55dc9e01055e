"""Machines by name, or by a file that describes one, and what simulates them."""

import os
from pathlib import Path
from typing import Any

from doppler.cluster import PRESETS, Cluster, custom, host, preset
from doppler.executor import Threads
from doppler.simulator import WorkConserving
from doppler.support.errors import InputError
from doppler.support.files.described import build_described
from doppler.system import MemoryMode, Refuse

# Functions that a cluster file may name without trust.
_MAKERS = {f"doppler.cluster.{make.__name__}": make for make in (custom, preset, host)}


def resolve_cluster(
    cluster: str | Path | Cluster, *, for_module: bool = False, trust: bool = False
) -> Cluster:
    """A machine by name or file.

    Args:
        cluster: a preset, ``host``, or a file as in conf/cluster.
        for_module: what a preset's name stands for: as torch itself would use it, with the
            efficiencies that were measured, and TF32 where torch may use it for matrices; else
            the peaks of the data sheets, TF32's included, which published workloads are priced by.
        trust: the file may name classes of your own, whose code is executed.

    Raises:
        InputError: no such preset or file, or a file that describes none.
    """
    if isinstance(cluster, Cluster):
        return cluster
    if not isinstance(cluster, str | Path):
        raise InputError(f"cluster: must be a name, a file or a Cluster, got {cluster!r}")
    if cluster == "host":
        return host(num_devices=max(2, len(os.sched_getaffinity(0))))
    if isinstance(cluster, str) and not cluster.endswith((".yaml", ".yml")):
        if cluster not in PRESETS:
            choices = ", ".join([*PRESETS, "host"])
            raise InputError(f"cluster {cluster!r}: unknown, choose from {choices} or a .yaml file")
        if not for_module:
            return preset(name=cluster)
        import torch  # which takes seconds to load

        allow_tf32 = torch.get_float32_matmul_precision() != "highest"
        return preset(name=cluster, allow_tf32=allow_tf32, efficiency="measured")
    made = build_described(cluster, "cluster", _MAKERS, trust=trust)
    if not isinstance(made, Cluster):
        raise InputError(f"{cluster}: describes a {type(made).__name__}, not a cluster")
    return made


def simulator_of(cluster: Cluster, memory: MemoryMode) -> Any:
    """What simulates a machine unless a system is told; memory: what is done within its limits.

    Cores make transfers as their executor does, but where no system can: in memory plans and
    between hosts transfers are on links. What a machine shares counts, except in memory plans.
    """
    if cluster.shared and isinstance(memory, Refuse):
        return WorkConserving(contention="shared")
    as_executed = cluster.cores and cluster.num_hosts == 1 and isinstance(memory, Refuse)
    return memory.applied(WorkConserving(contention=Threads.contention if as_executed else "fifo"))
