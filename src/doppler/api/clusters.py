"""Finds machines by name or file, and the simulator for a machine."""

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
    cluster: str | Path | Cluster,
    *,
    num_devices: int | None = None,
    for_module: bool = False,
    trust: bool = False,
) -> Cluster:
    """Return a machine by name or file.

    Args:
        cluster: a preset, ``host``, or a file as in conf/cluster.
        num_devices: replaces the number of a preset, of ``host`` or in the file.
        for_module: which rates a preset has. True: measured efficiencies, and TF32 only if torch
            may use it for matrices. False: the peaks of the data sheets including TF32, which
            published workloads are priced by.
        trust: the file may name classes of your own, whose code is executed.

    Raises:
        InputError: no such preset or file, or the file does not describe a machine.
    """
    if isinstance(cluster, Cluster):
        if num_devices not in (None, cluster.num_devices):
            raise InputError(
                f"num_devices: {num_devices}, but the cluster has {cluster.num_devices} devices: "
                "name a preset, host or a file, or make a cluster with as many"
            )
        return cluster
    if not isinstance(cluster, str | Path):
        raise InputError(f"cluster: must be a name, a file or a Cluster, got {cluster!r}")
    if cluster == "host":
        return host(num_devices=num_devices or max(2, len(os.sched_getaffinity(0))))
    if isinstance(cluster, str) and not cluster.endswith((".yaml", ".yml")):
        if cluster not in PRESETS:
            choices = ", ".join([*PRESETS, "host"])
            raise InputError(f"cluster {cluster!r}: unknown, choose from {choices} or a .yaml file")
        if not for_module:
            return preset(name=cluster, num_devices=num_devices)
        import torch  # imported late: it takes seconds

        allow_tf32 = torch.get_float32_matmul_precision() != "highest"
        return preset(
            name=cluster, num_devices=num_devices, allow_tf32=allow_tf32, efficiency="measured"
        )
    given = {} if num_devices is None else {"num_devices": num_devices}
    made = build_described(cluster, "cluster", _MAKERS, trust=trust, given=given)
    if not isinstance(made, Cluster):
        raise InputError(f"{cluster}: describes a {type(made).__name__}, not a cluster")
    return made


def simulator_of(cluster: Cluster, memory: MemoryMode) -> Any:
    """Return the default simulator of a machine.

    If devices are cores, they make transfers themselves as in the executor. Memory plans and
    transfers between hosts do not support this; there, transfers are on links. Shared resources of
    a machine are simulated, except in memory plans.

    Args:
        cluster: the machine.
        memory: what to do with placements that do not fit in memory.
    """
    if cluster.shared and isinstance(memory, Refuse):
        return WorkConserving(contention="shared")
    as_executed = cluster.cores and cluster.num_hosts == 1 and isinstance(memory, Refuse)
    return memory.applied(WorkConserving(contention=Threads.contention if as_executed else "fifo"))
