"""Plans: safe in any order, by an independent proof and by runs in random order."""

from dataclasses import replace

import numpy as np
import pytest
from tests.memory.plans import (
    limited,
    run_in_any_order,
    some_offload,
    some_placement,
    some_problem,
)
from tests.problems import cluster_of, graph_of

from doppler import trace as traces
from doppler.errors import InputError
from doppler.memory import Offload, plan
from doppler.memory.arrays import EVICT, FREE, LOAD, MOVE, OP, RECOMPUTE
from doppler.memory.checks import violations
from doppler.problem import Placement, build
from doppler.simulator import WorkConserving

SHARES = (0.0, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5)


def chain_problem(memory_bytes: float, **hosts):
    """Op 0 makes 4 bytes that op 3 reads; ops 1 and 2 need 3 and 3 of their own between."""
    graph = graph_of(
        [8, 8, 8, 8],
        [(0, 1, 1.0, 0), (0, 3, 4.0, 1), (1, 2, 3.0), (2, 3, 3.0)],
    )
    return build(graph, cluster_of([1.0], memory_bytes=memory_bytes, **hosts))


def test_an_output_is_evicted_and_loaded_by_hand():
    """8 s an op, copies of 4 bytes 4 s; 9 bytes are needed at once by op 3 alone: 4 + 3."""
    problem = chain_problem(7.0, host_bytes_per_s=1.0, host_latency_s=0.0)
    placement = Placement.make(problem, [0, 0, 0, 0])
    made = plan(problem, placement)
    assert [made.count(kind) for kind in (OP, MOVE, EVICT, LOAD, RECOMPUTE)] == [4, 0, 1, 1, 0]
    assert made.offloaded_bytes == made.loaded_bytes == 4.0
    assert violations(made) == []
    with Offload().applied(WorkConserving()).open(problem) as session:
        trace = session.trace(placement)
    # Op 1 waits until the 4 bytes are away, the load until op 2 has read what op 1 made.
    assert trace.memory is not None
    assert trace.memory.kinds == ("evict", "load")
    assert trace.memory.start_s.tolist() == [8.0, 28.0]
    assert trace.op_start_s.tolist() == [0.0, 12.0, 20.0, 32.0]
    assert trace.peak_bytes.tolist() == [7.0]


def test_what_fits_is_run_as_without_plans():
    rng = np.random.default_rng(0)
    for _ in range(20):
        problem = some_problem(rng)
        placement = some_placement(problem, rng)
        rows = placement.device[None], placement.priority[None]
        with WorkConserving(queue="fifo").open(problem) as session:
            plain = session.measure(*rows)
        with Offload().applied(WorkConserving(queue="fifo")).open(problem) as session:
            planned = session.measure(*rows)
            trace = session.trace(placement)
        assert planned.seconds.tolist() == plain.seconds.tolist()
        # Inputs are kept no longer than they are read.
        assert (planned.peak_bytes <= plain.peak_bytes).all()
        assert trace.memory is not None
        assert trace.memory.kinds == ()


def check_one(rng: np.random.Generator) -> int:
    """A random plan: proven, run in random orders, and simulated; returns what it evicts."""
    problem = some_problem(rng)
    placement = some_placement(problem, rng)
    problem = limited(problem, placement, float(rng.choice(SHARES)))
    placement = Placement.make(problem, placement.device, placement.priority)
    system = WorkConserving(
        queue=str(rng.choice(["priority", "fifo", "random"])),
        contention=str(rng.choice(["fifo", "none", "engines"])),
        streams=int(rng.choice([1, 1, 2])),
    )
    limit_D = problem.arrays.memory_bytes * (1 + 1e-9)
    with some_offload(rng).applied(system).open(problem, num_threads=1) as session:
        made, trace = session.plan(placement), session.trace(placement)
        rows = placement.device[None], placement.priority[None]
        measured = session.measure(*rows, repeats=2, rng=rng)
        noisy = replace(system, noise=0.3)
    with some_offload(rng).applied(noisy).open(problem, num_threads=1) as session:
        jittered = session.measure(*rows, repeats=3, rng=rng)
    assert violations(made) == []
    assert traces.violations(trace) == []
    assert measured.feasible[0]
    assert jittered.feasible[0]
    for _ in range(2):
        assert (run_in_any_order(made, rng) <= limit_D).all()
    return made.count(EVICT) + made.count(LOAD)


def test_no_order_exceeds_a_limit_or_reads_what_is_not_there():
    rng = np.random.default_rng(30)
    assert sum(check_one(rng) for _ in range(60)) > 100


@pytest.mark.slow
def test_no_order_of_2000_plans_exceeds_a_limit():
    rng = np.random.default_rng(31)
    assert sum(check_one(rng) for _ in range(2000)) > 5000


def test_the_check_notices_what_it_is_for():
    problem = chain_problem(7.0, host_bytes_per_s=1.0, host_latency_s=0.0)
    made = plan(problem, Placement.make(problem, [0, 0, 0, 0]))
    free = np.flatnonzero(made.kind == FREE)
    load = int(np.flatnonzero(made.kind == LOAD)[0])
    kept = ~np.isin(made.waits[:, 0], free)
    without = replace(made, waits=made.waits[kept])
    assert any("may overlap" in line for line in violations(without))
    evict = int(np.flatnonzero(made.kind == EVICT)[0])
    kept = ~((made.waits[:, 0] == evict) & (made.waits[:, 1] == load))
    assert any("loads what nobody" in line for line in violations(
        replace(made, waits=made.waits[kept & ~np.isin(made.waits[:, 0], free)])
    ))  # fmt: skip
    high = replace(made, limit_bytes=np.array([6.0]))
    assert any("ends past the memory" in line for line in violations(high))
    circle = replace(made, waits=np.concatenate([made.waits, [[load, evict]]]))
    assert violations(circle) == ["tasks wait for each other in a circle"]


def test_what_cannot_fit_is_refused_with_the_least_that_would_do():
    with pytest.raises(InputError, match=r"would do for all ops is 7$"):
        chain_problem(6.0)
    problem = chain_problem(7.0)
    tight = replace(problem, arrays=problem.arrays._replace(memory_bytes=np.array([6.5])))
    placement = Placement.make(tight, [0, 0, 0, 0])
    with pytest.raises(InputError, match=r"op 3 .* 6.5 bytes; the least that would do is 7$"):
        plan(tight, placement)
    with Offload().applied(WorkConserving()).open(tight) as session:
        measured = session.measure(placement.device[None])
        assert not measured.feasible[0]
        assert measured.lack(tight.arrays.memory_bytes)[0] == pytest.approx(0.5 / 7)


def test_recomputing_takes_the_place_of_slow_copies():
    """The input is there for op 0 again, which takes 8 s; a copy takes 400."""
    graph = graph_of(
        [8, 8, 8, 8],
        [(0, 1, 1.0, 0), (0, 3, 4.0, 1), (1, 2, 3.0), (2, 3, 3.0)],
        inputs=[(0.0, [0])],
    )
    cluster = cluster_of([1.0], memory_bytes=7.0, host_bytes_per_s=0.01, host_latency_s=0.0)
    problem = build(graph, cluster)
    placement = Placement.make(problem, [0, 0, 0, 0])
    made = plan(problem, placement, Offload(recompute=True))
    assert (made.count(RECOMPUTE), made.count(EVICT)) == (1, 0)
    assert made.recomputed_s == 8.0
    with Offload(recompute=True).applied(WorkConserving()).open(problem) as session:
        assert session.trace(placement).makespan_s == 40.0


def test_only_the_work_conserving_simulator_runs_plans():
    from doppler.simulator import Published

    with pytest.raises(InputError, match="memory=offload: plans run on"):
        Offload().applied(Published())
