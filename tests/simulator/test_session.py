"""The protocol of a session: what is counted, what is drawn, what is refused."""

from dataclasses import replace

import numpy as np
import pytest
from problems import cluster_of, graph_of, hosted_problem, random_device, random_problem

from doppler.graph.dataflow import GivenCosts
from doppler.problem import Placement, Problem, build
from doppler.simulator import BulkSynchronous, Published, WorkConserving
from doppler.simulator.session_kernels import measure_batch
from doppler.support.errors import InputError
from doppler.system import Measurement, Session, System, measure_placements


@pytest.fixture
def problem():
    return random_problem(3, num_ops=30, num_devices=3, costs="distinct")


def devices(problem, num, seed=0):
    rng = np.random.default_rng(seed)
    return np.stack([random_device(problem, rng) for _ in range(num)])


@pytest.mark.parametrize("system", [WorkConserving(), Published()])
def test_simulators_are_systems(system: System, problem):
    assert system.kind == "simulated"
    with system.open(problem) as session:
        opened: Session = session
        assert opened.problem is problem


@pytest.mark.parametrize(
    ("system", "why"),
    [
        (Published(), "the published simulator knows no network interfaces"),
        (BulkSynchronous(), "the bulk-synchronous system knows no network interfaces"),
    ],
)
def test_systems_that_know_no_interfaces_refuse_hosts(system, why):
    problem = hosted_problem(0)
    with pytest.raises(InputError) as error:
        system.open(problem)
    assert str(error.value) == (
        f"cluster 'test': has {problem.cluster.num_hosts} hosts, and {why}; use "
        "system=work_conserving, or cluster.hosts=1"
    )


def test_evaluations_are_placements_times_repeats(problem):
    with WorkConserving(noise=0.1).open(problem) as session:
        assert session.evaluations == 0
        rng = np.random.default_rng(0)
        session.measure(devices(problem, 5), None, 3, rng)
        assert session.evaluations == 15
        session.measure(devices(problem, 2), None, 1, rng)
        assert session.evaluations == 17
    with WorkConserving().open(problem) as session:  # counted alike where all repeats are equal
        session.measure(devices(problem, 5), None, 3)
        assert session.evaluations == 15


def test_shapes_of_a_measurement(problem):
    with WorkConserving(noise=0.1).open(problem) as session:
        measured = session.measure(devices(problem, 5), None, 4, np.random.default_rng(0))
    assert measured.seconds.shape == (5, 4)
    assert measured.peak_bytes.shape == (5, 3)
    assert measured.feasible.shape == (5,)
    assert measured.cost_s() == pytest.approx(measured.seconds.mean(axis=1))


def test_what_lacks_is_the_share_of_peaks_that_memory_does_not_hold():
    measured = Measurement(
        seconds=np.ones((4, 1)),
        peak_bytes=np.array([[10.0, 20.0], [20.0, 40.0], [0.0, 0.0], [np.nan, np.nan]]),
        feasible=np.array([True, False, True, True]),
    )
    assert measured.memory_shortfall(np.array([10.0, 30.0])).tolist() == [0.0, 0.5 + 0.25, 0.0, 0.0]


def test_an_empty_batch_is_measured(problem):
    with WorkConserving().open(problem) as session:
        measured = session.measure(np.zeros((0, problem.num_ops), dtype=np.int64), None, 2)
    assert measured.seconds.shape == (0, 2)
    assert session.evaluations == 0


@pytest.mark.parametrize("queue", ["priority", "strict"])
def test_without_priorities_ops_rank_topologically(problem, queue):
    device_BV = devices(problem, 4)
    with WorkConserving(queue=queue).open(problem) as session:
        default = session.measure(device_BV)
        ranked = np.stack([Placement.make(problem, device_V).priority for device_V in device_BV])
        given = session.measure(device_BV, ranked)
    assert default.seconds.tolist() == given.seconds.tolist()
    assert default.feasible.all()


def test_priorities_matter():
    # Two ops wait for device 0; the reader of the second one is elsewhere and long.
    problem = build(graph_of([1, 1, 5], [(1, 2, 1)]), cluster_of([1, 1]))
    device_BV = np.array([[0, 0, 1]] * 2)
    with WorkConserving().open(problem) as session:
        seconds = session.measure(device_BV, np.array([[0, 1, 2], [1, 0, 2]])).seconds
    assert seconds[:, 0].tolist() == [8, 7]


def test_arrays_of_any_kind_are_measured_by_the_same_machine_code(problem):
    device_BV = devices(problem, 6)
    read_only = device_BV.copy()
    read_only.setflags(write=False)
    with WorkConserving(noise=0).open(problem) as session:
        expected = session.measure(device_BV).seconds
        compiled = len(measure_batch.signatures)
        for variant in (device_BV.astype(np.int32), np.asfortranarray(device_BV), read_only):
            assert session.measure(variant).seconds.tolist() == expected.tolist()
        session.measure(read_only[:1])
        hashed = problem.hash
        session.trace(Placement(device=read_only[0], priority=read_only[0], problem_hash=hashed))
    assert len(measure_batch.signatures) == compiled  # compiling takes seconds


def test_a_placement_of_another_problem_is_refused(problem):
    device_V = devices(problem, 1)[0]
    other = Placement(device=device_V, priority=np.arange(problem.num_ops), problem_hash="other")
    with WorkConserving().open(problem) as session, pytest.raises(InputError, match="other"):
        session.trace(other)


def test_the_published_simulator_knows_no_memory(problem):
    with Published().open(problem) as session:
        assert np.isnan(session.measure(devices(problem, 3)).peak_bytes).all()


def test_arguments_are_left_as_they_are(problem):
    device_BV, rng = devices(problem, 4), np.random.default_rng(0)
    priority_BV = np.stack([rng.permutation(problem.num_ops) for _ in range(4)])
    before = device_BV.copy(), priority_BV.copy()
    with WorkConserving().open(problem) as session:
        session.measure(device_BV, priority_BV)
    assert np.array_equal(device_BV, before[0])
    assert np.array_equal(priority_BV, before[1])


@pytest.mark.parametrize("system", [WorkConserving(noise=0.1), WorkConserving(queue="random")])
def test_random_systems_need_a_generator(problem, system):
    with system.open(problem) as session, pytest.raises(ValueError, match="needs rng"):
        session.measure(devices(problem, 1))


def test_a_session_closes_its_threads():
    problem = random_problem(3, num_ops=100, num_devices=3)
    with WorkConserving().open(problem, num_threads=2) as session:
        session.measure(devices(problem, 100))
        pool = session._pool
        assert pool is not None
    assert session._pool is None
    with pytest.raises(RuntimeError):
        pool.submit(int)


def test_a_strict_order_that_waits_for_itself():
    # Device 0 is to run 1 before 0, but 1 reads what 0 writes.
    problem = build(graph_of([1, 1], [(0, 1, 1)]), cluster_of([1]))
    placement = Placement.make(problem, np.array([0, 0]), np.array([1, 0]))
    with WorkConserving(queue="strict").open(problem) as session:
        measured = session.measure(placement.device[None], placement.priority[None])
        assert measured.seconds.tolist() == [[np.inf]]
        assert not measured.feasible[0]
        with pytest.raises(InputError, match="strict order waits for itself"):
            session.trace(placement)


def test_measure_placements(problem):
    placements = [Placement.make(problem, device_V) for device_V in devices(problem, 3)]
    with WorkConserving().open(problem) as session:
        expected = [session.trace(placement).makespan_s for placement in placements]
        assert (
            measure_placements(session, placements, np.random.default_rng(0)).tolist() == expected
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"queue": "lifo"},
            "WorkConserving.queue: must be one of priority, fifo, random, strict, got 'lifo'",
        ),
        (
            {"contention": "some"},
            "WorkConserving.contention: must be one of none, fifo, engines, sender, shared, got "
            "'some'",
        ),
        ({"streams": 0}, "WorkConserving.streams: must be a whole number from 1 to 60, got 0"),
        ({"noise": -0.1}, "noise: must be a number of at least 0 and below 10, got -0.1"),
        ({"noise": 10}, "noise: must be a number of at least 0 and below 10, got 10"),
        (
            {"streams": 2, "contention": "sender"},
            "streams: 2, but with contention=sender a device makes its own transfers",
        ),
        ({"streams": 1.5}, "streams: must be a whole number from 1 to 60, got 1.5"),
    ],
)
def test_bad_rules_are_named(arguments, message):
    with pytest.raises(InputError, match=message):
        WorkConserving(**arguments)


def test_devices_that_send_by_themselves_are_of_one_host():
    problem = build(graph_of([1, 1], [(0, 1, 1)]), cluster_of([1.0] * 2, hosts=(0, 1)))
    with pytest.raises(InputError, match=r"has 2 hosts, .* use contention=fifo"):
        WorkConserving(contention="sender").open(problem)


def test_the_published_system_refuses_what_it_has_not():
    with pytest.raises(
        InputError, match=r"Published\.queue: must be one of fifo, priority, got 'strict'"
    ):
        Published(queue="strict")


def test_the_published_system_refuses_times_that_it_would_round_away():
    def problem_of(op_s: float, transfer_s: float) -> Problem:
        costs = GivenCosts.make(op_seconds=[op_s] * 2, transfer_seconds=[transfer_s])
        return build(
            replace(graph_of([0, 0], [(0, 1, 0.0)]), given_costs=costs), cluster_of([1, 1])
        )

    for problem in (problem_of(3e-11, 0.0), problem_of(1.4e-10, 0.0), problem_of(1e-10, 4e-11)):
        with pytest.raises(InputError, match="rounds all times to whole 1e-10 s"):
            Published().open(problem)
    for problem in (problem_of(3e-10, 1e-10), problem_of(0.0, 0.0), problem_of(1.23e-6, 4e-11)):
        Published().open(problem)
