"""The compiled steps of annealing, against the same moves in plain Python."""

import numpy as np
import pytest
from plain_annealing import ORDER_SHARE, PlainWalk
from problems import random_device, random_problem, restricted_problem

from doppler.baselines.annealing_kernels import change, settle
from doppler.baselines.annealing_walk import Walk, WalkPlan, make_neighbours
from doppler.baselines.levels import b_level_priority
from doppler.problem import Placement, Problem
from doppler.simulator import WorkConserving

NUM_STEPS = 120


def assert_steps_equal(problem: Problem, seed: int, *, order: bool) -> None:
    rng = np.random.default_rng(seed)
    start = Placement.make(problem, random_device(problem, rng), b_level_priority(problem))
    settings = {"seed": seed, "num_steps": NUM_STEPS, "order": order, "hot": 0.3, "cold": 1e-3}
    plan = WalkPlan(near=make_neighbours(problem), order_share=ORDER_SHARE, **settings)
    walk, plain = Walk.begin(problem, start), PlainWalk(problem, start, **settings)
    with WorkConserving().open(problem) as session:
        for step in range(NUM_STEPS):
            if step > 0:
                change(problem.arrays, plan, walk)
                plain.change()
            assert walk.device.tolist() == plain.device
            assert walk.ranked.tolist() == plain.ranked
            assert walk.priority[walk.ranked].tolist() == list(range(problem.num_ops))
            measured = session.measure(walk.device[None], walk.priority[None])
            seconds, peak_D = float(measured.seconds.item()), measured.peak_bytes[0]
            walk.peak_bytes[:] = peak_D
            kept = settle(problem.arrays, plan, step, seconds, walk)
            if step == 0:
                plain.before = list(plain.device), list(plain.ranked)
            assert plain.settle(step, seconds, peak_D.tolist()) == kept
            assert walk.status["best_s"][0] == plain.best_s


@pytest.mark.parametrize("order", [False, True])
def test_steps_equal_those_of_the_plain_walk(order):
    for seed in range(12):
        problem = random_problem(seed, num_ops=25, num_devices=2 + seed % 3, costs="distinct")
        assert_steps_equal(problem, seed, order=order)


@pytest.mark.parametrize("order", [False, True])
def test_steps_equal_those_of_the_plain_walk_with_groups_and_little_memory(order):
    for seed in range(12):
        assert_steps_equal(restricted_problem(seed, num_ops=20, num_devices=3), seed, order=order)
