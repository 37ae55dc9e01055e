"""Measurements that would say nothing end a run in one line, or mark its rows."""

import os

import numpy as np
import pytest

from doppler.executor import Threads
from doppler.executor.quiet import OtherLoad
from doppler.experiment import trust
from doppler.report.rows import read_results
from doppler.support.errors import InputError

STAND_IN = ("system._target_=measured_systems.Measured", "++system.contention=none")
CALIBRATE = (
    *("stage=calibrate", *STAND_IN, "cluster=p100x4"),
    *("stage.runs=2", "stage.seconds=0", "stage.placements=30", "stage.repeats=6"),
)
NOISE = "+system.noise=8"


def costs_of(tmp_path):
    return list(tmp_path.glob("costs/*.json"))


def test_a_quiet_system_is_calibrated_and_judged_good(run, tmp_path):
    summary, text = run(*CALIBRATE)
    assert summary["doubt"] == "" and costs_of(tmp_path)
    assert "ranks placements as this machine does" in text


def test_noise_that_drowns_placements_ends_in_one_line_and_keeps_no_costs(run, tmp_path):
    with pytest.raises(InputError, match=r"rank correlation .* measure\.force=true"):
        run(*CALIBRATE, NOISE)
    assert not costs_of(tmp_path)


def test_forced_the_run_goes_on_and_says_why_it_should_not(run, tmp_path):
    summary, text = run(*CALIBRATE, NOISE, "measure.force=true")
    assert "reliability" in summary["doubt"] and costs_of(tmp_path)
    assert "measure.force=true: the run goes on" in text


def test_rows_that_are_measured_in_doubt_are_marked(run, tmp_path, monkeypatch):
    monkeypatch.setattr("doppler.experiment.results.disturbed", lambda run, load: "1.0 cores busy")
    evaluate = ("stage=evaluate", *STAND_IN, "baseline=[round_robin,critical_path]")
    _, text = run(*evaluate, "budget.measured_evaluations=8")
    (path,) = tmp_path.glob("evaluate/*/*/*/*/results.csv")
    assert {row.doubt for row in read_results(path)} == {"1.0 cores busy"}
    assert "critical_path (!)" in text and "do not trust these rows: 1.0 cores busy" in text


class RunOfThreads:
    """As much of a run as is asked whether others use its cores."""

    def __init__(self, num_devices: int) -> None:
        self.spec = self
        self.system = Threads()
        self.problem = self
        self.num_devices = num_devices


class Load(OtherLoad):
    """Others that take so many cores."""

    def __init__(self, taken: float) -> None:
        self.taken = taken

    def cores(self) -> float:
        return self.taken


@pytest.mark.parametrize(("taken", "is_told"), [(0.0, False), (0.2, False), (0.9, True)])
def test_others_are_told_of_where_devices_need_their_cores(taken, is_told):
    cores = len(os.sched_getaffinity(0))
    doubts = trust.others_at_work(RunOfThreads(cores), Load(taken))  # type: ignore[arg-type]
    assert bool(doubts) == is_told
    spare = trust.others_at_work(RunOfThreads(cores - 1), Load(taken))  # type: ignore[arg-type]
    assert not spare, "a core is left for them"


def test_load_of_this_process_is_not_that_of_others(monkeypatch):
    times = iter([(0.0, 10.0, 4.0), (2.0, 13.0, 6.0)])
    monkeypatch.setattr("doppler.executor.quiet._times", lambda: next(times))
    assert OtherLoad().cores() == pytest.approx((3.0 - 2.0) / 2.0)


@pytest.mark.parametrize(("faster", "is_told"), [(0.9, True), (1.1, True), (1.8, False)])
def test_two_devices_that_do_hardly_more_than_one_are_told_of(monkeypatch, faster, is_told):
    monkeypatch.setattr(trust, "_num_units", lambda system: 2)
    monkeypatch.setattr(trust, "speed_up", lambda *_: faster)
    run = RunOfThreads(2)
    run.cluster = None  # type: ignore[attr-defined]
    doubts = trust._together(run, np.random.default_rng(0))  # type: ignore[arg-type]
    assert bool(doubts) == is_told


def test_forcing_is_an_option_that_changes_no_directory(run):
    evaluate = ("stage=evaluate", *STAND_IN, "baseline=[round_robin]")
    run(*evaluate)
    _, text = run(*evaluate, "measure.force=true")
    assert "finished already" in text
