"""Machine code from a wheel must not run on a processor that lacks one of its instructions."""

import platform
import subprocess
import sys

import llvmlite.binding as llvm
import pytest

from doppler.support.compiled import prebuilt
from doppler.support.compiled.prebuilt import X86, runs_here

NEEDED = [feature.removeprefix("+") for feature in X86.features.split(",")]


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A processor of the wheel's kind, and a package with machine code."""
    has = dict.fromkeys(NEEDED, True)
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: has)
    runs_here.cache_clear()
    yield has
    runs_here.cache_clear()


def test_it_runs_on_a_processor_that_has_all(machine):
    machine["avx512f"] = False
    assert runs_here()


@pytest.mark.parametrize("missing", ["avx2", "fma", "bmi2"])
def test_it_does_not_run_where_an_instruction_is_missing(missing, machine):
    machine[missing] = False
    assert not runs_here()


def test_it_does_not_run_on_another_kind_of_machine(machine, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert not runs_here()


def test_a_checkout_has_none(machine, monkeypatch, tmp_path):
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path / "absent")
    assert not runs_here()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="wheels have code for x86_64 only")
def test_a_wrong_part_is_named_beside_those_that_there_are(tmp_path):
    words = [sys.executable, "-m", "doppler.prebuild", str(tmp_path / "code"), "clustering", "0"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 1 and not (tmp_path / "code").exists()
    (line,) = done.stderr.splitlines()
    assert line.startswith("no part '0', choose from ") and "clustering" in line
