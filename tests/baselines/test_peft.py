"""PEFT against its paper's example, a small graph by hand, and the definition in plain Python."""

from functools import cache

import numpy as np
from plain_schedule import published_schedule, steps, with_arrays
from problems import cluster_of, graph_of, random_problem

from doppler.baselines import PEFT
from doppler.baselines.peft import optimistic_costs
from doppler.problem import Problem, build

# Of the paper: seconds on three processors, and data between tasks.
COSTS = [
    *([22, 21, 36], [22, 18, 18], [32, 27, 43], [7, 10, 4], [29, 27, 35]),
    *([26, 17, 24], [14, 25, 30], [29, 23, 36], [15, 21, 8], [13, 16, 33]),
]
DATA = {
    **{(1, 2): 17, (1, 3): 31, (1, 4): 29, (1, 5): 13, (1, 6): 7, (2, 8): 3, (2, 9): 30},
    **{(3, 7): 16, (4, 8): 11, (4, 9): 7, (5, 9): 57, (6, 8): 5, (7, 10): 9, (8, 10): 42},
    (9, 10): 7,
}
OPTIMISTIC = [
    *([64, 68, 86], [42, 39, 42], [27, 41, 43], [42, 39, 50], [28, 37, 28]),
    *([42, 39, 44], [13, 16, 22], [13, 16, 33], [13, 16, 20], [0, 0, 0]),
]


def textbook_problem() -> Problem:
    """Edges of one producer carry different data: a region each."""
    edges = [(u - 1, v - 1, float(data), v) for (u, v), data in DATA.items()]
    problem = build(graph_of([1] * 10, edges), cluster_of([1.0] * 3))
    return with_arrays(problem, op_seconds=np.array(COSTS, dtype=float))


def test_the_table_and_the_schedule_of_the_paper():
    problem = textbook_problem()
    assert optimistic_costs(problem).tolist() == OPTIMISTIC
    decisions = PEFT(evaluations=1).schedule(problem, 3, np.random.default_rng(0))
    for run in range(3):
        assert published_schedule(problem, decisions, run) == {
            "P1": {1: (0, 22), 4: (22, 29), 2: (29, 51), 3: (51, 83), 7: (83, 97)},
            "P2": {6: (29, 46), 8: (54, 77), 10: (106, 122)},
            "P3": {5: (35, 70), 9: (81, 89)},
        }


def test_a_chain_begins_where_it_ends_and_not_where_its_first_op_ends_first():
    # Op 0 takes 2 s on device 0 and 4 s on device 1; op 1 runs on device 1 alone, for 3 s; the
    # transfer takes 10 + 1 s. Device 0 promises 2 + 11 + 3, device 1 4 + 3.
    graph = graph_of([4, 3], [(0, 1, 1)], kinds=["a", "b"])
    cluster = cluster_of([2.0, 1.0], latency_s=10.0, unsupported_kinds=[["b"], []])
    problem = build(graph, cluster)
    assert optimistic_costs(problem).tolist() == [[14.0, 3.0], [0.0, 0.0]]
    for rows in steps(PEFT(evaluations=1).schedule(problem, 2, np.random.default_rng(0))):
        assert rows == [(0, 1, 0.0), (1, 1, 4.0)]


def plain_costs(problem: Problem) -> list[list[float]]:
    """The definition, by recursion."""
    p, edges, regions = problem.arrays, problem.graph.edges, problem.graph.regions.of_edge
    devices = range(problem.num_devices)

    @cache
    def cost(v: int, d: int) -> float:
        ways = [0.0]
        for e in np.flatnonzero(edges.src == v):
            w, r = int(edges.dst[e]), regions[e]
            moves_D = p.latency_s[d] + p.size[r] * p.seconds_per_size[d]
            moves_D[d] = 0.0
            ways.append(min(cost(w, to) + p.op_seconds[w, to] + moves_D[to] for to in devices))
        return max(ways)

    return [[cost(v, d) for d in devices] for v in range(problem.num_ops)]


def test_costs_are_the_longest_of_the_best_ways_on_whatever_the_devices_and_links():
    for seed in range(40):
        problem = random_problem(seed, num_ops=1 + seed % 15, costs="distinct")
        np.testing.assert_allclose(optimistic_costs(problem), plain_costs(problem), rtol=1e-12)
