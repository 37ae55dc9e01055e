"""``doppler place`` with a torch module."""

import json
import sys

import pytest
import torch
from torch import nn

import doppler
from doppler.cli import main

MODEL = """
from torch import empty, nn

def plain():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU()), (empty(8, 64),)

def stops():
    raise SystemExit(3)
"""


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A file of factories in the working directory."""
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    return tmp_path


def test_place_prints_and_saves_what_it_found(model, capsys):
    assert main(["place", "model.py:plain", "cluster=p100x4", "seconds=0.05", "save=here"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Sequential on p100x4 (4 devices)\n")
    assert shown.endswith("written: here\n")
    kept = json.loads((model / "here/placement.json").read_text())
    assert kept["makespan_s"] > 0


def test_what_the_command_saved_runs_with_the_module(model, capsys):
    words = ["cluster=p100x4", "num_devices=2", "evaluations=2", "decomposition=published"]
    assert main(["place", "model.py:plain", "save=here", *words]) == 0
    assert capsys.readouterr().out.startswith("Sequential on p100x4 (2 devices)\n")
    module, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU()), torch.randn(8, 64)
    placed = doppler.Placed.load("here", module=module)
    with torch.no_grad():
        torch.testing.assert_close(doppler.execute(placed, x), module(x))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nope.py:plain"], "place: nope.py: No such file"),
        (["model.py:nope"], "place: 'model.py' has no function 'nope'"),
        (["model.py"], "place: 'model.py' is neither FILE.py:function nor package.module:function"),
        (["model.py:stops"], "place: model.py:stops fails: SystemExit: 3"),
        (["model.py:plain", "b.py:c"], "place: takes one module or graph, got 'model.py:plain', "),
    ],
)
def test_place_ends_in_one_line_that_says_what_is_wrong(words, line, model, capsys):
    assert main(["place", *words]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {line}") and error.count("\n") == 1
    assert not (model / "outputs").exists()
