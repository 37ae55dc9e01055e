"""What a run needs first, and where it finds it again; what a run leaves as it is."""

import shutil
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
STAND_IN = ("executor._target_=doppler.simulator.WorkConserving", "+executor.contention=none")
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


def leaves(node: object) -> int:
    """Settings of a configuration; keys with an underscore are Hydra's."""
    if isinstance(node, dict):
        return sum(leaves(v) for key, v in node.items() if not str(key).startswith("_"))
    if isinstance(node, list) and any(isinstance(each, dict | list) for each in node):
        return sum(map(leaves, node))
    return 1


def test_a_default_run_has_sixty_settings_at_most(configure):
    assert leaves(OmegaConf.to_container(configure(), resolve=True)) <= 60


@pytest.mark.parametrize("overrides", [("stage=pipeline", *SMALL), REAL])
def test_a_run_executes_once_and_changes_no_configuration(overrides, configure, monkeypatch):
    cfg, entered = configure(*overrides), []
    before, resolved = deepcopy(cfg), OmegaConf.to_yaml(cfg, resolve=True)

    def spied(*arguments):
        entered.append(arguments)
        return execute(*arguments)

    monkeypatch.setattr(run_module, "execute", spied)
    summary = run_module.execute(cfg, [], QUIET)
    assert summary["stage"] == cfg.stage._target_.rpartition(".")[2].lower().replace(
        "stagethree", "rl_real"
    )
    assert len(entered) == 1, "runs that are needed are in a row, not one in the other"
    assert cfg == before
    assert OmegaConf.to_yaml(cfg, resolve=True) == resolved


def test_a_run_of_three_stages_makes_what_it_needs_once(run, tmp_path):
    _, text = run(*REAL)
    assert needed(text) == ["calibrate", "rl_sim", "imitation"]
    assert "workload.preset: small" in text, "CPUs execute"
    assert folders(tmp_path) == {"calibrate", "rl_sim", "imitation", "rl_real"}
    _, text = run(*REAL)
    assert needed(text) == [] and "finished already" in text
    _, text = run(*REAL, "stage.repeats=3", "budget.measured_evaluations=50")
    assert needed(text) == [], "neither is a matter of stage II"
    shutil.rmtree(tmp_path / "imitation")
    _, text = run(*REAL, "stage.repeats=4")
    assert needed(text) == [], "what is finished needs nothing any more"
    shutil.rmtree(tmp_path / "rl_sim")
    _, text = run(*REAL)
    assert needed(text) == []
    _, text = run(*REAL, "stage.repeats=5")
    assert needed(text) == ["rl_sim", "imitation"]


def test_what_is_needed_is_found_where_it_was_asked_for_by_itself(run, configure, tmp_path):
    first, _ = run("stage=imitation", *SMALL)
    second, text = run("stage=rl_sim", *SMALL)
    assert needed(text) == []
    assert first["seed"] == second["seed"] == 0
    path = Path(second["init_from"])
    assert path.is_relative_to(tmp_path / "imitation") and path.name == "last.ckpt"
    _, text = run("stage=pipeline", *SMALL, "baseline=[single_device]", "search.anneal.hot=0.1")
    assert needed(text) == [], "stage I has no baselines and no search"
    changes = (
        "algorithm.imitation.entropy=0.1",
        "policy.build.plc_hidden=8",
        "workload.params.n=128",
    )
    for change in (*changes, "simulator.contention=none", "trainer.gradient_clip_val=0.5"):
        step = make_run(configure("stage=rl_sim", *SMALL, change), QUIET)
        (imitation,) = step.stage.needed(step)
        assert not imitation.is_finished, change


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
    cfg = configure("stage=pipeline", f"run_dir={tmp_path}/mine", "overwrite=true", *SMALL)
    run = make_run(cfg, QUIET)
    (step,) = run.stage.needed(run)
    assert run.directory.path == tmp_path / "mine"
    assert step.directory.path.is_relative_to(tmp_path / "imitation")
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
