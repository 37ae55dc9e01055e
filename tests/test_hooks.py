"""Plug-ins of other packages that cannot work."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        (
            "from doppler.hooks import implements\n@implements\ndef config_folder(): return []",
            "unknown hook 'config_folder'",  # it is config_folders
        ),
        (
            "from doppler.hooks import implements\n@implements\ndef report_tables(run): return []",
            "'report_tables'",  # the argument is runs
        ),
    ],
)
def test_a_plugin_that_cannot_work_is_named_in_one_line(text, told, tmp_path):
    (tmp_path / "bad_plugin.py").write_text(text)
    metadata = tmp_path / "bad-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: bad\nVersion: 0.1\n")
    (metadata / "entry_points.txt").write_text("[doppler]\nbad = bad_plugin\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "doppler", "completion", "bash"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: plug-in bad (bad_plugin): ") and told in line
