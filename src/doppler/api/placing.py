"""place(): from a torch module, or a graph, and the name of a machine to a placement."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from omegaconf import OmegaConf
from torch import nn
from torch.export import ExportedProgram

from doppler.api.clusters import resolve_cluster
from doppler.api.placed import Placed
from doppler.baselines import Baseline, Clustering, Judge, SingleDevice, lower_bound
from doppler.cluster import Cluster
from doppler.einsum import Auto, Decomposition, FewestElements, lower
from doppler.episode import make_view
from doppler.errors import InputError
from doppler.graph import DataflowGraph
from doppler.importing import TorchProgram, as_call, check_memory, import_module, load_exported
from doppler.options import Count, Positive, Seed, checked
from doppler.policies import Policy
from doppler.policies.weights import PRETRAINED
from doppler.problem import Problem, build
from doppler.resources import resource
from doppler.search import (
    AnnealFromBest,
    BestSoFar,
    Budget,
    Combined,
    GreedyEpisode,
    InParts,
    PlaceAgain,
    PlaceOnce,
    SampleEpisodes,
    SearchStep,
    load_policy,
    policy_steps,
    search,
    search_settings,
    steps_of,
)
from doppler.simulator import WorkConserving
from doppler.system import System
from doppler.warming import warm_up

# Of search, unless evaluations are given.
_SECONDS = 60.0
# What a step needs to run all of its code once.
_WARM_UP = 64
_Method = str | Baseline | Sequence[SearchStep]


@checked
def place(
    model: nn.Module | ExportedProgram | str | Path | DataflowGraph,
    example_inputs: Any = None,
    cluster: str | Path | Cluster = "h100x8",
    seconds: Positive | None = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    evaluations: Count | None = None,
    method: str | Baseline | Sequence[SearchStep] = "auto",
    policy: Policy | str | Path | None = None,
    decomposition: Literal["auto", "published"] | Decomposition = "auto",
    system: System | None = None,
    training: bool = False,
    learning_rate: float = 1e-3,
    seed: Seed = 0,
    trust: bool = False,
) -> Placed:
    """Place a torch module, or a dataflow graph, on a machine.

    Args:
        model: a module, whose parameters may be on the meta device; what torch.export made of one,
            or the .pt2 file of it; or a graph.
        example_inputs: of the module: what it is called with, tensors of these shapes and dtypes
            and all that holds them: one tensor, a tuple of what is given by position, or a
            dictionary of what is given by keyword, as tokenizers return it.
        cluster: a preset (p100x4, v100x8, a100x8, h100x8, mixed), ``host``, a YAML file that
            describes one as conf/cluster does, or a `Cluster`.
        seconds: of search, 60 by default; export, decomposition and compilation come before it.
        example_kwargs: what else the module is called with, by keyword.
        evaluations: instead of seconds: executions of placements. Equal seeds then find equal
            placements in the simulator.
        method: auto (clusterings, then annealing from the best of them), policy (samples of one,
            then annealing), the name of a baseline in conf/baseline, a baseline of your own, which
            takes what it takes, or a list of steps (doppler.search).
        policy: for ``method="policy"``: a checkpoint, or a policy, instead of the one that comes
            with the package (docs/pretrained.md).
        decomposition: who splits the module's ops into blocks. With auto, nothing is split where
            that is as good.
        system: what executes placements; by default the work-conserving simulator.
        training: the module returns its loss; backward and a step of gradient descent are added.
        learning_rate: of that step.
        seed: of all random choices.
        trust: a file that describes the machine may name classes of your own: their code is
            executed.

    Raises:
        InputError: one line about the model, the machine or the method, and what can be done.
    """
    if evaluations is None and seconds is None:
        seconds = _SECONDS
    budget = Budget(evaluations=evaluations, seconds=seconds)
    machine, make_steps = resolve_cluster(cluster, trust=trust), _chosen(method, policy, budget)
    executing: Any = WorkConserving() if system is None else system
    if isinstance(model, DataflowGraph):
        graph, whole, source = model, model, None
    else:
        if isinstance(model, str | Path):
            model = load_exported(model)
        if isinstance(model, nn.Module) and example_inputs is None and example_kwargs is None:
            raise InputError("place: a module needs example_inputs")
        args, kwargs = as_call(example_inputs, example_kwargs or {})
        source = import_module(
            model, args, kwargs, training=training, learning_rate=learning_rate
        )
        whole = lower(source.program, {})
        graph = _split(source, whole, machine, decomposition)
    problem = build(graph, machine)
    steps, confirmations = make_steps(problem), search_settings().confirmations
    _warm_up(executing, steps)
    with executing.open(problem) as session:
        best = BestSoFar(session=session, confirmations=confirmations, seed=seed)
        effort = search(steps, best, budget, np.random.default_rng(seed))
    if best.placement is None:
        raise InputError(
            f"{graph.name}: no placement of {effort.evaluations:,} fits in the memory of "
            f"{machine.name!r}: use more devices, more search, or half precision"
        )
    return Placed(
        problem=problem,
        placement=best.placement,
        system=executing,
        makespan_s=best.seconds,
        bound=lower_bound(problem, streams=executing.streams),
        single_device_s=_single_device_s(whole, machine, executing),
        method=_name(method),
        evaluations=effort.evaluations,
        seconds=effort.seconds,
        whole=source.whole if source else (),
        binding=source.binding if source else None,
    )


def _chosen(
    method: _Method, policy: Policy | str | Path | None, budget: Budget
) -> Callable[[Problem], Sequence[SearchStep]]:
    """The steps of a method, once the problem is known."""
    if policy is not None and method != "policy":
        raise InputError('policy: is for method="policy" alone')
    if method == "policy":
        chosen = PRETRAINED if policy is None else policy
        made = load_policy(chosen) if isinstance(chosen, str | Path) else chosen
        return lambda problem: policy_steps(
            search_settings(), made, make_view(problem), trained=False
        )
    if isinstance(method, str):
        steps = steps_of(method, budget)
        return lambda problem: steps
    if isinstance(method, Sequence):
        if not method or not all(hasattr(step, "search") for step in method):
            raise InputError(f"method: not a list of steps (doppler.search): {method!r}")
        return lambda problem: method
    return lambda problem: [PlaceOnce(baseline=method)]


def _name(method: _Method) -> str:
    if isinstance(method, str):
        return method
    if isinstance(method, Sequence):
        return ", ".join(type(step).__name__ for step in method)
    return type(method).__name__


def _warm_up(system: System, steps: Sequence[SearchStep]) -> None:
    """Compile what the steps run, so that no second of the search goes there."""
    policies = [step.policy for step in steps if isinstance(step, GreedyEpisode | SampleEpisodes)]
    baselines: list[Any] = [step.baseline for step in steps if isinstance(step, PlaceOnce)]
    others = [step for step in steps if isinstance(step, PlaceAgain | InParts | AnnealFromBest)]
    if others:
        baselines.append(Combined(evaluations=_WARM_UP, confirmations=0, steps=others))
    warm_up(system, baselines, policies[0] if policies else None)


def _split(
    source: TorchProgram,
    whole: DataflowGraph,
    cluster: Cluster,
    decomposition: str | Decomposition,
) -> DataflowGraph:
    program = source.program
    check_memory(program, cluster)
    if isinstance(decomposition, str):
        settings: Any = OmegaConf.load(resource("conf") / "decomposition" / "auto.yaml")
        baseline: Any = Clustering(evaluations=settings.judge.baseline.evaluations)
        simulator: Any = WorkConserving()
        judge = Judge(baseline=baseline, system=simulator)
        auto = Auto(cluster=cluster, judge=judge, grains=tuple(settings.grains))
        if decomposition == "auto":
            split = lower(program, auto.splits(program, cluster.num_devices))
            return min((whole, split), key=lambda graph: _judged_s(graph, cluster, judge))
        decomposition = FewestElements()
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
