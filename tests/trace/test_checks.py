"""The checks of traces: each rule's breach is seen, and correct traces pass."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import cluster_of, graph_of, random_placement, random_problem

from doppler.problem import Placement, build
from doppler.simulator import Published, WorkConserving
from doppler.trace import ExecutionRules, Trace, check, violations


def correct(**rules) -> Trace:
    """Two devices and one channel, all of them contended for.

    device 0: op 0 [0, 2], op 2 [2, 4]. device 1: op 1 [5, 9], op 3 [9, 10], ready at 7.
    0 -> 1: region 0 [2, 5], region 1 [5, 7], ready at 4. A third device is idle.
    """
    graph = graph_of([2, 4, 2, 1], [(0, 1, 3.0), (2, 3, 2.0)])
    problem = build(graph, cluster_of([1.0, 1.0, 1.0]))
    placement = Placement.make(problem, [0, 1, 0, 1], [0, 1, 2, 3])
    return WorkConserving(**rules).open(problem).trace(placement)


def with_ops(trace: Trace, **starts: float) -> Trace:
    """The trace with ops moved to other starts, as in ``op1=4``; durations stay."""
    start_V, finish_V = trace.op_start_s.copy(), trace.op_finish_s.copy()
    for name, start in starts.items():
        v = int(name.removeprefix("op"))
        finish_V[v] += start - start_V[v]
        start_V[v] = start
    return replace(trace, op_start_s=start_V, op_finish_s=finish_V)


def with_transfers(trace: Trace, *, start, finish) -> Trace:
    return replace(
        trace,
        transfer_start_s=np.array(start, dtype=np.float64),
        transfer_finish_s=np.array(finish, dtype=np.float64),
    )


def with_rows(trace: Trace, rows: list[int]) -> Trace:
    """The trace with the listed transfers, in this order."""
    columns = ("region", "src", "dst", "start_s", "finish_s", "outlet", "inlet")
    return replace(
        trace, **{f"transfer_{c}": getattr(trace, f"transfer_{c}")[rows] for c in columns}
    )


def test_the_trace_that_is_tampered_with():
    trace = correct()
    assert trace.op_start_s.tolist() == [0, 5, 2, 9]
    assert trace.op_finish_s.tolist() == [2, 9, 4, 10]
    assert trace.transfer_start_s.tolist() == [2, 5]
    assert trace.transfer_finish_s.tolist() == [5, 7]
    assert violations(trace) == []


TAMPERED = {
    "op 1 starts before its inputs are there": lambda t: with_ops(t, op1=4.0),
    "two tasks overlap on stream 0 of device 1": lambda t: with_ops(t, op3=8.0),
    "two tasks overlap on stream 0 of device 0": lambda t: with_ops(t, op2=1.0),
    "transfer 0 starts before its producer has finished": lambda t: with_transfers(
        t, start=[1, 5], finish=[4, 7]
    ),
    "two transfers overlap on channel 0 -> 1": lambda t: with_transfers(
        t, start=[2, 4], finish=[5, 6]
    ),
    "region 1 is never moved to device 1": lambda t: with_rows(t, [0]),
    "a region is moved twice to one device": lambda t: with_rows(t, [0, 1, 1]),
    "region 1 is moved to device 2 for no op": lambda t: replace(t, transfer_dst=np.array([1, 2])),
    "a region is moved from a device that does not hold it": lambda t: replace(
        t, transfer_src=np.array([0, 2])
    ),
    "op 3 runs from 9.0 to 8.0": lambda t: replace(t, op_finish_s=np.array([2.0, 9.0, 4.0, 8.0])),
    "op 0 runs from -1.0 to 1.0": lambda t: with_ops(t, op0=-1.0),
    "op 3 runs from nan to nan": lambda t: with_ops(t, op3=np.nan),
    "transfer 1 runs from 5.0 to 4.0": lambda t: with_transfers(t, start=[2, 5], finish=[5, 4]),
    "an op runs on a stream that does not exist": lambda t: replace(
        t, op_stream=np.array([0, 0, 0, 1])
    ),
    # Idle although there is work: nothing is wrong but the time.
    "op 3 waits although device 1 is free": lambda t: with_ops(t, op3=9.5),
    "op 2 waits although device 0 is free": lambda t: with_transfers(
        with_ops(t, op2=3.0), start=[2, 5], finish=[5, 7]
    ),
    "transfer 0 (0 -> 1) waits although its link is free": lambda t: with_ops(
        with_transfers(t, start=[3, 6], finish=[6, 8]), op1=6.0, op3=10.0
    ),
    "transfer 1 (0 -> 1) waits although its link is free": lambda t: with_transfers(
        t, start=[2, 5.5], finish=[5, 7.5]
    ),
}


@pytest.mark.parametrize("expected", TAMPERED)
def test_breach_is_seen(expected):
    trace = TAMPERED[expected](correct())
    found = violations(trace)
    assert expected in found
    with pytest.raises(AssertionError):
        check(trace)


def test_each_breach_of_work_conservation_is_the_only_one_reported():
    for expected in (line for line in TAMPERED if "waits although" in line):
        assert violations(TAMPERED[expected](correct())) == [expected]


def test_op_that_waits_while_a_stream_is_free():
    trace = correct(streams=2)
    assert trace.op_start_s[2] == 0  # beside op 0
    late = with_ops(trace, op2=2.0)
    assert "op 2 waits although device 0 is free" in violations(late)


def test_strict_order_may_wait():
    trace = correct(queue="strict")
    assert violations(trace) == []
    assert violations(with_ops(trace, op3=9.5)) == []


def test_transfers_that_overlap_by_engine():
    # From op 0 to two devices, 2 to 5 and 2 to 6: two channels, one sender.
    graph = graph_of([2, 1, 1], [(0, 1, 3.0, 0), (0, 2, 4.0, 1)])
    problem = build(graph, cluster_of([1.0, 1.0, 1.0]))
    placement = Placement.make(problem, [0, 1, 2])
    trace = WorkConserving(contention="fifo").open(problem).trace(placement)
    assert violations(trace) == []
    strict = replace(trace, rules=ExecutionRules(contention="engines"))
    assert violations(strict) == ["two transfers overlap on sender 0"]


def test_transfers_that_overlap_at_a_receiver():
    graph = graph_of([2, 2, 1], [(0, 2, 3.0), (1, 2, 4.0)])
    problem = build(graph, cluster_of([1.0, 1.0, 1.0]))
    trace = WorkConserving().open(problem).trace(Placement.make(problem, [0, 1, 2]))
    strict = replace(trace, rules=ExecutionRules(contention="engines"))
    assert violations(strict) == ["two transfers overlap on receiver 2"]


def test_transfer_without_contention_never_waits():
    trace = correct(contention="none")
    assert trace.transfer_start_s.tolist() == [2, 4]
    late = with_transfers(trace, start=[2, 4.5], finish=[5, 6.5])
    assert violations(late) == ["transfer 1 (0 -> 1) waits although its link is free"]


def test_tolerance():
    trace = with_ops(correct(), op1=4.99)
    assert violations(trace) != []
    assert violations(trace, tolerance_s=0.02) == []


@given(
    seed=st.integers(0, 10**6),
    costs=st.sampled_from(["tied", "distinct"]),
    queue=st.sampled_from(["priority", "fifo", "random", "strict"]),
    contention=st.sampled_from(["fifo", "none", "engines", "sender"]),
    streams=st.integers(1, 3),
)
def test_correct_traces_pass(seed, costs, queue, contention, streams):
    problem = random_problem(seed, costs=costs)
    placement = Placement.make(problem, random_placement(problem, seed).device)
    streams = 1 if contention == "sender" else streams
    system = WorkConserving(queue=queue, contention=contention, streams=streams)
    assert violations(system.open(problem).trace(placement)) == []


@given(st.integers(0, 10**6), st.sampled_from(["priority", "fifo"]), st.integers(1, 2))
def test_correct_published_traces_pass(seed, queue, streams):
    problem = random_problem(seed, given_costs=True)
    system = Published(queue=queue, streams=streams)
    trace = system.open(problem).trace(random_placement(problem, seed))
    assert violations(trace) == []


# --- Network interfaces ---------------------------------------------------------------------------


def between_hosts(nics: int = 1) -> Trace:
    """0 -> 2 and 1 -> 3 between two hosts; by one interface [1, 3] and [3, 6], else [2, 5]."""
    graph = graph_of([1, 2, 1, 1], [(0, 2, 2.0), (1, 3, 3.0)])
    problem = build(graph, cluster_of([1.0] * 4, hosts=(0, 0, 1, 1), nics=nics))
    placement = Placement.make(problem, [0, 1, 2, 3])
    return WorkConserving().open(problem).trace(placement)


def with_nics(trace: Trace, *, out: list[int], into: list[int]) -> Trace:
    return replace(trace, transfer_outlet=np.array(out), transfer_inlet=np.array(into))


HELD_WRONGLY = {
    "two transfers overlap on interface 0 of host 0, out": lambda: with_transfers(
        between_hosts(), start=[1, 2], finish=[3, 5]
    ),
    "two transfers overlap on interface 1 of host 1, in": lambda: with_nics(
        between_hosts(nics=2), out=[0, 1], into=[1, 1]
    ),
    "transfer 1 holds the outgoing interface 2": lambda: with_nics(
        between_hosts(nics=2), out=[0, 2], into=[0, 1]
    ),
    "transfer 0 holds the incoming interface -1": lambda: with_nics(
        between_hosts(), out=[0, 0], into=[-1, 0]
    ),
    "transfer 0 holds the outgoing interface 0": lambda: with_nics(
        correct(), out=[0, -1], into=[-1, -1]
    ),
    "transfer 1 (1 -> 3) waits although its link is free": lambda: with_ops(
        with_transfers(between_hosts(), start=[1, 4], finish=[3, 7]), op3=7.0
    ),
}


@pytest.mark.parametrize("expected", HELD_WRONGLY)
def test_wrong_use_of_an_interface_is_seen(expected):
    assert violations(between_hosts()) == violations(between_hosts(nics=2)) == []
    found = violations(HELD_WRONGLY[expected]())
    assert expected in found, found


def test_with_a_free_interface_on_both_sides_nothing_may_wait():
    one = between_hosts()
    two = replace(one, problem=between_hosts(nics=2).problem)
    (found,) = violations(two)
    assert found == "transfer 1 (1 -> 3) waits although its link is free"
