"""What this machine can execute on."""

import os
from types import SimpleNamespace

import pytest
import torch

from doppler.cluster import host
from doppler.einsum import load_program, lower
from doppler.executor import Cuda, Threads, automatic, host_device_type, num_host_devices
from doppler.problem import build
from doppler.support.errors import InputError

AUTO, THREADS, CUDA = (f"doppler.executor.{name}" for name in ("automatic", "Threads", "Cuda"))


@pytest.fixture
def gpus(monkeypatch):
    """gpus(sizes, kind=name): from now on torch reports GPUs of so many bytes."""

    def report(*sizes: int, kind: str = "NVIDIA A100-SXM4-40GB") -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: len(sizes) > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(sizes))
        monkeypatch.setattr(
            torch.cuda,
            "get_device_properties",
            lambda i: SimpleNamespace(name=kind, total_memory=sizes[i]),
        )

    return report


def test_the_host_has_a_device_per_core_and_at_least_two(monkeypatch, gpus):
    gpus()
    assert num_host_devices(AUTO) == max(2, len(os.sched_getaffinity(0)))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 4})
    assert num_host_devices(AUTO) == num_host_devices(THREADS) == 5
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert num_host_devices(AUTO) == 2


def test_gpus_are_the_devices_of_the_host_unless_threads_are_asked_for(monkeypatch, gpus):
    gpus(10, 10, 10)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert [host_device_type(one) for one in (AUTO, CUDA, THREADS)] == ["cuda", "cuda", "cpu"]
    assert [num_host_devices(one) for one in (AUTO, CUDA, THREADS)] == [3, 3, 2]
    gpus()
    assert [host_device_type(one) for one in (AUTO, CUDA, THREADS)] == ["cpu", "cuda", "cpu"]
    assert num_host_devices(CUDA) == 1


def test_agents_may_have_gpus(monkeypatch):
    hosts = "doppler.executor.Hosts"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert (host_device_type(hosts), host_device_type(hosts, "gpus")) == ("cpu", "cuda")
    assert num_host_devices(hosts, "gpus") == 3
    assert num_host_devices(hosts, "cores") == num_host_devices(THREADS)


def test_the_devices_of_the_host_share_its_memory():
    one, four = host(num_devices=1), host(num_devices=4)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert one.devices[0].memory_bytes == total
    assert sum(device.memory_bytes for device in four.devices) == total
    assert [device.name for device in four.devices] == ["cpu:0", "cpu:1", "cpu:2", "cpu:3"]
    with pytest.raises(
        InputError, match=r"host\.num_devices: must be a whole number of at least 1, got 0"
    ):
        host(num_devices=0)


def test_devices_of_one_gpu_share_its_memory(gpus):
    gpus(80, 60)
    assert [d.memory_bytes for d in host(device_type="cuda", num_devices=2).devices] == [80, 60]
    shared = host(device_type="cuda", num_devices=5)
    assert [d.memory_bytes for d in shared.devices] == [80 / 3, 30, 80 / 3, 30, 80 / 3]
    assert shared.devices[3].name == "cuda:3"
    gpus()
    with pytest.raises(InputError, match="cluster 'host': there is no GPU"):
        host(device_type="cuda", num_devices=1)
    with pytest.raises(InputError, match=r"host\.device_type: must be one of cpu, cuda, got 'gpu'"):
        host(device_type="gpu", num_devices=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "bytes_per_s"),
    [
        ("Tesla V100-SXM2-16GB", 900e9),
        ("NVIDIA H100 80GB HBM3", 3350e9),
        ("NVIDIA H200", 4800e9),
        ("NVIDIA of a later year", 1555e9),
    ],
)
def test_a_gpu_is_as_fast_as_one_of_its_name(gpus, kind, bytes_per_s):
    gpus(80, 80, kind=kind)
    four = host(device_type="cuda", num_devices=4)
    assert {device.memory_bytes_per_s for device in four.devices} == {bytes_per_s}
    within, between = four.bytes_per_s[0, 2], four.bytes_per_s[0, 1]
    assert (within, between) == (bytes_per_s / 2, 12e9)


def test_auto_picks_gpus_where_there_are_any_and_passes_its_settings_on(gpus):
    settings = {"queue": "fifo", "verify": True, "timeout_s": 7.0, "warm_up": 1}
    gpus(10)
    assert automatic(**settings) == Cuda(**settings)
    gpus()
    assert automatic(**settings) == Threads(**settings)
    assert (automatic().name, Cuda().name) == ("threads", "cuda")


def test_without_a_gpu_cuda_says_so_in_one_line(gpus):
    gpus()
    program = load_program("workloads/cholesky.einsum", preset="small")
    problem = build(lower(program, program.given_splits), host(num_devices=2))
    with pytest.raises(InputError) as error:
        Cuda().open(problem)
    assert str(error.value) == "system=cuda: there is no GPU; system=threads runs on the CPU"
