"""Walks that simulate from the first change on tell what whole simulations tell, step by step."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from problems import (
    cluster_of,
    hosted_problem,
    random_graph,
    random_placement,
    random_problem,
    restricted_problem,
)

from doppler.baselines import Annealing
from doppler.baselines.annealing_kernels import change, look_around, settle
from doppler.baselines.annealing_walk import Walk, WalkPlan, make_neighbours
from doppler.baselines.first_change_kernels import first_change_s
from doppler.cluster import preset
from doppler.graph import synthetic
from doppler.graph.dataflow import GivenCosts
from doppler.problem import Problem, build
from doppler.simulator import Published, SimulatorSession, WorkConserving
from doppler.simulator.resuming import Known
from doppler.simulator.resuming_kernels import accept, resume
from doppler.simulator.state import make_state
from doppler.simulator.work_conserving_kernels import simulate

SYSTEMS = (
    *(WorkConserving(contention=rule) for rule in ("none", "fifo", "engines", "sender")),
    WorkConserving(queue="fifo", contention="sender"),
    *(WorkConserving(queue="fifo"), WorkConserving(streams=2, contention="engines")),
)


def restricted(seed: int) -> Problem:
    return restricted_problem(seed, num_ops=25, num_devices=3, memory=False)


def tight(seed: int) -> Problem:
    """More tensors than a device holds, of whole numbers of bytes, inputs among them."""
    problem = random_problem(seed, num_ops=120, num_devices=3)
    arrays = problem.arrays
    arrays.memory_bytes[:] = 0.5 * arrays.region_bytes.sum()
    return problem


def distinct(seed: int) -> Problem:
    return random_problem(seed, num_ops=40, num_devices=4, costs="distinct")


def differing_steps(problem: Problem, system: WorkConserving, seed: int, num_steps: int) -> int:
    """Walks, and simulates every step whole beside; fails where the two differ.

    Returns how many steps changed nothing.
    """
    p, order = problem.arrays, system.queue == "priority"
    with system.open(problem) as session:
        known, rules = session.make_known(), session.rules
    assert known is not None
    near = make_neighbours(problem)
    plan = WalkPlan(seed=seed, num_steps=num_steps, order=order, hot=0.1, cold=1e-4, near=near)
    walk = Walk.begin(problem, random_placement(problem, seed))
    state, whole, num_same = make_state(p), make_state(p), 0
    for step in range(num_steps):
        change_s = 0.0
        if step > 0:
            change(p, plan, walk)
            change_s = float(first_change_s(p, walk, known))
        num_same += change_s == np.inf
        seconds = simulate(p, rules, walk.device, walk.priority, 0, whole)
        limited = resume(p, rules, walk.device, walk.priority, change_s, 0.0, known, state)
        assert limited in (np.inf, seconds), "a run that is stopped ends behind its limit"
        again = resume(p, rules, walk.device, walk.priority, change_s, np.inf, known, state)
        assert again == seconds, (step, change_s)
        if len(known.notes.noted) and seconds < np.inf:
            assert np.array_equal(state.devices["peak"], whole.devices["peak"])
        if settle(p, plan, step, seconds, walk) and seconds < np.inf:
            accept(p, seconds, known, state)
            ops, num = slice(problem.num_ops), int(known.notes.num_ended[0])
            for field in ("start", "finish", "resource"):
                assert np.array_equal(known.tasks[field][ops], whole.tasks[field][ops])
            assert num == problem.num_ops + int(whole.num_transfers[0])
            assert len(set(known.notes.ended[:num].tolist())) == num
            look_around(p, plan, seconds, known.tasks, walk)
    return num_same


@pytest.mark.parametrize("system", SYSTEMS, ids=str)
@pytest.mark.parametrize("make", [random_problem, hosted_problem, restricted, distinct, tight])
def test_every_step_of_a_walk_is_as_simulated_whole(make: Callable[..., Problem], system):
    if make is hosted_problem and system.contention == "sender":
        pytest.skip("cores of one host")
    for seed in range(6):
        differing_steps(make(seed), system, seed, 150)


def vanishing(seed: int) -> Problem:
    """Some ops and transfers end as they start: what they take is lost beside the others."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, int(rng.integers(3, 25)))
    seconds = [1e-12, 1e-3, 1.0, 1e5, 1e7]
    given = GivenCosts.make(
        op_seconds=rng.choice(seconds, graph.num_ops),
        transfer_seconds=rng.choice(seconds, len(graph.regions))[graph.regions.of_edge],
    )
    return build(replace(graph, given_costs=given), cluster_of([1.0] * int(rng.integers(2, 4))))


def test_steps_are_as_simulated_whole_where_short_ops_vanish_beside_long_ones():
    for seed in range(60):
        differing_steps(vanishing(seed), WorkConserving(), seed, 60)


def test_steps_that_change_nothing_are_known_to():
    assert (
        sum(differing_steps(distinct(seed), WorkConserving(), seed, 150) for seed in range(6)) > 0
    )


@pytest.mark.slow
def test_a_hundred_thousand_steps_on_a_thousand_ops_are_as_simulated_whole():
    graph = synthetic(family="elimination", num_ops=1000, transfer_ratio=1.0, seed=0)
    differing_steps(build(graph, preset(name="h100x8")), WorkConserving(), 0, 100_000)


def make_known_out_of_use(session: SimulatorSession) -> Known:
    known = SimulatorSession.make_known(session)
    assert known is not None and known.in_use
    return known._replace(in_use=False)


@pytest.mark.parametrize("order", [False, True])
def test_searches_find_the_same_whether_they_resume_or_not(order, monkeypatch):
    for seed in range(4):
        problem = random_problem(seed, num_ops=40, num_devices=4, costs="distinct")
        found = []
        for whole in (False, True):
            with monkeypatch.context() as patch, WorkConserving().open(problem) as session:
                if whole:
                    patch.setattr(session, "make_known", lambda s=session: make_known_out_of_use(s))
                method = Annealing(evaluations=3000, order=order, starts=2, hot=0.02, cold=1e-4)
                result = method.place(session, np.random.default_rng(seed))
                assert session.evaluations == 3000
            found.append(result)
        assert found[0].makespan_s == found[1].makespan_s
        assert np.array_equal(found[0].placement.device, found[1].placement.device)
        assert np.array_equal(found[0].placement.priority, found[1].placement.priority)


def test_who_draws_or_keeps_a_strict_order_simulates_whole():
    problem = random_problem(0, num_ops=20, num_devices=3)
    systems = (WorkConserving(noise=0.1), WorkConserving(queue="random"))
    for system in (*systems, WorkConserving(queue="strict")):
        known = system.open(problem).make_known()
        assert known is not None and not known.in_use
    assert Published().open(problem).make_known() is None
    assert WorkConserving().open(problem).make_known().in_use
