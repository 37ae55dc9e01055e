"""Moves judged at a glance: heads, tails, and what a walk makes of them."""

import numpy as np
import pytest
from plain_longest_paths import PlainPaths
from problems import cluster_of, graph_of, random_placement, random_problem

from doppler.baselines import Annealing
from doppler.baselines.annealing_walk import Walk
from doppler.baselines.longest_paths_kernels import find_paths, stays_within
from doppler.problem import Placement, Problem, build
from doppler.simulator import Published, SimulatorSession, WorkConserving

STAMP = 1
UNHINDERED = (
    *(WorkConserving(contention="none"), WorkConserving(contention="none", queue="fifo")),
    *(WorkConserving(contention="none", queue="strict"), Published(), Published(queue="priority")),
)


def seconds_of(session: SimulatorSession, placement: Placement) -> float:
    rows = placement.device[None], placement.priority[None]
    return float(session.measure(*rows).seconds.item())


def walk_at(problem: Problem, placement: Placement, system) -> tuple[Walk, float]:
    """A walk that knows the schedule of where it is."""
    walk = Walk.begin(problem, placement)
    with system.open(problem) as session:
        seconds = seconds_of(session, placement)
        tasks = session._states[0].tasks
        find_paths(problem.arrays, tasks, seconds, walk.device, walk.paths)
    return walk, seconds


def move(walk: Walk, device: int, *ops: int) -> None:
    for i, v in enumerate(ops):
        walk.moved[i], walk.came_from[i] = v, walk.device[v]
        walk.group[v], walk.device[v] = STAMP, device
    walk.status["num_moved"] = len(ops)


def longest_s(problem: Problem, walk: Walk) -> float:
    """The least limit that what has moved stays within, of whole seconds."""
    return next(s for s in range(1000) if stays_within(problem.arrays, walk, STAMP, float(s)))


@pytest.mark.parametrize("system", UNHINDERED, ids=str)
def test_head_and_tail_of_an_op_are_a_path_and_the_longest_is_the_makespan(system):
    for seed in range(20):
        problem = random_problem(seed, num_ops=30, num_devices=3)
        placement = Placement.make(problem, random_placement(problem, seed).device)
        walk, seconds = walk_at(problem, placement, system)
        through_V = walk.paths.start_s + walk.paths.tail_s
        assert through_V.max() == pytest.approx(seconds)


def test_rows_are_the_ops_of_each_device_by_their_start():
    for seed in range(20):
        problem = random_problem(seed, num_ops=200, num_devices=5, costs="distinct")
        placement = random_placement(problem, seed)
        paths = walk_at(problem, placement, WorkConserving())[0].paths
        assert (np.diff(paths.start_s[paths.order]) >= 0).all()
        for d in range(5):
            row = paths.row[paths.row_ptr[d] : paths.row_ptr[d + 1]]
            assert sorted(row) == np.flatnonzero(placement.device == d).tolist()
            assert (np.diff(paths.start_s[row]) > 0).all()


def small() -> tuple[Problem, Walk]:
    """0 (2 s) -> 1 (3 s) -> 2 (4 s) on device 0, transfers take 5 s; 3 (1 s), 4 (6 s) on device 1.

    Ends after 9 s.
    """
    edges = [(0, 1, 5), (1, 2, 5)]
    problem = build(graph_of([2, 3, 4, 1, 6], edges), cluster_of([1.0, 1.0, 1.0]))
    placement = Placement.make(problem, np.array([0, 0, 0, 1, 1]), np.arange(5))
    walk, seconds = walk_at(problem, placement, WorkConserving())
    assert seconds == 9.0
    assert walk.paths.tail_s.tolist() == [9.0, 7.0, 4.0, 7.0, 6.0]
    return problem, walk


def test_what_moves_to_an_idle_device_waits_for_its_transfers_alone():
    problem, walk = small()
    move(walk, 2, 1)
    assert longest_s(problem, walk) == 2 + 5 + 3 + 5 + 4


def test_what_moves_together_sends_nothing_in_between():
    problem, walk = small()
    move(walk, 2, 2, 1)
    assert longest_s(problem, walk) == 2 + 5 + 3 + 4


def test_what_moves_waits_for_what_its_new_device_runs_then_and_the_rest_comes_after():
    problem, walk = small()
    move(walk, 0, 3)  # after 0, which starts in the same instant, before 1
    assert longest_s(problem, walk) == 2 + 1 + 7
    problem, walk = small()
    move(walk, 1, 1)  # is there at 7, when 4 ends
    assert longest_s(problem, walk) == 7 + 3 + 5 + 4
    problem, walk = small()
    move(walk, 1, 0)  # after 3
    assert longest_s(problem, walk) == 1 + 2 + 5 + 7


def test_a_move_of_the_last_op_is_judged_as_it_is_simulated():
    # Nothing waits for it, so what it does is what it takes itself, and to get there.
    for seed in range(20):
        problem = random_problem(seed, num_ops=30, num_devices=3, costs="distinct")
        system = WorkConserving(contention="none", queue="fifo")
        placement = random_placement(problem, seed)
        walk, before = walk_at(problem, placement, system)
        last = int(walk.paths.finish_s.argmax())
        for d in range(3):
            device = placement.device.copy()
            device[last] = d
            if d == placement.device[last] or not problem.allows(device[None])[0]:
                continue
            move(walk, d, last)
            with system.open(problem) as session:
                after = seconds_of(session, Placement.make(problem, device, placement.priority))
            if after > before:
                assert stays_within(problem.arrays, walk, STAMP, after + 1e-6)
                assert not stays_within(problem.arrays, walk, STAMP, after - 1e-6)
            move(walk, int(placement.device[last]), last)


def test_with_it_as_many_executions_find_shorter_placements(monkeypatch):
    def logs(most_drawn: int, streams: int = 1) -> np.ndarray:
        monkeypatch.setattr("doppler.baselines.annealing.MAX_DRAWN", most_drawn)
        found = []
        for seed in range(12):
            problem = random_problem(seed, num_ops=60, num_devices=4, costs="distinct")
            with WorkConserving(streams=streams).open(problem) as session:
                method = Annealing(evaluations=1000, order=True, starts=1, hot=0.02, cold=1e-4)
                found.append(method.place(session, np.random.default_rng(seed)).makespan_s)
        return np.log(found)

    assert (logs(8) - logs(1)).mean() < -0.01
    # Where several ops run at once paths by the order of ops are none.
    assert np.array_equal(logs(8, streams=2), logs(1, streams=2))


# --- Against plain Python -------------------------------------------------------------------------


def plain_paths(problem: Problem, walk: Walk) -> PlainPaths:
    return PlainPaths(problem, walk.device, walk.paths.start_s.copy(), walk.paths.finish_s.copy())


@pytest.mark.parametrize("system", UNHINDERED, ids=str)
def test_tails_are_those_of_the_definition(system):
    for seed in range(20):
        problem = random_problem(seed, num_ops=30, num_devices=3, costs="distinct")
        placement = Placement.make(problem, random_placement(problem, seed).device)
        walk, _ = walk_at(problem, placement, system)
        plain = plain_paths(problem, walk)
        tail_V = [plain.tail_s(v) for v in range(problem.num_ops)]
        np.testing.assert_allclose(walk.paths.tail_s, tail_V, rtol=1e-6)


def test_a_move_is_judged_by_the_longest_path_through_what_moves():
    for seed in range(150):
        rng = np.random.default_rng(seed)
        problem = random_problem(seed, num_ops=25, num_devices=3, costs="distinct")
        walk, _ = walk_at(problem, random_placement(problem, seed), WorkConserving())
        there = int(rng.integers(3))
        able = np.isfinite(problem.arrays.op_seconds[:, there]) & (walk.device != there)
        ops = rng.permutation(np.flatnonzero(able))[: rng.integers(1, 5)].tolist()
        longest = plain_paths(problem, walk).longest_s(ops, there)
        move(walk, there, *ops)
        if ops:
            assert stays_within(problem.arrays, walk, STAMP, longest * (1 + 1e-9))
            assert not stays_within(problem.arrays, walk, STAMP, longest * (1 - 1e-9))
