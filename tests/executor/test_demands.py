"""What kernels use of what devices share, from how they slow each other down."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from doppler.cluster import SharedResource, preset
from doppler.einsum import FewestElements, load_workload
from doppler.executor import calibration, demands
from doppler.executor.calibration import (
    calibrate,
    link_probe,
    probing_placements,
    run_all,
    serial_placements,
)
from doppler.executor.demands import (
    Slowdowns,
    measure_demands,
    shares_of,
    sharing_devices,
    slowdowns_of,
)
from doppler.executor.devices import Cores
from doppler.problem import Problem, build
from doppler.problem.costs import kernel_key
from doppler.simulator import WorkConserving

PROCESSORS = SharedResource(name="processors", devices=(0, 1))
MEMORY = SharedResource(name="memory", bytes_per_s=1e9, devices=(0, 1))
COPIED = replace(MEMORY, links=((0, 1), (0, 1), (1, 0), (1, 0)))


def problem_with(*shared: SharedResource) -> Problem:
    graph = load_workload(
        program="workloads/ffnn.einsum",
        preset="small",
        decomposition=FewestElements(),
        parts=4,
    )
    cluster = preset(name="p100x4", num_devices=2)
    return build(graph, replace(cluster, shared=shared))


@pytest.mark.parametrize("num", [2, 4])
@pytest.mark.parametrize("shares", [(1.0, 0.0), (0.0, 1.0), (1.0, 0.3), (0.7, 0.6), (0.9, 0.9)])
def test_shares_that_explain_what_is_measured_are_found_again(shares, num):
    measured = slowdowns_of(*shares, num)
    found = shares_of(measured, num, modelled=(0.5, 0.5))
    told = slowdowns_of(*found, num)
    for one in ("itself", "memory", "processors"):
        assert getattr(told, one) == pytest.approx(getattr(measured, one), rel=0.07)


def test_two_kernels_that_need_all_processors_are_half_as_fast():
    assert slowdowns_of(1.0, 0.0, 2) == Slowdowns(itself=2.0, memory=1.0, processors=2.0)


def test_what_is_not_slowed_down_uses_its_part_at_most():
    none = Slowdowns(itself=1.0, memory=1.0, processors=1.0)
    processors, memory = shares_of(none, 4, modelled=(0.9, 0.1))
    assert processors <= 0.25
    assert memory <= 0.25


def test_where_processors_are_not_shared_the_memory_alone_is_told():
    itself = Slowdowns(itself=3.0, memory=3.0, processors=None)
    assert shares_of(itself, 4, modelled=(0.4, 0.2)) == (0.4, 0.75)


class OneAtATime(Cores):
    """Devices that take a fixed time for anything, and may wait for each other."""

    def __init__(self, *, waits: bool) -> None:
        super().__init__(2)
        self._lock = threading.Lock() if waits else None

    def computing(self, device, action):
        def act() -> None:
            if self._lock is None:
                time.sleep(2e-3)
                return
            with self._lock:
                time.sleep(2e-3)
            time.sleep(1e-5)  # lets the other one have it

        return act


def test_devices_that_wait_for_each_other_share_everything():
    problem = problem_with(PROCESSORS, MEMORY)
    found = measure_demands(OneAtATime(waits=True), problem)
    assert set(found) == {kernel_key(kernel) for kernel in problem.graph.ops.kernels}
    assert np.median([shares.min() for shares in found.values()]) > 0.75


def test_devices_that_do_not_wait_use_half_at_most():
    found = measure_demands(OneAtATime(waits=False), problem_with(PROCESSORS, MEMORY))
    assert np.median([shares.max() for shares in found.values()]) < 0.65


class StartedByOne(Cores):
    """Devices that share nothing but the host, which starts calls, or all of an action at once."""

    def __init__(self) -> None:
        super().__init__(2)
        self.host = threading.Lock()
        self.repeated: list[int] = []

    def computing(self, device, action):
        def act() -> None:
            with self.host:
                time.sleep(2e-4)

        return act

    def repeating(self, device, action, num):
        self.repeated.append(num)
        return lambda: time.sleep(2e-4 * num)


def test_what_the_host_takes_to_start_calls_is_no_demand(monkeypatch):
    monkeypatch.setattr(demands, "_BLOCK", 1 << 10)
    monkeypatch.setattr(demands, "_ROWS", 16)
    devices = StartedByOne()
    found = measure_demands(devices, problem_with(PROCESSORS, MEMORY))
    assert np.mean([shares.max() for shares in found.values()]) < 0.65
    assert max(devices.repeated) > 1, "an action is longer than what it takes to start it"
    assert [demands._num_calls(s) for s in (1e-5, 1e-4, 1e-2)] == [40, 20, 1]


def test_shares_on_cores_are_told_of_kernels_that_are_long_enough():
    before = torch.get_rng_state()
    found = measure_demands(Cores(2), problem_with(MEMORY), window_s=1e-3)
    assert found
    assert torch.equal(torch.get_rng_state(), before)
    for shares in found.values():
        assert ((shares >= 0) & (shares <= 1)).all()


def test_groups_are_the_devices_that_share():
    apart = SharedResource(name="switch", bytes_per_s=1.0, links=((0, 1),))
    (group,) = sharing_devices(problem_with(MEMORY, apart))
    assert (group.members, group.processors) == ((0, 1), False)
    (group,) = sharing_devices(problem_with(MEMORY, PROCESSORS))
    assert group.processors
    assert sharing_devices(problem_with(apart)) == []


def test_kernels_and_links_of_a_machine_that_shares_are_timed_alone():
    pairs = ((0, 1), (1, 0))
    switch = SharedResource(name="switch", bytes_per_s=6e9, links=pairs)
    problem = problem_with(PROCESSORS, MEMORY, switch)
    table = calibrate(
        WorkConserving(contention="shared"),
        problem,
        runs=2,
        rng=np.random.default_rng(0),
        links=True,
    )
    alone = replace(problem.cluster, shared=())
    calibrated = build(problem.graph, alone, table)
    assert calibrated.arrays.op_seconds == pytest.approx(problem.arrays.op_seconds)
    # Alone on the switch a transfer moves half of what its link could.
    assert calibrated.arrays.seconds_per_size[0, 1] == pytest.approx(1 / 6e9, rel=1e-6)


@pytest.mark.parametrize("within", [True, False])
def test_links_within_one_memory_are_probed_with_a_large_block_too(monkeypatch, within):
    problem, moved = problem_with(PROCESSORS, COPIED if within else MEMORY), []

    def noted(system, probe, placements, seconds):
        moved.append(sorted(probe.graph.regions.bytes.tolist()))
        return run_all(system, probe, placements, seconds)

    monkeypatch.setattr(calibration, "run_all", noted)
    calibrate(WorkConserving(), problem, runs=2, rng=np.random.default_rng(0), links=True)
    small = moved[1]
    assert moved[2:] == ([[float(1 << 26)]] if within else [])
    assert max(small) < 1 << 22


def test_a_large_block_is_small_beside_the_memory_of_a_device(monkeypatch):
    problem = problem_with(PROCESSORS, COPIED)
    devices = [replace(one, memory_bytes=float(1 << 30)) for one in problem.cluster.devices]
    problem = build(problem.graph, replace(problem.cluster, devices=tuple(devices)))
    sizes = []
    monkeypatch.setattr(calibration, "link_probe", lambda *of: sizes.append(of) or link_probe(*of))
    calibrate(WorkConserving(), problem, runs=2, rng=np.random.default_rng(0), links=True)
    assert sizes == [(), ((1 << 24,),)]


def test_serial_placements_and_probes_use_one_device_or_link_at_a_time():
    problem = problem_with(MEMORY)
    assert [set(one.device.tolist()) for one in serial_placements(problem, 2)] == [{0}, {1}]
    probe = build(link_probe(), problem.cluster)
    for one in probing_placements(probe, 1, alone=True):
        ends = one.device[probe.graph.edges.src], one.device[probe.graph.edges.dst]
        assert len(set(zip(*(end.tolist() for end in ends), strict=True))) == 1
