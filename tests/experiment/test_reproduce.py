"""``doppler reproduce``: its sweeps run, it goes on where it was, and it says what failed."""

import subprocess

import pandas as pd
import pytest

from doppler.experiment import reproduce as module
from doppler.experiment.reproduce import PLAN, Step, reproduce
from doppler.experiment.resolvers import choices_of
from doppler.support.errors import InputError

WORDS = ["budget=quick", "budget.evaluations=20", "workload=chainmm", "seed=0"]
BARRIERS = Step(experiment="wc_vs_sync", claims="4")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with a plan of one short step."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "PLAN", (BARRIERS,))
    return tmp_path


def test_the_page_has_verdicts_of_what_ran_and_a_second_call_repeats_nothing(folder, capfd):
    assert reproduce(WORDS) == 0
    page = (folder / "outputs/reproduce/claims.md").read_text()
    rows = pd.read_csv(folder / "outputs/reproduce/claims.csv")
    assert set(rows["claim"]) == {4}
    assert set(rows["setting"]) >= {"chainmm, enumerative"}
    assert rows["paper"].round(3).unique().tolist() == [0.75]
    (line,) = (line for line in page.splitlines() if line.startswith("| 4 |"))
    assert ": 1 of 1 agree;" in line
    capfd.readouterr()
    assert reproduce(WORDS) == 0
    assert capfd.readouterr().out.count("is finished already") == 2  # two systems


def ending_with(monkeypatch, *codes):
    """Let the sweeps do nothing, and end with these exit codes."""
    left = iter(codes)
    monkeypatch.setattr(module, "PLAN", (BARRIERS,) * len(codes))
    monkeypatch.setattr(
        module.subprocess, "run", lambda command: subprocess.CompletedProcess(command, next(left))
    )


def test_a_failed_sweep_is_named_and_the_others_go_on(folder, monkeypatch, capfd):
    assert reproduce(WORDS) == 0
    ending_with(monkeypatch, 1, 0)
    assert reproduce(WORDS) == 1
    told = capfd.readouterr()
    assert "error: runs failed in wc_vs_sync; the same command repeats them" in told.err
    assert "step 2 of 2" in told.out
    assert (folder / "outputs/reproduce/claims.md").exists()


def test_a_mistyped_option_ends_the_command_at_the_first_step(folder, monkeypatch, capfd):
    monkeypatch.setattr(module, "PLAN", (BARRIERS, BARRIERS))
    assert reproduce([*WORDS, "policy.nmae=mine"]) == 1
    told = capfd.readouterr()
    assert "did you mean" in told.err
    assert "no run of wc_vs_sync succeeded; nothing else runs" in told.err
    assert "step 2 of 2" not in told.out


@pytest.mark.parametrize(("code", "ours"), [(130, 130), (-15, 143)])
def test_an_interrupted_sweep_ends_the_command_with_its_code(
    folder, monkeypatch, capfd, code, ours
):
    ending_with(monkeypatch, code, 0)
    assert reproduce(WORDS) == ours
    assert "step 2 of 2" not in capfd.readouterr().out


@pytest.mark.parametrize("word", ["experiment=main_8dev", "output_dir=here", "-m", "quick"])
def test_what_the_plan_sets_is_refused_before_anything_runs(folder, word):
    with pytest.raises(InputError, match=r"reproduce: takes options of doppler run"):
        reproduce([word])
    assert not (folder / "outputs").exists()


def test_the_plan_names_experiments_and_the_command_line_replaces_its_budget():
    assert {step.experiment for step in PLAN} <= set(choices_of("experiment"))
    command = module._command(Step(experiment="fidelity", claims="-", budget="default"), WORDS)
    assert command[-4:] == WORDS
    first = module._command(PLAN[0], ["seed=5", "method=paper"])
    assert "seed=0" in first
    assert not {"seed=5", "method=paper"} & set(first)
