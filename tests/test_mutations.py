"""The script that changes the code changes what matters, and leaves alone what no test can see."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.mutations.changes import mutations

PROJECT = Path(__file__).resolve().parents[1]
SOURCE = '''"""Adds 1 to 2."""

from math import floor, pow

__all__ = ["f"]


@cache(1)
def f(a: Literal[3], b=4) -> int:
    """Returns 5."""
    assert a != 6
    if not a and b:
        raise ValueError(f"more than {b + 7}")
    print(a - 8)
    a += 9
    if ready(a):
        return pow(a, b)
    return min(a, é) < 10
'''


def changed(source: str) -> set[str]:
    """What becomes of the lines that are changed."""
    lines = set()
    for one in mutations("f.py", source):
        text = one.apply(source)
        ast.parse(text)
        assert text != source
        lines |= {line.strip() for line in text.splitlines()} - {
            line.strip() for line in source.splitlines()
        }
    return lines


def test_a_change_is_of_one_place_that_is_run():
    assert changed(SOURCE) == {
        *("def f(a: Literal[3], b=(5)) -> int:", "def f(a: Literal[3], b=(3)) -> int:"),
        *("if (not a or b):", "if (a) and b:"),
        *("a -= 9", "pass", "a += (10)", "a += (8)"),
        *("if (not (ready(a))):", "return (pow(b, a))"),
        *("return (min(a, é) <= 10)", "return (min(a, é) >= 10)", "return (min(é, a)) < 10"),
        *("return (max(a, é)) < 10", "return min(a, é) < (11)", "return min(a, é) < (9)"),
    }


def test_a_file_that_has_changed_since_is_refused():
    for one in mutations("f.py", SOURCE):
        with pytest.raises(ValueError, match=r"f\.py:\d+ no longer reads"):
            one.apply("# " + SOURCE)


@pytest.mark.slow
def test_a_trial_says_whether_a_test_noticed(tmp_path):
    tests = {
        "survived": "assert True",
        "killed": "assert 1 == 2, 'no'",
        "timed out": "import signal; signal.alarm(1); signal.pause()",
    }
    for outcome, text in tests.items():
        (tmp_path / f"test_{outcome[:3]}.py").write_text(f"def test_it():\n    {text}\n")
    # In a process of its own: what is forked is not to be one that runs tests.
    script = f"""
from pathlib import Path
from benchmarks.mutations.trial import try_tests
for outcome in {[*tests]}:
    trial = try_tests(Path({str(tmp_path)!r}), [f"test_{{outcome[:3]}}.py"], {{}})
    print(trial.outcome, "|", trial.why, "|", [*trial.tests])
"""
    run = [sys.executable, "-c", script]
    said = subprocess.run(run, cwd=PROJECT, check=True, capture_output=True, text=True).stdout
    assert said.splitlines() == [
        "survived |  | ['test_sur.py::test_it']",
        "killed | FAILED test_kil.py::test_it - AssertionError: no | ['test_kil.py::test_it']",
        "timed out | signal 14 | []",
    ]
