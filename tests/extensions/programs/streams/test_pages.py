"""What the pages on programs and on the placer show must work."""

import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[4]


def examples() -> list[tuple[str, str]]:
    found = []
    for page in ("programs", "placer"):
        text = (PROJECT / f"docs/{page}.md").read_text()
        found += [(page, code) for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]
    return found


@pytest.mark.parametrize(("page", "code"), examples(), ids=lambda one: one[:8].strip())
def test_examples_run(page, code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert capsys.readouterr().out


def test_there_is_an_example_on_each_page():
    assert {page for page, _ in examples()} == {"programs", "placer"}
