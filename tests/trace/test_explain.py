"""What bounds a makespan: chains worked out by hand, and what holds for every trace."""

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import (
    cluster_of,
    graph_of,
    hosted_problem,
    random_device,
    random_placement,
    random_problem,
    random_ranking,
)

from doppler.problem import Placement, build
from doppler.simulator import Published, WorkConserving
from doppler.support.errors import InputError
from doppler.trace import Explanation, Trace, compare, explain


def trace_of(flops, edges, device, *, num_devices=2, priority=None, **rules) -> Trace:
    problem = build(graph_of(flops, edges), cluster_of([1.0] * num_devices))
    return WorkConserving(**rules).open(problem).trace(Placement.make(problem, device, priority))


def rows(explanation: Explanation) -> list[tuple]:
    return [
        (step.kind, step.id, step.where, step.start_s, step.finish_s, step.waited_for)
        for step in explanation.chain
    ]


def test_chain_over_data():
    found = explain(trace_of([2, 4, 1], [(0, 1, 3.0)], [0, 1, 0]))
    assert rows(found) == [
        ("op", 0, "device 0", 0.0, 2.0, "start"),
        ("transfer", 0, "0 -> 1", 2.0, 5.0, "data"),
        ("op", 1, "device 1", 5.0, 9.0, "data"),
    ]
    assert [step.name for step in found.chain] == ["op0", "op0", "op1"]
    assert (found.makespan_s, found.compute_s, found.transfer_s, found.idle_s) == (9, 6, 3, 0)
    assert (found.device_queue_s, found.link_queue_s) == (0, 0)
    assert found.device_utilisation == pytest.approx([3 / 9, 4 / 9])


def test_chain_through_a_busy_device():
    # Op 1 is ready at 0 but the device runs op 0 first; op 2 then reads op 1.
    found = explain(trace_of([2, 3, 4], [(1, 2, 1.0)], [0, 0, 0], priority=[0, 1, 2]))
    assert rows(found) == [
        ("op", 0, "device 0", 0.0, 2.0, "start"),
        ("op", 1, "device 0", 2.0, 5.0, "device"),
        ("op", 2, "device 0", 5.0, 9.0, "data"),
    ]
    assert [step.queued_s for step in found.chain] == [0, 2, 0]
    assert (found.device_queue_s, found.link_queue_s) == (2, 0)


def test_chain_through_a_busy_link():
    # Both regions of op 0 are ready at 1 and go over one channel: 1 to 5, then 5 to 10.
    found = explain(
        trace_of([1, 1, 2], [(0, 1, 4.0, 0), (0, 2, 5.0, 1)], [0, 1, 1], priority=[0, 1, 2])
    )
    assert rows(found) == [
        ("op", 0, "device 0", 0.0, 1.0, "start"),
        ("transfer", 0, "0 -> 1", 1.0, 5.0, "data"),
        ("transfer", 1, "0 -> 1", 5.0, 10.0, "link"),
        ("op", 2, "device 1", 10.0, 12.0, "data"),
    ]
    assert [step.queued_s for step in found.chain] == [0, 0, 4, 0]
    assert (found.compute_s, found.transfer_s) == (3, 9)
    assert (found.device_queue_s, found.link_queue_s) == (0, 4)
    (link,) = found.links
    assert (link.src, link.dst, link.num_transfers, link.bytes, link.busy_s) == (0, 1, 2, 9.0, 9.0)
    assert link.utilisation == pytest.approx(9 / 12)


def test_chain_through_a_busy_engine():
    # Two destinations: two channels, but one sending engine.
    edges, device = [(0, 1, 4.0, 0), (0, 2, 5.0, 1)], [0, 1, 2]
    found = explain(trace_of([1, 1, 2], edges, device, num_devices=3, contention="engines"))
    assert rows(found)[2] == ("transfer", 1, "0 -> 2", 5.0, 10.0, "link")
    found = explain(trace_of([1, 1, 2], edges, device, num_devices=3, contention="fifo"))
    assert rows(found)[1] == ("transfer", 1, "0 -> 2", 1.0, 6.0, "data")


def test_chain_through_strict_order():
    # Op 2 is free to run at 0, but comes after op 1, which waits for op 0's region until 5.
    found = explain(
        trace_of(
            [2, 1, 4],
            [(0, 1, 3.0)],
            [0, 1, 1],
            priority=[0, 1, 2],
            queue="strict",
            streams=2,
        )
    )
    assert rows(found) == [
        ("op", 0, "device 0", 0.0, 2.0, "start"),
        ("transfer", 0, "0 -> 1", 2.0, 5.0, "data"),
        ("op", 2, "device 1", 5.0, 9.0, "device"),
    ]
    assert found.chain[-1].queued_s == 5
    # Op 1 comes after op 0, which does not keep it waiting.
    found = explain(trace_of([1, 2], [], [0, 0], priority=[0, 1], queue="strict", streams=2))
    assert rows(found) == [("op", 1, "device 0", 0.0, 2.0, "start")]


def test_streams_share_a_device():
    found = explain(trace_of([4, 2, 3], [], [0, 0, 0], num_devices=1, streams=2))
    assert rows(found)[-1] == ("op", 2, "device 0", 2.0, 5.0, "device")
    assert found.device_utilisation == pytest.approx([9 / (2 * 5)])


def test_overlapping_transfers_count_once():
    edges = [(0, 1, 4.0, 0), (0, 2, 6.0, 1)]
    found = explain(trace_of([1, 1, 1], edges, [0, 1, 1], contention="none"))
    assert found.links[0].busy_s == 6


def test_hand_over_of_a_measured_trace():
    trace = trace_of([2, 4], [(0, 1, 3.0)], [0, 1])
    delay_V = np.array([0.5, 1.0])
    measured = replace(
        trace,
        system_kind="measured",
        op_start_s=trace.op_start_s + delay_V,
        op_finish_s=trace.op_finish_s + delay_V,
        transfer_start_s=trace.transfer_start_s + 0.75,
        transfer_finish_s=trace.transfer_finish_s + 0.75,
    )
    found = explain(measured)
    assert [step.waited_for for step in found.chain] == ["start", "data", "data"]
    assert (found.compute_s, found.transfer_s, found.idle_s) == (6, 3, 1)
    assert "hand-over 1 s (10%)" in found.lines()[1]


SYSTEMS = st.one_of(
    st.builds(
        WorkConserving,
        queue=st.sampled_from(["priority", "fifo", "random", "strict"]),
        contention=st.sampled_from(["fifo", "none", "engines"]),
        streams=st.integers(1, 3),
    ),
    st.builds(
        WorkConserving,
        queue=st.sampled_from(["priority", "fifo", "strict"]),
        contention=st.just("sender"),
    ),
    st.builds(Published, queue=st.sampled_from(["priority", "fifo"]), streams=st.integers(1, 2)),
)


@given(st.integers(0, 10**6), st.sampled_from(["tied", "distinct"]), SYSTEMS)
def test_chain_fills_the_makespan(seed, costs, system):
    problem = random_problem(seed, costs=costs)
    rng = np.random.default_rng(seed)
    placement = Placement.make(problem, random_device(problem, rng), random_ranking(problem, rng))
    trace = system.open(problem).trace(placement)
    found = explain(trace)
    first, last = found.chain[0], found.chain[-1]
    assert (first.start_s, first.waited_for) == (0.0, "start")
    assert (last.kind, last.finish_s) == ("op", trace.makespan_s)
    for earlier, step in pairwise(found.chain):
        assert step.start_s == earlier.finish_s
        assert (step.queued_s > 0) == (step.waited_for in ("device", "link"))
    assert found.idle_s == 0
    total = found.compute_s + found.transfer_s
    assert total == pytest.approx(trace.makespan_s, rel=1e-9)
    assert found.device_queue_s + found.link_queue_s <= total * (1 + 1e-9)
    assert np.all(found.device_utilisation <= 1 + 1e-9)
    assert all(use.utilisation <= 1 + 1e-9 for use in found.links)
    assert sum(use.num_transfers for use in found.links) == trace.num_transfers


def test_lines_say_what_bounds():
    trace = trace_of([1, 1, 2], [(0, 1, 4.0, 0), (0, 2, 5.0, 1)], [0, 1, 1])
    assert explain(trace).lines() == [
        "makespan 12 s (simulated), set by a chain of 2 ops and 2 transfers",
        "on the chain: compute 3 s (25%), transfers 9 s (75%)",
        "queueing on the chain: 0 waited for a busy device; "
        "1 waited for a busy link, behind 4 s (33%) of others",
        "devices busy: device0 8%, device1 25%",
        "busiest links: 0 -> 1 75% (2 transfers, 9 B)",
        "longest ops of the chain: op2 2 s (device 1), op0 1 s (device 0)",
    ]


def test_a_problem_without_links_or_duration():
    found = explain(trace_of([0], [], [0], num_devices=1))
    assert (found.makespan_s, found.links) == (0, ())
    assert found.device_utilisation == pytest.approx([0.0])
    assert not any(re.search("link.*->", line) for line in found.lines())


def test_compare_two_placements():
    problem = build(graph_of([2, 4, 1], [(0, 1, 3.0)]), cluster_of([1.0, 1.0]))
    session = WorkConserving().open(problem)
    apart, together = (
        session.trace(Placement.make(problem, device)) for device in ([0, 1, 0], [0, 0, 1])
    )
    assert compare(apart, together) == [
        "makespan 9 s -> 6 s (-33.3%)",
        "ops on another device: 2 of 3",
        "bytes moved: 3 B -> 0 B in 1 -> 0 transfers",
        "devices busy: device0 33% -> 100%, device1 44% -> 17%",
        "largest ops among them: op1 (4 s) 1 -> 0, op2 (1 s) 0 -> 1",
    ]
    assert compare(apart, apart)[1:3] == [
        "ops on another device: 0 of 3",
        "bytes moved: 3 B -> 3 B in 1 -> 1 transfers",
    ]
    other = trace_of([2, 5, 1], [(0, 1, 3.0)], [0, 1, 0])
    with pytest.raises(InputError, match="two problems"):
        compare(apart, other)


def test_chain_through_a_busy_interface():
    # Links 0 -> 2 and 1 -> 3 lead from host 0 to host 1: 1 to 3, then 3 to 6.
    graph = graph_of([1, 2, 1, 1], [(0, 2, 2.0), (1, 3, 3.0)])
    problem = build(graph, cluster_of([1.0] * 4, hosts=(0, 0, 1, 1)))
    trace = WorkConserving().open(problem).trace(Placement.make(problem, [0, 1, 2, 3]))
    found = explain(trace)
    assert rows(found) == [
        ("op", 0, "device 0", 0.0, 1.0, "start"),
        ("transfer", 0, "0 -> 2", 1.0, 3.0, "data"),
        ("transfer", 1, "1 -> 3", 3.0, 6.0, "interface"),
        ("op", 3, "device 3", 6.0, 7.0, "data"),
    ]
    assert found.chain[2].queued_s == 1  # its data has been there since 2
    assert (found.device_queue_s, found.link_queue_s, found.interface_queue_s) == (0, 0, 2)
    assert [(use.host, use.nic, use.way) for use in found.interfaces] == [
        (0, 0, "out"),
        (1, 0, "in"),
    ]
    for use in found.interfaces:
        assert (use.num_transfers, use.bytes, use.busy_s) == (2, 5.0, 5.0)
        assert use.utilisation == pytest.approx(5 / 7)
    text = "\n".join(found.lines())
    assert "1 waited for a busy interface, behind 2 s (29%) of others" in text
    assert "busiest network interfaces: host 0 out 71% (2 transfers, 5 B), host 1 in 71%" in text


def test_every_chain_between_hosts_adds_up():
    waited = 0
    for seed in range(60):
        problem = hosted_problem(seed, costs="distinct")
        placement = random_placement(problem, seed)
        with WorkConserving().open(problem) as session:
            found = explain(session.trace(placement))
        waited += found.interface_queue_s > 0
        total = found.compute_s + found.transfer_s + found.idle_s
        assert total == pytest.approx(found.makespan_s, rel=1e-9)
        assert found.idle_s == pytest.approx(0, abs=1e-9 * found.makespan_s)
        assert all(use.utilisation <= 1 + 1e-9 for use in found.interfaces)
    assert waited > 10
