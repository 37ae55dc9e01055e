"""The command ``doppler``, and what importing the package costs."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.results import leave_run, seeds

import doppler
from doppler.cli import COMMANDS, main
from doppler.experiment.resolvers import choices_of
from doppler.search import search
from doppler.support.resources import resource

HEAVY = ("hydra", "matplotlib", "numba", "pandas", "pytorch_lightning", "torch", "torch_geometric")

GRAPH = {"format": "doppler-graph", "version": 2, "ops": [{"given_seconds": 1}], "edges": []}


def loaded_after(code: str) -> set[str]:
    """The heavy packages that a fresh process has loaded after some code."""
    told = f"{code}\nimport sys; print(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_heavy():
    assert loaded_after("import doppler, doppler.cli; dir(doppler)") == set()


@pytest.mark.parametrize(
    "words",
    [
        ["run", "clutser=host"],
        ["run", "budget.evalutions=3"],
        ["run", "measure.forced=true"],
        ["place", "g.json", "secnds=3"],
    ],
)
def test_mistyped_options_are_answered_without_torch(words):
    code = f"""
from doppler.cli import main
try:
    code = main({words})
except SystemExit as end:
    code = end.code
assert code == 1, code
"""
    assert loaded_after(code) <= {"hydra"}


def test_a_run_imports_from_the_working_directory_only_what_the_command_names(tmp_path):
    (tmp_path / "mine.py").write_text("raise SystemExit('imported')")
    code = f"import os; os.chdir({str(tmp_path)!r}); from doppler.experiment.main import "
    code += "_find_own_modules; import sys; sys.path = [p for p in sys.path if p]; "
    first = "_find_own_modules(['budget=quick']); assert os.getcwd() not in sys.path"
    then = "; _find_own_modules(['--config-dir=conf']); assert sys.path[-1] == os.getcwd()"
    assert loaded_after(code + first + then) == {"hydra"}


def test_a_name_of_the_package_loads_what_it_needs():
    assert "torch" in loaded_after("import doppler; doppler.place")
    with pytest.raises(AttributeError, match="'doppler' has no attribute 'palce'"):
        _ = doppler.palce


def test_there_is_one_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.split() == ["doppler", doppler.__version__]
    settings = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    assert "version" in settings["project"]["dynamic"]
    attribute = settings["tool"]["setuptools"]["dynamic"]["version"]["attr"]
    assert attribute == "doppler.version.__version__"


def test_the_package_is_a_command_and_names_what_is_public():
    done = subprocess.run(
        [sys.executable, "-m", "doppler", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"doppler {doppler.__version__}\n"
    assert dir(doppler) == ["Placed", "__version__", "execute", "place"]


def test_usage_names_every_command(capsys):
    assert main(["--help"]) == 0
    usage = capsys.readouterr().out
    assert main([]) == 2
    assert capsys.readouterr().err == usage
    assert main(["plcae"]) == 1
    error = capsys.readouterr().err
    assert error == f"error: no command 'plcae'\n{usage}"
    for name in COMMANDS:
        assert f"doppler {name} " in usage


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["report", "runs"],
        [
            "run",
            "-m",
            "stage=evaluate",
            "baseline=[round_robin]",
            "workload.params.n=64",
            "seed=1,2",
        ],
    ],
)
def test_a_command_ends_quietly_if_nobody_reads_what_it_prints(tmp_path, words, unbuffered):
    leave_run(tmp_path / "runs/one", seeds([1.0]), {})
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "doppler", *words],
        cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_a_command_whose_output_is_closed_ends_as_usual():
    command = f"{shlex.quote(sys.executable)} -m doppler --help >&-"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
@pytest.mark.parametrize("words", ["--help", "run --help", "--version"])
def test_a_command_whose_output_fits_nowhere_ends_with_one_line(words):
    command = f"{shlex.quote(sys.executable)} -m doppler {words} >/dev/full"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "No space left on device" in line


def test_a_folder_of_the_users_adds_to_the_groups(tmp_path):
    page = (Path(__file__).resolve().parents[1] / "docs/command_line.md").read_text()
    name, text = re.search(r"^`(\S+)`:\n\n```yaml\n(.*?)```", page, re.M | re.S).groups()
    (command,) = re.findall(r"^    doppler (run --config-dir .*)$", page, re.M)
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(text)
    words = [*shlex.split(command), "--cfg", "job", "--package", "cluster"]
    code = f"from doppler.cli import main; main({words})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert text in done.stdout


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_place_keeps_to_groups_and_pins_of_a_graph_file(folder, capsys):
    ops = [{"given_seconds": 1 + v, "group": v // 2} for v in range(4)]
    edges = [{"src": 0, "dst": 3, "given_seconds": 0}]
    graph = {**GRAPH, "ops": [*ops, {"given_seconds": 9, "pinned": 3}]}
    (folder / "g.json").write_text(json.dumps({**graph, "edges": edges}))
    assert main(["place", "g.json", "cluster=p100x4", "evaluations=50", "save=here"]) == 0
    assert capsys.readouterr().out.startswith("g on p100x4 (4 devices)\n")
    a, b, c, d, pinned = json.loads((folder / "here/placement.json").read_text())["device"]
    assert (a, c) == (b, d) and pinned == 3 and len({a, c, pinned}) == 3
    (folder / "g.json").write_text(json.dumps({**graph, "edges": edges, "links": 1}))
    assert main(["place", "g.json"]) == 1
    assert capsys.readouterr().err.startswith("error: g.json: links: no such key, ")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["g.json", "second=5"], "place: no option 'second', did you mean seconds?"),
        (["g.json", "cluster=nope"], "cluster 'nope': unknown, choose from "),
        (["g.json", "cluster=]"], "place: cluster=]: not a value"),
        (["none.json"], "none.json: No such file"),
        (["cluster=p100x4"], "place: takes one module or graph, got none; --help "),
        (["g.json", "b.json"], "place: takes one module or graph, got 'g.json', "),
    ],
)
def test_place_ends_in_one_line_that_says_what_is_wrong(words, line, folder, capsys):
    (folder / "g.json").write_text(json.dumps(GRAPH))
    assert main(["place", *words]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {line}") and error.count("\n") == 1
    assert not (folder / "outputs").exists()


def test_place_says_what_it_takes(capsys):
    assert main(["place", "--help"]) == 0
    assert "seconds" in capsys.readouterr().out


def test_report_says_what_it_did_not_find(tmp_path, capsys):
    assert main(["report", str(tmp_path / "nowhere")]) == 1
    error = capsys.readouterr().err
    assert "nowhere" in error and error.count("\n") == 1


def test_conf_and_workloads_are_found():
    assert (resource("conf") / "config.yaml").is_file()
    assert (resource("workloads") / "chainmm.einsum").is_file()


@pytest.fixture
def graph_file(tmp_path):
    """graph_file(name) -> the file of a graph of that name, and with ops of that name."""

    def write(name: str) -> Path:
        op = {"name": name, "kind": name, "given_seconds": 1}
        path = tmp_path / "graph.json"
        path.write_text(json.dumps({**GRAPH, "name": name, "ops": [op]}))
        return path

    return write


@pytest.mark.parametrize("name", ["../../escape", "/escape", "..", ".", "", "a/b", "a\0b", "~/x"])
def test_a_graph_is_saved_below_the_working_directory_however_it_is_called(
    graph_file, tmp_path, monkeypatch, name, capsys
):
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b" / "c")
    assert main(["place", str(graph_file(name)), "cluster=p100x4", "evaluations=1"]) == 0
    (found,) = tmp_path.rglob("found.json")
    assert found.parents[1] == Path.cwd() / "outputs" / "place"


def test_what_a_terminal_obeys_is_written_out(graph_file, tmp_path, capsys):
    path = graph_file("a\x1b[31m\x07\r\u202eb")
    words = ["cluster=p100x4", "evaluations=1", f"save={tmp_path / 'x'}"]
    assert main(["place", str(path), *words]) == 0
    placed = doppler.Placed.load(tmp_path / "x")
    for text in (*capsys.readouterr(), placed.explain(), str(placed)):
        assert all(line.isprintable() for line in text.splitlines())


def test_a_deleted_working_directory_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["warm"]) == 1
    assert "error: the working directory is deleted" in capsys.readouterr().err


def test_uncompiled_code_is_refused_in_one_line():
    command = [sys.executable, "-c", "from doppler.cli import program; program(['warm'])"]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert done.stderr == "error: NUMBA_DISABLE_JIT: unset it, doppler runs compiled code only\n"


def test_place_saves_what_it_has_when_it_is_interrupted(folder, capsys, monkeypatch):
    def interrupted(*arguments, **options):
        search(*arguments, **options)
        raise KeyboardInterrupt

    (folder / "g.json").write_text(json.dumps(GRAPH))
    monkeypatch.setattr("doppler.api.placing.search", interrupted)
    assert main(["place", "g.json", "cluster=p100x4", "evaluations=9", "save=here"]) == 130
    assert (folder / "here/placement.json").exists()
    assert "interrupted: this is the best placement until then" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("doppler pl", {"place"}),
        ("doppler run workload=llama_b", {"llama_block"}),
        ("doppler run clus", {f"cluster={name}" for name in choices_of("cluster")}),
        ("doppler place g.json second", {"seconds="}),
    ],
)
def test_the_shell_completes(line, offered, capsys):
    assert main(["completion", "bash"]) == 0
    words = line.split()
    code = f"""
complete() {{ true; }}
{capsys.readouterr().out}
COMP_LINE="{line}" COMP_POINT={len(line)} COMP_WORDS=({line}) COMP_CWORD={len(words) - 1}
_doppler
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == offered, done.stderr


def test_completion_is_refused_for_other_shells(capsys):
    assert main(["completion", "fish"]) == 1
    assert capsys.readouterr().err == "error: completion: takes one of bash, zsh, got fish\n"
