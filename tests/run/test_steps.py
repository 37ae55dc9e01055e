"""What a run needs first, and where it finds it again; what a run leaves as it is."""

from copy import deepcopy
from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf
from rich.console import Console

from doppler.experiment import Stage, execute
from doppler.experiment import run as run_module
from doppler.experiment.run import make_run
from doppler.support.errors import InputError

PROJECT = Path(__file__).resolve().parents[2]
QUIET = Console(quiet=True)
SMALL = ("workload.params.n=64", "budget.imitation_episodes=16", "budget.evaluations=60")
# A simulator stands for the machine.
STAND_IN = ("system._target_=doppler.simulator.WorkConserving", "+system.contention=none")
REAL = (
    *("stage=rl_real", *STAND_IN, *SMALL, "budget.measured_evaluations=40", "baseline=[]"),
    *("stage.choosing=2", "stage.repeats=2", "stage.calibration.runs=2"),
    *("stage.calibration.seconds=0", "stage.calibration.placements=6"),
    "stage.calibration.repeats=2",
)


def folders(root: Path) -> set[str]:
    """Stages of the runs below."""
    return {path.parent.relative_to(root).parts[0] for path in root.rglob("summary.json")}


def needed(text: str) -> list[str]:
    """Stages that a run says it needs first."""
    lines = [line for line in text.splitlines() if " is needed first" in line]
    return [line.split()[0].removeprefix("stage=") for line in lines]


@pytest.mark.parametrize("overrides", [("stage=train", *SMALL), REAL])
def test_a_run_executes_once_and_changes_no_configuration(overrides, configure, monkeypatch):
    cfg, entered = configure(*overrides), []
    before, resolved = deepcopy(cfg), OmegaConf.to_yaml(cfg, resolve=True)

    def spied(*arguments):
        entered.append(arguments)
        return execute(*arguments)

    monkeypatch.setattr(run_module, "execute", spied)
    summary = run_module.execute(cfg, [], QUIET)
    assert summary["stage"] == instantiate(cfg.stage).name
    assert len(entered) == 1, "runs that are needed are in a row, not one in the other"
    assert cfg == before
    assert OmegaConf.to_yaml(cfg, resolve=True) == resolved


def test_a_run_of_three_stages_makes_what_it_needs_once(run, tmp_path):
    _, text = run(*REAL)
    assert needed(text) == ["calibrate"]
    assert folders(tmp_path) == {"calibrate", "rl_real"}
    (directory,) = tmp_path.glob("rl_real/*/*/*/*")
    assert (directory / "imitation/checkpoints/last.ckpt").exists()
    assert (directory / "rl_sim/checkpoints/last.ckpt").exists()
    _, text = run(*REAL)
    assert needed(text) == [] and "finished already" in text
    _, text = run(*REAL, "stage.repeats=3", "budget.measured_evaluations=50")
    assert needed(text) == [], "neither is a matter of calibration"


def test_a_step_has_the_problem_of_the_run_that_needs_it(configure):
    # Stage II by itself would have matrices of 10,000 on this cluster, stage III has small ones.
    cfg = configure("stage=rl_real", "cluster=p100x4", "costs=none.json")
    run = make_run(cfg, QUIET)
    step = run.step({"_target_": "doppler.experiment.Evaluate"}, costs=None)
    assert step.spec.cfg.workload.preset == cfg.workload.preset == "small"
    small = configure("stage=evaluate", "cluster=p100x4", "workload.preset=small")
    assert step.spec.problem.hash == make_run(small, QUIET).spec.problem.hash
    paper = configure("stage=evaluate", "cluster=p100x4")
    assert step.spec.problem.hash != make_run(paper, QUIET).spec.problem.hash


def test_a_step_lies_in_a_directory_of_its_own_and_overwrites_nothing(configure, tmp_path):
    run = make_run(configure(*REAL, "overwrite=true"), QUIET)
    (step,) = run.stage.needed(run)
    assert step.directory.path.is_relative_to(tmp_path / "calibrate")
    assert step.is_step and not step.spec.cfg.overwrite


# --- Stages and loggers by their names ------------------------------------------------------------


@pytest.mark.parametrize("name", [file.stem for file in (PROJECT / "conf/stage").glob("*.yaml")])
def test_every_stage_is_what_its_file_names(name, configure):
    overrides = ["stage.init_from=pretrained"] if name == "inference" else []
    stage = instantiate(configure(f"stage={name}", *overrides).stage)
    assert isinstance(stage, Stage)
    assert stage.name == name, "its runs lie where its file says"


def test_keys_that_a_stage_does_not_use_are_in_its_configuration(configure):
    for file in (PROJECT / "conf/stage").glob("*.yaml"):
        overrides = ["stage.init_from=pretrained"] if file.stem == "inference" else []
        cfg = configure(f"stage={file.stem}", "++compute.workers=1", *overrides)
        for key in instantiate(cfg.stage).unused:
            assert OmegaConf.select(cfg, key, default="none") != "none", (file.stem, key)


def test_a_training_set_names_problems_and_held_out_ones(configure):
    for file in (PROJECT / "conf/training_set").glob("*.yaml"):
        cfg = configure("stage=rl_sim", f"training_set={file.stem}")
        stage = instantiate(cfg.stage)
        assert stage.problems and stage.held_out and stage.updates > 0
        assert not set(stage.problems) & set(stage.held_out)
        assert instantiate(cfg.algorithm.reinforcement).batch_problems > 1


def test_a_stage_is_a_stage(configure):
    with pytest.raises(InputError, match=r"^stage\._target_: 'doppler\.baselines\.HEFT' is no"):
        make_run(
            configure(
                "stage=describe", "stage._target_=doppler.baselines.HEFT", "+stage.evaluations=1"
            ),
            QUIET,
        )
