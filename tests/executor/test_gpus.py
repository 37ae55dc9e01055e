"""GPUs as devices: their logic with a torch.cuda that is made up; on real ones where there are."""

import logging
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from executions import WORKLOADS, check_runs, check_too_little_memory, graph, ordered_placement

from doppler.cluster import host
from doppler.cluster.this_machine import shared_by_streams
from doppler.executor import Cuda, SynchronousCuda, bandwidth, demands, gpus
from doppler.executor.devices import Cores
from doppler.executor.gpus import Gpus
from doppler.problem import build
from doppler.problem.costs import kernel_key
from doppler.support.errors import InputError
from doppler.trace import check


class Stream:
    """Remembers what is done on it, and that somebody waits for the end of it."""

    current: list["Stream"] = []  # noqa: RUF012

    def __init__(self, device: str) -> None:
        self.device, self.num_waits, self.num_uses = device, 0, 0

    def synchronize(self) -> None:
        assert self not in Stream.current, "it waits for what is not issued yet"
        self.num_waits += 1


@contextmanager
def use(stream: Stream):
    stream.num_uses += 1
    Stream.current.append(stream)
    yield
    Stream.current.remove(stream)


@pytest.fixture
def made_up(monkeypatch):
    """made_up(num): from now on torch has so many GPUs, whose memory is the host's."""

    def make(num: int) -> None:
        gpus._stream.cache_clear()
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: num)
        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "stream", use)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda place: None)
        properties = SimpleNamespace(total_memory=1 << 40)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda place: properties)
        monkeypatch.setattr(gpus, "TEST_BYTES", 1000)
        monkeypatch.setattr(gpus, "_on_host", torch.empty_like)
        real = Gpus.place
        monkeypatch.setattr(Gpus, "place", lambda self, d: real(self, d) and "cpu")

    return make


@pytest.mark.parametrize("num_gpus", [1, 2, 4])
def test_a_problem_runs_on_any_number_of_gpus(made_up, num_gpus):
    made_up(num_gpus)
    problem = build(graph("cholesky"), host(num_devices=4))
    with Cuda(verify=True).open(problem) as session:
        for seed in range(3):
            check(session.trace(ordered_placement(problem, seed)))


def test_devices_are_dealt_out_to_gpus(monkeypatch):
    gpus._stream.cache_clear()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(Gpus, "_test_copies", lambda self: None)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda place: SimpleNamespace(total_memory=90.0)
    )
    four, one = Gpus(4), Gpus(1)
    assert [four.place(d) for d in range(4)] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
    assert four.locks == ["cuda-0", "cuda-1"]
    assert one.locks == ["cuda-0"]
    assert [four.room_bytes(d) for d in range(4)] == [45.0] * 4
    assert one.room_bytes(0) == 90.0
    assert len({id(stream) for stream in four._streams}) == 4


def test_an_action_is_issued_on_the_stream_of_its_device_and_waited_for(made_up):
    made_up(1)
    devices, seen = Gpus(2), []
    action = devices.computing(1, lambda: seen.append(Stream.current[-1]))
    action()
    stream = devices._streams[1]
    assert seen == [stream]
    assert (stream.num_uses, stream.num_waits) == (1, 1)
    assert devices._streams[0].num_uses == 0


def test_a_channel_has_streams_of_its_own_on_both_sides(made_up):
    made_up(2)
    devices = Gpus(3)
    here, there = torch.ones(3), torch.zeros(3)
    channels = [devices.copying(*pair, here, there) for pair in ((0, 1), (1, 0), (0, 2))]
    streams = [stream for copy in channels for part in copy.parts for stream in part.streams]
    assert [len(copy.parts[0].streams) for copy in channels] == [2, 2, 1], "0 and 2 share a GPU"
    assert len({id(stream) for stream in [*streams, *devices._streams]}) == 2 + 2 + 1 + 3
    into, out = streams[:2]
    before = [(stream.num_uses, stream.num_waits) for stream in (out, into)]
    devices.copying(0, 1, here, there)()
    assert there.tolist() == [1, 1, 1]
    after = [(stream.num_uses, stream.num_waits) for stream in (out, into)]
    assert after == [(uses + 1, waits + 1) for uses, waits in before]


def test_sessions_have_the_same_streams_one_after_another(made_up):
    made_up(2)
    pairs = [(src, dst) for src in range(4) for dst in range(4) if src != dst]

    def streams() -> list[Stream]:
        devices, x = Gpus(4), torch.zeros(1)
        ends = [s for pair in pairs for s in devices.copying(*pair, x, x).parts[0].streams]
        return [*devices._streams, *ends]

    first, second = streams(), streams()
    assert [id(stream) for stream in first] == [id(stream) for stream in second]
    assert len({id(stream) for stream in first}) == len(first)
    # Of one GPU torch has 32.
    assert max(sum(s.device == gpu for s in first) for gpu in {s.device for s in first}) <= 32


class Damaged(Gpus):
    """Direct copies from 0 to 1 lose a byte; others are right."""

    def copying(self, src, dst, here, there):
        copy = super().copying(src, dst, here, there)
        if (src, dst) in self._through_host or (src, dst) != (0, 1):
            return copy

        def damage() -> None:
            copy()
            there[-1] += 1

        return damage


def test_pairs_whose_copies_arrive_damaged_go_through_the_host(made_up, caplog):
    made_up(2)
    with caplog.at_level(logging.WARNING):
        devices = Damaged(2)
    assert devices._through_host == {(0, 1)}
    (message,) = caplog.messages
    assert message == (
        "direct copies from cpu to cpu arrive damaged: they go through the memory of the host"
    )
    for pair in ((0, 1), (1, 0)):
        here, there = torch.rand(50), torch.zeros(50)
        devices.copying(*pair, here, there)()
        assert torch.equal(here, there)


def test_bandwidths_are_of_the_fastest_copy_of_each_pair(made_up, monkeypatch):
    made_up(2)
    copied, now_s, devices = [], [0.0], Gpus(2)
    seconds_of = {(0, 1): iter([5.0, 4.0, 2.0, 4.0, 8.0]), (1, 0): iter([1.0, 3.0, 3.0, 3.0, 3.0])}

    def copying(src, dst, here, there):
        def copy() -> None:
            assert torch.get_num_threads() == 1, "as in the executor's workers"
            now_s[0] += next(seconds_of[src, dst])
            copied.append((src, dst, len(here), len(there)))

        return copy

    monkeypatch.setattr(devices, "copying", copying)
    monkeypatch.setattr(bandwidth.time, "perf_counter", lambda: now_s[0])
    torch.set_num_threads(2)
    rate_DD = bandwidth.bandwidths(devices, 100)
    assert torch.get_num_threads() == 2
    np.testing.assert_array_equal(rate_DD, [[np.nan, 50.0], [100.0, np.nan]])
    assert copied == [(0, 1, 100, 100)] * 5 + [(1, 0, 100, 100)] * 5


def test_cores_copy_at_some_rate():
    rate_DD = bandwidth.bandwidths(Cores(3), 1 << 20)
    assert np.isnan(rate_DD.diagonal()).all()
    assert (rate_DD[~np.eye(3, dtype=bool)] > 1e6).all()


@pytest.mark.parametrize(
    ("place", "total", "expected"),
    [("cpu", 0, 1 << 26), ("cuda:0", 80 << 30, 1 << 30), ("cuda:0", 8 << 30, 1 << 27)],
)
def test_the_block_that_is_copied_fits_the_kind_of_device(monkeypatch, place, total, expected):
    properties = SimpleNamespace(total_memory=total)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda place: properties)
    assert bandwidth.block_bytes(place) == expected


def test_a_pair_that_no_way_connects_is_named(made_up, monkeypatch):
    made_up(2)
    monkeypatch.setattr(Gpus, "_arrives", lambda self, src, dst: (src, dst) != (1, 0))
    with pytest.raises(InputError, match=r"system=cuda: copies from .* arrive damaged, also"):
        Gpus(2)


def test_the_synchronous_system_runs_on_gpus_too(made_up):
    made_up(2)
    problem = build(graph("ffnn"), host(num_devices=4))
    with SynchronousCuda(verify=True).open(problem) as session:
        trace = session.trace(ordered_placement(problem, 0))
        check(trace)
        assert session.execution.barriers


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_neither_system_opens():
    problem = build(graph("ffnn"), host(num_devices=2))
    for system in (Cuda(), SynchronousCuda()):
        with pytest.raises(InputError, match="system=cuda: there is no GPU"):
            system.open(problem)


def test_the_use_of_gpus_is_read_after_a_while_of_executing(made_up, monkeypatch):
    made_up(2)
    problem, executed = build(graph("ffnn"), host(num_devices=2)), []
    with Cuda().open(problem) as session:
        execute = session._execute
        monkeypatch.setattr(session, "_execute", lambda *p: executed.append(1) or execute(*p))
        monkeypatch.setattr(
            torch.cuda, "utilization", lambda gpu: min(len(executed), 50) * (1 + gpu)
        )
        monkeypatch.setattr(torch.cuda, "device_memory_used", lambda gpu: 1000 * (1 + gpu))
        before = session.evaluations
        found = session.use(ordered_placement(problem, 0), 0.2)
        assert session.evaluations == before
    busy = min(len(executed), 50) / 100
    assert busy > 0
    assert [one[:3] for one in found] == [("cuda:0", busy, 1000.0), ("cuda:1", 2 * busy, 2000.0)]


def test_energy_is_told_of_one_execution(made_up, monkeypatch):
    made_up(1)
    problem, executed = build(graph("ffnn"), host(num_devices=2)), []
    monkeypatch.setattr(torch.cuda, "utilization", lambda gpu: 50)
    monkeypatch.setattr(torch.cuda, "device_memory_used", lambda gpu: 1000)
    facts = lambda: SimpleNamespace(gpus=[SimpleNamespace(energy_j=7.0 + 3 * len(executed))])  # noqa: E731
    monkeypatch.setattr(gpus, "read_machine", facts)
    with Cuda().open(problem) as session:
        execute = session._execute
        monkeypatch.setattr(session, "_execute", lambda *p: executed.append(1) or execute(*p))
        (found,) = session.use(ordered_placement(problem, 0), 0.05)
    assert found.energy_j == pytest.approx(3.0)


def test_demands_are_measured_where_nothing_can_be_captured(made_up, monkeypatch):
    made_up(1)

    def refuse() -> None:
        raise RuntimeError("no graphs here")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", refuse)
    monkeypatch.setattr(demands, "_SHORTEST_S", 0.0)
    monkeypatch.setattr(demands, "_BLOCK", 1 << 16)
    monkeypatch.setattr(demands, "_ROWS", 64)
    machine = host(device_type="cpu", num_devices=2)
    shared = shared_by_streams(2, [machine.devices[0]])
    problem = build(graph("ffnn"), replace(machine, shared=shared))
    found = demands.measure_demands(Gpus(2), problem, window_s=1e-3)
    assert set(found) == {kernel_key(kernel) for kernel in problem.graph.ops.kernels}
    assert all(((shares >= 0) & (shares <= 1)).all() for shares in found.values())


class NvmlError(Exception):
    """Of NVML, where a GPU is shared out."""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ModuleNotFoundError("pynvml"), "nvidia-ml-py is not installed"),
        (NvmlError("Not Supported\nsee above"), "NVML says Not Supported"),
        (NvmlError(), "NVML says NvmlError"),
    ],
)
def test_without_nvml_nothing_is_known_of_the_use_of_gpus(
    made_up, monkeypatch, caplog, error, reason
):
    made_up(2)

    def fail(gpu: int) -> int:
        raise error

    monkeypatch.setattr(torch.cuda, "utilization", fail)
    with caplog.at_level(logging.WARNING):
        assert Gpus(2).use() == []
    assert caplog.messages == [f"{reason}: the use of the GPUs is unknown"]


# --- On real GPUs ---------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("name", WORKLOADS)
def test_results_and_traces_are_right_on_four_virtual_devices(name):
    check_runs(name, 4, Cuda(), range(50), factor=10)  # sums in another order


@pytest.mark.gpu
def test_what_does_not_fit_into_a_gpu_is_named():
    check_too_little_memory(Cuda())


@pytest.mark.gpu
def test_two_streams_of_a_gpu_measure():
    problem = build(graph("ffnn"), host(device_type="cuda", num_devices=2))
    with Cuda(verify=True).open(problem) as session:
        device_BV = np.random.default_rng(0).integers(2, size=(3, problem.num_ops))
        assert session.measure(device_BV, repeats=3).feasible.all()
