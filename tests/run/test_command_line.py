"""The command line: what it accepts, and the one line with which bad input ends."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from conf_files import GROUP_FILES, choice_of
from hydra.core.global_hydra import GlobalHydra

from doppler.experiment.resolvers import description_of
from doppler.report.finished import find_runs
from doppler.report.page import write_report

PROJECT = Path(__file__).resolve().parents[2]
GRAPH = "4\n0, \n0, 1\n1, 2\n100,400\n100,400\n100,400\n"


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    """command(*arguments) -> (exit code, stdout, stderr) of `python src/run.py arguments`."""

    def go(*arguments: str):
        GlobalHydra.instance().clear()
        monkeypatch.setattr(sys, "argv", ["src/run.py", *arguments, f"output_dir={tmp_path}/out"])
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # the entry sets it: undone after the test
        code = 0
        try:
            runpy.run_path(str(PROJECT / "src/run.py"), run_name="__main__")
        except SystemExit as stop:
            code = stop.code
        return code, *capsys.readouterr()

    return go


def graph_file(tmp_path, text: str, name: str = "graph.txt") -> str:
    (tmp_path / name).write_text(text)
    return f"workload.path={tmp_path / name}"


def edited(line: int, text: str) -> str:
    lines = GRAPH.splitlines()
    lines[line - 1] = text
    return "\n".join(lines)


BAD_FILES = {
    "malformed line": (edited(6, "100;400"), ":6: expected comp,comm[,kind], found '100;400'"),
    "not a number of blocks": (edited(1, "x"), ":1: 'x' is not an integer"),
    "too few op lines": (GRAPH[:-8], ":7: 2 op lines for 3 ops"),
    "cycle": (edited(4, "1, 0"), "cycle through op 0 ('op0'): 0 -> 1 -> 0"),
    "negative cost": (edited(7, "-1,400"), ":7: op 2 has cost -1"),
    "NaN cost": (edited(5, "nan,400"), ":5: op 0 has cost nan"),
    "unknown op": (edited(4, "1, 9"), ":4: edge to unknown op 9: the ops are 0 to 2"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_graph_ends_in_one_line_that_names_file_and_place(case, command, tmp_path):
    text, expected = BAD_FILES[case]
    code, _, error = command("workload=file", graph_file(tmp_path, text))
    assert code == 1
    assert error.count("\n") == 1 and error.startswith("error: ")
    assert f"{tmp_path}/graph.txt" in error and expected in error
    assert not (tmp_path / "out").exists(), "bad input must leave nothing behind"


BAD_OVERRIDES = {
    "missing file": (["workload=file", "workload.path=/no/such.txt"], "/no/such.txt: No such file"),
    "no file given": (["workload=file"], "workload.path"),
    "unknown workload": (["workload=nope"], "cholesky, dataproc, "),
    "unknown cluster": (
        ["cluster=nope"],
        "choose from a100x8, dgx_a100x64, dgx_h100x16, dgx_h100x32, ethernet_4x1, h100x8, host",
    ),
    "mistyped key": (
        ["baseline.annealing_order.evaluatons=5"],
        "no such option, did you mean baseline.annealing_order.evaluations?",
    ),
    "mistyped baseline in a list": (
        ["baseline=[critical_pth,etf]"],
        "'baseline/critical_pth' does not exist, choose from annealing, ",
    ),
    "mistyped policy key": (["policy.build.plc_hiden=3"], "did you mean policy.build.plc_hidden?"),
    "no such key": (["+nosuchkey=1"], "nosuchkey: no such option"),
    "no cluster": (["cluster=null"], "cluster: must be one of a100x8"),
    "a cluster that is no name": (["cluster=1"], "cluster: must be one of a100x8"),
    "a list of no names": (["algorithm=[1,2]"], "algorithm: must be one of default"),
    "a group less, by no name": (["~algorithm=true"], "algorithm: must be one of default"),
    "groups less, by a list": (["~logger=[csv]"], "logger: must be one of csv"),
    "a sweep over no names": (["-m", "cluster=1,2"], "cluster: must be one of a100x8"),
    "a comma": (["workload.path=a,b"], "\"workload.path='a,b'\""),
    "a reference to nothing": (["run_dir=a${b}"], r"that refers to nothing is written \${"),
    "half a reference": (["run_dir=a${b"], r"that refers to nothing is written \${"),
    "too few evaluations": (
        ["budget.evaluations=5", "algorithm.search_share=0"],
        "5 evaluations are left to train with, fewer than one batch of 8 needs",
    ),
    "heads that do not divide": (
        ["policy=gdp", "policy.build.hidden=7"],
        "policy.build.hidden: 7 is not divisible by 2 x 4 heads",
    ),
    "zero devices": (["cluster.num_devices=0"], "num_devices: must be a whole number of at least"),
    "hosts that cannot share": (
        ["cluster.hosts=3", "cluster.nic_bytes_per_s=1e9"],
        "cluster 'p100x4': hosts=3 cannot share 4 devices equally",
    ),
    "hosts without a network": (["cluster.hosts=2"], "'p100x4': 2 hosts need nic_bytes_per_s"),
    "no hosts": (["cluster.hosts=0"], "cluster.hosts: must be a whole number of at least 1"),
    "hosts of this machine": (["cluster=host", "cluster.hosts=2"], "cluster.hosts: no such option"),
    "hosts for an executor": (
        ["cluster=ethernet_4x1", "stage=rl_real"],
        "cluster 'ethernet_4x1': has 4 hosts, and executors run on this one",
    ),
    "hosts and barriers": (
        ["cluster=ethernet_4x1", "system=bulk_synchronous"],
        "has 4 hosts, and the bulk-synchronous system knows no network interfaces",
    ),
    "bad seed": (["seed=one"], "seed: must be a whole number"),
    "bad queue": (["system.queue=lifo"], "got 'lifo'"),
    "bad preset": (["workload.preset=huge"], "huge"),
    "missing checkpoint": (["stage.init_from=/no/such.ckpt"], "/no/such.ckpt: No such file"),
    "seed that is no number": (["seed=true"], "seed: must be a whole number"),
    "no batch": (["algorithm.reinforcement.batch_episodes=0"], "batch_episodes: must be"),
    "no greedy": (["algorithm.reinforcement.try_every=0"], "try_every: must be"),
    "no rate": (
        ["algorithm.reinforcement.learning_rate=[-1,0]"],
        "learning_rate: must be two numbers",
    ),
    "one rate": (["algorithm.imitation.learning_rate=1e-3"], "learning_rate: must be two numbers"),
    "no imitation": (["budget.imitation_episodes=0"], "budget.imitation_episodes: must be"),
    "no runs": (
        ["baseline.critical_path.evaluations=0"],
        "baseline.critical_path.evaluations: must be",
    ),
    "no samples": (
        ["baseline=[random]", "baseline.random.evaluations=0"],
        "baseline.random.evaluations: must be",
    ),
    "no heat": (
        ["baseline=[annealing]", "baseline.annealing.hot=0"],
        "baseline.annealing.hot: must be a number above 0, got 0",
    ),
    "no width": (["policy.build.plc_hidden=0"], "policy.build.plc_hidden: must be"),
    "no yes or no": (["overwrite=maybe"], "overwrite: must be true or false"),
    "a name that leads away": (["workload.name=../evil"], "workload.name: must be a name"),
    "a checkpoint that is no path": (
        ["stage.init_from=5"],
        """must be a path or null, got 5; a path that reads as something else is quoted: \"stage""",
    ),
    "a mistyped key of training, of which there is none": (
        ["stage=evaluate", "+trainer.profilr=simple"],
        "trainer.profilr: no such option, did you mean trainer.profiler?",
    ),
    "a bad value for training, of which there is none": (
        ["stage=describe", "algorithm.search_share=2"],
        "algorithm.search_share: must be a number from 0 to 1, got 2",
    ),
    "no baseline": (["stage=evaluate", "baseline=[]"], "baseline: none"),
    "a directory that is a file": (["run_dir=README.md"], "README.md: File exists"),
    "unknown teacher": (
        ["stage.teacher=nope"],
        "'baseline/nope' does not exist, choose from anneal",
    ),
    "a teacher where none teaches": (
        ["stage=evaluate", "stage.teacher=annealing"],
        "Could not override 'baseline@stage.teacher'",
    ),
    "a teacher of order on fifo": (
        ["stage=imitation", "stage.teacher=annealing_order", "system=published"],
        "stage.teacher: Annealing searches for an order of ops, which this system ignores",
    ),
    "no order on fifo": (
        ["stage=evaluate", "baseline=annealing_order", "system=published"],
        "baseline: nothing to compare (annealing_order)",
    ),
}


@pytest.mark.parametrize("case", BAD_OVERRIDES)
def test_a_bad_override_ends_in_one_line_that_names_it(case, command):
    overrides, expected = BAD_OVERRIDES[case]
    code, _, error = command(*overrides)
    assert code == 1
    assert error.count("\n") == 1 and error.startswith("error: ")
    assert expected in error


PATHS = [
    *("ü 日本", "a(b)", "[a]", "{a:b}", "a=b", "a'b", 'a"b', "a&b#c+d;e%f", "~a", "a\\b", "a\\'b"),
    *("a\\", "1e3", "null.txt", "sort(a)", "[b]:smile:"),
]


@pytest.mark.parametrize("option", PATHS)
def test_any_path_is_one_and_is_printed_as_it_is(option, command, tmp_path):
    graph = graph_file(tmp_path, GRAPH, option)
    run_dir = tmp_path / "runs" / option
    code, out, error = command(
        *("stage=evaluate", "baseline=round_robin", "workload=file", graph, "workload.name=any"),
        f"run_dir={run_dir}",
    )
    assert (code, error) == (0, "")
    assert (run_dir / "summary.json").exists()
    assert f"-> {run_dir}\n" in out


@pytest.mark.parametrize("option", ["search.lists.z=", "search.drafts.a.b=1"])
def test_a_part_of_a_list_that_is_set_by_name_ends_in_one_line(option, command):
    code, _, error = command("stage=describe", option)
    name = option.partition("=")[0]
    assert (code, error.count("\n")) == (1, 1)
    assert error.startswith(f"error: {name}: a list has no part of this name")


def pair(seconds: float) -> str:
    """Two ops in a chain, in JSON."""
    ops = [{"given_seconds": 2}, {"given_seconds": seconds}]
    edges = [{"src": 0, "dst": 1, "given_seconds": 1}]
    return json.dumps({"format": "doppler-graph", "version": 2, "ops": ops, "edges": edges})


FOLDER = ("stage=evaluate", "workload=file", "cluster=identical", "system.contention=none")


def test_a_folder_is_a_sweep_over_its_graphs(command, tmp_path):
    folder = tmp_path / "my [graphs]"
    folder.mkdir()
    for name, seconds in (("2p_a", 3), ("b, c", 5)):
        (folder / f"{name}.json").write_text(pair(seconds))
    (folder / "notes.md").write_text("no graph")
    (folder / "optimal.csv").write_text(
        'name,processors,optimal,lower_bound,proven\n2p_a,2,5,5,True\n"b, c",3,8,4,False\n'
    )
    code, out, error = command(
        *(*FOLDER, "baseline=round_robin", f"workload.path={folder}", "seed=0,1")
    )
    assert (code, error) == (0, "")
    assert out.count("dropped") == 0 and out.count("comes with its own times") == 4
    runs = find_runs([tmp_path / "out"])[0]
    assert [run.summary["optimum_s"] for run in runs] == [5, 5, 4, 4]
    assert [run.summary["optimum_is_proven"] for run in runs] == [True, True, False, False]
    assert [run.rows[0].num_devices for run in runs] == [2, 2, 3, 3]
    markdown, _ = write_report([tmp_path / "out"], tmp_path / "report")
    assert "| 2p_a on identical, 2 devices | 5 s | 1.200 |" in markdown
    assert "| b, c on identical, 3 devices | at least 4 s | 2.000 |" in markdown
    assert "| round_robin | 1 | 1.2000 | 1.200 | 0% | 1 | 2.0000 |" in markdown
    # With contention it may take longer; with two ops at a time, less.
    command(*FOLDER, "baseline=round_robin", f"workload.path={folder}", "system.streams=2")
    assert sum("optimum_s" in run.summary for run in find_runs([tmp_path / "out"])[0]) == 4


def test_a_folder_without_graphs_and_a_bad_table_are_named(command, tmp_path):
    (tmp_path / "empty").mkdir()
    code, _, error = command(*FOLDER, f"workload.path={tmp_path}/empty")
    assert code == 1 and f"{tmp_path}/empty: no graph in it (" in error
    path = graph_file(tmp_path, pair(1), "a.json")
    (tmp_path / "optimal.csv").write_text("name,processors,optimal\na,2,3\na,4,x\n")
    code, _, error = command(*FOLDER, path)
    assert (code, error.count("\n")) == (1, 1) and f"{tmp_path}/optimal.csv:3: expected" in error
    (tmp_path / "optimal.csv").write_text("name,processors,optimal\na,2,3\na,4,3\n")
    code, _, error = command(*FOLDER, path)
    assert code == 1 and "give cluster.num_devices=2,4" in error
    code, _, _ = command(*FOLDER, "baseline=round_robin", path, "cluster.num_devices=4")
    assert code == 0
    assert find_runs([tmp_path / "out"])[0][0].summary["optimum_s"] == 3


def test_a_comma_and_a_reference_are_paths_in_quotes(command, tmp_path):
    graph_file(tmp_path, GRAPH, "a,${b}.txt")
    code, _, _ = command(
        *("stage=evaluate", "baseline=round_robin", "workload=file", "workload.name=any"),
        rf"workload.path='{tmp_path}/a,\${{b}}.txt'",
    )
    assert code == 0


def test_a_training_that_diverges_says_so(command):
    code, _, error = command(
        *("stage=imitation", "workload.params.n=64", "budget.imitation_episodes=32"),
        "algorithm.imitation.learning_rate=[1e35,1e35]",
    )
    assert code == 1 and error.count("\n") == 1
    assert "not finite at update 1: lower algorithm.imitation.learning_rate" in error


def test_a_defect_of_ours_is_no_fault_of_the_user(command, monkeypatch):
    def broken(*args, **kwargs):
        raise IndexError("tuple index out of range")

    monkeypatch.setattr("doppler.cluster.presets.connected", broken)
    code, _, error = command("stage=evaluate", "baseline=round_robin")
    assert code == 1 and "Traceback" in error


def test_an_unreadable_checkpoint_ends_in_one_line(command, tmp_path):
    (tmp_path / "seed=0.ckpt").write_bytes(b"not a checkpoint")
    code, _, error = command(f"stage.init_from={tmp_path}/seed=0.ckpt")
    assert code == 1
    assert error.count("\n") == 1
    assert f"{tmp_path}/seed=0.ckpt: unreadable checkpoint" in error


def test_a_damaged_checkpoint_of_the_run_itself_is_named(command, tmp_path):
    small = ["stage=imitation", "workload.params.n=64", "budget.imitation_episodes=16"]
    assert command(*small)[0] == 0
    (directory,) = (tmp_path / "out").glob("imitation/*/*/*/*")
    (directory / "summary.json").unlink()
    (directory / "checkpoints/last.ckpt").write_bytes(b"damaged")
    code, _, error = command(*small)
    assert code == 1
    assert "last.ckpt: unreadable checkpoint" in error


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(28, "No space left on device", "/full/x.json"), "/full/x.json: No space left"),
        (MemoryError("Unable to allocate 36.9 GiB"), "not enough memory (Unable to allocate 36.9"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: x"), "not enough memory (Def"),
        (SystemExit(3), "code that the run calls called sys.exit(3)"),
    ],
)
def test_what_the_machine_lacks_ends_in_one_line(error, line, command, monkeypatch):
    def fail(*arguments):
        raise error

    monkeypatch.setattr("doppler.experiment.evaluate.compare_baselines", fail)
    code, _, text = command("stage=evaluate", "workload.params.n=64")
    assert code == 1
    assert text.startswith(f"error: {line}") and text.count("\n") == 1


def test_the_teacher_is_chosen_by_name_and_has_settings(command, tmp_path):
    code, out, _ = command(
        *("stage=imitation", "stage.teacher=random", "workload.params.n=64"),
        *("budget.imitation_episodes=16", "stage.teacher.evaluations=5"),
    )
    assert code == 0
    assert "Random teaches a placement of" in out and "found in 5 evaluations" in out


def test_overrides_may_stand_on_both_sides_of_the_multirun_flag(command, tmp_path):
    code, out, _ = command(
        "stage=evaluate", "baseline=round_robin,single_device", "-m", "seed=1,2", "cluster=mixed"
    )
    assert code == 0
    found = sorted(
        str(path.parent.relative_to(tmp_path / "out")).rsplit("-", 1)[0]
        for path in (tmp_path / "out").rglob("summary.json")
    )
    assert found == [
        f"evaluate/chainmm/mixed/{method}/seed={seed}"
        for method in ("round_robin", "single_device")
        for seed in (1, 2)
    ]
    assert out.count("lower bound") == 4


def test_results_and_errors_do_not_depend_on_where_the_command_runs(command, tmp_path, monkeypatch):
    arguments = ("stage=evaluate", "baseline=round_robin")
    assert command(*arguments)[0] == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    code, out, _ = command(*arguments)
    assert code == 0
    assert len(list((tmp_path / "out").rglob("summary.json"))) == 1, "same run, same directory"
    assert "finished already" in out


def test_help_says_of_every_choice_what_it_is(command):
    code, out, error = command("--help")
    assert (code, error) == (0, "")
    lines = [line.strip(" *") for line in out.splitlines()]
    for file in GROUP_FILES:
        said = description_of(file)
        assert said.endswith("."), f"{file}: its first line is a sentence"
        assert any(line.startswith(choice_of(file)) and line.endswith(said) for line in lines), file


def test_what_hydra_cannot_read_without_assertions_is_said_in_one_line(tmp_path):
    words = ["stage=evaluate", "baseline=[heft]", f"output_dir={tmp_path}", "-m", "seed=range(1,3)"]
    environment = {**os.environ, "PYTHONOPTIMIZE": "1"}
    done = subprocess.run(
        [sys.executable, PROJECT / "src/run.py", *words],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr == (
        "error: seed=range(1,3): Hydra cannot read this where Python runs with -O "
        "(PYTHONOPTIMIZE): unset it\n"
    )


MACHINE = """
_target_: doppler.cluster.custom
name: pair
devices:
  - name: a
    flop_per_s: {f32: 1.0e12}
    memory_bytes_per_s: 1.0e11
    launch_overhead_s: 0
    memory_bytes: 1.0e11
  - name: b
    flop_per_s: {f32: 1.0e12}
    memory_bytes_per_s: 1.0e11
    launch_overhead_s: 0
    memory_bytes: 1.0e11
bytes_per_s: 1.0e9
latency_s: 0
num_devices: 2
"""


def test_the_file_of_a_machine_is_a_choice_of_cluster(command, tmp_path):
    (tmp_path / "mixed.yaml").write_text(MACHINE)  # also the name of a choice
    words = ["stage=evaluate", "baseline=[round_robin]"]
    code, _, error = command("-m", *words, f"cluster={tmp_path}/mixed.yaml,mixed")
    assert code == 0, error
    found = {path.parent.name for path in tmp_path.glob("out/evaluate/chainmm/*/*")}
    assert found == {"pair", "mixed"}


@pytest.mark.parametrize("name", ["größe", "1e3", "true", "4 gpus", "a=b"])
def test_the_file_of_a_machine_may_have_any_name(name, command, tmp_path):
    (tmp_path / f"{name}.yaml").write_text(MACHINE)
    words = ["stage=evaluate", "baseline=[round_robin]"]
    code, _, error = command(*words, f"cluster={tmp_path}/{name}.yaml")
    assert code == 0, error
    assert list(tmp_path.glob("out/evaluate/chainmm/pair/*"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (MACHINE.replace("doppler.cluster.custom", "os.system"), "with --config-dir=DIR"),
        (MACHINE.replace("bytes_per_s: 1.0e9\nlat", "lat"), "'bytes_per_s' is missing"),
    ],
)
def test_a_file_that_describes_no_machine_is_refused_in_one_line(text, told, command, tmp_path):
    (tmp_path / "mine.yaml").write_text(text)
    code, _, error = command("stage=describe", f"cluster={tmp_path}/mine.yaml")
    assert code == 1
    assert error.startswith("error: ") and told in error and error.count("\n") == 1
