"""The critical chain of an execution, against `trace.explain`, which looks at transfers too."""

import numpy as np
import pytest
from problems import cluster_of, graph_of, random_placement, random_problem

from doppler.baselines.critical_chain_kernels import Chain, trace_back
from doppler.problem import Placement, Problem, build
from doppler.simulator import BulkSynchronous, Published, WorkConserving
from doppler.trace import explain

UNHINDERED = (
    *(WorkConserving(contention="none"), WorkConserving(contention="none", queue="fifo")),
    *(WorkConserving(contention="none", streams=2), Published(), Published(queue="priority")),
)
OTHERS = (
    *(WorkConserving(), WorkConserving(contention="engines"), WorkConserving(queue="strict")),
    *(WorkConserving(noise=0.1), BulkSynchronous(), Published(streams=2)),
)


def chain_of(problem: Problem, placement: Placement, system) -> tuple[list[int], np.ndarray]:
    """Ops, the last to end first, and the share of each."""
    chain = Chain.unknown(problem)
    with system.open(problem) as session:
        rows = placement.device[None], placement.priority[None]
        session.measure(*rows, rng=np.random.default_rng(0))
        trace_back(problem.arrays, session._states[0].tasks, chain)
    num = chain.num[0]
    return chain.op[:num].tolist(), np.diff(chain.share[:num], prepend=0.0)


def placed(problem: Problem, *device: int) -> Placement:
    return Placement.make(problem, np.array(device))


@pytest.mark.parametrize("system", UNHINDERED, ids=str)
def test_where_what_is_sent_last_arrives_last_it_is_that_of_the_explanation(system):
    cluster = cluster_of([1.0, 2.0, 0.5], latency_s=1e5, bytes_per_s=np.inf)
    for seed in range(20):
        graph = random_problem(seed, num_ops=25, num_devices=3, costs="distinct").graph
        problem = build(graph, cluster)
        placement = random_placement(problem, seed)
        ops, share = chain_of(problem, placement, system)
        with system.open(problem) as session:
            explained = explain(session.trace(placement))
        steps = [step for step in explained.chain if step.kind == "op"]
        assert ops == [step.id for step in steps][::-1]
        ends = np.array([0.0, *(step.finish_s for step in steps)])
        assert share == pytest.approx(np.diff(ends)[::-1] / explained.makespan_s)


@pytest.mark.parametrize("system", OTHERS, ids=str)
def test_elsewhere_it_leads_from_the_last_op_to_where_nothing_was_waited_for(system):
    for seed in range(20):
        problem = random_problem(seed, num_ops=25, num_devices=3)
        devices = random_placement(problem, seed).device
        ops, share = chain_of(problem, Placement.make(problem, devices), system)
        assert len(set(ops)) == len(ops) > 0
        assert (share >= 0).all()
        assert share.sum() == pytest.approx(1.0)


def test_an_op_has_its_wait_for_data_too():
    # 0 runs for 2, what it sends is under way for 5, 1 runs for 3; 2 runs meanwhile.
    problem = build(graph_of([2, 3, 4], [(0, 1, 5)]), cluster_of([1.0, 1.0]))
    ops, share = chain_of(problem, placed(problem, 0, 1, 1), WorkConserving())
    assert ops == [1, 0]
    assert share == pytest.approx([0.8, 0.2])


def test_who_held_the_device_counts_and_not_whose_data_came_before():
    problem = build(graph_of([1, 3, 4], [(0, 1, 1)]), cluster_of([1.0, 1.0]))
    ops, share = chain_of(problem, placed(problem, 0, 1, 1), WorkConserving())
    assert ops == [1, 2]
    assert share == pytest.approx([3 / 7, 4 / 7])


def test_ops_of_no_time_lead_on_to_what_they_waited_for():
    edges = [(0, 1, 2), (1, 2, 0), (2, 3, 0)]
    problem = build(graph_of([1, 0, 0, 5], edges), cluster_of([1.0, 1.0]))
    ops, share = chain_of(problem, placed(problem, 0, 1, 1, 1), WorkConserving())
    assert ops == [3, 2, 1, 0]
    assert share == pytest.approx([5 / 8, 0, 2 / 8, 1 / 8])


def test_an_execution_of_no_time_tells_nothing():
    problem = build(graph_of([0, 0]), cluster_of([1.0, 1.0]))
    ops, share = chain_of(problem, placed(problem, 0, 1), WorkConserving())
    assert ops == [0, 1]
    assert share.tolist() == [0.5, 0.5]


def test_as_long_as_nothing_is_known_it_is_all_ops_by_work_on_the_devices_that_can_run_them():
    cluster = cluster_of([1.0, 0.5], unsupported_kinds=[[], ["gpu"]])
    problem = build(graph_of([1, 0, 2], kinds=["op", "op", "gpu"]), cluster)
    chain = Chain.unknown(problem)
    assert chain.num.tolist() == [3]
    assert chain.op.tolist() == [0, 1, 2]
    assert chain.share[-1] == 1.0
    assert np.diff(chain.share, prepend=0.0) == pytest.approx([1.5 / 3.5, 0.0, 2 / 3.5])
