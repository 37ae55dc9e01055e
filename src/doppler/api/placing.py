"""place(): places a torch module or a graph on a machine."""

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from torch import nn
from torch.export import ExportedProgram

from doppler.api.clusters import resolve_cluster, simulator_of
from doppler.api.memory_modes import memory_mode
from doppler.api.placed import Placed
from doppler.baselines import (
    HEFT,
    Baseline,
    Clustering,
    Dealing,
    LowerBound,
    SingleDevice,
    lower_bound,
)
from doppler.cluster import Cluster, MemoryBytes
from doppler.einsum import Decomposition
from doppler.env import make_view
from doppler.graph import DataflowGraph
from doppler.hooks import contributed, extension
from doppler.policies import Policy
from doppler.policies.weights import PRETRAINED
from doppler.precompile import alone, warm_up
from doppler.problem import Problem, build
from doppler.search import (
    NO_PLACEMENT,
    AnnealFromBest,
    AnnealOnEstimates,
    Budget,
    DealBlocks,
    Episodes,
    Evaluator,
    InParts,
    KeepToHosts,
    PlaceAgain,
    PlaceOnce,
    ScoredPlacement,
    SearchStep,
    confirmations_within,
    load_policy,
    policy_steps,
    search,
    search_settings,
    steps_of,
    suited,
)
from doppler.support.errors import InputError
from doppler.support.options import Count, Devices, PositiveSeconds, Seed, checked
from doppler.support.phases import Phases
from doppler.support.stopping import Stopped
from doppler.system import MemoryMode, Refuse, Session, System

if TYPE_CHECKING:
    from doppler.extensions.modules import TorchProgram

# Default limit of a call, and the least share of it that the search gets.
_SECONDS, _LEAST_SEARCH = 60.0, 0.2
# On graphs with more ops than _LARGE, the policy's first placement beats a few seconds of search.
# With evaluations the policy comes first on any graph. On graphs with more ops than _LARGE_COUNTED
# its search on estimates would only take executions away from windows and layers.
_LARGE, _LARGE_COUNTED = 8_000, 2_000
_EXACT = 1e-9  # rounding errors of sums are smaller
# Two executions of a placement mostly differ by a smaller factor. More would be safer, but opening
# a machine and executing again takes seconds there.
_NEAR = 1.1
# Steps that need compiled code.
_COMPILED = (PlaceAgain, InParts, AnnealFromBest)
# Methods that look for the best placement of any kind; others are asked for what they find.
_BY_ITSELF = ("auto", "policy")
_Method = str | Baseline | Sequence[SearchStep]


@checked
def place(
    model: nn.Module | ExportedProgram | str | Path | DataflowGraph,
    example_inputs: Any = None,
    cluster: str | Path | Cluster = "h100x8",
    seconds: PositiveSeconds | None = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    num_devices: Devices | None = None,
    evaluations: Count | None = None,
    method: str | Baseline | Sequence[SearchStep] = "auto",
    policy: Policy | str | Path | None = None,
    decomposition: Literal["auto", "published"] | Decomposition = "auto",
    system: System | None = None,
    memory: Literal["refuse", "offload", "offload_or_recompute"] | MemoryMode = "refuse",
    memory_bytes: MemoryBytes | None = None,
    training: bool = False,
    learning_rate: float = 1e-3,
    seed: Seed = 0,
    trust: bool = False,
) -> Placed:
    """Place a torch module or a dataflow graph on a machine.

    Ctrl-C during the search returns the best placement so far.

    Args:
        model: a torch module (its parameters may be on the meta device), an exported program, the
            path of a .pt2 file, or a graph.
        example_inputs: what the module is called with: one tensor, a tuple of positional arguments,
            or a dictionary of keyword arguments as tokenizers return it. Only shapes and dtypes
            matter.
        cluster: the name of a preset (docs/machines.md), ``host`` (the cores of this machine), a
            YAML file as in conf/cluster, or a `Cluster`. For a module, presets have measured
            efficiencies, and f32 runs at f32 rates unless torch allows TF32; for a graph they have
            the peak rates of the data sheets.
        seconds: limit for the whole call, 60 by default: export, splitting, pricing and search. The
            search gets at least a fifth and ends early at the lower bound. Compilation is not
            counted (`doppler warm`).
        example_kwargs: keyword arguments of the module, beside a tuple of positional ones.
        num_devices: of the machine, instead of those that its preset, ``host`` or file has.
        evaluations: limit in executions of placements instead of seconds. In the simulator, equal
            seeds then find equal placements.
        method: ``auto``: clusterings and list schedulers, then annealing from the best; with
            ``evaluations`` the steps of ``policy`` come first; large graphs get further steps
            (docs/large.md). ``policy``: episodes of a policy, a search on estimates, then
            annealing. Or the name of a baseline in conf/baseline, a baseline object, or a list of
            search steps (`doppler.search`).
        policy: for ``method="policy"``, instead of the one that comes with the package
            (docs/pretrained.md): a checkpoint of DOPPLER's policy; or a policy of any class, with
            the weights that it has (`doppler.policies.weights.load_policy_weights`).
        decomposition: how the module's ops are split into blocks. ``auto`` splits by expected time,
            and splits nothing if that is as good. If it is ``auto`` and the method ``auto`` or
            ``policy``, the whole model stays on one device if that is faster than all else that was
            found.
        system: what executes placements. By default the work-conserving simulator; if the devices
            are cores of one host and memory is not planned, cores make their transfers themselves.
        memory: what happens to a placement that does not fit: ``refuse``, ``offload`` to the host,
            or ``offload_or_recompute`` (docs/memory.md).
        memory_bytes: memory of every device, or of each, instead of the machine's own.
        training: the module returns its loss; the backward pass and a step of gradient descent are
            added.
        learning_rate: of that step.
        seed: of all random choices.
        trust: whether files may execute code: a .pt2 file, which torch unpickles, and a cluster
            file that names your own classes.

    Returns:
        The placement, with makespan, lower bound and everything that is known about it.

    Raises:
        InputError: one line about the model, the machine or the method, and what you can do.
    """
    if evaluations is None and seconds is None:
        seconds = _SECONDS
    budget, phases = Budget(evaluations=evaluations, seconds=seconds), Phases(seconds)
    machine = resolve_cluster(
        cluster,
        num_devices=num_devices,
        for_module=not isinstance(model, DataflowGraph),
        trust=trust,
    )
    machine = machine.with_memory(memory_bytes)
    make_steps = _chosen(method, policy, budget)
    mode = memory_mode(memory) if isinstance(memory, str) else memory
    executing: Any = simulator_of(machine, mode) if system is None else mode.applied(system)
    if isinstance(model, DataflowGraph):
        _check_of_modules(example_inputs, example_kwargs, training, decomposition)
        graph, source = model, None
    else:
        with phases.timed("export"):
            source = _imported(
                model, example_inputs, example_kwargs, training, learning_rate, trust=trust
            )
        modules = extension("modules.splitting", "a torch module")
        graph = modules.split(
            source.program,
            machine,
            decomposition,
            phases,
            simulator=simulator_of(machine, mode),
            must_fit=isinstance(mode, Refuse),
        )
    problem, bound, one = _priced(graph, source, machine, executing, phases)
    enough_s = bound.seconds * (1.0 + _EXACT)
    with phases.timed("search"):
        steps = make_steps(problem)
    found = _search(steps, problem, executing, budget, phases, seed, enough_s)
    best, beaten_s = found.best, None
    with phases.timed("search"):
        one = _confirmed(one, best, executing, budget, seed)
    is_free = method in _BY_ITSELF and decomposition == "auto"
    if is_free and one.best.seconds * (1.0 + _EXACT) < best.seconds:
        problem, best, beaten_s = one.problem, one.best, best.seconds
        bound = _bound(problem, executing)
    assert best.placement is not None, "_search returns one or raises"
    return Placed(
        problem=problem,
        placement=best.placement,
        system=executing,
        makespan_s=best.seconds,
        bound=bound,
        single_device_s=one.best.seconds,
        beaten_s=beaten_s,
        method=_name(method),
        evaluations=found.evaluations,
        seconds=sum(phases.seconds.values()),
        limit_s=phases.limit_s,
        phases=phases.seconds,
        cut_short=(*phases.cut_short, *(["interrupted"] if found.is_interrupted else [])),
        whole=source.whole if source else (),
        by_bytes=source.by_bytes if source else (),
        binding=source.binding if source else None,
    )


def _imported(
    model: nn.Module | ExportedProgram | str | Path,
    example_inputs: Any,
    example_kwargs: Mapping[str, Any] | None,
    training: bool,
    learning_rate: float,
    *,
    trust: bool,
) -> "TorchProgram":
    """Import the module as a program, and match its tensors with those of the module."""
    modules = extension("modules", "a torch module")
    if isinstance(model, str | Path):
        model = modules.load_exported(model, trust=trust)
    if isinstance(model, nn.Module) and example_inputs is None and example_kwargs is None:
        raise InputError("place: a module needs example_inputs")
    args, kwargs = modules.as_call(example_inputs, example_kwargs or {})
    return modules.import_module(
        model, args, kwargs, training=training, learning_rate=learning_rate
    )


def _check_of_modules(
    example_inputs: Any, example_kwargs: object, training: bool, decomposition: object
) -> None:
    """Refuse what means nothing for a graph, which is placed as it is.

    Raises:
        InputError: names the argument.
    """
    given = {
        "example_inputs": example_inputs,
        "example_kwargs": example_kwargs,
        "training": training or None,
        "decomposition": None if decomposition == "auto" else decomposition,
    }
    hint = f"; cluster={example_inputs!r} chooses the machine"
    for name, value in given.items():
        if value is not None:
            told = hint if value is example_inputs and isinstance(value, str) else ""
            raise InputError(f"{name}: is for torch modules, and a graph was given{told}")


class _OneDevice(NamedTuple):
    """A model on one device, without splits.

    Attributes:
        problem: without splits.
        best: its placement on the best device and seconds; inf if it has too little memory.
    """

    problem: Problem
    best: ScoredPlacement


def _priced(
    graph: DataflowGraph, source: Any, machine: Cluster, system: System, phases: Phases
) -> tuple[Problem, LowerBound, _OneDevice]:
    """Return the problem, a lower bound, and the placement on one device without splits."""
    with phases.timed("price"):
        problem = build(graph, machine)
        unsplit: Problem | None = problem
        if source is not None:
            modules = extension("modules.splitting", "a torch module")
            unsplit = modules.unsplit(source.program, machine)
        one = _OneDevice(problem, NO_PLACEMENT)
        if unsplit is not None:
            with system.open(unsplit) as session:
                found = SingleDevice().place(session, np.random.default_rng(0))
            one = _OneDevice(unsplit, ScoredPlacement(found.placement, found.makespan_s))
        return problem, _bound(problem, system), one


def _bound(problem: Problem, system: System) -> LowerBound:
    return lower_bound(problem, streams=system.streams, shares=getattr(system, "shares", False))


def _evaluator(session: Session, budget: Budget, seed: int) -> Evaluator:
    confirmations = search_settings().confirmations
    if budget.evaluations is not None:
        confirmations = confirmations_within(budget.evaluations, confirmations)
    return Evaluator(session=session, confirmations=confirmations, seed=seed)


def _confirmed(
    one: _OneDevice, best: ScoredPlacement, system: System, budget: Budget, seed: int
) -> _OneDevice:
    """Where executions differ, execute it on one device as often as the best that a search found.

    This is left out if its one execution so far was clearly slower.
    """
    if one.best.placement is None or one.best.seconds > _NEAR * best.seconds:
        return one
    with system.open(one.problem) as session:
        if not session.is_random:
            return one
        seconds = _evaluator(session, budget, seed).confirm(one.best.placement)
    return one._replace(best=one.best._replace(seconds=seconds))


class _Found(NamedTuple):
    """The result of a search.

    Attributes:
        best: its placement and seconds.
        evaluations: executions.
        is_interrupted: whether Ctrl-C ended it.
    """

    best: ScoredPlacement
    evaluations: int
    is_interrupted: bool


def _search(
    steps: Sequence[SearchStep],
    problem: Problem,
    system: System,
    budget: Budget,
    phases: Phases,
    seed: int,
    enough_s: float,
) -> _Found:
    """Search until the budget is used, the lower bound is reached, or the user interrupts.

    Reaching the lower bound ends the search only on simulators without jitter, for whose seconds
    the bound holds. Ctrl-C ends it with the best placement so far, if there is one.
    """
    is_interrupted = False
    with phases.timed("compile", counts=False):
        _warm_up(system, steps)
    with phases.timed("search"), system.open(problem) as session:
        best = _evaluator(session, budget, seed)
        budget = replace(budget, seconds=phases.left_s(_LEAST_SEARCH))
        exact = system.kind == "simulated" and not session.is_random
        rng = np.random.default_rng(seed)
        try:
            search(steps, best, budget, rng, enough_s=enough_s if exact else 0.0)
        except (KeyboardInterrupt, Stopped) as error:
            by_hand = not isinstance(error, Stopped) or error.number == signal.SIGINT
            if best.placement is None or not by_hand:
                raise
            is_interrupted = True
    if best.evaluations == 0:
        raise InputError(f"{problem.graph.name}: no step of the method executed a placement")
    if best.placement is None:
        raise InputError(
            f"{problem.graph.name}: no placement of {best.evaluations:,} fits in the memory of "
            f"{problem.cluster.name!r}: use more devices, more search, half precision, or "
            'memory="offload"'
        )
    return _Found(best.found, best.evaluations, is_interrupted)


def _chosen(
    method: _Method, policy: Policy | str | Path | None, budget: Budget
) -> Callable[[Problem], Sequence[SearchStep]]:
    """A function that returns the steps of a method for a problem."""
    if policy is not None and method != "policy":
        raise InputError('policy: is for method="policy" alone')
    if method == "policy":
        chosen = PRETRAINED if policy is None else policy
        made = load_policy(chosen) if isinstance(chosen, str | Path) else chosen
        return lambda problem: policy_steps(search_settings(), made, make_view(problem))
    if isinstance(method, str):
        steps = steps_of(method)
        if method == "auto":
            return lambda problem: _automatic(steps, problem, budget)
        return lambda problem: suited(steps, problem)
    if isinstance(method, Sequence):
        if not method or not all(hasattr(step, "search") for step in method):
            raise InputError(f"method: not a list of steps (doppler.search): {method!r}")
        return lambda problem: method
    return lambda problem: [PlaceOnce(baseline=method)]


def _automatic(
    steps: Sequence[SearchStep], problem: Problem, budget: Budget
) -> Sequence[SearchStep]:
    """Choose the steps of ``method="auto"``.

    With a budget of seconds these are the given steps. With a budget of evaluations the policy's
    steps come first, because they make more of each. On a large graph dealt blocks and the policy's
    placement are added. Within seconds the fastest steps come first there: blocks, then list
    schedulers (on the largest graphs ETF first), then a few layers for all, then the policy.
    """
    is_timed = budget.seconds is not None
    if not is_timed and problem.num_ops <= _LARGE_COUNTED:
        return policy_steps(search_settings(), load_policy(), make_view(problem), then=steps)
    found = suited(steps, problem)
    if is_timed and problem.num_ops <= _LARGE:
        return found
    large = extension("large", f"a graph of {problem.num_ops:,} ops")
    return large.with_first_placements(found, problem, is_timed=is_timed)


def _name(method: _Method) -> str:
    if isinstance(method, str):
        return method
    if isinstance(method, Sequence):
        return ", ".join(type(step).__name__ for step in method)
    return type(method).__name__


def _warm_up(system: System, steps: Sequence[SearchStep]) -> None:
    """Compile what the steps need, so that compilation takes no time of the search."""
    policies = [found for step in steps if (found := getattr(step, "policy", None)) is not None]
    baselines: list[Any] = [step.baseline for step in steps if isinstance(step, PlaceOnce)]
    kinds = (*_COMPILED, *map(type, chain(*contributed("steps_to_compile"))))
    others = [step for step in steps if isinstance(step, kinds)]
    estimates = [_without_policy(step) for step in steps if isinstance(step, AnnealOnEstimates)]
    if any(isinstance(step, KeepToHosts) for step in steps):
        baselines.append(HEFT(evaluations=1))
    if any(isinstance(step, DealBlocks) for step in steps):
        baselines.append(Dealing(evaluations=1))
    if others or estimates:
        baselines.append(alone(*estimates, *others))
    warm_up(system, baselines, policies[0] if policies else None)


def _without_policy(step: AnnealOnEstimates) -> AnnealOnEstimates:
    """The step without drafts of a policy, which belongs to one problem."""
    drafts = [kind for kind in step.drafts if not isinstance(kind, Episodes)]
    return replace(step, drafts=drafts or [Clustering(evaluations=1)], greedy=None)
