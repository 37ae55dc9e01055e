"""Files that somebody else may have written: every damage is one line that names the place."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from problems import cluster_of, graph_of
from pytorch_lightning import LightningModule
from right_files import CONTENTS, PLACEMENT, PROBLEM, READERS, changed, message

from doppler.einsum import load_program, lower
from doppler.executor.calibration import calibrate
from doppler.graph import load_graph
from doppler.policies.weights import load_checkpoint
from doppler.problem import Placement, build
from doppler.simulator import WorkConserving
from doppler.support.errors import InputError
from doppler.support.files import LIMIT_VARIABLE, parse_json, read_text, read_yaml
from doppler.training.checkpoints import check_resumable, effort_of, found_of


@pytest.mark.parametrize("name", READERS)
def test_a_file_that_is_right_is_read(tmp_path, name):
    read, right = READERS[name]
    (tmp_path / name).write_text(json.dumps(right))
    read(tmp_path / name)
    (tmp_path / name).write_text("\ufeff" + json.dumps(right, indent=1).replace("\n", "\r\n"))
    read(tmp_path / name)


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS.keys())
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_such_file_ends_in_one_line(tmp_path, name, content):
    read, _ = READERS[name]
    (tmp_path / name).write_bytes(content)
    message(read, tmp_path / name)


@pytest.mark.parametrize("name", [*READERS, "x.ckpt", "program.txt"])
def test_what_is_no_regular_file_is_not_waited_for(tmp_path, name):
    readers = {"x.ckpt": load_checkpoint, "program.txt": lambda path: load_program(str(path))}
    read = readers.get(name) or READERS[name][0]
    path = tmp_path / name
    if name != "summary.json":  # which the reader moves
        assert "No such file" in message(read, path)
    os.mkfifo(path)
    assert "not a regular file" in message(read, path).lower()


def test_a_file_has_a_size_limit_that_can_be_raised(tmp_path, monkeypatch):
    path = tmp_path / "big.txt"
    path.write_text("a" * 2_000_000)
    assert len(read_text(path)) == 2_000_000
    monkeypatch.setenv(LIMIT_VARIABLE, "1")
    assert message(read_text, path) == (
        f"{path}: 1.91 MB, more than 1 ({LIMIT_VARIABLE}=N in the environment allows N)"
    )
    monkeypatch.setenv(LIMIT_VARIABLE, "2")
    read_text(path)
    monkeypatch.setenv(LIMIT_VARIABLE, "much")
    with pytest.raises(InputError, match=f"{LIMIT_VARIABLE}: must be a positive number"):
        read_text(path)
    monkeypatch.delenv(LIMIT_VARIABLE)
    assert "more than 1 " in message(read_yaml, path)


INF = float("inf")
NO_KEY = "no such key, did you mean"
DAMAGES = [
    ("graph.json", ("version",), True, "version True, this program reads 1 and 2"),
    ("graph.json", ("version",), 3, "version 3, this program reads 1 and 2"),
    ("graph.json", ("version",), 1.0, "version 1.0, this program reads 1"),
    ("graph.json", ("nmae",), "x", f"nmae: {NO_KEY} 'name'?"),
    ("graph.json", ("ops", 1, "flopz"), 1, f"ops[1].flopz: {NO_KEY} 'flops'?"),
    ("graph.json", ("ops", 0, "nmae"), "x", f"ops[0].nmae: {NO_KEY} 'name'?"),
    ("graph.json", ("ops", 0, "name"), 3, "ops[0].name: expected text, found 3"),
    ("graph.json", ("edges", 0, "byte"), 1, f"edges[0].byte: {NO_KEY} 'bytes'?"),
    ("graph.json", ("edges", 0, "src"), 0.5, "edges[0].src: expected an integer, found 0.5"),
    ("graph.json", ("ops", 0, "flops"), INF, "ops[0].flops: expected a finite number"),
    (
        "graph.json",
        ("tensors",),
        [{"name": "x", "shape": [-1], "dtype": "f32"}],
        "tensors[0].shape: expected sizes that are not negative, found [-1]",
    ),
    ("graph.json", ("ops", 0, "given_seconds"), 1e300, "must take at most 1e+09 s"),
    ("costs.json", ("version",), "1", "version '1', this program reads 1"),
    ("costs.json", ("tabels",), [], f"tabels: {NO_KEY} 'tables'?"),
    ("costs.json", ("tables", 0, "kernel"), {}, f"tables[0].kernel: {NO_KEY} 'kernels'?"),
    (
        "costs.json",
        ("tables", 0, "kernels", "k"),
        [1e300, 1.0],
        "tables[0].kernels['k'][0]: must be from 0 to 1e+09 s, got 1e+300",
    ),
    ("costs.json", ("tables", 0, "kernels", "k"), [10**400, 1], "['k'][0]: the number is too"),
    ("costs.json", ("tables", 0, "kernels", "k"), [1.0], "['k']: 1 numbers for 2 devices"),
    ("costs.json", ("tables", 0, "latency_s", 0), [0, -1], "latency_s[0][1]: must be from 0"),
    ("costs.json", ("tables", 0, "latency_s"), [], "latency_s: 0 rows for 2 devices"),
    ("costs.json", ("tables", 0, "devices"), [1, 2], "devices[0]: expected text, found 1"),
    ("cluster.yaml", ("nmae",), "x", f"nmae: {NO_KEY} 'name'?"),
    ("cluster.yaml", ("bytes_per_s",), INF, "bytes_per_s must be finite"),
    ("cluster.yaml", ("bytes_per_s",), "fast", "neither a number nor a matrix"),
    ("cluster.yaml", ("devices",), 3, "cluster.yaml: "),
    ("cluster.yaml", ("devices", 1), None, "devices[1]: expected a mapping, found None"),
    ("cluster.yaml", ("devices", 0, "memory"), 1, f"devices[0].memory: {NO_KEY} 'memory_bytes'?"),
    ("cluster.yaml", ("devices", 0, "memory_bytes"), INF, "devices[0]: every number must be"),
    ("cluster.yaml", ("devices", 0, "flop_per_s", "f32"), "1", "flop_per_s[f32] must be positive"),
    ("cluster.yaml", ("hosts",), "ab", "cluster 'mine': hosts: must be"),
    ("cluster.yaml", ("hosts",), True, "cluster 'mine': hosts: must be"),
    ("cluster.yaml", ("hosts",), [0, 2], "numbered from 0 on, got [0, 2]: host 1 has no device"),
    ("cluster.yaml", ("hosts",), [0, 10**9], "0, 1000000000]: host 1 has no device"),
    ("cluster.yaml", ("hosts",), 2, "cluster 'mine': 2 hosts need nic_bytes_per_s"),
    ("cluster.yaml", ("nics",), 1.5, "cluster 'mine': nics: must be a whole number"),
    ("cluster.yaml", ("nic_bytes_per_s",), INF, "cluster 'mine': nic_bytes_per_s: must be"),
    ("cluster.yaml", ("nic_latency",), 1, f"nic_latency: {NO_KEY} 'nic_latency_s'?"),
    ("cluster.yaml", ("name",), "${oc.env:HOME}", "interpolated values need --trust"),
    ("cluster.yaml", ("devices", 0, "_target_"), "os.system", "_target_: needs --trust"),
    ("placement.json", ("device",), [0.5, 0], "device: expected an integer, found 0.5"),
    ("placement.json", ("device",), [0, 2], "op 1 is on device 2"),
    ("placement.json", ("devise",), [0, 0], f"devise: {NO_KEY} 'device'?"),
    ("placement.json", ("priority",), [True, 0], "priority: expected an integer, found True"),
    ("placement.json", ("problem_hash",), None, "problem_hash: expected text, found None"),
    ("summary.json", ("seed",), "0", "seed: expected an integer, found '0'"),
    ("summary.json", ("fidelity",), {"a": {}}, "'workload' is missing"),
    ("summary.json", ("episodes_per_s",), -1.0, "expected a number of at least 0"),
    ("trace.json", ("traceEvents", 1, "ts"), float("nan"), "not a trace"),
    ("trace.json", ("traceEvents", 1, "dur"), -1.0, "not a trace"),
    ("trace.json", ("traceEvents", 1, "args", "op"), [], "not a trace"),
    ("trace.json", ("traceEvents",), 3, "not a trace"),
]


@pytest.mark.parametrize(("name", "where", "value", "why"), DAMAGES)
def test_a_damaged_entry_is_named(tmp_path, name, where, value, why):
    read, right = READERS[name]
    damaged = changed(right, where, value)
    if name == "graph.json" and where[-1] == "given_seconds":
        damaged["ops"][1]["given_seconds"] = damaged["edges"][0]["given_seconds"] = 1.0
        told = message_of_build(tmp_path, damaged)
    else:
        text = json.dumps(damaged)
        if name.endswith(".yaml"):
            text = text.replace("Infinity", ".inf")
        (tmp_path / name).write_text(text)
        told = message(read, tmp_path / name)
    assert why in told


def message_of_build(tmp_path: Path, content: dict) -> str:
    (tmp_path / "graph.json").write_text(json.dumps(content))
    with pytest.raises(InputError) as error:
        build(load_graph(tmp_path / "graph.json"), cluster_of([1.0, 1.0]))
    return str(error.value)


def test_placements_keep_no_fractions():
    with pytest.raises(InputError, match="placement: devices are not all integers"):
        Placement.make(PROBLEM, [0.5, 0])


def test_yaml_is_data_and_no_more_of_it_than_it_shows(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("a: 1e9\nb: 2026-01-01\nc: &c {d: 1}\ne: *c\n")
    assert read_yaml(path) == {"a": 1e9, "b": "2026-01-01", "c": {"d": 1}, "e": {"d": 1}}
    bomb = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
    for one, before in zip("bcdefghi", "abcdefgh", strict=True):
        bomb += f"{one}: &{one} [{', '.join(10 * [f'*{before}'])}]\n"
    for text, why in {
        bomb: "more than 100,000 values",
        "a: &a [*a]": "an alias within the value that it refers to",
        "a: 1\na: 2": ":2: the key 'a' appears twice",
        "{a: 1}: 2": "a key that is not text",
        "!!python/object/apply:os.system [ls]": "could not determine a constructor",
        "a: 1\n---\nb: 2": "another document",
        "a: " + 150 * "[" + 150 * "]": "nested too deeply",
    }.items():
        path.write_text(text)
        assert why in message(read_yaml, path)


def test_names_of_files_stay_in_one_line(tmp_path):
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(changed(READERS["graph.json"][1], ("name",), "a\n\x1b[2J")))
    told = message_of_build(tmp_path, changed(json.loads(path.read_text()), ("edges", 0, "src"), 9))
    assert "graph 'a\\n\\x1b[2J'" in told and told.isprintable()
    assert str(InputError("a\nb\ud800")) == "a\\nb\\ud800"


def test_a_key_that_is_there_twice_is_named():
    with pytest.raises(InputError, match=r"^x\.json: the key 'flops' appears twice in one object$"):
        parse_json('{"ops": [{"flops": 1, "name": "a", "flops": 2}]}', "x.json")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ([1], "not a checkpoint"),
        ({"state_dict": [1]}, "not a checkpoint"),
        ({"state_dict": 7}, "not a checkpoint"),
        ({"state_dict": {"policy.x": 7}}, "state_dict: 'policy.x' is not a named tensor"),
        ({"state_dict": {3: torch.ones(1)}}, "state_dict: '3' is not a named tensor"),
        ({"state_dict": {}, "doppler": [1]}, "doppler: expected a dictionary"),
        ({"state_dict": {}, "doppler": {"version": 2}}, "version 2, this program reads 1"),
        ({"state_dict": {}, "doppler": {"version": True}}, "version True, this program reads 1"),
        ({"state_dict": {}, "doppler": {"evaluations": "x"}}, "doppler.evaluations: expected an"),
        ({"state_dict": {}, "doppler": {"elapsed_s": None}}, "doppler.elapsed_s: expected a num"),
        ({"state_dict": {}, "doppler": {"evaluations": -3}}, "evaluations: expected a number of"),
        ({"state_dict": {}, "doppler": {"elapsed_s": -0.5}}, "elapsed_s: expected a number of at"),
        ({"state_dict": {}, "doppler": {"best": []}}, "doppler.best: "),
        ({"state_dict": {}, "doppler": {"best": {}}}, "doppler.best: 'problem_hash' is missing"),
        (
            {
                "state_dict": {},
                "doppler": {"best": {**PLACEMENT, "device": [0.5, 1], "seconds": 1.0}},
            },
            "doppler.best: placement: devices are not all integers",
        ),
        (
            {"state_dict": {}, "doppler": {"best": {**PLACEMENT, "seconds": "fast"}}},
            "doppler.best: could not convert",
        ),
    ],
)
def test_a_checkpoint_that_holds_something_else_ends_in_one_line(tmp_path, content, why):
    path = tmp_path / "x.ckpt"
    torch.save(content, path)

    def read(path: Path) -> None:
        effort_of(path)
        found_of(path, PROBLEM)

    assert why in message(read, path)
    path.write_bytes(path.read_bytes()[:200])
    assert "unreadable checkpoint" in message(read, path)


class Resumed(LightningModule):
    """Needs what a training of ours needs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        checkpoint["doppler"]["rng"]["state"]


LIGHTNING = {
    **{"epoch": 0, "global_step": 3, "loops": {}, "optimizer_states": [], "lr_schedulers": []},
    "state_dict": Resumed().state_dict(),
}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"loops": None}, "'loops' is missing: no training can go on from it"),
        ({"state_dict": {}}, "belongs to another training, or is damaged (Error(s) in loading"),
        (
            {"state_dict": {n: one > 0 for n, one in Resumed().state_dict().items()}},
            "state_dict: layer.weight: expected torch.float32, found torch.bool",
        ),
        ({"doppler": {"evaluations": -3}}, "doppler.evaluations: expected a number of at least 0"),
        ({"doppler": {}}, "belongs to another training, or is damaged ('rng')"),
        ({"doppler": {"rng": 3}}, "belongs to another training, or is damaged ('int' object"),
    ],
)
def test_a_checkpoint_that_no_training_can_go_on_from_is_named_before_it_begins(
    tmp_path, changes, why
):
    path = tmp_path / "last.ckpt"
    whole = {**LIGHTNING, "doppler": {"rng": {"state": 1}}}
    torch.save(whole, path)
    check_resumable(path, Resumed())
    torch.save({k: v for k, v in (whole | changes).items() if v is not None}, path)
    assert why in message(lambda path: check_resumable(path, Resumed()), path)


# --- Programs, and what would not end -----------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("repeat 1000000000: x = y", ":4:20: 1,000,000,000 times 2 nodes are more than 200,000"),
        ("input z[4e18] f32", ":4:9: 4e+18 are too many elements"),
        (f"input z[{'9' * 5000}] f32", ":4:9: the number has too many digits"),
        (f"param n: paper={'9' * 5000}", ":4:16: 'paper' is 99999"),
        ("z[i,j] = " + 5000 * "relu(" + "y[i,j]" + 5000 * ")", "nested too deeply"),
        ("z[i,j] = relu(y[i,j]) split i=4000 j=4000", "split into 16,000,000 blocks, more than"),
    ],
)
def test_a_program_that_would_not_end_is_refused_at_once(tmp_path, text, why):
    path = tmp_path / "program.txt"
    path.write_text(f"program p\ninput x[4000,4000] f32\ny[i,j] = relu(x[i,j])\n{text}\n")
    with pytest.raises(InputError) as error:
        program = load_program(str(path))
        lower(program, program.given_splits)
    told = str(error.value)
    assert why in told and told.isprintable() and len(told) < 1100


def test_calibration_of_more_devices_than_can_be_paired_begins_nothing():
    problem = build(graph_of([1.0]), cluster_of([1.0] * 300))
    with pytest.raises(InputError, match=r"every pair of devices, 89,700 of 300: use at most 64"):
        calibrate(WorkConserving(), problem, runs=1, rng=np.random.default_rng(0), links=True)


def test_seconds_that_no_schedule_could_count_are_refused_and_named():
    with pytest.raises(InputError, match=r"op 1 \('op1'\) takes 2e\+09 s"):
        build(graph_of([1.0, 2e9]), cluster_of([1.0]))
    with pytest.raises(InputError, match=r"moving the output of op 0 \('op0'\) takes 3e\+09 s"):
        build(graph_of([1.0, 1.0], [(0, 1, 3e9)]), cluster_of([1.0, 1.0]))
