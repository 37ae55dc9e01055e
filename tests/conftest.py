"""Settings of all tests, and runs as the command line composes them: small, in tmp_path."""

import io
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hypothesis import settings
from omegaconf import DictConfig
from rich.console import Console

import doppler.experiment.main  # noqa: F401 - adds the choices of extensions to those of conf/
from doppler.experiment import execute

# No test asserts an absolute time: compiling a function for the first time takes seconds.
settings.register_profile("doppler", deadline=None)
settings.load_profile("doppler")

# As in training: threads of torch that wait for each other are slow where anything else computes.
torch.set_num_threads(1)

PROJECT = Path(__file__).resolve().parents[1]

# A run of a second: chainmm of small matrices, few episodes.
SMALL = (
    "budget.imitation_episodes=8",
    "budget.evaluations=100",
    "trainer.checkpoint_every_s=0",
)


@pytest.fixture
def configure(tmp_path):
    """configure(*overrides) -> configuration whose runs lie in tmp_path."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(PROJECT / "conf"), version_base="1.3"):
        yield lambda *overrides: compose("config", [f"output_dir={tmp_path}", *overrides])


@pytest.fixture
def run(configure):
    """run(*overrides) -> (summary, what was printed) of a small run."""

    def go(*overrides: str, compute=None):
        console = Console(record=True, width=160, file=io.StringIO())
        is_chainmm = not any(one.startswith("workload=") for one in overrides)
        small = (*SMALL, "workload.params.n=64") if is_chainmm else SMALL
        cfg: DictConfig = configure(*small, *overrides)
        summary = execute(cfg, list(overrides), console, compute)
        return summary, console.export_text()

    return go
