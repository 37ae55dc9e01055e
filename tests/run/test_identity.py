"""What makes two runs one, so that the second finds the results of the first; what is refused."""

import pytest
from problems import random_problem
from rich.console import Console

from doppler.experiment.run import make_run
from doppler.graph import save_json
from doppler.support.errors import InputError

QUIET = Console(quiet=True)


@pytest.fixture
def path_of(configure):
    """Directory of the run of a configuration."""
    return lambda *overrides: make_run(configure(*overrides), QUIET).directory.path


@pytest.mark.parametrize(
    ("system", "option"),
    [
        ("work_conserving", "budget.evaluations"),
        ("threads", "budget.measured_evaluations"),
    ],
)
def test_searches_with_another_budget_are_another_run(path_of, system, option):
    start = ("stage=evaluate", "cluster=host", f"system={system}", "baseline=[annealing]")
    assert path_of(*start, f"{option}=17") != path_of(*start)


def test_a_simulated_search_has_no_measured_budget(path_of):
    start = ("stage=evaluate", "baseline=[annealing]")
    assert path_of(*start, "budget.measured_evaluations=17") == path_of(*start)


@pytest.mark.parametrize("stage", ["train", "rl_sim"])
def test_a_teacher_counts_only_where_stage_one_runs(path_of, stage):
    teacher = "baseline@stage.teacher=etf"
    assert path_of(f"stage={stage}", teacher) != path_of(f"stage={stage}")
    alone = (f"stage={stage}", "stage.init_from=null")
    assert path_of(*alone, teacher) == path_of(*alone)


def test_a_training_set_has_no_teacher_but_baselines(path_of):
    many = ("stage=rl_sim", "training_set=families")
    assert path_of(*many, "baseline@stage.teacher=etf") == path_of(*many)
    assert path_of(*many, "baseline=[heft]") != path_of(*many)
    one = ("stage=rl_sim",)
    assert path_of(*one, "baseline=[heft]") == path_of(*one)


@pytest.mark.parametrize("sweep", ["{0},{1}", "choice({0},{1})"])
def test_files_of_a_training_set_that_change_make_another_run(path_of, tmp_path, sweep):
    files = [tmp_path / name for name in ("a.json", "b.json")]
    for file in files:
        save_json(random_problem(0).graph, file)
    line = f"workload=file workload.path={sweep.format(*files)} cluster=p100x4"
    many = ("stage=rl_sim", "training_set=families", f"stage.problems=['{line}']")
    before = path_of(*many)
    save_json(random_problem(1).graph, files[1])
    assert path_of(*many) != before


@pytest.mark.parametrize(
    ("folder", "origin"),
    [
        ("seed=3-0123abcd/checkpoints", "seed=*/checkpoints"),
        ("seed=3/checkpoints", "seed=*/checkpoints"),
        ("seed=31-0123abcd/checkpoints", "seed=31-0123abcd/checkpoints"),
    ],
)
def test_weights_of_the_same_seed_are_one_method(configure, folder, origin):
    cfg = configure("seed=3", f"stage.init_from='runs/{folder}/last.ckpt'")
    assert make_run(cfg, QUIET).spec.origin == f"runs/{origin}/last.ckpt"


@pytest.mark.parametrize(
    ("overrides", "option"),
    [
        (("budget.evaluations=10", "system.noise=0.05"), "budget.evaluations"),
        (("stage=rl_real", "budget.measured_evaluations=10"), "budget.measured_evaluations"),
        (("stage=rl_real", "budget.evaluations=5"), "budget.evaluations"),
    ],
)
def test_a_budget_without_a_batch_is_refused_before_anything_runs(configure, overrides, option):
    """Repetitions of promising placements count, and so does stage II of stage=rl_real."""
    run = make_run(configure("algorithm.search_share=0", *overrides), QUIET)
    with pytest.raises(InputError, match=f"^{option}: .* fewer than one batch"):
        run.stage.check(run.spec)
