"""The cache of compiled code must not outlive what it was compiled from."""

import subprocess
import sys


def run(folder) -> str:
    command = [sys.executable, "-c", "import outer; print(outer.answer())"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_change_in_another_file_is_compiled_anew(tmp_path):
    head = "from doppler.compilation import compiled\n"
    inner = head + "@compiled\ndef number(): return {}\n"
    outer = head + "import inner\n@compiled\ndef answer(): return inner.number()\n"
    (tmp_path / "inner.py").write_text(inner.format(1))
    (tmp_path / "outer.py").write_text(outer)
    assert run(tmp_path) == "1"
    assert list((tmp_path / "__pycache__").glob("outer.answer*.nbc")), "nothing was kept"
    (tmp_path / "inner.py").write_text(inner.format(22))
    assert run(tmp_path) == "22"
