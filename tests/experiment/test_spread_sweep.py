"""Runs that wait to be spread: each is run once, and none is left to the next sweep."""

from omegaconf import DictConfig

from doppler.experiment import failures
from doppler.experiment.spread_sweep import SpreadSweep

CANNOT_RUN = DictConfig({"compute": {"_target_": "doppler.compute.Here"}})


def failed_lines(sweep):
    with failures.collected() as lines:
        sweep.run()
    return lines


def test_what_was_run_or_given_up_is_not_run_again(capsys):
    sweep = SpreadSweep()
    sweep.add(CANNOT_RUN, ["seed=1"], 0)
    (line,) = failed_lines(sweep)
    assert line.startswith("seed=1: ")
    sweep.forget()
    assert failed_lines(sweep) == []
    sweep.add(CANNOT_RUN, ["seed=2"], 0)
    (line,) = failed_lines(sweep)
    assert line.startswith("seed=2: ")
    capsys.readouterr()
