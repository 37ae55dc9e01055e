"""Compiling before a clock starts: what is about to run runs once on a tiny problem.

Machine code is kept on disk (compiled/keeping.py), so that it costs some tens of seconds once, and
some tenths of one in every later process.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, partial
from itertools import chain
from multiprocessing import get_context
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray

from doppler.baselines import (
    CPOP,
    ETF,
    HEFT,
    PEFT,
    Annealing,
    Clustering,
    CriticalPath,
    QueuedETF,
    lower_bound,
)
from doppler.cluster import preset
from doppler.env import ProblemView, advice, make_view, mergings
from doppler.graph import synthetic
from doppler.hooks import contributed
from doppler.policies import Bindable, DualPolicy, PaperPolicy, Policy, StepwiseDualPolicy
from doppler.problem import Placement, Problem, build
from doppler.search import AnnealOnEstimates, Combined, SearchStep
from doppler.simulator import BulkSynchronous, Published, WorkConserving
from doppler.support.compiled import compilations
from doppler.support.errors import InputError
from doppler.support.waiting import waiting
from doppler.system import Measurement, Session, System
from doppler.trace import Trace

# Executions of the tiny problem after which everything is compiled.
_EVALUATIONS = 64
# Annealing on estimates: its steps, and executions.
_ON_ESTIMATES = 8
# Parts that take longest to compile.
_LONGEST = ("policies", "annealing on work_conserving", "list schedulers")
# Effort of CP-SAT, which needs no compilation.
_SOLVING = 0.01
# Classes of policies that this process has compiled.
_LEARNED: set[type] = set()
_HEADS: Any = {"sel_hidden": 4, "plc_hidden": 4}


def warm_up(system: System, baselines: Sequence[Any] = (), policy: Policy | None = None) -> None:
    """Run all of these once on a tiny problem; compiles what this process has not compiled yet.

    Args:
        system: a measured one is not run: it compiles nothing.
        baselines: with few evaluations each (contract.Baseline).
        policy: a copy of it plays, follows and learns, groups of ops included.
    """
    problem = _tiny_problem(shares=getattr(system, "contention", None) == "shared")
    rng = np.random.default_rng(0)
    is_simulated = system.kind == "simulated"
    opened: Any = (system if is_simulated else WorkConserving(queue="priority")).open(problem)
    with opened if is_simulated else _ToldSession(opened) as session:
        found = session.measure(np.zeros((1, problem.num_ops), np.int64), rng=rng)
        assert found.feasible.all(), "the tiny problem fits on one device"
        session.trace(Placement.make(problem, np.zeros(problem.num_ops, np.int64)))
        ours = [one for one in baselines if type(one).__module__.startswith("doppler.")]
        for baseline in ours:  # who wrote another expects it to be called when it is asked for
            with suppress(InputError):  # it needs what a tiny problem lacks, such as nodes
                _with_few_evaluations(baseline).place(session, rng)
    lower_bound(problem, streams=system.streams)
    if policy is not None and type(policy) not in _LEARNED:
        _learn(deepcopy(policy), mergings(make_view(problem))[-1], rng)
        _LEARNED.add(type(policy))


def warm(say: Callable[[str], None], processes: int = 1) -> float:
    """Compile everything that a run may need.

    Args:
        say: is told what has been compiled, a line for each part.
        processes: that compile side by side. numba compiles one function at a time in a process.

    Returns:
        Seconds that it took.
    """
    begin, names = time.perf_counter(), list(_parts())
    if processes > 1:
        # What takes longest begins first, and what most others need is compiled beside it.
        names.sort(key=lambda name: _LONGEST.index(name) if name in _LONGEST else len(_LONGEST))
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            for done in as_completed([pool.submit(compile_part, name) for name in names]):
                say(done.result())
    else:
        for name in names:
            with waiting(say, f"{name}: compiling"):
                line = compile_part(name)
            say(line)
    return time.perf_counter() - begin


def compile_part(name: str) -> str:
    """Compile one part in this process; what was done, in a line."""
    begin, before = time.perf_counter(), len(compilations)
    _parts()[name]()
    num = len(compilations) - before
    return f"{name}: {num or 'nothing'} to compile, {time.perf_counter() - begin:.1f} s"


def part_names() -> list[str]:
    """Return the names of what `compile_part` can compile."""
    return list(_parts())


def _parts() -> dict[str, Callable[[], None]]:
    """What there is to compile, by what it is called."""
    simulators: list[Any] = [WorkConserving(), BulkSynchronous(), Published()]
    annealing = Annealing(
        evaluations=_EVALUATIONS, order=True, starts=1, draws=1, hot=0.1, cold=0.1
    )
    schedulers = [
        method(evaluations=1) for method in (CriticalPath, HEFT, CPOP, ETF, QueuedETF, PEFT)
    ]
    dual, stepwise = DualPolicy(**_HEADS), StepwiseDualPolicy(hidden=4, rounds=1, **_HEADS)
    plain, measured = simulators[0], cast(Any, _Measured())
    estimates = AnnealOnEstimates(drafts=[Clustering(evaluations=1)])
    added = chain(*contributed("steps_to_compile"))
    of_gpus = {}
    if torch.cuda.is_available():  # streams of one GPU share it
        shared: Any = WorkConserving(contention="shared")
        of_gpus = {"annealing where tasks share": partial(warm_up, shared, [annealing])}
    return {
        **of_gpus,
        **{f"simulator {each.name}": partial(warm_up, each) for each in simulators},
        "list schedulers": partial(warm_up, plain, schedulers),
        "clustering": partial(warm_up, plain, [Clustering(evaluations=1)]),
        **{f"annealing on {each.name}": partial(warm_up, each, [annealing]) for each in simulators},
        "annealing on estimates": partial(warm_up, plain, [alone(estimates, *added)]),
        "annealing on executors": partial(warm_up, measured, [annealing]),
        "policies": partial(warm_up, plain, policy=dual),
        "policies that see every step": partial(warm_up, plain, policy=stepwise),
        "the paper's policy": partial(_warm_up_paper, plain),
    }


def alone(*steps: SearchStep) -> Combined:
    """Steps as a baseline, to be warmed up."""
    return Combined(evaluations=_EVALUATIONS, confirmations=0, steps=steps)


def _warm_up_paper(system: System) -> None:
    """The paper's policy, and what its stage I is advised."""
    warm_up(system, policy=PaperPolicy(hidden=4, rounds=1, head_hidden=4))
    view, rng = make_view(_tiny_problem(shares=False)), np.random.default_rng(0)
    advice(view, *CriticalPath(evaluations=1).decide(view.problem, 1, rng), rng)


@cache
def _tiny_problem(*, shares: bool) -> Problem:
    """A problem of 30 ops, on a machine with shared resources if ``shares`` is true."""
    graph = synthetic(family="layered", num_ops=30, transfer_ratio=1.0, seed=0)
    shared = [{"name": "processors", "devices": "all"}] if shares else None
    return build(graph, preset(name="p100x4", shared=shared))


def _with_few_evaluations(baseline: Any) -> Any:
    """The same method, or step of one, as far as it says how much it does."""
    if not is_dataclass(baseline) or isinstance(baseline, type):
        return baseline
    walks = getattr(baseline, "starts", 1) * getattr(baseline, "draws", 1)
    few: dict[str, float] = {
        **{"evaluations": _EVALUATIONS * walks, "deterministic_time": _SOLVING},
        **{"steps": _ON_ESTIMATES, "at_most": _ON_ESTIMATES},
    }
    given = {field.name: getattr(baseline, field.name) for field in fields(baseline)}
    fewer = {
        name: [_with_few_evaluations(one) for one in value]
        if isinstance(value, Sequence)
        else min(value, few[name])
        for name, value in given.items()
        if name in few
    }
    return replace(baseline, **fewer)


def _learn(policy: Policy, view: ProblemView, rng: np.random.Generator) -> None:
    """Episodes, the same decisions followed, and a gradient of them."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more would wait for each other longer than they work
    if isinstance(policy, Bindable):
        with torch.random.fork_rng(devices=[]):
            policy.bind(view)
    played = policy.rollout(view, 2, None, rng)
    followed = policy.follow(view, played.op, played.device)
    with torch.enable_grad():
        log_prob_B, entropy_B = policy.log_prob(view, followed)
        loss = (log_prob_B + entropy_B).sum()
    if loss.requires_grad:
        loss.backward()
    torch.set_num_threads(num_threads)


@dataclass(frozen=True)
class _Measured(WorkConserving):
    """Stands for an executor: methods only see its seconds."""

    kind = "measured"


class _ToldSession:
    """A session of a simulator that methods cannot tell from one of an executor."""

    def __init__(self, session: Session) -> None:
        self.problem, self.honours_order, self.is_random = session.problem, True, True
        self._session = session

    @property
    def evaluations(self) -> int:
        return self._session.evaluations

    def measure(
        self,
        device_BV: NDArray[np.int64],
        priority_BV: NDArray[np.int64] | None = None,
        repeats: int = 1,
        rng: np.random.Generator | None = None,
    ) -> Measurement:
        return self._session.measure(device_BV, priority_BV, repeats, rng)

    def trace(self, placement: Placement) -> Trace:
        return self._session.trace(placement)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._session.__exit__(*exc)
