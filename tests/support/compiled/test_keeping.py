"""Kept machine code must not outlive what it was compiled from, nor be thrown away before."""

import hashlib
import os
import shutil
import subprocess
import sys

import pytest

HEAD = "from doppler.support.compiled import compiled\n"
FILES = {
    "constants.py": "WEIGHT = 10\n",
    "layouts.py": """
from typing import NamedTuple
class Pair(NamedTuple):
    first: float
    second: float
""",
    "innermost.py": HEAD + "@compiled\ndef half(x): return x / 2\n",
    "inner.py": HEAD
    + """
from constants import WEIGHT
from innermost import half
@compiled
def weighted(pair): return half(2 * WEIGHT * pair.first) + pair.second
@compiled
def other(pair): return pair.second
""",
    "outer.py": HEAD
    + '''
import inner
@compiled
def answer(pair):
    """The answer."""
    return inner.weighted(pair)
''',
}
MAIN = """
from doppler.support.compiled import compilations
import layouts, outer
print(outer.answer(layouts.Pair(first=1.0, second=2.0)), sorted(compilations))
"""


def run(folder, code=MAIN, **environment) -> str:
    command = [sys.executable, "-c", code]
    environment = {**os.environ, **environment}
    environment.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def write_files(folder):
    for name, text in FILES.items():
        (folder / name).write_text(text)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original")
    write_files(folder)
    assert run(folder).startswith("12.0 ['inner")
    assert run(folder) == "12.0 []"
    return folder


@pytest.fixture
def project(original, tmp_path):
    """Sources and machine code, in another place than where it was compiled."""
    return shutil.copytree(original, tmp_path / "project")


def edit(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("file", "old", "new", "answer"),
    [
        ("constants.py", "10", "20", "22.0"),
        ("innermost.py", "x / 2", "x / 4", "7.0"),
        ("inner.py", "pair.second", "pair.second + 1", "13.0"),
        ("inner.py", "import half", "import half as twice\nhalf = compiled(lambda x: x)", "22.0"),
        # Two fields of one type: only their names tell that they changed places.
        ("layouts.py", "first: float\n    second", "second: float\n    first", "12.0"),
    ],
)
def test_what_code_is_compiled_from_compiles_it_anew(project, file, old, new, answer):
    edit(project / file, old, new)
    told = run(project)
    assert told.startswith(answer) and "outer.answer" in told


def test_anything_else_leaves_it_valid(project):
    for file, old, new in [
        ("constants.py", "10", "10  # a tenth\nOTHER = 3"),
        ("layouts.py", "class", "import math\nclass"),
        ("inner.py", "return pair.second", "return -pair.second"),
        ("inner.py", "@compiled\ndef weighted", "\n# On another line.\n@compiled\ndef weighted"),
        ("outer.py", "The answer", "The whole answer"),
    ]:
        edit(project / file, old, new)
    assert run(project) == "12.0 []"


def test_the_same_text_at_another_time_is_the_same_code(project):
    write_files(project)
    for name in FILES:
        os.utime(project / name, (1, 1))
    assert run(project) == "12.0 []"


def test_who_asks_for_checks_of_bounds_gets_them(project):
    assert run(project, NUMBA_BOUNDSCHECK="1").startswith("12.0 ['inner")


def test_a_named_tuple_that_is_gone_does_no_harm(project):
    edit(project / "layouts.py", "class Pair", "class Two")
    assert run(project, MAIN.replace("layouts.Pair", "layouts.Two")).startswith("12.0 ['inner")


def test_half_a_file_is_compiled_anew(project):
    for file in (project / "__pycache__").glob("*.nbc"):
        file.write_bytes(file.read_bytes()[:500])
    assert run(project).startswith("12.0 ['inner")
    assert run(project) == "12.0 []"


def test_functions_given_as_arguments_are_compiled_once_for_all_processes(tmp_path):
    inner = HEAD + "@compiled\ndef one(): return 1\n@compiled\ndef two(): return 2\n"
    (tmp_path / "inner.py").write_text(inner)
    (tmp_path / "outer.py").write_text(HEAD + "@compiled\ndef answer(number): return number()\n")
    code = """
from doppler.support.compiled import compilations
import inner, outer
print(outer.answer(inner.one), outer.answer(inner.two), compilations.count("outer.answer"))
"""
    assert run(tmp_path, code) == "1 2 2"
    assert run(tmp_path, code) == "1 2 0"
    edit(tmp_path / "inner.py", "return 2", "return 22")
    assert run(tmp_path, code) == "1 22 1"
    assert run(tmp_path, code) == "1 22 0"


def test_beside_sources_that_nobody_may_write_to_it_is_kept_for_the_user(tmp_path):
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    write_files(project)
    (project / "__pycache__").write_text("")  # no folder, so nothing can be written into it
    assert run(project, HOME=str(home), XDG_CACHE_HOME=str(home)).startswith("12.0 ['inner")
    assert run(project, HOME=str(home), XDG_CACHE_HOME=str(home)) == "12.0 []"
    assert list(home.rglob("*.nbc"))


def test_where_nothing_can_be_kept_it_runs(tmp_path):
    write_files(tmp_path)
    for file in ("__pycache__", "home"):
        (tmp_path / file).write_text("")
    home = str(tmp_path / "home")
    for _ in range(2):
        assert run(tmp_path, HOME=home, XDG_CACHE_HOME=home).startswith("12.0 ['inner")


def of_another_user(file):
    if os.getuid():
        pytest.skip("needs root, who may give files away")
    os.chown(file, 12345, -1)


def writable_by_all(file):
    file.chmod(0o666)


def a_pipe(file):
    file.unlink()
    os.mkfifo(file)


def a_link(file):
    os.rename(file, file.with_name("elsewhere"))
    file.symlink_to(file.with_name("elsewhere"))


@pytest.mark.parametrize("change", [of_another_user, writable_by_all, a_pipe, a_link])
def test_code_that_somebody_else_may_have_written_is_not_executed(project, change):
    """To load it unpickles it."""
    harmful = b"cos\nsystem\n(S'touch ran'\ntR."
    for file in project.rglob("*.nbc"):
        stamp = file.read_bytes()[:32]
        file.write_bytes(stamp + hashlib.sha256(harmful).digest() + harmful)
        change(file)
    assert run(project).startswith("12.0 ['inner")
    assert not (project / "ran").exists()


def test_code_without_assertions_or_docstrings_is_kept_beside_the_other(project):
    assert run(project, PYTHONOPTIMIZE="2").startswith("12.0 ['inner")
    assert run(project) == "12.0 []" == run(project, PYTHONOPTIMIZE="2")


def test_a_piece_has_no_machine_code_and_its_errors_come_through(tmp_path):
    """Compiled just now, and found again by another process."""
    (tmp_path / "failing.py").write_text(
        HEAD
        + """
@compiled
def positive(x):
    assert x > 0, "not positive"
    return x
@compiled
def call(function, x): return function(x) + 1
@compiled
def more(x): return call(positive, x)
"""
    )
    code = """
import failing
from doppler.support.compiled import compilations
try:
    failing.more(-1)
except AssertionError as error:
    print(error, failing.more(1), len(compilations))
(piece,) = failing.positive.piece.overloads.values()
name = piece.fndesc.llvm_func_name
engine = piece.library._codegen._engine
print(piece.library.get_pointer_to_function(name), engine.is_symbol_defined(name))
"""
    assert run(tmp_path, code) == "not positive 2 3\n0 False"
    assert run(tmp_path, code.split("(piece,)")[0]) == "not positive 2 0"
