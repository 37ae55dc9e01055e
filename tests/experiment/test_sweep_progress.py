"""Sweeps say which of how many runs begins, and how to see all of them."""

import pytest
from hydra import compose

from doppler.experiment.main import run as command
from doppler.experiment.sweeps import replace_swept, runs_of
from doppler.report.page import main as report


def composed(configure, *words):
    configure()
    return compose("config", ["hydra.mode=MULTIRUN", *words], return_hydra_config=True)


@pytest.mark.parametrize(
    ("words", "number", "varied"),
    [
        (["seed=1,2,3"], 3, {"seed"}),
        (["seed=1,2,3", "workload=chainmm,ffnn"], 6, {"seed", "workload"}),
        (["seed=range(4)", "budget=quick"], 4, {"seed"}),
        (["budget=quick"], 1, set()),
    ],
)
def test_runs_of_a_sweep_are_counted(configure, words, number, varied):
    config = composed(configure)
    config.hydra.overrides.task = words
    assert runs_of(config) == (number, varied)


def test_an_experiment_has_the_runs_of_its_cells_unless_the_command_says_otherwise(configure):
    config = composed(configure, "experiment=main_host")
    assert runs_of(config)[0] == 4 * 3
    config.hydra.overrides.task = ["seed=5"]
    assert runs_of(config)[0] == 4


def test_an_option_of_the_command_replaces_the_sweep_of_an_experiment(configure):
    config = composed(configure, "experiment=learning_alone")
    config.hydra.overrides.task = ["++budget.evaluations=500", "seed=1,2", "workload=ffnn"]
    replace_swept(config)
    assert config.hydra.sweeper.params == {
        "method": "learning_controls,learning_alone,learning_alone_from_search",
        "cluster": "v100x8,p100x4",
    }
    assert runs_of(config)[0] == 3 * 2 * 2


def test_a_sweep_of_an_experiment_runs_once_for_an_option_of_the_command(tmp_path, capfd):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\nhydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n"
        "      budget.evaluations: 2,3,4\n      +cluster.memory_bytes: 1e10,2e10\n      seed: 1,2\n"
    )
    words = [f"--config-dir={tmp_path}", "experiment=mine", "stage=evaluate", "baseline=[etf]"]
    assert command([*words, f"output_dir={tmp_path}/out", "budget.evaluations=5", "seed=7"]) == 0
    assert "run 2 of 2 (cluster.memory_bytes=20000000000.0)" in capfd.readouterr().out
    assert command([*words, f"output_dir={tmp_path}/one", "cluster.memory_bytes=3e10"]) == 0
    assert "run 6 of 6" in capfd.readouterr().out


def test_each_run_of_a_sweep_is_announced(tmp_path, capfd):
    words = ["stage=evaluate", "baseline=[round_robin]", f"output_dir={tmp_path}"]
    assert command(["-m", *words, "seed=1,2"]) == 0
    out = capfd.readouterr().out
    assert "run 1 of 2 (seed=1)" in out and "run 2 of 2 (seed=2)" in out
    assert command(words) == 0
    assert "run 1" not in capfd.readouterr().out


def test_a_sweep_ends_with_the_command_that_shows_its_runs_together(tmp_path, capfd):
    def last_line(*words):
        assert command(["stage=evaluate", "baseline=[round_robin]", *words]) == 0
        return capfd.readouterr().out.splitlines()[-1]

    folder = tmp_path / "my runs"
    hint = f"all runs together: doppler report '{folder}'"
    assert last_line("-m", f"output_dir='{folder}'", "seed=1,2") == hint
    assert report([str(folder), f"--out={tmp_path}/report"]) == 0
    assert "seeds 1, 2" in (tmp_path / "report/report.html").read_text()
    one_run = ["-m", f"output_dir='{folder}'", "seed=1"]
    assert last_line(*one_run) != hint
    no_folder = ["-m", f"run_dir={tmp_path}/a,{tmp_path}/b"]
    assert "all runs together" not in last_line(*no_folder)


def test_a_sweep_whose_runs_all_failed_has_nothing_to_show(tmp_path, capfd):
    assert command(["-m", f"output_dir={tmp_path}", "stage=evaluate", "seed=-1,-2"]) == 1
    assert "all runs together" not in capfd.readouterr().out
