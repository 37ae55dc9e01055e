"""What README and docs/ show must work."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from rich.console import Console

from doppler.experiment import execute
from doppler.graph import load_graph, save_json

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


def test_readme_python_example_runs(capsys):
    (place,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(place, {})
    *_, difference = capsys.readouterr().out.split("tensor(")
    assert float(difference.split(",")[0]) < 1e-5


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
    diamond, stages = re.findall(r"```json\n(.*?)```", FORMATS, re.DOTALL)
    (tmp_path / "stages.json").write_text(stages)
    graph = load_graph(tmp_path / "stages.json")
    assert graph.ops.group.tolist() == [-1, 0, 1, 1, 0]
    assert graph.given_costs is not None and graph.given_costs.kinds == ("cpu", "gpu")
    (tmp_path / "diamond.json").write_text(diamond)
    graph = load_graph(tmp_path / "diamond.json")
    assert (graph.num_ops, graph.num_edges, len(graph.inputs)) == (4, 4, 1)
    assert len(graph.regions) == 3, "the first op's output moves once to each device"

    block = FORMATS.split("## Published text format")[1].split("\n\n")[1]
    text = "\n".join(line[4:24].rstrip() for line in block.splitlines())
    (tmp_path / "graph.txt").write_text(text)
    graph = load_graph(tmp_path / "graph.txt")
    assert (graph.num_ops, graph.num_edges, len(graph.inputs)) == (3, 2, 1)


@pytest.mark.parametrize("page", ["large", "programs"])
def test_python_of_the_page_runs(page):
    for block in re.findall(
        r"```python\n(.*?)```", (PROJECT / f"docs/{page}.md").read_text(), re.S
    ):
        exec(compile(block, f"{page}.md", "exec"), {})


def test_package_of_the_plugins_page_adds_a_baseline(tmp_path):
    """Its files as they stand, with the metadata that an installer would write."""
    page = (PROJECT / "docs/plugins.md").read_text()
    for name, text in re.findall(r"^`(\S+)`:\n\n```\w+\n(.*?)```", page, re.S | re.M):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]
    entries = "\n".join(f"{k} = {v}" for k, v in project["entry-points"]["doppler"].items())
    metadata = tmp_path / "doppler_fastest-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    (metadata / "entry_points.txt").write_text(f"[doppler]\n{entries}\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(tmp_path)])}
    command = [sys.executable, str(PROJECT / "src/run.py"), "stage=evaluate", "baseline=[fastest]"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert "fastest: " in done.stdout
