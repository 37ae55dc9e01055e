"""Plans: safe in any order, by proof and by runs; on cores; in doppler.place.

One file, since all of it compiles the planner.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from benchmarks.memory_exact import INSTANCES, largest_load, our_capacity, read_instance
from executions import graph as program_graph
from executions import problem as program_problem
from extensions.memory.plans import (
    limited,
    run_in_any_order,
    some_offload,
    some_placement,
    some_problem,
)
from problems import cluster_of, graph_of
from torch import nn

import doppler
from doppler import trace as traces
from doppler.api.clusters import simulator_of
from doppler.api.placed import Placed
from doppler.cluster import host, preset
from doppler.executor import Threads, random_inputs, run_graph
from doppler.extensions.memory import Offload, plan
from doppler.extensions.memory.arenas import Arenas, aligned
from doppler.extensions.memory.arrays import EVICT, FREE, LOAD, MOVE, OP, RECOMPUTE, op_need_bytes
from doppler.extensions.memory.checks import violations
from doppler.problem import Placement, Problem, build
from doppler.simulator import WorkConserving
from doppler.support.errors import InputError

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


def test_who_has_just_what_it_needs_takes_no_longer():
    """Addresses that are given one after another would fragment."""
    rng, ratios = np.random.default_rng(3), []
    for _ in range(20):
        problem = some_problem(rng)
        placement = some_placement(problem, rng)
        tight = limited(problem, placement, 1.0)
        rows = placement.device[None], placement.priority[None]
        with WorkConserving().open(problem) as session:
            plain_s = session.measure(*rows).seconds[0, 0]
        with Offload().applied(WorkConserving()).open(tight) as session:
            ratios.append(session.measure(*rows).seconds[0, 0] / max(plain_s, 1e-9))
    assert np.mean(np.array(ratios) <= 1.0 + 1e-9) >= 0.9


def test_an_order_that_needs_less_memory_is_found():
    """Four large outputs, each read by an op that leaves little: one at a time they fit."""
    pairs = [(v, 4 + v, 6.0) for v in range(4)] + [(4 + v, 8, 1.0) for v in range(4)]
    cluster = cluster_of([1.0], memory_bytes=11.0, host_bytes_per_s=0.1, host_latency_s=0.0)
    problem = build(graph_of([1] * 9, pairs), cluster)
    placement = Placement.make(problem, [0] * 9, list(range(9)))
    assert plan(problem, placement, Offload(tries=1)).count(EVICT) > 0
    assert plan(problem, placement).count(EVICT) == 0


@pytest.mark.parametrize("path", sorted(INSTANCES.glob("*.csv")), ids=lambda path: path.stem)
def test_addresses_take_the_least_capacity_that_is_proven(path):
    """By CP-SAT it is what lives at one time, in all of these (docs/results/extensions.md)."""
    rows = read_instance(path)
    assert our_capacity(rows, largest_load(rows)) <= 1.01 * largest_load(rows)


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
    assert any("loads data that no task" in line for line in violations(
        replace(made, waits=made.waits[kept & ~np.isin(made.waits[:, 0], free)])
    ))  # fmt: skip
    high = replace(made, limit_bytes=np.array([6.0]))
    assert any("exceeds the memory" in line for line in violations(high))
    circle = replace(made, waits=np.concatenate([made.waits, [[load, evict]]]))
    assert violations(circle) == ["tasks wait for each other in a circle"]


def test_what_cannot_fit_is_refused_with_the_least_that_would_do():
    with pytest.raises(InputError, match=r"would do for all ops is 7$"):
        chain_problem(6.0)
    problem = chain_problem(7.0)
    tight = replace(problem, arrays=problem.arrays._replace(memory_bytes=np.array([6.5])))
    placement = Placement.make(tight, [0, 0, 0, 0])
    with pytest.raises(InputError, match=r"op 3 .* 6.5 bytes; the op needs at least 7$"):
        plan(tight, placement)
    with Offload().applied(WorkConserving()).open(tight) as session:
        measured = session.measure(placement.device[None])
        assert not measured.feasible[0]
        assert measured.memory_shortfall(tight.arrays.memory_bytes)[0] == pytest.approx(0.5 / 7)


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


def test_plans_refuse_what_is_shared_and_simulate_without_it():
    with pytest.raises(InputError, match=r"^memory: plans are .* not contention=shared$"):
        Offload().applied(WorkConserving(contention="shared"))
    cluster = preset(name="p100x4", shared=[{"name": "processors", "devices": "all"}])
    assert simulator_of(cluster, Offload()).contention == "fifo"


# Hand-over on a busy machine, in seconds.
TOLERANCE_S = 0.05


def least(name: str, seed: int) -> tuple[Problem, Placement]:
    """A program on two devices with the least memory that would do for a random placement."""
    whole = program_problem(name)
    device_V = np.random.default_rng(seed).integers(2, size=whole.num_ops)
    need_V = op_need_bytes(aligned(whole).arrays)
    limit_D = np.array([need_V[device_V == d].max(initial=0.0) for d in range(2)])
    limited = replace(whole, arrays=whole.arrays._replace(memory_bytes=limit_D))
    return limited, Placement.make(limited, device_V)


@pytest.mark.parametrize("name", ["chainmm", "cholesky", "dataproc"])
def test_results_are_right_in_the_least_memory(name):
    inputs = random_inputs(program_graph(name), np.random.default_rng(0))
    expected = run_graph(program_graph(name), inputs)
    tight, placement = least(name, 0)
    system = Offload(recompute=True).applied(Threads(verify=True))
    with system.open(tight, inputs=inputs) as session:
        trace, results = session.trace(placement), session.results(placement)
        measured = session.measure(placement.device[None])
    for key, value in expected.items():
        assert torch.equal(results[key], value), key
    assert trace.memory is not None
    assert trace.memory.offloaded_bytes > 0
    assert (trace.peak_bytes <= tight.arrays.memory_bytes).all()
    assert measured.feasible.tolist() == [True]
    told = traces.violations(trace, tolerance_s=TOLERANCE_S)
    assert [line for line in told if "holds" in line] == []


def test_an_arena_that_is_too_small_is_refused_in_one_line():
    tight, placement = least("chainmm", 0)
    less = replace(tight, arrays=tight.arrays._replace(memory_bytes=tight.arrays.memory_bytes - 64))
    placement = Placement.make(less, placement.device)
    with (
        Offload().applied(Threads()).open(less) as session,
        pytest.raises(InputError, match=r"^memory: op .* the op needs at least \d+$"),
    ):
        session.trace(placement)


def test_a_copy_that_fails_ends_in_one_line(monkeypatch):
    tight, placement = least("chainmm", 0)

    def fail() -> None:
        raise RuntimeError("no such page\nof memory")

    def broken(self: Arenas, k: int):
        return fail if self._plan.kind[k] == 3 else (lambda: None)

    monkeypatch.setattr(Arenas, "_action", broken)
    with (
        Offload().applied(Threads()).open(tight) as session,
        pytest.raises(InputError, match=r"^copy of .* from the host to device cpu:\d: RuntimeErr"),
    ):
        session.trace(placement)


@pytest.mark.parametrize("more_bytes", [0, 17])
def test_arenas_are_no_larger_than_the_limits(more_bytes):
    """Nor do tensors lie at odd addresses where limits are odd."""
    tight, placement = least("dataproc", 1)
    limit_D = tight.arrays.memory_bytes + more_bytes
    tight = replace(tight, arrays=tight.arrays._replace(memory_bytes=limit_D))
    placement = Placement.make(tight, placement.device)
    with Offload().applied(Threads()).open(tight) as session:
        made = session.plan(placement)
    sizes = Arenas(made, random_inputs(program_graph("dataproc"), np.random.default_rng(0))).sizes
    assert (np.array(sizes) <= tight.arrays.memory_bytes).all()
    assert (made.copies.address % 64 == 0).all()


@pytest.fixture(scope="module")
def module() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64) for _ in range(6)]
    return nn.Sequential(*layers)


# A layer has 16.6 kB, 32 rows of its input 8.2 kB: no device holds two layers.
MEMORY_BYTES = 36_000.0


def test_a_module_that_does_not_fit_is_placed_and_run(module, tmp_path):
    x = torch.randn(32, 64)
    cluster = host(num_devices=2)
    with pytest.raises(InputError, match="the 2 devices of 'host' have"):
        doppler.place(module, x, cluster, evaluations=20, memory_bytes=MEMORY_BYTES)
    placed = doppler.place(
        module, x, cluster, evaluations=20, memory="offload", memory_bytes=MEMORY_BYTES
    )
    assert max(placed.memory_bytes.values()) <= MEMORY_BYTES
    assert placed.offloaded_bytes > 0
    assert "offloaded" in repr(placed)
    assert "offloaded: " in placed.explain()
    torch.testing.assert_close(doppler.execute(placed, x), module(x))
    again = Placed.load(placed.save(tmp_path / "placed"))
    assert again.offloaded_bytes == placed.offloaded_bytes
    assert again.makespan_s == placed.makespan_s


def test_what_no_device_can_hold_at_once_is_refused_in_one_line(module):
    with pytest.raises(InputError, match=r"least memory that would do for all ops is \d+$"):
        doppler.place(
            module,
            torch.randn(32, 64),
            host(num_devices=2),
            evaluations=5,
            memory="offload",
            memory_bytes=1000.0,
            decomposition="published",
        )
