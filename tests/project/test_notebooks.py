"""The notebooks of docs/ run from top to bottom, and print what they show."""

import json
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).resolve().parents[2] / "docs/notebooks"


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebook_runs_and_repeats_its_output(path, tmp_path, monkeypatch, capsys):
    """Cells with the tag ``repeats`` print the same on every machine."""
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "notebook"}
    repeated = 0
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] != "code":
            continue
        capsys.readouterr()
        exec(compile("".join(cell["source"]), path.name, "exec"), namespace)
        if "repeats" in cell["metadata"].get("tags", ()):
            shown = "".join(text for output in cell["outputs"] for text in output["text"])
            assert capsys.readouterr().out == shown
            repeated += 1
    assert repeated
