"""Files that are made to run code: refused in one line, and nothing has run."""

import json
import os
import pickle
import sys
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from results import ROW, leave_run
from right_files import CLUSTER, COSTS, GRAPH, changed, message

from doppler.api.clusters import resolve_cluster
from doppler.cli import main
from doppler.graph import load_graph
from doppler.policies.weights import load_checkpoint
from doppler.problem.costs import load_all
from doppler.report.finished import read_run
from doppler.report.page import write_report
from doppler.support.errors import InputError


@pytest.fixture
def witness(tmp_path, monkeypatch):
    """A file that harmful code makes; a module that would, importable from where we are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "witness"
    (tmp_path / "harmful.py").write_text(
        f"open({str(path)!r}, 'w').close()\ndef run(*a, **k): open({str(path)!r}, 'w').close()\n"
    )
    yield path
    assert not path.exists() and "harmful" not in sys.modules


def described(target: str, witness: Path) -> str:
    call = f"open({str(witness)!r}, 'w')"
    return json.dumps({"_target_": target, "_args_": [call], "command": f"touch {witness}"})


TARGETS = [
    *("os.system", "builtins.exec", "builtins.eval", "subprocess.run", "harmful.run"),
    *("doppler.extensions.modules.load_module", "doppler.policies.weights.load_checkpoint"),
    *("doppler.cluster.os.system", "doppler.cluster.replace", "hydra.utils.instantiate"),
]


@pytest.mark.parametrize("target", TARGETS)
def test_a_cluster_file_executes_nothing(tmp_path, witness, target):
    path = tmp_path / "c.yaml"
    path.write_text(described(target, witness))
    assert "needs --trust (trust=True)" in message(resolve_cluster, path)
    hidden = {**CLUSTER, "latency_s": {"_target_": target, "_args_": ["x"]}}
    path.write_text(json.dumps(hidden))
    assert "needs --trust" in message(resolve_cluster, path)


def test_a_cluster_file_that_is_trusted_may_name_anything(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_machines.py").write_text(
        "from doppler.cluster import preset\n\n\ndef mine(n): return preset(name='p100x4', "
        "num_devices=n)\n"
    )
    path = tmp_path / "c.yaml"
    path.write_text("_target_: own_machines.mine\nn: 3\n")
    message(resolve_cluster, path)
    assert resolve_cluster(path, trust=True).num_devices == 3
    path.write_text("_target_: builtins.dict\nn: 3\n")
    with pytest.raises(InputError, match=r"c\.yaml: describes a dict, not a cluster"):
        resolve_cluster(path, trust=True)


class Harmful:
    """Runs code when it is unpickled."""

    def __init__(self, call: tuple) -> None:
        self.call = call

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("kind", ["system", "exec", "module"])
def test_a_checkpoint_executes_nothing(tmp_path, witness, kind):
    calls = {
        "system": (os.system, (f"touch {witness}",)),
        "exec": (exec, (f"open({str(witness)!r}, 'w')",)),
        "module": (__import__, ("harmful",)),
    }
    path = tmp_path / "x.ckpt"
    torch.save({"state_dict": {}, "doppler": Harmful(calls[kind])}, path)
    assert "unreadable checkpoint" in message(load_checkpoint, path)
    path.write_bytes(pickle.dumps({"state_dict": Harmful(calls[kind])}))
    assert "unreadable checkpoint" in message(load_checkpoint, path)


@pytest.mark.parametrize("target", TARGETS)
def test_a_run_directory_executes_nothing(tmp_path, witness, target):
    call = {"_target_": target, "_args_": ["x"]}
    config = {"workload": call, "cluster": call, **call}
    leave_run(tmp_path / "run", [ROW], config, makespan_s=0.1)
    write_report([tmp_path / "run"], tmp_path / "report")
    text = f"workload: !!python/object/apply:os.system ['touch {witness}']\n"
    (tmp_path / "run/.hydra/config.yaml").write_text(text)
    assert "could not determine a constructor" in message(read_run, tmp_path / "run")


@pytest.mark.parametrize("flag", ["--experimental-rerun", "--e", "--experimental-rerun=.hydra"])
@pytest.mark.parametrize("file", ["config.pickle", "hydra.pickle"])
def test_a_pickle_of_hydra_is_not_loaded_to_run_again(tmp_path, witness, flag, file, capsys):
    folder = tmp_path / ".hydra"
    folder.mkdir()
    right = pickle.dumps(OmegaConf.create({"stage": "evaluate"}))
    for name in ("config.pickle", "hydra.pickle"):
        (folder / name).write_bytes(right)
    (folder / file).write_bytes(pickle.dumps(Harmful((os.system, (f"touch {witness}",)))))
    words = [flag] if "=" in flag else [flag, ".hydra"]
    assert main(["run", "stage=evaluate", *words]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "error: --experimental-rerun: no such option; the same command goes on"


def kernel(expression: str) -> dict:
    spec = {
        **{"expression": expression, "operand_shapes": [[2]], "operand_dtypes": ["f32"]},
        **{"output_shape": [2], "dtype": "f32"},
    }
    return changed(GRAPH, ("ops", 0, "kernel"), spec)


@pytest.mark.parametrize(
    ("operator", "why"),
    [
        ("aten.from_file.default", "not one of the operators that a file may name"),
        ("aten.add_.Scalar", "changes its arguments"),
        ("aten.add.out", "changes its arguments"),
        ("aten.rand.default", "draws random numbers"),
        ("aten.bernoulli.default", "draws random numbers"),
        ("aten.native_dropout.default", "draws random numbers"),
        ("aten.empty.memory_format", "not one of the operators that a file may name"),
        ("aten.native_batch_norm.default", "not one of the operators that a file may name"),
        ("aten.fbgemm_linear_fp16_weight.default", "not one of the operators that a file may name"),
        ("aten._cudnn_rnn_flatten_weight.default", "not one of the operators that a file may name"),
        ("aten.set_.source_Storage", "changes its arguments"),
        ("aten.item.default", "something other than tensors"),
        ("aten.nothing.default", "is not the name of an operator of torch"),
        ("aten.__dict__.default", "is not the name of an operator of torch"),
        ("profiler._record_function_enter.default", "is not an operator of aten or prims"),
        ("harmful.run.default", "is not an operator of aten or prims"),
        ("os.system", "is not an operator of aten or prims"),
        ("", "is not an operator of aten or prims"),
    ],
)
def test_a_graph_calls_no_operator_but_functions_of_tensors(tmp_path, witness, operator, why):
    call = json.dumps({"args": [str(witness), True, 1], "kwargs": {}})
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(kernel(f"torch:{operator}:{call}")))
    told = message(load_graph, path)
    assert why in told and f"{operator!r}" in told and "ops[0].kernel.expression" in told


@pytest.mark.parametrize(
    "operator",
    [
        *("aten.cumsum.default", "aten.sort.default", "aten.convolution.default"),
        *("aten._softmax.default", "aten._native_batch_norm_legit_no_training.default"),
        *("aten.index.Tensor", "aten.linalg_inv_ex.default", "aten._fft_c2c.default"),
        *("aten._grouped_mm.default", "aten.arange.start_step", "prims.iota.default"),
    ],
)
def test_operators_of_exported_modules_may_stand_in_files(tmp_path, operator):
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(kernel(f'torch:{operator}:{{"args": [], "kwargs": {{}}}}')))
    assert load_graph(path).num_ops == 2


def test_a_cost_table_is_data(tmp_path, witness):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({**COSTS, "_target_": "harmful.run"}))
    assert "_target_: no such key" in message(load_all, path)
    path.write_bytes(pickle.dumps(Harmful((os.system, (f"touch {witness}",)))))
    message(load_all, path)
