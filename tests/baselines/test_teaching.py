"""What a placement teaches: its decisions, in an order that an episode can take."""

import numpy as np
import pytest
from problems import cluster_of, graph_of, random_placement, random_problem, random_ranking

from doppler.baselines import TaughtPlacement, Teacher
from doppler.graph.levels import ranked_order
from doppler.problem import Placement, build


def edges_of(problem) -> list[tuple[int, int]]:
    edges = problem.graph.edges
    return list(zip(edges.src.tolist(), edges.dst.tolist(), strict=True))


def plainly_ranked(num_ops: int, edges: list[tuple[int, int]], rank: list[int]) -> list[int]:
    order: list[int] = []
    while len(order) < num_ops:
        open_ops = [
            v
            for v in range(num_ops)
            if v not in order and all(src in order for src, dst in edges if dst == v)
        ]
        order.append(min(open_ops, key=lambda v: rank[v]))
    return order


@pytest.mark.parametrize("seed", range(20))
def test_a_ranking_becomes_the_order_in_which_the_smallest_candidate_is_next(seed):
    problem = random_problem(seed)
    edges = problem.graph.edges
    rank = np.random.default_rng(seed).permutation(problem.num_ops)
    order = ranked_order(problem.num_ops, edges.src, edges.dst, rank)
    assert order.tolist() == plainly_ranked(problem.num_ops, edges_of(problem), rank.tolist())


@pytest.mark.parametrize("seed", range(20))
def test_a_ranking_with_producers_first_is_kept(seed):
    problem = random_problem(seed)
    edges = problem.graph.edges
    rank = random_ranking(problem, np.random.default_rng(seed))
    order = ranked_order(problem.num_ops, edges.src, edges.dst, rank)
    assert rank[order].tolist() == list(range(problem.num_ops))


def test_every_episode_takes_the_same_decisions_in_the_order_of_priority():
    # Op 2 comes first by priority, and waits for op 0.
    problem = build(graph_of([1.0] * 4, [(0, 2, 1.0)]), cluster_of([1.0] * 3))
    placement = Placement.make(problem, [1, 2, 0, 2], [2, 3, 0, 1])
    teacher: Teacher = TaughtPlacement.of(problem, placement)
    op_BV, device_BV = teacher.decide(problem, 2, np.random.default_rng(0))
    assert op_BV.tolist() == [[3, 0, 2, 1]] * 2
    assert device_BV.tolist() == [[2, 1, 0, 2]] * 2


@pytest.mark.parametrize("seed", range(10))
def test_what_is_taught_is_the_placement(seed):
    problem = random_problem(seed)
    placement = random_placement(problem, seed)
    teacher = TaughtPlacement.of(problem, placement)
    assert sorted(teacher.op.tolist()) == list(range(problem.num_ops))
    assert placement.device[teacher.op].tolist() == teacher.device.tolist()
    rank = np.argsort(teacher.op)
    assert all(rank[src] < rank[dst] for src, dst in edges_of(problem))
