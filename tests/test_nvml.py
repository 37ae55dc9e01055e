"""GPUs as NVML tells of them, by what it would say on several machines."""

import logging
import os
from types import SimpleNamespace

import made_up_nvml
import pytest
import torch
from made_up_nvml import MadeUpNvml

from doppler.cluster import Cluster, host, this_machine
from doppler.cluster.nvml import MachineFacts, read_machine
from doppler.cluster.this_machine import nvlink_bytes_per_s, shared_links
from doppler.report.cluster_description import describe_cluster
from doppler.report.cluster_picture import save_cluster_picture

MACHINES = [
    made_up_nvml.one_gpu,
    made_up_nvml.pairs_by_nvlink,
    made_up_nvml.eight_by_switches,
    made_up_nvml.four_on_pcie,
    made_up_nvml.shared_out,
]


def facts_of(nvml: MadeUpNvml) -> MachineFacts:
    facts = read_machine(nvml)
    assert facts is not None
    assert not nvml.is_open, "NVML is left open"
    return facts


@pytest.mark.parametrize("machine", MACHINES)
def test_every_machine_is_read_and_told_of(machine):
    nvml = machine()
    facts = facts_of(nvml)
    assert len(facts.gpus) == nvml.num
    assert all(f"GPU {g}: {nvml.name}" in facts.lines()[g] for g in range(nvml.num))
    assert facts.warnings() == []


def test_one_gpu_is_read():
    gpu = facts_of(made_up_nvml.one_gpu()).gpus[0]
    assert (gpu.memory_bytes, gpu.used_bytes, gpu.pcie) == (150e9, 1e9, (5, 16))
    assert (gpu.clock_hz, gpu.max_clock_hz) == (1755e6, 1980e6)
    assert (gpu.power_w, gpu.power_limit_w, gpu.energy_j) == (120.0, 700.0, 0.5)
    assert gpu.pcie_bytes_per_s == pytest.approx(63e9, rel=0.01)
    assert facts_of(made_up_nvml.one_gpu()).lines() == [
        "GPU 0: NVIDIA H200, 150 GB, 1 in use, its memory 4,917 GB/s, PCI Express 5 x16 (63 GB/s), "
        "1755 of 1980 MHz, 120 of 700 W"
    ]


def test_pairs_are_linked_by_nvlink_and_others_by_pcie():
    facts = facts_of(made_up_nvml.pairs_by_nvlink())
    assert facts.nvlinks[0] == (0.0, 300e9, 0.0, 0.0)
    assert facts.levels[0] == ("", "PIX", "SYS", "SYS")
    assert "GPU 0 and 1: NVLink 300 GB/s, PIX" in facts.lines()
    assert "GPU 0 and 2: SYS" in facts.lines()
    assert facts.switch_groups() == [(0, 1), (2, 3)]
    shared = {one.name: one for one in shared_links(4, facts)}
    # Within a pair nothing goes over PCI Express.
    assert shared["out of PCI Express of GPU 0"].links == ((0, 2), (0, 3))
    assert shared["out of the switch of GPUs 0, 1"].links == ((0, 2), (0, 3), (1, 2), (1, 3))
    assert shared["into the switch of GPUs 0, 1"].links == ((2, 0), (2, 1), (3, 0), (3, 1))


def test_behind_nvswitches_every_pair_has_all_links_of_its_gpus():
    facts = facts_of(made_up_nvml.eight_by_switches())
    assert nvlink_bytes_per_s(facts, 0, 7) == 450e9
    shared = shared_links(8, facts)
    assert len(shared) == 16  # out of and into each GPU
    assert all("NVLink of GPU" in one.name and len(one.links) == 7 for one in shared)


def test_devices_that_are_streams_share_the_ports_of_their_gpu():
    facts = facts_of(made_up_nvml.four_on_pcie())
    shared = {one.name: one for one in shared_links(8, facts)}  # 0 and 4 are on GPU 0
    assert len(shared["out of PCI Express of GPU 0"].links) == 2 * 6
    assert not any("NVLink" in name for name in shared)


def test_a_gpu_that_is_shared_out_tells_little():
    facts = facts_of(made_up_nvml.shared_out())
    assert facts.gpus[0].shared_out
    assert facts.gpus[0].memory_bytes is None
    assert facts.lines() == ["GPU 0: NVIDIA A100-SXM4-40GB MIG 3g.20gb, shared out (MIG)"]
    assert shared_links(2, facts) == ()


def test_other_processes_and_throttled_clocks_are_warned_of():
    nvml = made_up_nvml.pairs_by_nvlink(processes={1: [7, 8], 2: [os.getpid()]}, reasons=0x41)
    warnings = facts_of(nvml).warnings()
    assert any(line.startswith("GPU 1: another process computes on it (7, 8)") for line in warnings)
    assert not any("GPU 2: another process" in line for line in warnings)
    assert sum("throttled by temperature (hardware)" in line for line in warnings) == 4


def test_without_a_driver_nothing_is_known_and_a_line_says_why(caplog):
    with caplog.at_level(logging.WARNING):
        assert read_machine(made_up_nvml.one_gpu(starts=False)) is None
    assert "NVML says Driver Not Loaded: the state of the GPUs is unknown" in caplog.text


@pytest.fixture
def host_with(monkeypatch):
    """host_with(nvml, num): the cluster of a machine that answers so, with so many devices."""

    def make(nvml: MadeUpNvml, num_devices: int) -> Cluster:
        total = int((nvml.memory or (20 * 10**9, 0))[0])
        properties = SimpleNamespace(name=nvml.name, total_memory=total)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: nvml.num)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: properties)
        monkeypatch.setattr(this_machine, "read_machine", lambda: read_machine(nvml))
        return host(device_type="cuda", num_devices=num_devices)

    return make


@pytest.mark.parametrize("machine", MACHINES)
def test_every_machine_is_a_cluster_that_is_drawn_and_described(host_with, machine, tmp_path):
    nvml = machine()
    cluster = host_with(nvml, 2 * nvml.num)
    save_cluster_picture(cluster, tmp_path / "cluster.png")
    assert (tmp_path / "cluster.png").stat().st_size > 1000
    lines = describe_cluster(cluster)
    assert any(line.startswith("processors of GPU 0") for line in lines)


def test_the_memory_of_a_gpu_is_as_fast_as_nvml_says_whatever_its_name(host_with):
    cluster = host_with(made_up_nvml.four_on_pcie(), 8)
    assert cluster.devices[0].memory_bytes_per_s == pytest.approx(864e9, rel=1e-3)  # data sheet
    assert cluster.bytes_per_s[0, 4] == cluster.devices[0].memory_bytes_per_s / 2
    memory = {one.name: one.bytes_per_s for one in cluster.shared}["memory of GPU 0"]
    assert memory == cluster.devices[0].memory_bytes_per_s
    silent = host_with(made_up_nvml.four_on_pcie(bus=None), 4)
    assert silent.devices[0].memory_bytes_per_s == 1555e9, "of an A100"


def test_gpus_of_several_kinds_have_their_own_speeds_and_memories(host_with, monkeypatch):
    kinds = [("NVIDIA H100 PCIe", 80 * 10**9), ("Tesla V100-SXM2-16GB", 16 * 10**9)]
    properties = [SimpleNamespace(name=name, total_memory=total) for name, total in kinds]
    host_with(made_up_nvml.one_gpu(starts=False), 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties.__getitem__)
    h100, v100, again = host(device_type="cuda", num_devices=3).devices
    assert (h100.memory_bytes, v100.memory_bytes, again.memory_bytes) == (40e9, 16e9, 40e9)
    assert h100.flop_per_s["f16"] > 5 * v100.flop_per_s["f16"]
    assert h100.memory_bytes_per_s == again.memory_bytes_per_s > v100.memory_bytes_per_s


def test_links_of_the_host_are_as_fast_as_nvml_says(host_with):
    cluster = host_with(made_up_nvml.pairs_by_nvlink(), 4)
    assert cluster.bytes_per_s[0, 1] == 300e9
    assert cluster.bytes_per_s[0, 2] == pytest.approx(0.76 * 16 * 1.969e9)
    assert host_with(made_up_nvml.eight_by_switches(), 8).bytes_per_s[0, 7] == 450e9
    names = [one.name for one in cluster.shared]
    assert "out of the switch of GPUs 0, 1" in names
    assert not any(name.startswith("processors") for name in names), "no two are on one GPU"


def test_without_nvml_the_host_is_guessed_as_before(host_with):
    cluster = host_with(made_up_nvml.four_on_pcie(starts=False), 4)
    assert (cluster.bytes_per_s[0, 1], cluster.shared) == (12e9, ())
