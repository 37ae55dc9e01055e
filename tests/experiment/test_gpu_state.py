"""What runs say of GPUs before they measure on them."""

from types import SimpleNamespace

import made_up_nvml
import pytest

from doppler.cluster.nvml import read_machine
from doppler.executor import Cuda, Threads
from doppler.experiment import gpu_state


@pytest.fixture
def throttled(monkeypatch):
    nvml = made_up_nvml.one_gpu(processes={0: [7]}, reasons=0x4)
    monkeypatch.setattr(gpu_state, "read_machine", lambda: read_machine(nvml))


def run_on(system) -> tuple[SimpleNamespace, list[str]]:
    said: list[str] = []
    return SimpleNamespace(spec=SimpleNamespace(system=system), say=said.append), said


def test_a_run_on_gpus_warns_of_others_and_of_throttled_clocks(throttled):
    run, said = run_on(Cuda())
    gpu_state.warn_of_gpus(run)
    assert len(said) == 2
    assert said[0].startswith("warning: GPU 0: another process computes on it (7)")
    assert said[1].startswith("warning: GPU 0: clocks are throttled by power cap")


def test_a_run_on_cores_does_not_ask_gpus(throttled):
    run, said = run_on(Threads())
    gpu_state.warn_of_gpus(run)
    assert said == []


def test_only_a_host_of_gpus_is_described_by_them(throttled):
    of_gpus, of_cores = (
        SimpleNamespace(cfg=SimpleNamespace(cluster={"device_type": kind}))
        for kind in ("cuda", "cpu")
    )
    lines = gpu_state.gpu_lines(of_gpus)
    assert lines[0] == "GPUs (NVML):"
    assert any("NVIDIA H200" in line for line in lines)
    assert any("throttled" in line for line in lines)
    assert gpu_state.gpu_lines(of_cores) == []
