"""Every file that we read, damaged: it is refused in one line, or read as what it says."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from fuzz.mutations import JUNK, Damaged, bytes_of, damaged, finite, text, whole
from fuzz.outcomes import FUZZ, outcome, read
from hypothesis import given
from hypothesis import strategies as st

from doppler.api.placing import resolve_cluster
from doppler.einsum import load_program, load_workload, lower
from doppler.graph import load_graph, save_json, synthetic
from doppler.graph.json_format import render_json
from doppler.graph.text_format import render_text
from doppler.policies.weights import load_checkpoint
from doppler.problem.costs import load_all
from doppler.report.finished import find_runs

PROJECT = Path(__file__).resolve().parents[2]


# --- Graphs ---------------------------------------------------------------------------------------


def _graphs() -> list[dict]:
    program = PROJECT / "workloads/chainmm.einsum"
    executable = load_workload(program=str(program), preset="small", params={"n": 16})
    given = synthetic(family="layered", num_ops=30, transfer_ratio=1.0, seed=0)
    plain = {
        "format": "doppler-graph",
        "version": 1,
        "name": "pair",
        "ops": [
            {"name": "a", "kind": "matmul", "dtype": "f32", "flops": 4e9, "output_bytes": 4e6},
            {"name": "b", "flops": 8.0, "read_bytes": 1, "given_seconds": 1.0},
        ],
        "edges": [{"src": 0, "dst": 1, "bytes": 4e6, "region": 0}],
        "inputs": [{"name": "weights", "bytes": 1e6, "consumers": [1]}],
    }
    stages = {
        "format": "doppler-graph",
        "version": 2,
        "counts_memory": True,
        "ops": [
            {"given_seconds": [1, None], "group": 0, "pinned": 0},
            {"given_seconds": 2, "group": 0, "output_bytes": 4},
        ],
        "edges": [{"src": 0, "dst": 1, "given_seconds": {"cpu": {"gpu": 1}, "gpu": {"cpu": 2}}}],
    }
    return [json.loads(render_json(executable)), json.loads(render_json(given)), plain, stages]


GRAPHS = _graphs()
GRAPH_VALUES = {
    "format": lambda value: value == "doppler-graph",
    "version": lambda value: type(value) is int and value in (1, 2),
    "name": text,
    "counts_memory": lambda value: isinstance(value, bool),
    "ops": lambda value: isinstance(value, list),
    "edges": lambda value: isinstance(value, list),
    "inputs": lambda value: isinstance(value, list),
    "ops.*": lambda value: isinstance(value, dict),
    "ops.*.name": text,
    "ops.*.kind": text,
    "ops.*.dtype": text,
    "ops.*.flops": finite,
    "ops.*.read_bytes": finite,
    "ops.*.group": lambda value: value == -1 or whole(value),  # -1: none
    "ops.*.pinned": lambda value: value == -1 or whole(value),
    "ops.*.output_bytes": finite,
    "edges.*": lambda value: isinstance(value, dict),
    "edges.*.src": whole,
    "edges.*.dst": whole,
    "edges.*.region": whole,
    "edges.*.bytes": finite,
    "inputs.*.bytes": finite,
    "inputs.*.consumers": lambda value: isinstance(value, list) and all(map(whole, value)),
    "inputs.*.consumers.*": whole,
}


@FUZZ
@given(damaged(GRAPHS, GRAPH_VALUES))
def test_graphs(tmp_path, case):
    graph = read("graph", load_graph, tmp_path / "graph.json", case)
    if graph is not None:
        save_json(graph, tmp_path / "again.json")
        again = load_graph(tmp_path / "again.json")
        assert render_json(again) == render_json(graph), "it is read as what it says"


TEXT = render_text(synthetic(family="layered", num_ops=30, transfer_ratio=1.0, seed=0)).encode()


@FUZZ
@given(bytes_of(TEXT))
def test_graphs_in_the_text_format(tmp_path, case):
    graph = read("text graph", load_graph, tmp_path / "graph.txt", case)
    if graph is not None:
        assert np.isfinite(graph.given_costs.op_seconds).all()
        assert (graph.given_costs.op_seconds >= 0).all()


# --- Costs and clusters ---------------------------------------------------------------------------

COSTS = {
    "format": "doppler-costs",
    "version": 1,
    "host": "here",
    "tables": [
        {
            "devices": ["cpu:0", "cpu:1"],
            "latency_s": [[None, 1e-6], [1e-6, None]],
            "seconds_per_byte": [[None, 1e-9], [1e-9, None]],
            "kernels": {"ab,bc->ac f32 2x3 3x2": [1e-5, 2e-5], "other": [None, 1e-5]},
        }
    ],
}


def seconds(value: object) -> bool:
    """Or null: not known."""
    return value is None or finite(value)


COST_VALUES = {
    "format": lambda value: value == COSTS["format"],
    "version": lambda value: type(value) is int and value == COSTS["version"],
    "tables": lambda value: isinstance(value, list),
    "tables.*": lambda value: isinstance(value, dict),
    "tables.*.latency_s.*.*": seconds,
    "tables.*.seconds_per_byte.*.*": seconds,
    "tables.*.kernels": lambda value: isinstance(value, dict),
    "tables.*.kernels.other.*": seconds,
}


@FUZZ
@given(damaged([COSTS], COST_VALUES))
def test_tables_of_costs(tmp_path, case):
    read("costs", load_all, tmp_path / "costs.json", case)


CLUSTERS = [
    {
        "_target_": "doppler.cluster.custom",
        "name": "mine",
        "devices": [
            {
                "name": "d0",
                "flop_per_s": {"f32": 1e12},
                "memory_bytes_per_s": 1e11,
                "memory_bytes": 8e9,
            },
            {
                "name": "d1",
                "flop_per_s": {"f32": 2e12},
                "memory_bytes_per_s": 1e11,
                "memory_bytes": 8e9,
            },
        ],
        "bytes_per_s": [[1e9, 1e9], [1e9, 1e9]],
        "latency_s": 1e-5,
    },
    {"_target_": "doppler.cluster.preset", "name": "h100x8", "num_devices": 4},
    {
        "_target_": "doppler.cluster.preset",
        "name": "p100x4",
        **{"hosts": [0, 1, 1, 0], "nics": 2, "nic_bytes_per_s": 1e9, "nic_latency_s": 1e-6},
    },
]


def _speed(value: object) -> bool:
    return finite(value) and value > 0


CLUSTER_VALUES = {
    "_target_": lambda value: isinstance(value, str) and value.startswith("doppler.cluster."),
    "devices": lambda value: isinstance(value, list) and value != [],
    "devices.*": lambda value: isinstance(value, dict),
    "devices.*.memory_bytes": finite,
    "devices.*.memory_bytes_per_s": _speed,
    "devices.*.flop_per_s.f32": _speed,
    "latency_s": lambda value: finite(value) or isinstance(value, list),
    "hosts": lambda value: whole(value) or isinstance(value, list) or value is None,
    "hosts.*": whole,
    "nics": lambda value: whole(value) or value is None,
    "nic_bytes_per_s": lambda value: value is None or _speed(value),
    "nic_latency_s": lambda value: value is None or finite(value),
    "num_devices": lambda value: whole(value) or value is None,
}


@FUZZ
@given(damaged(CLUSTERS, CLUSTER_VALUES), st.booleans())
def test_clusters(tmp_path, case, is_json):
    """JSON is YAML too; YAML's own ways to be damaged are bytes."""
    if not is_json:
        try:
            case = Damaged(yaml.safe_dump(json.loads(case.text), allow_unicode=True), case.wrong)
        except (ValueError, RecursionError, yaml.YAMLError):
            pass
        if case.wrong and case.wrong.endswith("twice"):
            return  # what YAML is made of has it once
    cluster = read("cluster", resolve_cluster, tmp_path / "cluster.yaml", case)
    if cluster is not None:
        assert (cluster.bytes_per_s[~np.eye(len(cluster.devices), dtype=bool)] > 0).all()


# --- Programs -------------------------------------------------------------------------------------

PROGRAMS = {
    path.name: path.read_text() for path in sorted((PROJECT / "workloads").glob("*.einsum"))
}
PIECES = (
    "sum(i)",
    "max(j)",
    "[",
    "]",
    "(",
    ")",
    "=",
    "*",
    "-",
    "/",
    "repeat 2",
    "repeat 1000000000",
    "split",
    "i=0",
    "i=99999999",
    "param n: paper=0",
    "param n: small=1e9",
    "input A[n] f32",
    "output Y",
    "loss",
    "call torch",
    "exp",
    "where",
    "i+1",
    "n*n",
    "0",
    "10**9",
    "1e400",
    "\x00",
    "#",
    "\n\n",
    "  ",
    "program program",
    "∑",
    "'",
    '"',
)


@st.composite
def programs(draw: st.DrawFn) -> str:
    """A program of ours with words and lines gone, doubled, swapped, or others."""
    lines = draw(st.sampled_from(sorted(PROGRAMS.values()))).splitlines()
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        how = draw(st.sampled_from(["piece", "piece", "gone", "twice", "swap", "text"]))
        words = lines[at].split(" ")
        where = draw(st.integers(0, len(words) - 1))
        if how == "piece":
            words[where] = draw(st.sampled_from(PIECES))
        elif how == "gone":
            words[where] = ""
        elif how == "twice":
            lines.insert(at, lines[at])
        elif how == "swap":
            lines[at], lines[-1] = lines[-1], lines[at]
            continue
        else:
            words[where] += draw(st.text(max_size=4))
        lines[at] = " ".join(words)
    return "\n".join(lines)


@FUZZ
@given(programs())
def test_programs(tmp_path, case):
    def run(path: Path):
        program = load_program(path, preset="small")
        return lower(program, {}) if len(program.nodes) < 500 else None

    read("program", run, tmp_path / "mine.einsum", Damaged(case, None))


# --- Checkpoints and run directories --------------------------------------------------------------

PRETRAINED = (PROJECT / "src/doppler/pretrained/doppler.ckpt").read_bytes()
TENSORS = st.sampled_from([torch.zeros(2), torch.full((3, 3), torch.nan), torch.zeros(0)])
STATES = st.recursive(
    st.sampled_from(JUNK) | TENSORS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@FUZZ
@given(bytes_of(PRETRAINED))
def test_checkpoints_with_other_bytes(tmp_path, case):
    read("checkpoint", load_checkpoint, tmp_path / "last.ckpt", case)


@FUZZ
@given(STATES | st.fixed_dictionaries({"state_dict": STATES, "global_step": st.sampled_from(JUNK)}))
def test_checkpoints_that_hold_something_else(tmp_path, state):
    path = tmp_path / "last.ckpt"
    torch.save(state, path)
    outcome("checkpoint", lambda: load_checkpoint(path))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The directory of a run of a second."""
    import io

    from hydra import compose, initialize_config_dir
    from rich.console import Console

    from doppler.experiment import execute

    folder = tmp_path_factory.mktemp("finished")
    overrides = ["budget.imitation_episodes=32", "budget.evaluations=60", "workload.params.n=64"]
    with initialize_config_dir(str(PROJECT / "conf"), version_base="1.3"):
        cfg = compose("config", [f"run_dir={folder}/run", f"output_dir={folder}", *overrides])
    execute(cfg, [], Console(file=io.StringIO()))
    return folder / "run"


FILES = (
    "summary.json",
    "results.csv",
    "metrics.csv",
    ".hydra/config.yaml",
    "trace.json",
    ".hydra/run_hash",
)


@FUZZ
@given(st.data())
def test_run_directories(finished, tmp_path, data):
    """A report reads what it can and names what it cannot; no run is left out."""
    folder = tmp_path / "runs"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copytree(finished, folder / "run", ignore=shutil.ignore_patterns("*.png", "checkpoints"))
    name = data.draw(st.sampled_from(FILES))
    path = folder / "run" / name
    how = data.draw(st.sampled_from(["bytes", "gone", "value"]))
    if how == "gone":
        path.unlink()
    elif how == "value" and name.endswith(".json"):
        path.write_text(data.draw(damaged([json.loads(path.read_text())], {})).text)
    else:
        path.write_bytes(data.draw(bytes_of(path.read_bytes())))
    found = outcome("run directory", lambda: find_runs([folder]))
    if found is not None:
        runs, faults = found
        assert len(runs) + len(faults) >= (name != "summary.json" or how != "gone"), "left out"
        for run in runs:
            outcome("run directory", lambda run=run: run.metrics)
