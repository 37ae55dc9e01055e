"""What the page on programs shows must work."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[4] / "docs/programs.md").read_text()


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_examples_run(code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert capsys.readouterr().out
