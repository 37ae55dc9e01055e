"""CP-SAT with memory, and patterns of large pipelines."""

import numpy as np
import pytest
from extensions.pipelines.pipelines import pipeline_of, problem_of

from doppler.baselines import CPSAT
from doppler.extensions.memory import Offload
from doppler.extensions.pipelines import ListSchedules, Patterns
from doppler.extensions.pipelines.assigning import assignment_bound_s
from doppler.extensions.pipelines.proving import prove
from doppler.simulator import WorkConserving

STRICT = WorkConserving(queue="strict")


@pytest.mark.parametrize(("memory", "optimum"), [(1.0, 9.0), (2.0, 7.0)])
def test_the_proof_counts_memory(memory, optimum):
    """Two stages, two microbatches, all of 1 s; by hand.

    With room for one activation: F, F and I of the other stage, I, all that again, W. With room for
    two the second device does its six actions from 1 s on.
    """
    pytest.importorskip("ortools")
    pipeline = pipeline_of([1, 1], 2, left=0.0)
    problem = problem_of(pipeline, memory)
    with STRICT.open(problem) as session:
        start = ListSchedules().place(session, np.random.default_rng(0))
        proof = prove(session, start.placement, CPSAT(deterministic_time=5, seconds=30, workers=1))
    assert proof.lower_bound_s == pytest.approx(proof.makespan_s)
    device_S, memory_D = pipeline.devices(), problem.arrays.memory_bytes
    assert assignment_bound_s(pipeline, device_S, memory_D) <= proof.lower_bound_s + 1e-9
    assert proof.makespan_s == optimum


def test_where_memory_is_planned_no_bound_counts_it():
    """Room for one activation: those of the other microbatches wait on the host, almost at once."""
    pipeline = pipeline_of([1, 1], 4, left=0.0)
    problem, roomy = problem_of(pipeline, 1.0), problem_of(pipeline)
    rng = np.random.default_rng(0)
    with Offload().applied(STRICT).open(problem) as session:
        free = ListSchedules().placements(roomy, rng)
        best_s = min(
            session.measure(one.device[None], one.priority[None]).cost_s()[0] for one in free
        )
        listed = ListSchedules().place(session, rng)
    assert best_s == pytest.approx(13.0, rel=1e-3)
    assert listed.lower_bound_s is not None and listed.lower_bound_s <= best_s


def test_cp_sat_counts_no_memory_where_it_is_planned():
    pytest.importorskip("ortools")
    problem = problem_of(pipeline_of([1, 1], 4, left=0.0), 1.0)
    with Offload().applied(STRICT).open(problem) as session:
        solver = CPSAT(deterministic_time=5, seconds=30, workers=1)
        found = solver.place(session, np.random.default_rng(0))
    assert found.lower_bound_s == pytest.approx(13.0) == pytest.approx(found.makespan_s, rel=1e-3)


def test_a_pattern_repeats_without_more_memory():
    pipeline = pipeline_of([1, 1.5, 1, 1], 40)
    problem = problem_of(pipeline, 4.0)
    with STRICT.open(problem) as session:
        found = Patterns(steps=500).place(session, np.random.default_rng(0))
        listed = ListSchedules().place(session, np.random.default_rng(0))
    assert np.isfinite(found.makespan_s), "it fits"
    assert found.makespan_s <= 1.02 * listed.makespan_s
    assert found.lower_bound_s is not None and found.lower_bound_s <= found.makespan_s


def test_few_microbatches_have_no_pattern():
    problem = problem_of(pipeline_of([1, 1], 4))
    assert Patterns().placements(problem, np.random.default_rng(0)) == []
    device_BV, _ = Patterns().draw(problem, 2, np.random.default_rng(0))
    assert device_BV.shape == (2, problem.num_ops)
