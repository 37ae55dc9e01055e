"""Calibration finds again what a simulator was given, and reads traces as the simulator would."""

import time
from dataclasses import replace

import numpy as np
import pytest
from problems import cluster_of, graph_of, random_placement, random_problem

from doppler.cluster import preset
from doppler.einsum import FewestElements, load_workload
from doppler.executor.calibration import (
    calibrate,
    covering_placements,
    fit_link,
    link_costs,
    link_probe,
    occupied_s,
    probing_placements,
    run_all,
    typical_s,
)
from doppler.problem import Placement, build
from doppler.problem.costs import CostTable, kernel_key
from doppler.simulator import WorkConserving

LATENCY = np.array([[0.0, 3e-5, 1e-5], [2e-5, 0.0, 4e-5], [5e-5, 6e-5, 0.0]])
BANDWIDTH = np.array([[1.0, 1e9, 2e9], [3e9, 1.0, 4e9], [5e9, 6e9, 1.0]])


def generator() -> np.random.Generator:
    return np.random.default_rng(0)


def ffnn(num_devices: int = 3):
    graph = load_workload(program="workloads/ffnn.einsum", decomposition=FewestElements(), parts=4)
    return build(graph, preset(name="mixed", num_devices=num_devices))


@pytest.mark.parametrize("queue", ["priority", "fifo", "strict"])
@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_in_a_simulation_tasks_occupy_resources_for_their_duration(seed, streams, queue):
    problem = random_problem(seed, num_ops=20, num_devices=3, costs="distinct")
    placement = random_placement(problem, 0)
    with WorkConserving(streams=streams, queue=queue).open(problem) as session:
        trace = session.trace(placement)
    op_V, transfer_T = occupied_s(trace)
    if streams == 1 and queue != "strict":
        assert op_V == pytest.approx(trace.op_finish_s - trace.op_start_s)
    assert (op_V >= trace.op_finish_s - trace.op_start_s - 1e-12).all()
    assert transfer_T == pytest.approx(trace.transfer_finish_s - trace.transfer_start_s)


def test_handing_over_counts_as_part_of_the_task():
    # Op 0 feeds op 1 on the same device and op 2 on the other one; all take 1 second.
    graph = graph_of([1.0, 1.0, 1.0], [(0, 1, 1.0), (0, 2, 1.0)])
    problem = build(graph, cluster_of([1.0, 1.0]))
    placement = Placement.make(problem, np.array([0, 0, 1]))
    with WorkConserving().open(problem) as session:
        trace = session.trace(placement)
    late = replace(
        trace,
        op_start_s=np.array([0.25, 1.5, 2.75]),
        op_finish_s=np.array([1.25, 2.5, 3.75]),
        transfer_start_s=np.array([1.5]),
        transfer_finish_s=np.array([2.5]),
    )
    op_V, transfer_T = occupied_s(late)
    assert op_V.tolist() == [1.25, 1.25, 1.25]
    assert transfer_T.tolist() == [1.25]


def test_among_covering_placements_each_op_runs_wherever_it_can():
    cluster = cluster_of([1.0] * 3, unsupported_kinds=[["a"], ["a", "b"], []])
    problem = build(graph_of([1.0] * 6, kinds=list("aabbcc")), cluster)
    placements = covering_placements(problem, 2, generator())
    devices = np.stack([placement.device for placement in placements])
    seen = [set(devices[:, v].tolist()) for v in range(6)]
    assert seen == [{2}, {2}, {0, 2}, {0, 2}, {0, 1, 2}, {0, 1, 2}]
    assert len(covering_placements(problem, 7, generator())) >= 7


@pytest.mark.parametrize("num_devices", [2, 3])
def test_the_probe_moves_every_size_over_every_link(num_devices):
    probe = build(link_probe(), cluster_of([1.0] * num_devices))
    sizes = set(probe.graph.regions.bytes.tolist())
    assert len(sizes) >= 5 and max(sizes) >= 1000 * min(sizes)
    moved = {(s, d): set() for s in range(num_devices) for d in range(num_devices) if s != d}
    placements = probing_placements(probe, 1)
    for trace in run_all(WorkConserving(), probe, placements, 0.0):
        for s, d, r in zip(
            trace.transfer_src, trace.transfer_dst, trace.transfer_region, strict=True
        ):
            moved[int(s), int(d)].add(float(probe.graph.regions.bytes[r]))
    assert all(found == sizes for found in moved.values())
    assert len(probing_placements(probe, 50)) >= 50


def test_links_are_found_again():
    cluster = cluster_of([1e9] * 3, latency_s=LATENCY, bytes_per_s=BANDWIDTH)
    probe = build(link_probe(), cluster)
    traces = run_all(WorkConserving(), probe, probing_placements(probe, 4), 0.0)
    latency_s, seconds_per_byte = link_costs(traces)
    between = ~np.eye(3, dtype=bool)
    assert latency_s[between] == pytest.approx(LATENCY[between])
    assert seconds_per_byte[between] == pytest.approx(1 / BANDWIDTH[between])
    assert np.isnan(latency_s.diagonal()).all()


def test_a_fit_never_tells_negative_costs_and_a_burst_hardly_moves_it():
    sizes = np.repeat([1e3, 1e4, 1e5], 9)
    seconds = 1e-5 + 1e-9 * sizes
    disturbed = seconds.copy()
    disturbed[::9] *= 100.0
    assert fit_link(sizes, seconds) == pytest.approx((1e-5, 1e-9))
    assert fit_link(sizes, disturbed) == pytest.approx((1e-5, 1e-9), rel=0.25)
    latency, slope = fit_link(np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0]))
    assert latency > 0 and slope == 0.0


def test_what_is_far_off_counts_for_no_more_than_three_medians():
    assert typical_s(np.array([1.0, 1.0, 1.0, 1.0, 2.0])) == pytest.approx(1.2)
    assert typical_s(np.array([1.0, 1.0, 1.0, 1.0, 1e6])) == pytest.approx(1.4)


def test_a_calibrated_problem_has_the_seconds_of_the_system():
    truth = ffnn()
    system = WorkConserving()
    table = calibrate(system, truth, runs=6, rng=generator(), links=True)
    guess = build(
        truth.graph, replace(truth.cluster, latency_s=10 * truth.cluster.latency_s), table
    )
    assert guess.is_measured().all()
    assert guess.arrays.op_seconds == pytest.approx(truth.arrays.op_seconds)
    assert guess.arrays.latency_s == pytest.approx(truth.arrays.latency_s)
    assert len(table.kernels) == len({kernel_key(k) for k in truth.graph.ops.kernels if k})


def test_ops_without_a_kernel_have_no_costs_and_those_beside_them_have_theirs():
    truth = ffnn()
    ops = truth.graph.ops
    table = calibrate_ops(truth, (None, *ops.kernels[1:]))
    assert set(table.kernels) == {kernel_key(kernel) for kernel in ops.kernels[1:] if kernel}
    measured = build(truth.graph, truth.cluster, table).arrays.op_seconds
    assert measured == pytest.approx(truth.arrays.op_seconds)
    assert calibrate_ops(truth, ()).kernels == {}


def calibrate_ops(problem, kernels) -> CostTable:
    ops = replace(problem.graph.ops, kernels=kernels, reads=(), boxes=())
    problem = build(replace(problem.graph, ops=ops), problem.cluster)
    return calibrate(WorkConserving(), problem, runs=6, rng=generator(), links=False)


def test_placements_are_executed_again_until_the_seconds_are_over():
    problem = ffnn(2)
    placements = covering_placements(problem, 3, generator())
    once = run_all(WorkConserving(), problem, placements, 0.0)
    assert [trace.placement for trace in once] == placements
    begin = time.monotonic()
    traces = run_all(WorkConserving(), problem, placements, 0.3)
    assert time.monotonic() - begin >= 0.3
    assert len(traces) > len(placements) and len(traces) % len(placements) == 0
    assert [trace.placement for trace in traces[-len(placements) :]] == placements


def test_links_are_measured_only_if_wanted_and_if_there_are_any():
    problem = ffnn(1)
    assert not np.isfinite(calibrate_links(problem, True)).any()
    assert not np.isfinite(calibrate_links(ffnn(2), False)).any()
    assert np.isfinite(calibrate_links(ffnn(2), True)).sum() == 2


def calibrate_links(problem, links: bool) -> np.ndarray:
    return calibrate(WorkConserving(), problem, runs=2, rng=generator(), links=links).latency_s
