"""After warming up nothing is left to compile, whatever is run: compiling takes seconds."""

import sys

import numpy as np
import pytest
import torch
from problems import random_problem

from doppler.baselines import (
    CPOP,
    CPSAT,
    ETF,
    HEFT,
    PEFT,
    Annealing,
    Clustering,
    CriticalPath,
    NearETF,
    lower_bound,
)
from doppler.cluster import preset
from doppler.env import make_view, merged_at_random, mergings
from doppler.graph import synthetic
from doppler.policies import DualPolicy
from doppler.precompile import _parts, _ToldSession, warm, warm_up
from doppler.problem import Placement, build
from doppler.simulator import BulkSynchronous, Published, WorkConserving
from doppler.support.compiled.decorator import Compiled

SIMULATORS = (
    *(WorkConserving(queue=queue) for queue in ("fifo", "priority", "random", "strict")),
    *(WorkConserving(contention=each, streams=2) for each in ("none", "engines")),
    *(WorkConserving(noise=0.05), Published(), Published(queue="priority"), BulkSynchronous()),
)


def machine_code() -> dict[str, list]:
    """The kinds of arguments that each function has been called with."""
    return {
        f"{name}.{attribute}": value.signatures
        for name, module in list(sys.modules.items())
        if name.startswith("doppler.")
        for attribute, value in vars(module).items()
        if isinstance(value, Compiled)
    }


def large_problem():
    """More ops than those up to which a view inverts matrices, on eight devices."""
    graph = synthetic(family="layered", num_ops=1500, transfer_ratio=1.0, seed=3)
    return build(graph, preset(name="v100x8"))


def given_problem():
    """With times of its own, ops that some devices cannot run, no inputs."""
    return random_problem(3, num_ops=40, num_devices=3, costs="distinct")


def annealing(**options) -> Annealing:
    return Annealing(**{"evaluations": 20, "starts": 2, "draws": 1, "hot": 1, "cold": 1, **options})


@pytest.fixture(scope="module")
def warmed():
    told = []
    assert warm(told.append) > 0
    assert any("policies" in line for line in told)
    return machine_code()


def test_processes_compile_side_by_side(warmed):
    told = []
    assert warm(told.append, processes=2) > 0
    assert len({line.split(":")[0] for line in told}) == len(told) == len(_parts())
    assert all("nothing to compile" in line for line in told), told


@pytest.mark.parametrize("make", [large_problem, given_problem])
def test_after_warming_nothing_compiles(warmed, make):
    problem, rng = make(), np.random.default_rng(0)
    methods = [method(evaluations=2) for method in (CriticalPath, HEFT, CPOP, PEFT, ETF, NearETF)]
    methods += [Clustering(evaluations=3), annealing(order=False), annealing(order=True)]
    methods += [annealing(order=True, draws=2)]
    for system in SIMULATORS:
        with system.open(problem) as session:
            placement = Placement.make(problem, problem.arrays.op_seconds.argmin(axis=1))
            session.trace(placement)
            for method in methods:
                method.place(session, rng)
    with WorkConserving().open(problem) as session:
        annealing(order=True).place(_ToldSession(session), rng, placement)
    lower_bound(problem, streams=2)
    policy = DualPolicy(sel="b_level", look_ahead=False, sel_hidden=3, plc_hidden=5)
    view = make_view(problem)
    for seen in (*mergings(view), merged_at_random(view, rng)):
        for explore in (None, 0, 0.5):
            played = policy.rollout(seen, 3, explore, rng)
        again = policy.follow(seen, np.asfortranarray(played.op), played.device[::1])
        policy.log_prob(seen, played, again)[0].sum().backward()
    new = {name for name, kinds in machine_code().items() if kinds != warmed.get(name, [])}
    assert not new


def test_warming_up_changes_nothing_of_a_policy():
    torch.manual_seed(0)
    policy = DualPolicy(sel_hidden=3, plc_hidden=5)
    drawn = torch.get_rng_state()
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    warm_up(WorkConserving(), [annealing(order=True)], policy)
    assert all(parameter.grad is None for parameter in policy.parameters())
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)


def test_a_search_is_warmed_up_with_few_evaluations(monkeypatch):
    used = []

    def place(self, session, rng, initial=None):
        used.append(self.evaluations)

    monkeypatch.setattr(Annealing, "place", place)
    warm_up(WorkConserving(), [annealing(order=True, evaluations=1_000_000)])
    assert used == [128]  # 64 for each of two walks


def test_a_measured_system_is_left_alone():
    class Executor:
        kind, queue, streams = "measured", "priority", 1

        def open(self, problem):
            raise AssertionError("devices are busy for nothing")

    warm_up(Executor(), [annealing(order=True), HEFT(evaluations=3)])


def test_a_solver_is_not_warmed_up_for_as_long_as_it_may_solve(monkeypatch):
    pytest.importorskip("ortools.sat.python.cp_model")
    effort = []
    place = CPSAT.place

    def spied(self, session, rng):
        effort.append(self.deterministic_time)
        return place(self, session, rng)

    monkeypatch.setattr(CPSAT, "place", spied)
    warm_up(WorkConserving(), [CPSAT(deterministic_time=20, seconds=300, workers=1)])
    assert len(effort) == 1 and effort[0] <= 0.1
