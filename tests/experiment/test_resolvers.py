"""What a configuration leaves open is resolved by what executes."""

import platform
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from doppler.api.clusters import simulator_of
from doppler.executor import systems
from doppler.experiment.calibrate import costs_path
from doppler.experiment.specification import Specification
from doppler.simulator import WorkConserving
from doppler.support.resources import resource
from doppler.system import Refuse


@pytest.fixture
def configure():
    """configure(*overrides) -> configuration."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(resource("conf")), version_base="1.3"):
        yield lambda *overrides: compose("config", list(overrides))


@pytest.mark.parametrize(
    ("stage", "cluster", "system", "expected"),
    [
        ("rl_real", "host", "threads", "small"),
        ("calibrate", "mixed", "threads", "small"),
        ("rl_real", "host", "cuda", "paper"),
        ("train", "host", "threads", "small"),
        ("train", "host", "cuda", "paper"),
        ("train", "p100x4", "threads", "small"),
        ("train", "p100x4", "work_conserving", "paper"),
        ("evaluate", "host", "published", "small"),
    ],
)
def test_a_workload_is_small_where_cpus_execute_it(configure, stage, cluster, system, expected):
    chosen = (f"stage={stage}", f"cluster={cluster}", f"system={system}")
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
    assert cfg.system._target_ == "doppler.executor.automatic"
    assert cfg.workload.preset == ("paper" if has_gpu else "small")
    assert cfg.cluster.device_type == ("cuda" if has_gpu else "cpu")
    assert cfg.cluster.num_devices == 3 if has_gpu else cfg.cluster.num_devices >= 2


def test_what_is_executed_is_simulated_in_the_systems_order_and_with_its_transfers(configure):
    spec = Specification(configure("stage=rl_real", "system=threads", "system.queue=fifo"))
    assert spec.is_measured and not isinstance(spec.system, WorkConserving)
    assert (spec.simulator.queue, spec.simulator.contention) == ("fifo", "sender")
    simulated = Specification(configure("system=published"))
    assert simulated.simulator is simulated.system and not simulated.is_measured


def test_a_machine_that_shares_is_simulated_so(configure):
    shared = "+cluster.shared=[{name: memory, bytes_per_s: 1e9, devices: all}]"
    spec = Specification(configure("stage=rl_real", "system=threads", shared))
    assert spec.simulator.contention == "shared"
    with spec.simulator.open(spec.problem) as session:
        assert (session.execution.contention, session.execution.shared) == ("sender", True)
    assert simulator_of(spec.problem.cluster, Refuse()).contention == "shared"


def test_methods_have_the_budget_of_their_system(configure):
    few = ("baseline=[annealing,etf]", "baseline.etf.evaluations=3")
    for system, expected in (("work_conserving", 8000), ("threads", 2000)):
        spec = Specification(configure(*few, f"system={system}"))
        assert spec.evaluations == spec.baselines["annealing"].evaluations == expected
        assert spec.baselines["etf"].evaluations == 3, "it has one of its own"


def test_costs_are_of_this_host_unless_a_file_is_named():
    system = {"_target_": "doppler.executor.Threads"}
    cfg = DictConfig({"costs": None, "output_dir": "somewhere", "system": system})
    assert costs_path(cfg) == Path(f"somewhere/costs/{platform.node()}.json")
    cfg.costs = "mine.json"
    assert costs_path(cfg) == Path("mine.json")


def test_costs_of_a_simulator_have_a_file_of_their_own(configure):
    paths = [
        costs_path(configure("stage=calibrate", "cluster=host", f"system={system}")).name
        for system in ("threads", "work_conserving", "published")
    ]
    host = platform.node()
    assert paths == [f"{host}.json", f"{host}-work_conserving.json", f"{host}-published.json"]


def test_costs_of_ops_that_a_gpu_gets_together_have_a_file_of_their_own(configure, monkeypatch):
    def name(num_gpus: int, *settings: str) -> str:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
        system = ("system=cuda", "cluster=p100x4", *settings)
        return costs_path(configure("stage=calibrate", *system)).name

    host = platform.node()
    assert name(1) == f"{host}.json"
    assert name(1, "system.queue=strict") == f"{host}-graphs.json"
    assert name(2, "system.queue=strict") == f"{host}-ahead.json"
    assert name(1, "system.queue=strict", "system.graphs=false") == f"{host}-ahead.json"


@pytest.mark.parametrize(("evaluations", "of_teacher"), [(1001, 500), (2, 1), (1, 1)])
def test_a_search_teaches_with_half_of_the_evaluations(configure, evaluations, of_teacher):
    cfg = configure("method=learning_alone_from_search", f"budget.evaluations={evaluations}")
    assert cfg.stage.teacher.evaluations == of_teacher
