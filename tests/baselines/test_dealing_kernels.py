"""Dealing of blocks and stages by inputs, compiled, against plain Python."""

from dataclasses import replace

import numpy as np
from plain_dealing import deal, stages_by_inputs
from plain_schedule import with_arrays
from problems import random_problem, restricted_problem

from doppler.baselines import Dealing
from doppler.baselines.free_memory_kernels import inputs_of
from doppler.baselines.hosts_kernels import fill_stages_by_inputs
from doppler.problem import Problem, build, topological_priority


def in_blocks(problem: Problem, seed: int) -> Problem:
    """The same problem with its ops as numbered blocks of a few nodes."""
    rng, ops = np.random.default_rng(seed), problem.graph.ops
    node_V = rng.integers(max(1, problem.num_ops // 4), size=problem.num_ops)
    block_V = np.zeros_like(node_V)
    for node in np.unique(node_V):
        members = np.flatnonzero(node_V == node)
        block_V[members] = rng.permutation(len(members))
    graph = replace(problem.graph, ops=replace(ops, node=node_V, block=block_V))
    return build(graph, problem.cluster)


def assert_dealt_as_plainly(problem: Problem) -> None:
    drawn, _ = Dealing(evaluations=1).draw(problem, 1, np.random.default_rng(0))
    assert drawn[0].tolist() == deal(problem)


def test_blocks_are_dealt_as_in_plain_python():
    for seed in range(60):
        problem = in_blocks(
            random_problem(seed, num_ops=2 + seed % 30, num_devices=1 + seed % 5), seed
        )
        assert_dealt_as_plainly(problem)
        bytes_D = np.full(problem.num_devices, 0.3 * problem.graph.inputs.bytes.sum() + 1.0)
        assert_dealt_as_plainly(with_arrays(problem, memory_bytes=bytes_D))


def test_blocks_with_groups_and_pins_are_dealt_as_in_plain_python():
    for seed in range(30):
        problem = restricted_problem(seed, num_ops=20, num_devices=3)
        assert_dealt_as_plainly(in_blocks(problem, seed))


def test_stages_by_inputs_are_those_of_plain_python():
    for seed in range(100):
        problem, rng = random_problem(seed), np.random.default_rng(seed)
        num_inputs, num_stages = len(problem.graph.inputs.bytes), int(rng.integers(2, 5))
        if num_inputs == 0:
            continue
        bytes_I = rng.permutation(num_inputs).astype(float) + float(rng.integers(2))
        rank_V = topological_priority(problem)
        stage_V = np.zeros(problem.num_ops, np.int64)
        fill_stages_by_inputs(
            problem.arrays,
            np.argsort(rank_V),
            rank_V,
            *inputs_of(problem.arrays),
            bytes_I,
            num_stages,
            np.full(num_inputs, -1),
            stage_V,
        )
        assert stage_V.tolist() == stages_by_inputs(problem, bytes_I.tolist(), num_stages)
