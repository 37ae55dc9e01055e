"""The cache of compiled code must not outlive what it was compiled from."""

import subprocess
import sys


def run(folder, code="import outer; print(outer.answer())") -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_change_in_another_file_is_compiled_anew(tmp_path):
    head = "from doppler.compiled import compiled\n"
    inner = head + "@compiled\ndef number(): return {}\n"
    outer = head + "import inner\n@compiled\ndef answer(): return inner.number()\n"
    (tmp_path / "inner.py").write_text(inner.format(1))
    (tmp_path / "outer.py").write_text(outer)
    assert run(tmp_path) == "1"
    assert list((tmp_path / "__pycache__").glob("outer.answer*.nbc")), "nothing was kept"
    (tmp_path / "inner.py").write_text(inner.format(22))
    assert run(tmp_path) == "22"


def test_functions_given_as_arguments_are_compiled_once_for_all_processes(tmp_path):
    head = "from doppler.compiled import compiled\n"
    (tmp_path / "inner.py").write_text(
        head + "@compiled\ndef one(): return 1\n@compiled\ndef two(): return 2\n"
    )
    (tmp_path / "outer.py").write_text(head + "@compiled\ndef answer(number): return number()\n")
    code = (
        "import inner, outer; print(outer.answer(inner.one), outer.answer(inner.two), "
        "sum(outer.answer.stats.cache_hits.values()))"
    )
    assert run(tmp_path, code) == "1 2 0"
    assert run(tmp_path, code) == "1 2 2"
    (tmp_path / "inner.py").write_text(
        head + "@compiled\ndef one(): return 11\n@compiled\ndef two(): return 22\n"
    )
    assert run(tmp_path, code) == "11 22 0"
