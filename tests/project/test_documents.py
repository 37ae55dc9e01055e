"""What README and docs/ show must work."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.pages import PAGES, filled
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from rich.console import Console

from doppler.cluster import preset
from doppler.experiment import execute
from doppler.graph import load_graph, save_json
from doppler.problem import Placement, build

PROJECT = Path(__file__).resolve().parents[2]
README = (PROJECT / "README.md").read_text()
OPTIONS = (PROJECT / "docs/options.md").read_text()
REAL = (PROJECT / "docs/real.md").read_text()
FORMATS = (PROJECT / "docs/formats.md").read_text()


@pytest.fixture(autouse=True)
def hydra():
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(PROJECT / "conf"), version_base="1.3"):
        yield


FILE = r"^`(\S+)`:\n\n```\w+\n(.*?)```"


def test_readme_python_example_runs(tmp_path, monkeypatch, capsys):
    """Its model file as it stands; it prints the lines that do not depend on the machine."""
    ((name, model),) = re.findall(FILE, README, re.DOTALL | re.MULTILINE)
    (tmp_path / name).write_text(model)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    rest = re.sub(FILE, "", README, flags=re.DOTALL | re.MULTILINE)
    (example,) = re.findall(r"```python\n(.*?)```", rest, re.DOTALL)
    try:
        exec(compile(example, "README.md", "exec"), {})
    finally:
        sys.modules.pop("my_model", None)
    shown = capsys.readouterr().out
    for line in re.findall(r"^ {4}((?:Experts on|  (?:ops|makespan|lower)) .*)$", README, re.M):
        assert line in shown
    assert (tmp_path / "placed/experts/schedule.png").exists()


def shown_commands() -> list[str]:
    lines = re.findall(
        r"^    (?:doppler run|python src/run\.py)(.*)$", README + OPTIONS + REAL, re.MULTILINE
    )
    return list(dict.fromkeys(line.split("#")[0].strip() for line in lines))


@pytest.mark.parametrize("command", shown_commands())
def test_shown_commands_run(command, tmp_path):
    """Each with a small budget and, where it names a file, a small graph of that name."""
    (tmp_path / "graph.txt").write_text("3\n\n0, 1\n1, 2\n100,400\n100,400\n100,400\n")
    save_json(load_graph(tmp_path / "graph.txt"), tmp_path / "graph.json")
    words = [word for word in shlex.split(command) if word != "-m"]
    # A sweep is one run per choice; the first stands for all.
    overrides = [word if "[" in word else word.split(",")[0] for word in words]
    overrides = [word.replace("path=graph", f"path={tmp_path}/graph") for word in overrides]
    small = ["budget.evaluations=40", "budget.imitation_episodes=16", f"output_dir={tmp_path}"]
    if "stage=rl_real" in overrides:
        small += ["budget.measured_evaluations=60", "stage.choosing=2", "stage.repeats=2"]
        small += ["measure.force=true"]  # whatever else runs on this machine
        few = ("runs=2", "seconds=0", "placements=3", "repeats=1")
        small += [f"stage.calibration.{key}" for key in few]
    summary = execute(compose("config", [*overrides, *small]), [], Console(quiet=True))
    if summary["stage"] == "describe":
        assert summary["num_levels"] > 1
    else:
        assert summary["lower_bound_s"] <= summary["makespan_s"] * (1 + 1e-9)


def test_the_graphs_shown_in_the_format_description_load(tmp_path):
    diamond, stages, placement = re.findall(r"```json\n(.*?)```", FORMATS, re.DOTALL)
    (tmp_path / "stages.json").write_text(stages)
    graph = load_graph(tmp_path / "stages.json")
    assert graph.ops.group.tolist() == [-1, 0, 1, 1, 0]
    assert graph.given_costs is not None and graph.given_costs.kinds == ("cpu", "gpu")
    (tmp_path / "diamond.json").write_text(diamond)
    graph = load_graph(tmp_path / "diamond.json")
    assert (graph.num_ops, graph.num_edges, len(graph.inputs)) == (4, 4, 1)
    assert len(graph.regions) == 3, "the first op's output moves once to each device"
    shown, problem = json.loads(placement), build(graph, preset(name="p100x4"))
    made = Placement.make(problem, shown["device"], shown["priority"])
    made.save(tmp_path / "placement.json", {"makespan_s": 1.0, "system_kind": "simulated"})
    saved = json.loads((tmp_path / "placement.json").read_text())
    assert shown == saved | {key: shown[key] for key in ("problem_hash", "makespan_s")}

    block = FORMATS.split("## Published text format")[1].split("\n\n")[1]
    text = "\n".join(line[4:24].rstrip() for line in block.splitlines())
    (tmp_path / "graph.txt").write_text(text)
    graph = load_graph(tmp_path / "graph.txt")
    assert (graph.num_ops, graph.num_edges, len(graph.inputs)) == (3, 2, 1)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(PROJECT)))
def test_numbers_of_a_page_are_those_of_its_rows(path):
    """If not, ``python -m benchmarks.pages`` writes them."""
    assert filled(path.read_text()) == path.read_text()


@pytest.mark.parametrize("page", ["README", "ARCHITECTURE", "CONTRIBUTING", "CHANGELOG"])
def test_links_of_pages_outside_the_site_resolve(page):
    """Those of docs/ are checked where the site is built."""
    links = re.findall(
        r"\]\((?!https?:)([^)#]+)(?:#([^)]+))?\)", (PROJECT / f"{page}.md").read_text()
    )
    for path, anchor in links:
        assert (PROJECT / path).exists(), path
        if anchor:
            titles = re.findall(r"^#+ (.*)$", (PROJECT / path).read_text(), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", t).lower().replace(" ", "-") for t in titles}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(PROJECT)))
def test_no_line_begins_with_a_marked_number(path):
    """Markdown takes a line that begins with a comment for HTML, and ends the paragraph there."""
    assert not re.findall(r"^\s*(?:[-*+] +|\d+[.)] +)?<!-- = .*$", path.read_text(), re.M)


def test_a_changed_number_is_noticed():
    page = "takes <!-- = over main_8dev llama_block etf -->1.000<!-- end --> times as long"
    assert filled(page) == page.replace("1.000", "1.143")


@pytest.mark.parametrize("page", ["large", "memory", "programs"])
def test_python_of_the_page_runs(page):
    for block in re.findall(
        r"```python\n(.*?)```", (PROJECT / f"docs/{page}.md").read_text(), re.S
    ):
        exec(compile(block, f"{page}.md", "exec"), {})


METHODS = (PROJECT / "docs/methods.md").read_text()


@pytest.mark.parametrize(
    "command, rows",
    list(
        zip(
            re.findall(r"^ {4}doppler (run (?!.* -m ).*)$", METHODS, re.M),
            (
                ["lucky"],
                ["linear imitation", "linear trained", "lucky"],
                ["linear_alone", "linear_alone greedy", "etf"],
            ),
            strict=True,
        )
    ),
)
def test_methods_of_the_page_are_in_a_table(command, rows, tmp_path):
    """Its files as they stand, and its commands with a small budget."""
    for name, text in re.findall(FILE, METHODS, re.S | re.M):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    small = ["budget.evaluations=40", "budget.imitation_episodes=16"]
    done = subprocess.run(
        [sys.executable, "-m", "doppler", *shlex.split(command), *small],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (results,) = tmp_path.glob("outputs/**/results.csv")
    for row in rows:
        assert f"\n{row}," in results.read_text()


def test_package_of_the_plugins_page_adds_a_baseline_and_a_policy(tmp_path):
    """Installed by pip, its choices are in sweeps, tables and reports by their names."""
    page = (PROJECT / "docs/plugins.md").read_text()
    package, site = tmp_path / "package", tmp_path / "site"
    for name, text in re.findall(r"^`(\S+)`:\n\n```\w+\n(.*?)```", page, re.S | re.M):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    offline = ("--no-deps", "--no-index", "--no-build-isolation", "--quiet")
    pip = [sys.executable, "-m", "pip", "install", *offline, "--target", str(site), str(package)]
    subprocess.run(pip, check=True, capture_output=True)

    def doppler(*words: str) -> str:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(site)])}
        command = [sys.executable, "-P", "-m", "doppler", *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    small = ("workload.params.n=64", "budget.evaluations=40", "budget.imitation_episodes=16")
    out = doppler("run", "-m", "policy=per_op", "baseline=[fastest]", "seed=1,2", *small)
    assert "run 2 of 2 (seed=2)" in out and out.count("│ fastest ") == 2
    doppler("report", "outputs", "--out", "report")
    table = (tmp_path / "report/table.md").read_text()
    assert all(f"| {name} |" in table.replace("**", "") for name in ("per_op", "fastest"))
    assert "| fastest " in table and "n=2" in table
