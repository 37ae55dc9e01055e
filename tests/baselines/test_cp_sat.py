"""CP-SAT by hand, against enumeration, and what it promises.

That it finds the best schedule of tiny problems, and proves no more, is in test_tiny_problems.py.
"""

import sys
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from problems import (
    cluster_of,
    graph_of,
    hosted_problem,
    random_device,
    random_problem,
    random_ranking,
)

from doppler.baselines import CPSAT, Clustering, SearchResult, lower_bound
from doppler.baselines.cp_sat import placement_of
from doppler.baselines.cp_sat_program import ConstraintProgram, Solution, exchangeable, whole_tick_s
from doppler.graph.dataflow import GivenCosts
from doppler.problem import Placement, Problem, build
from doppler.simulator import BulkSynchronous, Published, WorkConserving
from doppler.support.errors import InputError
from doppler.system import System
from doppler.trace import Trace

cp_model = pytest.importorskip("ortools.sat.python.cp_model")

TICKS = 1e-5  # what whole ticks may take from a bound
IDLING = WorkConserving(queue="strict", contention="none")


def search(problem: Problem, system: System = IDLING, *, seed: int = 0, **settings) -> SearchResult:
    method = CPSAT(**{"deterministic_time": 5, "seconds": 60, "workers": 1, **settings})
    with system.open(problem) as session:
        result = method.place(session, np.random.default_rng(seed))
        assert result.evaluations == session.evaluations
        kept = result.placement
        again = session.measure(kept.device[None], kept.priority[None]).cost_s()[0]
    assert result.makespan_s == again
    return result


def is_optimum(result: SearchResult, seconds: float) -> bool:
    assert result.lower_bound_s is not None and result.lower_bound_s <= seconds
    return result.makespan_s == seconds and result.lower_bound_s >= seconds * (1 - TICKS)


# --- By hand ------------------------------------------------------------------------------------


def test_whole_ops_do_not_divide_evenly():
    problem = build(graph_of([5, 5, 5, 5, 5]), cluster_of([1.0, 1.0]))
    assert lower_bound(problem).seconds == 12.5
    assert is_optimum(search(problem), 15.0)
    assert is_optimum(search(problem, WorkConserving(queue="strict", streams=2)), 10.0)


def test_ticks_are_whole_only_where_transfers_by_kinds_of_devices_are():
    graph = graph_of([2, 4], [(0, 1, 0)])
    for seconds, expected in ((1.0, 1.0), (6.0, 2.0), (0.3, None)):
        given = GivenCosts.make(
            op_seconds=None, transfer_seconds=[[[seconds] * 2] * 2], kinds=("device0", "device1")
        )
        problem = build(replace(graph, given_costs=given), cluster_of([1.0, 1.0]))
        assert whole_tick_s(problem.arrays, 0.25) == expected


def test_it_idles_on_purpose_where_that_pays_and_the_system_lets_it():
    # Device 0 alone runs a and b. While a's input is computed elsewhere (1 s), b is ready: who
    # starts it then (4 s) delays a and with it a's consumer (6 s) on device 1.
    kinds = ["input", "a", "last", "b"]
    cluster = cluster_of([1.0, 1.0], unsupported_kinds=[["input", "last"], ["a", "b"]])
    problem = build(graph_of([1, 1, 6, 4], [(0, 1, 0), (1, 2, 0)], kinds=kinds), cluster)
    assert is_optimum(search(problem), 8.0)
    greedy = search(problem, WorkConserving())
    assert greedy.makespan_s == 4 + 1 + 6
    assert greedy.lower_bound_s == pytest.approx(8.0, rel=TICKS)


def test_unequal_devices_and_kinds_that_one_cannot_run():
    kinds = ["a", "a", "b", "b"]
    cluster = cluster_of([1.0, 4.0], unsupported_kinds=[[], ["b"]])
    problem = build(graph_of([16, 16, 8, 4], kinds=kinds), cluster)
    result = search(problem)
    assert is_optimum(result, 12.0)
    assert result.placement.device.tolist() == [1, 1, 0, 0]


def send_two(kinds: list[str], contention: str) -> SearchResult:
    """Device 0 makes two regions of 5 s in 1 s, for readers of 2 and 1 s elsewhere."""
    forbidden = [["b", "c"], ["source", "c"], ["source", "b"]]
    cluster = cluster_of([1.0] * 3, unsupported_kinds=forbidden)
    graph = graph_of([1, 2, 1], [(0, 1, 5, 0), (0, 2, 5, 1)], kinds=["source", *kinds])
    return search(build(graph, cluster), WorkConserving(queue="strict", contention=contention))


def test_transfers_of_one_channel_go_one_after_another():
    assert is_optimum(send_two(["b", "b"], "none"), 1 + 5 + 2 + 1)
    # The reader of 2 s gets its region first.
    assert is_optimum(send_two(["b", "b"], "fifo"), 1 + 5 + 5 + 1)
    assert is_optimum(send_two(["b", "c"], "fifo"), 1 + 5 + 2)


def test_transfers_of_one_engine_go_one_after_another():
    assert is_optimum(send_two(["b", "c"], "engines"), 1 + 5 + 5 + 1)


def test_a_device_that_sends_by_itself_computes_nothing_meanwhile():
    # Device 0 makes what 1 reads, in 1 s, and sends it, for 5 s; an op of 3 s has no other device.
    cluster = cluster_of([1.0] * 2, unsupported_kinds=[["b"], ["source"]])
    graph = graph_of([1, 2, 3], [(0, 1, 5, 0)], kinds=["source", "b", "source"])
    found = search(build(graph, cluster), WorkConserving(queue="strict", contention="sender"))
    assert is_optimum(found, 1 + 5 + 3)
    free = search(build(graph, cluster), WorkConserving(queue="strict", contention="fifo"))
    assert is_optimum(free, 1 + 5 + 2)


# --- Against executions and enumeration -----------------------------------------------------------


SYSTEMS = [
    *(WorkConserving(contention=rule) for rule in ("none", "fifo", "engines", "sender")),
    *(WorkConserving(queue=queue, streams=2) for queue in ("strict", "fifo")),
    Published(),
    BulkSynchronous(),
]


@pytest.mark.parametrize("system", SYSTEMS, ids=str)
def test_every_execution_is_a_solution(system):
    for seed in range(30):
        problem = random_problem(
            seed,
            num_ops=1 + seed % 20,
            costs="tied" if seed % 2 else "distinct",
            identical_devices=seed % 3 == 0,
        )
        rng = np.random.default_rng(seed)
        placement = Placement.make(
            problem, random_device(problem, rng), random_ranking(problem, rng)
        )
        with system.open(problem) as session:
            trace = session.trace(placement)
        assert_is_a_solution(trace)


def assert_is_a_solution(trace: Trace) -> None:
    program = ConstraintProgram(trace)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.fix_variables_to_their_hinted_value = True
    assert solver.solve(program.model) == cp_model.OPTIMAL
    assert program.bound_s(solver.objective_value) == pytest.approx(trace.makespan_s, rel=TICKS)


@pytest.mark.parametrize("contention", ["fifo", "engines"])
def test_executions_between_hosts_are_solutions(contention):
    for seed in range(20):
        problem = hosted_problem(seed)
        rng = np.random.default_rng(seed)
        placement = Placement.make(
            problem, random_device(problem, rng), random_ranking(problem, rng)
        )
        with WorkConserving(contention=contention).open(problem) as session:
            assert_is_a_solution(session.trace(placement))


def test_transfers_between_two_hosts_go_through_their_interfaces():
    # Four producers that only host 0 runs, each with a reader that only its device of host 1 runs.
    edges = [(v, 4 + v, 4.0) for v in range(4)]
    kinds = [f"from{v}" for v in range(4)] + [f"to{v}" for v in range(4)]
    able = [[f"from{v}"] for v in range(4)] + [[f"to{v}"] for v in range(4)]
    unsupported = [[kind for kind in kinds if kind not in here] for here in able]
    for nics, makespan_s in ((1, 1 + 16 + 1), (2, 1 + 8 + 1), (4, 1 + 4 + 1)):
        cluster = cluster_of(
            [1.0] * 8, unsupported_kinds=unsupported, hosts=(0,) * 4 + (1,) * 4, nics=nics
        )
        result = search(build(graph_of([1] * 8, edges, kinds=kinds), cluster), WorkConserving())
        assert is_optimum(result, makespan_s)


@pytest.mark.parametrize("contention", ["fifo", "engines", "sender"])
def test_with_contention_it_is_level_with_the_best_strict_schedule_or_proves_less(contention):
    system = WorkConserving(queue="strict", contention=contention)
    proven = 0
    for seed in range(12):
        problem = random_problem(seed, num_ops=5, num_devices=2 + seed % 2, given_costs=False)
        able = [np.flatnonzero(np.isfinite(row)) for row in problem.arrays.op_seconds]
        device_BV = np.array(list(product(*able)))
        priority_BV = np.array(list(permutations(range(problem.num_ops))))
        with system.open(problem) as session:
            best_s = session.measure(
                np.repeat(device_BV, len(priority_BV), axis=0),
                np.tile(priority_BV, (len(device_BV), 1)),
            ).cost_s()
        result = search(problem, system)
        assert result.makespan_s >= best_s.min()
        assert result.lower_bound_s is not None and result.lower_bound_s <= best_s.min()
        proven += result.lower_bound_s >= result.makespan_s * (1 - TICKS)
    assert proven >= 10  # transfers may also go in orders that no priorities give


@pytest.mark.parametrize("streams", [2, 3])
def test_streams_share_a_device(streams):
    system = WorkConserving(queue="strict", contention="none", streams=streams)
    for seed in range(12):
        problem = random_problem(seed, num_ops=5, num_devices=2, costs="distinct")
        device_BV = np.array(list(product(range(2), repeat=5)))
        fits_B = np.isfinite(problem.arrays.op_seconds[np.arange(5), device_BV]).all(axis=1)
        device_BV, priority_BV = device_BV[fits_B], np.array(list(permutations(range(5))))
        with system.open(problem) as session:
            best_s = session.measure(
                np.repeat(device_BV, len(priority_BV), axis=0),
                np.tile(priority_BV, (len(device_BV), 1)),
            ).cost_s()
        result = search(problem, system)
        assert result.makespan_s == pytest.approx(best_s.min(), rel=TICKS)
        assert result.lower_bound_s == pytest.approx(best_s.min(), rel=TICKS)


@pytest.mark.parametrize("system", [Published(queue="priority"), BulkSynchronous()])
def test_bounds_hold_in_every_system(system):
    rng = np.random.default_rng(0)
    for seed in range(8):
        problem = random_problem(seed, num_ops=6, num_devices=3)
        result = search(problem, system)
        able_VD = np.isfinite(problem.arrays.op_seconds)
        device_BV = np.where(able_VD, rng.random((300, *able_VD.shape)), -1.0).argmax(axis=2)
        with system.open(problem) as session:
            best_s = session.measure(device_BV).cost_s().min()
        assert result.lower_bound_s is not None
        assert result.lower_bound_s <= min(best_s, result.makespan_s)


# --- What it promises ---------------------------------------------------------------------------


def test_it_is_never_worse_than_the_clustering_it_begins_with():
    for seed in range(5):
        problem = random_problem(seed, num_ops=30, num_devices=3)
        with WorkConserving().open(problem) as session:
            start = Clustering(evaluations=64).place(session, np.random.default_rng(seed))
        result = search(problem, WorkConserving(), seed=seed, deterministic_time=0.2)
        assert result.makespan_s <= start.makespan_s


def test_without_time_it_keeps_its_start_and_a_bound_that_holds():
    problem = random_problem(3, num_ops=30, num_devices=3, costs="distinct")
    result = search(problem, seconds=1e-9)
    with IDLING.open(problem) as session:
        start = Clustering(evaluations=64).place(session, np.random.default_rng(0))
    assert result.makespan_s == start.makespan_s
    assert result.evaluations == 65
    assert result.lower_bound_s is not None and result.lower_bound_s <= result.makespan_s


def test_the_same_seed_gives_the_same_result():
    # Too large for a proof: the effort decides where it ends.
    problem = random_problem(1, num_ops=60, num_devices=4, costs="distinct", given_costs=False)
    runs = [search(problem, deterministic_time=0.2, workers=1) for _ in range(2)]
    first, second = (
        (run.evaluations, run.lower_bound_s, run.placement.device.tolist()) for run in runs
    )
    assert first == second
    assert np.array_equal(runs[0].placement.priority, runs[1].placement.priority)


def test_what_does_not_fit_in_memory_is_no_result_and_the_bound_holds():
    # Outputs stay: two ops fit on each device. Without that, three or four run on the fast one.
    graph = graph_of([8, 8, 8, 8], output_bytes=[10] * 4)
    problem = build(graph, cluster_of([1.0, 4.0], memory_bytes=20.0))
    result = search(problem)
    assert sorted(result.placement.device.tolist()) == [0, 0, 1, 1]
    assert result.makespan_s == 16.0
    assert result.lower_bound_s == pytest.approx(8.0, rel=TICKS)


def test_ops_and_transfers_that_take_no_time():
    problem = build(graph_of([0, 0, 0], [(0, 1, 0), (1, 2, 0)]), cluster_of([1.0, 1.0]))
    result = search(problem)
    assert (result.makespan_s, result.lower_bound_s) == (0.0, 0.0)


def test_of_ops_that_start_together_producers_come_first():
    problem = build(graph_of([0, 0, 0], [(2, 1, 0), (1, 0, 0)]), cluster_of([1.0]))
    at_once = Solution(device=np.zeros(3, np.int64), start=np.zeros(3, np.int64))
    assert placement_of(problem, at_once).priority.tolist() == [2, 1, 0]
    later = Solution(device=np.zeros(3, np.int64), start=np.array([7, 5, 3]))
    assert placement_of(problem, later).priority.tolist() == [2, 1, 0]


def test_devices_that_can_swap_names():
    latency_s = np.zeros((5, 5))
    latency_s[3, 4] = latency_s[4, 3] = 2.0  # 3 and 4 are pairs of each other, and alike
    cluster = cluster_of(
        [1.0, 1.0, 2.0, 1.0, 1.0],
        latency_s=latency_s,
        memory_bytes=[50, 50, 50, 50, 50],
    )
    assert exchangeable(build(graph_of([4, 2]), cluster).arrays) == [[0, 1], [2], [3, 4]]
    memory = cluster_of([1.0, 1.0, 1.0], memory_bytes=[50, 60, 50])
    assert exchangeable(build(graph_of([4, 2]), memory).arrays) == [[0, 2], [1]]
    one_way_s = np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [3.0, 1.0, 0.0]])
    one_way = build(graph_of([4, 2]), cluster_of([1.0] * 3, latency_s=one_way_s))
    assert exchangeable(one_way.arrays) == [[0], [1], [2]]


def test_without_or_tools_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools", None)
    with pytest.raises(InputError) as error:
        CPSAT(deterministic_time=1, seconds=1, workers=1)
    message = "baseline.cp_sat: OR-tools is not installed (pip install 'ortools>=9.12,<10')"
    assert str(error.value) == message


@pytest.mark.parametrize("key", ["deterministic_time", "seconds", "workers"])
def test_settings_that_mean_nothing_are_refused(key):
    with pytest.raises(InputError) as error:
        CPSAT(**{"deterministic_time": 1, "seconds": 1, "workers": 1, key: 0})
    kind = "whole number from 1 to 1,000" if key == "workers" else "number above 0"
    assert str(error.value) == f"CPSAT.{key}: must be a {kind}, got 0"


def test_where_nothing_that_fits_is_as_short_as_the_hint_there_is_no_solution():
    """Ops 0 and 3 make 6 bytes each for a device of 10, so one of two chains has to wait."""
    graph = graph_of(
        [0.0] * 6,
        [(0, 2, 6.0), (1, 2, 1.0), (3, 5, 6.0), (3, 4, 1.0, 1), (4, 5, 1.0)],
        output_bytes=[6.0, 1.0, 1.0, 6.0, 1.0, 1.0],
    )
    ops = replace(graph.ops, pinned=np.array([0, 1, 0, 0, 1, 0]))
    given = GivenCosts.make(
        op_seconds=[1.0, 10.0, 1.0, 1.0, 10.0, 1.0],
        transfer_seconds=[1e-3] * 5,
        counts_memory=True,
    )
    cluster = cluster_of([1.0, 1.0], memory_bytes=10.0)
    problem = build(replace(graph, ops=ops, given_costs=given), cluster)
    with WorkConserving().open(problem) as session:
        found = CPSAT(deterministic_time=2.0, seconds=10.0, workers=1).place(
            session, np.random.default_rng(0)
        )
    assert found.makespan_s == np.inf and found.lower_bound_s == 0.0
