"""Problems that others have solved: recorded optimal schedules, HEFT by its paper, proofs."""

from pathlib import Path

import numpy as np
import pytest
from baselines.plain_heft import Schedule, Task, heft, upward_ranks
from benchmarks.optima import NAMED, Case, cases_of
from problems import problem_set

from doppler.baselines import CPSAT, HEFT
from doppler.baselines.best_of_runs import ListDecisions
from doppler.baselines.levels import b_levels
from doppler.baselines.list_scheduling import schedule_ops
from doppler.extensions.formats.dot_format import parse_dot
from doppler.graph.optima import known_optima
from doppler.problem import Placement, Problem
from doppler.simulator import WorkConserving

STRICT = WorkConserving(contention="none", queue="strict")


def recorded(path: Path, problem: Problem) -> Placement:
    """The schedule in a file of the set; some number processors from 0, others from 1."""
    graph, _ = parse_dot(path.read_text(), path)
    nodes = graph.nodes(data=True)
    processor = np.array([int(data["Processor"]) for _, data in nodes])
    start = np.array([float(data["Start time"]) for _, data in nodes])
    _, device = np.unique(processor, return_inverse=True)
    return Placement.make(problem, device, np.argsort(np.argsort(start, kind="stable")))


def test_recorded_schedules_take_exactly_their_recorded_time():
    cases = cases_of(problem_set("auckland"))
    assert len(cases) > 200
    for case in cases:
        problem = case.problem()
        with STRICT.open(problem) as session:
            trace = session.trace(recorded(case.path, problem))
        assert trace.makespan_s == case.optimum.seconds, case.path.name


def test_the_numbers_of_ops_and_edges_are_those_of_the_tables():
    for name in ("auckland", "stg"):
        folder = problem_set(name)
        lines = (folder / "optimal.csv").read_text().splitlines()[1:]
        told = {line.split(",")[0]: [int(n) for n in line.split(",")[2:4]] for line in lines}
        for case in cases_of(folder)[::7]:
            graph = case.problem().graph
            assert [graph.num_ops, graph.num_edges] == told[case.path.stem], case.path.name


def tasks_of(problem: Problem) -> list[Task]:
    graph = problem.graph
    assert graph.given_costs is not None
    tasks = [Task(float(seconds), [], []) for seconds in graph.given_costs.op_seconds]
    transfer_E = graph.given_costs.transfer_seconds
    for u, v, seconds in zip(graph.edges.src, graph.edges.dst, transfer_E, strict=True):
        tasks[v].before.append((int(u), float(seconds)))
        tasks[u].after.append((int(v), float(seconds)))
    return tasks


def test_heft_is_that_of_its_paper_on_20_graphs():
    """Each of our decisions is one that the paper's rules allow, and gives the same schedule.

    What is free there, which of equal ranks and of equal ends is taken, is drawn at random here.
    """
    cases = cases_of(problem_set("auckland"))[::12][:20]
    assert len(cases) == 20
    num_equal = 0
    for case in cases:
        problem = case.problem()
        tasks = tasks_of(problem)
        ranks = upward_ranks(tasks)
        drawn = [
            function(problem, 50, np.random.default_rng(0))
            for function in (heft_decisions, HEFT(evaluations=1).schedule)
        ]
        for ours, in_order in zip(*(steps(one) for one in drawn), strict=True):
            assert sorted(ours) == sorted(in_order), "the same schedule, told by rising starts"
        makespans = set()
        for decisions in steps(drawn[0]):
            schedule = Schedule(tasks, problem.num_devices)
            assert [ranks[v] for v, _, _ in decisions] == sorted(ranks, reverse=True)
            for v, device, start in decisions:
                ends = [schedule.earliest_finish(v, d) for d in range(problem.num_devices)]
                assert ends[device] == min(ends), (case.path.name, v)
                assert ends[device] - tasks[v].seconds == start, (case.path.name, v)
                schedule.place(v, device)
            makespans.add(schedule.makespan)
        plain = heft(tasks, problem.num_devices).makespan
        assert min(makespans) <= plain <= max(makespans), case.path.name
        num_equal += makespans == {plain}
    assert num_equal >= 10, "elsewhere ties lead to several makespans"


def heft_decisions(problem: Problem, num: int, rng: np.random.Generator) -> ListDecisions:
    """As HEFT takes them one after another."""
    return schedule_ops(problem, b_levels(problem), num, rng, insertion=True)


def steps(found: ListDecisions) -> list[list[tuple[int, int, float]]]:
    return [
        list(zip(*(column.tolist() for column in run), strict=True))
        for run in zip(*found, strict=True)
    ]


@pytest.mark.parametrize("name", NAMED[2:])
def test_cp_sat_proves_recorded_optima(name):
    proves(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED[:2])
def test_cp_sat_proves_what_takes_it_longer(name):
    proves(name)


def proves(name: str) -> None:
    pytest.importorskip("ortools")
    (path,) = problem_set("auckland").glob(f"{name}_*")
    (optimum,) = known_optima(path)
    with STRICT.open(Case(path, optimum).problem()) as session:
        solver = CPSAT(deterministic_time=300, seconds=300, workers=1)
        result = solver.place(session, np.random.default_rng(0))
    assert result.makespan_s == optimum.seconds
    assert result.lower_bound_s == pytest.approx(optimum.seconds, rel=1e-6)
