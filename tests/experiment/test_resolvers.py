"""What a configuration leaves open is settled by what executes."""

import io
import platform
from pathlib import Path

import pytest
from doppler.stages.settling import costs_path, settled
from omegaconf import OmegaConf
from rich.console import Console


def configuration(stage: str, cluster: str, preset: str | None = "auto", executor: str = "Threads"):
    return OmegaConf.create(
        {
            "stage": {"name": stage},
            "cluster": {"name": cluster},
            "workload": {} if preset is None else {"preset": preset},
            "simulator": {"queue": "priority"},
            "executor": {"_target_": f"{__name__}.{executor}", "queue": "fifo"},
            "costs": None,
            "output_dir": "somewhere",
        }
    )


class Threads:
    name = "threads"

    def __init__(self, queue: str) -> None:
        pass


class Gpus(Threads):
    name = "cuda"


@pytest.mark.parametrize(
    ("stage", "cluster", "executor", "expected", "said"),
    [
        ("rl_real", "host", "Threads", "small", True),
        ("calibrate", "mine", "Threads", "small", True),
        ("rl_real", "host", "Gpus", "paper", True),
        ("pipeline", "host", "Threads", "small", True),
        ("pipeline", "host", "Gpus", "paper", False),
        ("pipeline", "p100x4", "Threads", "paper", False),
    ],
)
def test_auto_is_small_where_cpus_execute(stage, cluster, executor, expected, said):
    console = Console(file=io.StringIO())
    cfg = configuration(stage, cluster, executor=executor)
    assert settled(cfg, console).workload.preset == expected
    assert (f"workload.preset: {expected}" in console.file.getvalue()) == said  # type: ignore
    assert cfg.workload.preset == "auto", "what was given is not changed"


@pytest.mark.parametrize("preset", ["paper", "small"])
def test_a_preset_that_was_chosen_stays_and_nothing_is_said(preset):
    console = Console(file=io.StringIO())
    cfg = settled(configuration("rl_real", "host", preset), console)
    assert cfg.workload.preset == preset
    assert console.file.getvalue() == ""  # type: ignore


def test_a_workload_without_presets_stays_without():
    assert settled(configuration("rl_real", "host", None), Console(quiet=True)).workload == {}


@pytest.mark.parametrize(("stage", "queue"), [("rl_real", "fifo"), ("pipeline", "priority")])
def test_a_stage_that_executes_is_simulated_in_the_executors_order(stage, queue):
    assert settled(configuration(stage, "host"), Console(quiet=True)).simulator.queue == queue


def test_costs_are_of_this_host_unless_a_file_is_named():
    cfg = configuration("rl_real", "host")
    assert costs_path(cfg) == Path(f"somewhere/costs/{platform.node()}.json")
    cfg.costs = "mine.json"
    assert costs_path(cfg) == Path("mine.json")
