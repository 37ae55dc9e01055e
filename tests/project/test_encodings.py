"""Text files are written and read as UTF-8, whatever the locale says."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "benchmarks", "examples")
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def depends_on_the_locale(call: ast.Call) -> bool:
    """Whether it reads or writes text without saying in which encoding."""
    keywords = {one.arg for one in call.keywords}
    if keywords & {"encoding", None}:
        return False
    texts = [one.value for one in call.args if isinstance(one, ast.Constant)]
    modes = [one for one in texts if isinstance(one, str) and set(one) <= set("rwaxbt+")]
    match call.func:
        case ast.Attribute(attr="read_text" | "write_text"):
            return True
        case ast.Name("open"):
            return not any("b" in mode for mode in modes[-1:])
        case ast.Attribute(attr="open" | "fdopen"):
            return bool(modes) and "b" not in modes[-1]
        case ast.Attribute(attr="run" | "Popen" | "check_output"):
            return bool(keywords & {"text", "universal_newlines"})
    return False


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_text_file_says_its_encoding(folder):
    found = [
        f"{path.relative_to(PROJECT)}:{node.lineno}"
        for path in sorted((PROJECT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and depends_on_the_locale(node)
    ]
    assert not found, "encoding=... is missing"


GRAPH = """
import json, sys
from pathlib import Path
op = {"name": "\\u00e9\\u4e2d", "kind": "\\u00fc", "given_seconds": 1}
graph = {"format": "doppler-graph", "version": 2, "name": "\\u4e2d", "ops": [op, op], "edges": []}
Path("graph.json").write_text(json.dumps(graph, ensure_ascii=False), encoding="utf-8")
from doppler.cli import program
program(["place", "graph.json", "cluster=p100x4", "evaluations=2", *sys.argv[1:]])
"""


def in_c_locale(folder: Path, *words: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, **C_LOCALE, "PYTHONPATH": str(PROJECT / "src")}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True
    )


def test_a_graph_of_any_names_is_placed_in_the_locale_c(tmp_path):
    done = in_c_locale(tmp_path, "-c", GRAPH, "save=out")
    assert done.returncode == 0, done.stderr
    assert "\\u4e2d on p100x4" in done.stdout
    assert "é中" in (tmp_path / "out" / "explanation.txt").read_text(encoding="utf-8")


def test_a_path_that_the_locale_cannot_say_is_named(tmp_path):
    done = in_c_locale(tmp_path, "-c", GRAPH)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0 or "the locale has no such character" in done.stderr


@pytest.mark.slow
def test_a_run_is_the_same_in_the_locale_c(tmp_path):
    small = ("workload.params.n=64", "budget.imitation_episodes=8", "budget.evaluations=20")
    words = [PROJECT / "src/run.py", *small, "baseline=[heft]", f"output_dir={tmp_path}"]
    done = in_c_locale(tmp_path, *map(str, words))
    assert done.returncode == 0, done.stderr
    code = "import sys; from doppler.cli import program; program(sys.argv[1:])"
    done = in_c_locale(tmp_path, "-c", code, "report", str(tmp_path), "--out", "report")
    assert done.returncode == 0, done.stderr
