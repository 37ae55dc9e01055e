"""place(): from a torch module, or a graph, and the name of a machine to a placement."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import nn

from doppler.api.placed import Placed
from doppler.api.searching import check_method, search
from doppler.baselines import Baseline, Clustering, Judge, SingleDevice, lower_bound
from doppler.cluster import PRESETS, Cluster, host, preset
from doppler.einsum import Auto, Decomposition, Published, lower
from doppler.errors import InputError
from doppler.graph import DataflowGraph
from doppler.importing import TorchProgram, check_memory, import_module
from doppler.policies import Policy
from doppler.problem import build
from doppler.simulator import WorkConserving
from doppler.system import System

# conf/decomposition/auto.yaml
_GRAINS, _JUDGE_EVALUATIONS = (1, 2, 4), 512


def place(
    model: nn.Module | DataflowGraph,
    example_inputs: Sequence[Any] | torch.Tensor | None = None,
    cluster: str | Path | Cluster = "h100x8",
    seconds: float = 60.0,
    *,
    method: str | Baseline = "auto",
    policy: Policy | str | Path | None = None,
    decomposition: Literal["auto", "published"] | Decomposition = "auto",
    system: System | None = None,
    training: bool = False,
    learning_rate: float = 1e-3,
    seed: int = 0,
) -> Placed:
    """Place a torch module, or a dataflow graph, on a machine.

    Args:
        model: a module, whose parameters may be on the meta device, or a graph.
        example_inputs: of the module: tensors of the shapes and dtypes that it is called with.
        cluster: a preset (p100x4, v100x8, a100x8, h100x8, mixed), ``host``, a YAML file that
            describes one as conf/cluster does, or a `Cluster`.
        seconds: of search; export and decomposition come before it.
        method: auto (clusterings, then annealing from the best of them), annealing, clustering,
            policy, a heuristic by name, or a baseline of your own.
        policy: for ``method="policy"``: a checkpoint, or a policy, instead of the one that comes
            with the package (docs/pretrained.md).
        decomposition: who splits the module's ops into blocks. With auto, nothing is split where
            that is as good.
        system: what executes placements; by default the work-conserving simulator.
        training: the module returns its loss; backward and a step of gradient descent are added.
        learning_rate: of that step.
        seed: of all random choices.

    Raises:
        InputError: one line about the model, the machine or the method, and what can be done.
    """
    machine, chosen = resolve_cluster(cluster), check_method(method, policy)
    executing: Any = WorkConserving() if system is None else system
    if not seconds > 0:
        raise InputError(f"seconds: must be positive, got {seconds}")
    if isinstance(model, DataflowGraph):
        graph, whole, source = model, model, None
    else:
        if example_inputs is None:
            raise InputError("place: a module needs example_inputs")
        examples = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else example_inputs
        source = import_module(model, examples, training=training, learning_rate=learning_rate)
        whole = lower(source.program, {})
        graph = _split(source, whole, machine, decomposition)
    problem = build(graph, machine)
    rng = np.random.default_rng(seed)
    with executing.open(problem) as session:
        order = executing.queue in ("priority", "strict")
        found = search(session, method=method, policy=chosen, seconds=seconds, order=order, rng=rng)
    if not np.isfinite(found.best.makespan_s):
        raise InputError(
            f"{graph.name}: no placement of {found.evaluations:,} fits in the memory of "
            f"{machine.name!r}: use more devices, more seconds, or half precision"
        )
    return Placed(
        problem=problem,
        placement=found.best.placement,
        system=executing,
        makespan_s=found.best.makespan_s,
        bound=lower_bound(problem, streams=executing.streams),
        single_device_s=_single_device_s(whole, machine, executing),
        method=method if isinstance(method, str) else type(method).__name__,
        evaluations=found.evaluations,
        seconds=found.seconds,
        source=source,
    )


def _split(
    source: TorchProgram,
    whole: DataflowGraph,
    cluster: Cluster,
    decomposition: str | Decomposition,
) -> DataflowGraph:
    program = source.program
    check_memory(program, cluster)
    if isinstance(decomposition, str):
        if decomposition not in ("auto", "published"):
            raise InputError(f"decomposition: {decomposition!r} is not one of auto, published")
        baseline: Any = Clustering(evaluations=_JUDGE_EVALUATIONS)
        simulator: Any = WorkConserving()
        judge = Judge(baseline=baseline, system=simulator)
        auto = Auto(cluster=cluster, judge=judge, grains=_GRAINS)
        if decomposition == "auto":
            split = lower(program, auto.splits(program, cluster.num_devices))
            return min((whole, split), key=lambda graph: _judged_s(graph, cluster, judge))
        decomposition = Published()
    return lower(program, decomposition.splits(program, cluster.num_devices))


def _judged_s(graph: DataflowGraph, cluster: Cluster, judge: Judge) -> float:
    try:
        return judge(build(graph, cluster))
    except InputError:  # an op that fits on no device
        return np.inf


def _single_device_s(graph: DataflowGraph, cluster: Cluster, system: System) -> float:
    """Makespan on one device; inf where that has too little memory."""
    try:
        problem = build(graph, cluster)
    except InputError:
        return np.inf
    with system.open(problem) as session:
        return SingleDevice().place(session, np.random.default_rng(0)).makespan_s


def resolve_cluster(cluster: str | Path | Cluster) -> Cluster:
    """A machine by name or file.

    Raises:
        InputError: no such preset or file, or a file that describes none.
    """
    if isinstance(cluster, Cluster):
        return cluster
    if cluster == "host":
        return host(num_devices=max(2, len(os.sched_getaffinity(0))))
    if isinstance(cluster, str) and not cluster.endswith((".yaml", ".yml")):
        if cluster not in PRESETS:
            choices = ", ".join([*PRESETS, "host"])
            raise InputError(f"cluster {cluster!r}: unknown, choose from {choices} or a .yaml file")
        return preset(name=cluster)
    try:
        return instantiate(OmegaConf.load(cluster))
    except InputError:
        raise
    except Exception as error:
        cause = error.__cause__ if isinstance(error.__cause__, InputError) else error
        raise InputError(f"{cluster}: {str(cause).splitlines()[0]}") from None
