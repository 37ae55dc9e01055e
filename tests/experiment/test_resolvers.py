"""What a configuration leaves open is resolved by what executes."""

import platform
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import instantiate
from omegaconf import DictConfig

from doppler.executor import systems
from doppler.experiment.calibrate import costs_path
from doppler.support.resources import resource


@pytest.fixture
def configure():
    """configure(*overrides) -> configuration."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(resource("conf")), version_base="1.3"):
        yield lambda *overrides: compose("config", list(overrides))


@pytest.mark.parametrize(
    ("stage", "cluster", "executor", "expected"),
    [
        ("rl_real", "host", "threads", "small"),
        ("calibrate", "mixed", "threads", "small"),
        ("rl_real", "host", "cuda", "paper"),
        ("pipeline", "host", "threads", "small"),
        ("pipeline", "host", "cuda", "paper"),
        ("pipeline", "p100x4", "threads", "paper"),
        ("evaluate", "p100x4", "threads", "paper"),
    ],
)
def test_a_workload_is_small_where_cpus_execute_it(configure, stage, cluster, executor, expected):
    chosen = (f"stage={stage}", f"cluster={cluster}", f"executor={executor}")
    assert configure(*chosen).workload.preset == expected
    assert configure(*chosen, "workload=llama_block").workload.preset == expected


@pytest.mark.parametrize("preset", ["paper", "small"])
def test_a_preset_that_was_chosen_stays(configure, preset):
    assert configure("stage=rl_real", f"workload.preset={preset}").workload.preset == preset


def test_a_workload_without_presets_stays_without(configure):
    assert "preset" not in configure("stage=rl_real", "workload=synthetic").workload


@pytest.mark.parametrize("has_gpu", [False, True])
def test_the_automatic_executor_is_cuda_where_there_is_a_gpu(configure, monkeypatch, has_gpu):
    monkeypatch.setattr(systems.torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(systems.torch.cuda, "device_count", lambda: 3 * has_gpu)
    cfg = configure("stage=rl_real")
    assert cfg.executor._target_ == "doppler.executor.automatic"
    assert cfg.workload.preset == ("paper" if has_gpu else "small")
    assert cfg.cluster.device_type == ("cuda" if has_gpu else "cpu")
    assert cfg.cluster.num_devices == 3 if has_gpu else cfg.cluster.num_devices >= 2


@pytest.mark.parametrize(
    ("stage", "queue"), [("rl_real", "fifo"), ("calibrate", "fifo"), ("pipeline", "priority")]
)
def test_a_stage_that_executes_is_simulated_in_the_executors_order(configure, stage, queue):
    cfg = configure(f"stage={stage}", "executor.queue=fifo")
    assert instantiate(cfg.simulator).queue == queue


def test_the_simulator_of_a_stage_that_executes_may_have_an_order_of_its_own(configure):
    cfg = configure("stage=rl_real", "executor.queue=fifo", "simulator.queue=strict")
    assert instantiate(cfg.simulator).queue == "strict"


def test_costs_are_of_this_host_unless_a_file_is_named():
    cfg = DictConfig({"costs": None, "output_dir": "somewhere", "executor": {}})
    assert costs_path(cfg) == Path(f"somewhere/costs/{platform.node()}.json")
    cfg.costs = "mine.json"
    assert costs_path(cfg) == Path("mine.json")
