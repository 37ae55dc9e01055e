"""`make gpu`: without a GPU one line; its parts on cores and on a torch.cuda that is made up."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import benchmarks.executor
import pytest
import torch
from benchmarks.gpu import __main__ as command
from benchmarks.gpu import agents, executing, machine, stages
from benchmarks.gpu.page import Outcome, page
from benchmarks.gpu.parts import PARTS, STAGES, Cells, Fault, Figure, Settings, said
from executions import REPOSITORY
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from test_graphs import with_graphs  # noqa: F401
from test_issuing import made_up  # noqa: F401

from doppler.extensions.hosts import launchers, members

BY_NAME = {part.name: part for part in PARTS}


def run(folder, *parts):
    """Returns the exit code and the page."""
    arguments = ["--executor", "threads", "--small", "--parts", ",".join(parts)]
    arguments += ["--page", str(folder / "gpu.md"), "--runs", str(folder)]
    return command.main(arguments), (folder / "gpu.md").read_text()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_so():
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu"], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert told.returncode == 1
    assert told.stdout == ""
    (line,) = told.stderr.splitlines()
    assert line.startswith(f"make gpu: there is no GPU for torch {torch.__version__} of ")


def test_without_torch_or_with_an_old_one_one_line_says_so(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.10.3+cu128")
    assert "torch 2.10.3+cu128 of" in (machine.fault_of("threads") or "")
    monkeypatch.setattr(torch, "__version__", "2.11.0+cu130")
    assert machine.fault_of("threads") is None
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    assert "there is no torch in" in (machine.fault_of("threads") or "")


def test_what_is_missing_is_named_and_the_other_parts_are_run(tmp_path, monkeypatch, capfd):
    find = machine.find_spec
    absent = ("hydra", "rich", "pynvml")
    monkeypatch.setattr(machine, "find_spec", lambda one: None if one in absent else find(one))
    code, text = run(tmp_path, "machine", "calibrate")
    assert code == 1
    out, err = capfd.readouterr()
    lines = out.splitlines()
    assert lines[:2] == [
        "hydra-core is missing: without it no calibrate",
        "rich is missing: without it no calibrate",
    ]
    assert "- calibrate (0 s): **left out: hydra-core, rich missing**." in text
    assert "f32 product" in text
    assert err.splitlines()[-1] == "make gpu: failed: calibrate"
    assert machine.missing([BY_NAME["use"]], "cuda") == {"nvidia-ml-py": ["use"]}
    assert machine.missing([BY_NAME["use"]], "threads") == {}


@pytest.mark.parametrize(
    ("imported", "hidden"),
    [
        ("benchmarks.gpu.executing", [*STAGES, "matplotlib", "pandas", "plotly"]),
        ("run", ["pandas", "plotly"]),
    ],
)
def test_what_may_be_missing_is_not_needed(imported, hidden):
    """A machine with a GPU may have neither pytest nor what draws."""
    script = (
        f"import sys; sys.modules |= dict.fromkeys({[*hidden, 'pytest', 'hypothesis']})\n"
        f"import {imported}\n"
    )
    path = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY / "tests")])
    env = {**os.environ, "PYTHONPATH": path}
    told = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, env=env, capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr


def test_the_parts_that_execute_run_on_cores(tmp_path, capfd):
    code, text = run(tmp_path, "results", "overhead", "graphs", "whole_runs", "agents")
    assert code == 0, capfd.readouterr().err
    assert "8 pairs of a workload and a system computed what plain torch does" in text
    assert "| | priority | fifo | strict | synchronous |" in text
    assert "| | way | error over what is tolerated | ms in one process |" in text
    for name in ("results", "overhead", "graphs", "whole_runs", "agents"):
        assert f"### {name}: " in text
    assert "**" not in text, "nothing failed"


def test_parts_that_ended_in_an_earlier_call_stay_on_the_page(tmp_path, monkeypatch):
    ran = []

    def ended(part, settings, limit_s):
        ran.append(part.name)
        command._rows_of(part, settings).write_text(json.dumps(["f32 product", "rate", 1.5]) + "\n")
        return Outcome(part, command._found(part, settings), None, 2.0)

    monkeypatch.setattr(command, "_run", ended)
    run(tmp_path, "machine")
    code, text = run(tmp_path, "overhead")
    assert (code, ran) == (0, ["machine", "overhead"])
    assert text.index("### overhead") < text.index("### machine"), "in the order of all parts"
    monkeypatch.setattr(machine, "_commit", lambda: "another")
    _, text = run(tmp_path, "overhead")
    assert "### machine" not in text, "another commit found that"


def test_stages_are_compiled_for_before_any_clock_starts(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(command, "_compile", lambda settings: told.append("compile"))
    monkeypatch.setattr(
        command, "_run", lambda part, *_: told.append(part.name) or Outcome(part, [], None, 1)
    )
    run(tmp_path, "machine")
    assert told == ["machine"]
    run(tmp_path, "machine", "calibrate")
    assert told[1:] == ["compile", "machine", "calibrate"]


def test_the_list_of_small_wheels_has_what_parts_import_beside_torch():
    wheels = (REPOSITORY / "benchmarks/gpu/wheels.txt").read_text()
    large = {"torch", "numpy", "numba", "scipy", "networkx", "matplotlib"}
    large |= {"pytorch_lightning", "torch_geometric"}
    needed = {one for part in PARTS for one in (*part.needs, *part.needs_on_gpus)} - large
    for module in {*needed, "lark"}:
        assert machine.DISTRIBUTIONS.get(module, module) in wheels, module


@pytest.mark.slow
def test_the_stages_run_on_cores(tmp_path, capfd):
    code, text = run(tmp_path, "calibrate", "stage_three")
    out, err = capfd.readouterr()
    assert code == 0, err
    assert "calibration is needed first" not in out, "stage III has the costs of the part before"
    assert "| measured costs |" in text
    assert "| critical_path |" in text
    assert "Stage III's placement takes" in text


@pytest.mark.parametrize("name", ["calibrate", "stage_three"])
@pytest.mark.parametrize("executor", ["cuda", "threads"])
def test_the_configuration_has_all_that_stages_are_told(name, executor, tmp_path):
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(REPOSITORY / "conf"), version_base="1.3"):
        cfg = compose("config", stages.overrides(name, Settings(executor, False, tmp_path)))
    assert cfg.cluster.num_devices == 4


def test_a_part_that_hangs_is_ended_and_what_it_found_is_kept(tmp_path, monkeypatch):
    settings = Settings("threads", True, tmp_path)
    outcome = command._run(BY_NAME["overhead"], settings, 0.01)
    assert outcome.problem == "stopped after 0.01 s"
    assert outcome.seconds < 60


def test_what_a_part_leaves_of_its_time_is_for_those_after_it(tmp_path, monkeypatch):
    now_s, limits = [0.0], {}
    taken_s = {"results": 10.0, "overhead": 1e6, "graphs": 5.0}

    def ended(part, settings, limit_s):
        limits[part.name] = limit_s
        now_s[0] += min(taken_s[part.name], limit_s)
        return Outcome(part, [], None, taken_s[part.name])

    monkeypatch.setattr(command, "_run", ended)
    monkeypatch.setattr(command.time, "monotonic", lambda: now_s[0])
    run(tmp_path, *taken_s)
    own = [command.CORES_PATIENCE * BY_NAME[name].limit_s for name in taken_s]
    assert [*limits.values()] == [own[0], own[0] - 10.0 + own[1], own[2]]


def test_a_part_that_has_told_everything_waits_for_no_other_library():
    script = (
        "import atexit, sys, time\n"
        "from benchmarks.gpu import __main__ as command\n"
        "atexit.register(time.sleep, 600)\n"
        "command.ENDING_S = 0.1\n"
        "sys.exit(command._ended(3))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, timeout=120)
    assert done.returncode == 3


def test_what_a_part_finds_is_on_disk_before_it_fails(tmp_path, monkeypatch, capsys):
    def broken(settings):
        yield Figure("wide", "dispatched", 3.0)
        yield Fault("one thing")
        raise RuntimeError("CUDA error: illegal memory access\nmore of it")

    monkeypatch.setattr(executing, "overhead", broken)
    settings = Settings("threads", True, tmp_path)
    assert command._do(BY_NAME["overhead"], settings) == 1
    rows = [json.loads(line) for line in (tmp_path / "overhead.jsonl").read_text().splitlines()]
    last = "RuntimeError: CUDA error: illegal memory access"
    assert rows == [["wide", "dispatched", 3.0], ["one thing"], [last]]
    found = [Figure(*rows[0]), Fault(*rows[1]), Fault(*rows[2])]
    outcome = Outcome(BY_NAME["overhead"], found, "failed (exit code 1)", 1.0)
    text = page({"machine": "one"}, [outcome], 1.0)
    assert f"- overhead (1 s): **failed (exit code 1)**. Wrong: one thing. Wrong: {last}. " in text
    assert "| wide | 3 |" in text


def test_all_parts_take_less_than_eight_minutes():
    assert sum(part.limit_s for part in PARTS) < 8 * 60


def test_cells_are_as_people_read_them():
    cells = Cells([Figure("a", "x", 1234.5), Figure("b", "y", 0.01234), Figure("b", "x", "no")])
    assert [cells(*at) for at in (("a", "x"), ("b", "y"), ("b", "x"), ("a", "y"))] == [
        "1,234",
        "0.0123",
        "no",
        "-",
    ]
    assert cells.numbers("x") == {"a": 1234.5}
    assert said(12.0) == "12"


# --- The parts of GPUs, on ones that are made up --------------------------------------------------


@pytest.fixture
def gpu(made_up, monkeypatch):  # noqa: F811
    made_up(1)
    monkeypatch.setattr(benchmarks.executor, "NUM_OPS", 20)
    monkeypatch.setattr(executing, "USE_S", 0.1)
    # What is made up has no default stream.
    monkeypatch.setattr(executing, "_gpu_s", executing._host_s)
    monkeypatch.setattr(torch.cuda, "utilization", lambda gpu: 50)
    monkeypatch.setattr(torch.cuda, "device_memory_used", lambda gpu: 2e9)
    return Settings("cuda", True, None)


@pytest.mark.parametrize("name", ["results", "overhead", "whole_runs", "use"])
def test_parts_run_on_a_gpu(gpu, monkeypatch, name):
    told = []
    monkeypatch.setattr(executing, "check_too_little_memory", told.append)
    found = list(BY_NAME[name].function()(gpu))
    assert not [one for one in found if isinstance(one, Fault)]
    cells = Cells(found)
    assert BY_NAME[name].words(cells)
    queues = ["priority", "fifo"]
    expected = {
        "results": [*queues, "strict, issued ahead", "strict, as graphs", "synchronous"],
        "overhead": ["dispatched", "issued ahead", "issued ahead, by the host's clock"],
        "use": ["busy, %", "GB in use"],
    }
    assert cells.columns == expected.get(name, cells.columns)
    assert len(told) == (name == "results")


def test_what_should_be_a_graph_and_is_not_is_a_fault(with_graphs, monkeypatch):  # noqa: F811
    with_graphs(1)
    monkeypatch.setattr(executing, "check_too_little_memory", lambda system: None)

    def refuse(self) -> None:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", refuse)
    faults = [one for one in executing.results(Settings("cuda", True, None)) if type(one) is Fault]
    assert [fault.line.partition(" (")[0] for fault in faults] == [
        f"{name}, strict, as graphs: no CUDA graph of this run" for name in executing.WORKLOADS[:2]
    ]


def test_graphs_are_held_against_what_is_issued(with_graphs, monkeypatch):  # noqa: F811
    with_graphs(2)  # one of which is used
    monkeypatch.setattr(benchmarks.executor, "NUM_OPS", 20)
    cells = Cells(list(executing.graphs(Settings("cuda", True, None))))
    issued = ["issued ahead", "issued ahead, by the host's clock"]
    replayed = ["replayed", "replayed, by the host's clock"]
    assert cells.columns == ["captured, once", "replayed, first time", *issued, *replayed]
    assert cells.rows == ["wide", "chain"] and len(cells) == 12
    assert BY_NAME["graphs"].words(cells)


@pytest.mark.parametrize(("num_gpus", "way"), [(1, "memory of the host"), (2, "NCCL")])
def test_two_agents_run_on_the_gpus_there_are(made_up, monkeypatch, num_gpus, way):  # noqa: F811
    made_up(num_gpus)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    born = f"from made_up_gpus import main; main({num_gpus}, 'Untagged')"
    members.close_all()
    monkeypatch.setattr(launchers, "_NURSERY", born)
    try:
        found = list(agents.agents(Settings("cuda", True, None)))
    finally:
        members.close_all()
    cells = Cells([one for one in found if isinstance(one, Figure)])
    assert len(cells.rows) == 2 and len(found) == 12
    assert {cells(row, "way") for row in cells.rows} == {way}
    assert all(count > 0 for count in cells.numbers("messages").values())
    assert BY_NAME["agents"].words(cells)


def test_a_gpu_whose_driver_is_silent_is_a_fault(gpu, monkeypatch):
    def silent(gpu: int) -> int:
        raise RuntimeError("Not Supported")

    monkeypatch.setattr(torch.cuda, "utilization", silent)
    assert [type(one) for one in executing.use(gpu)] == [Fault]


def test_too_little_memory_must_be_told(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda gpu: 0)
    fractions = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", fractions.append)
    with pytest.raises(AssertionError, match="chainmm ran in 4194304 bytes"):
        executing.check_too_little_memory(executing._systems(gpu)["priority"])
    assert fractions == [pytest.approx((1 << 22) / (1 << 40)), 1.0]


def test_gpus_are_named_in_the_facts(gpu, monkeypatch):
    h100 = SimpleNamespace(name="NVIDIA H100 80GB HBM3", total_memory=80 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: h100)
    assert machine.facts("cuda")["machine"].startswith("1 x NVIDIA H100 80GB HBM3 (80 GiB), ")
