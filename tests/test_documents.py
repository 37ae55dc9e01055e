"""What README and docs/ show must work, and every configuration must compose and instantiate."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import instantiate
from recorded_answers import write_answers
from rich.console import Console

from doppler.experiment import execute
from doppler.graph import load_graph, save_json

PROJECT = Path(__file__).resolve().parents[1]
README = (PROJECT / "README.md").read_text()
OPTIONS = (PROJECT / "docs/options.md").read_text()
REAL = (PROJECT / "docs/real.md").read_text()
FORMATS = (PROJECT / "docs/formats.md").read_text()
GROUP_FILES = sorted((PROJECT / "conf").glob("*/*.yaml"))


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


def test_readme_is_for_people_who_have_two_minutes():
    prose = re.sub(r"```.*?```|\]\([^)]*\)", "", README, flags=re.DOTALL)
    assert len(README.split()) <= 900
    assert len(re.findall(r"(?<![\w.])\d[\d,.]*", prose)) <= 40


@pytest.mark.parametrize("mark", ["slow", "gpu"])
def test_what_make_test_leaves_out_is_named(mark):
    help_text = (PROJECT / "Makefile").read_text().split("make test-slow")[0]
    table = (PROJECT / "CONTRIBUTING.md").read_text()
    (number, files) = re.findall(rf"^\| `{mark}` \| (\d+) \|(.*)\|", table, re.MULTILINE)[0]
    marked = {}
    for file in (PROJECT / "tests").rglob("test_*.py"):
        if count := len(re.findall(rf"^@pytest\.mark\.{mark}\b", file.read_text(), re.MULTILINE)):
            marked[file.relative_to(PROJECT / "tests").as_posix()] = count
    assert set(re.findall(r"`([\w/]+\.py)`", files)) == marked.keys()
    assert int(number) == sum(marked.values())
    assert re.search(rf"\b{number} .*{'GPU' if mark == 'gpu' else mark}", help_text)


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
        few = ("runs=2", "seconds=0", "placements=3", "repeats=1")
        small += [f"stage.calibration.{key}" for key in few]
    summary = execute(compose("config", [*overrides, *small]), [], Console(quiet=True))
    if summary["stage"] == "describe":
        assert summary["num_levels"] > 1
    else:
        assert summary["lower_bound_s"] <= summary["makespan_s"] * (1 + 1e-9)


def test_the_description_of_experiments_names_them_and_their_methods():
    text = (PROJECT / "docs/experiments.md").read_text()
    for file in [*(PROJECT / "conf/experiment").glob("*"), *(PROJECT / "conf/method").glob("*")]:
        assert f"`{file.stem}`" in text, file.stem


def test_the_report_command_writes_its_three_tables(tmp_path):
    overrides = ["stage=evaluate", "baseline=critical_path", f"output_dir={tmp_path}"]
    execute(compose("config", overrides), [], Console(quiet=True))
    command = [sys.executable, str(PROJECT / "src/report.py"), str(tmp_path), "--out"]
    subprocess.run([*command, str(tmp_path / "report")], check=True, capture_output=True)
    for suffix in ("md", "csv", "tex"):
        assert "critical" in (tmp_path / f"report/table.{suffix}").read_text()


def test_every_choice_of_every_group_is_described():
    for group in (
        *("stage", "workload", "decomposition", "cluster", "simulator", "baseline", "policy"),
        *("executor", "algorithm", "budget", "experiment", "logger", "search", "trainer"),
        *("training_set", "system"),
    ):
        (row,) = re.findall(rf"^\| `{group}` \|(.*)$", OPTIONS, re.MULTILINE)
        for file in (PROJECT / "conf" / group).glob("*.yaml"):
            assert f"`{file.stem}`" in row, (group, file.stem)


@pytest.mark.parametrize("file", GROUP_FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_every_configuration_file_composes_and_instantiates(file, tmp_path):
    group, choice = file.parent.name, file.stem
    overrides = [f"{group}={choice}"]
    if (group, choice) in (("workload", "file"), ("experiment", "optima")):
        (tmp_path / "graph.txt").write_text("2\n\n0\n1\n100,400\n100,400\n")
        overrides.append(f"workload.path={tmp_path}/graph.txt")
    if (group, choice) in (
        *(("workload", "answers"), ("workload", "answers_program")),
        *(("experiment", "router"), ("experiment", "program")),
    ):
        overrides.append(f"workload.path={write_answers(tmp_path / 'answers.csv')}")
    if (group, choice) == ("workload", "torch"):
        overrides.append("workload.module=benchmarks.torch_modules:mlp")
    if (group, choice) == ("logger", "wandb"):
        pytest.importorskip("wandb")
    cfg = compose("config", overrides)
    for key in ("workload", "cluster", "simulator", "executor"):
        assert instantiate(cfg[key]) is not None
    assert instantiate(cfg.policy.build) is not None
    assert instantiate(cfg.algorithm.imitation) is not None
    assert instantiate(cfg.algorithm.reinforcement) is not None
    assert instantiate(cfg.search.anneal) is not None
    baselines = cfg.get("baseline", {})  # none for a method that is learned
    assert all(instantiate(conf) is not None for conf in baselines.values())


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
