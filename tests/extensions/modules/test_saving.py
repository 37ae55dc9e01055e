"""A placed module in a directory, another process, and the terms of accelerate."""

import json
import subprocess
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import doppler
from doppler.baselines import SingleDevice
from doppler.cluster import preset
from doppler.problem import Placement
from doppler.support.errors import InputError

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


@dataclass
class Told:
    """What the module returns, of a class that a file may not name."""

    result: Tensor


class Tied(nn.Module):
    def __init__(self, told: bool = False) -> None:
        super().__init__()
        self.embed, self.norm = nn.Linear(8, 6, bias=False), nn.LayerNorm(6)
        self.head = nn.Linear(6, 8, bias=False)
        self.head.weight = nn.Parameter(self.embed.weight.detach().T.clone())
        self.told = told

    def forward(self, x, *, scale):
        mask = torch.ones(6, 6).tril()
        result = self.head(self.norm(self.embed(x)) @ mask) * scale["by"]
        return Told(result) if self.told else {"result": result, "name": "tied"}


def place(module, **options):
    kwargs = {"scale": {"by": torch.tensor(2.0)}}
    quick = {"cluster": "p100x4", "evaluations": 4, "decomposition": "published", **options}
    return doppler.place(module, X, example_kwargs=kwargs, **quick)


LOAD = """
import sys, torch, doppler
placed = doppler.Placed.load(sys.argv[1])
x, expected = torch.load(sys.argv[2])
result = doppler.execute(placed, x, scale={"by": torch.tensor(3.0)})
torch.testing.assert_close(result["result"], expected, rtol=1e-4, atol=1e-5)
print(type(result).__name__, result["name"], placed.method, placed.makespan_s)
"""


def test_another_process_runs_what_was_saved(tmp_path):
    torch.manual_seed(0)
    module = Tied()
    placed = place(module)
    placed.save(tmp_path / "mine")
    with torch.no_grad():
        expected = module(X, scale={"by": torch.tensor(3.0)})["result"]
    torch.save((X, expected), tmp_path / "expected.pt")
    words = [sys.executable, "-c", LOAD, str(tmp_path / "mine"), str(tmp_path / "expected.pt")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["dict", "tied", "auto", str(placed.makespan_s)]
    again = doppler.Placed.load(tmp_path / "mine")
    assert repr(again) == repr(placed)


def test_classes_of_others_need_trust_and_files_of_others_a_line(tmp_path):
    place(Tied(told=True)).save(tmp_path / "mine")
    with pytest.raises(
        InputError, match=r"module.pt: .*Told' is a class of another package: trust=True"
    ):
        doppler.Placed.load(tmp_path / "mine")
    trusted = doppler.Placed.load(tmp_path / "mine", trust=True)
    assert type(doppler.execute(trusted, X, scale={"by": torch.tensor(1.0)})) is Told
    (tmp_path / "mine" / "module.pt").write_bytes(b"something else")
    with pytest.raises(InputError, match=r"module.pt: unreadable \(damaged, or not plain data\)"):
        doppler.Placed.load(tmp_path / "mine", trust=True)
    (tmp_path / "mine" / "cluster.json").write_text(json.dumps({"name": "x"}))
    with pytest.raises(InputError, match=r"cluster.json: 'devices' is missing"):
        doppler.Placed.load(tmp_path / "mine", trust=True)
    with pytest.raises(InputError, match=r"found.json: .*No such file"):
        doppler.Placed.load(tmp_path / "none")


def test_dropout_is_drawn_anew_and_so_not_saved(tmp_path):
    layers = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    doppler.place(layers, X, "p100x4", evaluations=1).save(tmp_path)
    with pytest.raises(InputError, match="is random, which is not saved: load it with its module"):
        doppler.execute(doppler.Placed.load(tmp_path), X)
    placed = doppler.Placed.load(tmp_path, module=layers)
    results = []
    for run in (layers, lambda x: doppler.execute(placed, x)):
        torch.manual_seed(3)
        results.append(run(X).detach())
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("cluster", ["h100x8", "mixed"])
def test_a_machine_is_what_it_was(cluster, tmp_path):
    placed = place(Tied(), cluster=preset(name=cluster))
    placed.save(tmp_path)
    assert doppler.Placed.load(tmp_path).problem.hash == placed.problem.hash


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.second, self.third = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.first(x), self.second(x), self.third(x)


def test_what_has_no_values_is_saved_and_cannot_run(tmp_path):
    with torch.device("meta"):
        module = Tied()
    place(module).save(tmp_path)
    with pytest.raises(InputError, match="on the meta device, so it has no values to run with"):
        doppler.execute(doppler.Placed.load(tmp_path), X, scale={"by": torch.tensor(1.0)})


def test_what_was_saved_without_values_runs_with_those_of_the_module(tmp_path):
    with torch.device("meta"):
        empty = Tied()
    place(empty).save(tmp_path)
    module, scale = Tied(), {"by": torch.tensor(3.0)}
    placed = doppler.Placed.load(tmp_path, module=module)
    with torch.no_grad():
        expected = module(X, scale=scale)
        result = doppler.execute(placed, X, scale=scale)
        torch.testing.assert_close(result["result"], expected["result"])
        module.norm.bias += 1.0  # it is the module's own, not a copy
        again = doppler.execute(placed, X, scale=scale)
        torch.testing.assert_close(again["result"], module(X, scale=scale)["result"])
        assert not torch.equal(result["result"], again["result"])


def test_a_module_that_computes_something_else_is_refused(tmp_path):
    place(Tied()).save(tmp_path / "mine")

    class Other(Tied):
        def forward(self, x, *, scale):
            result = super().forward(x, scale=scale)
            return {**result, "result": result["result"].exp()}

    with pytest.raises(InputError) as error:
        doppler.Placed.load(tmp_path / "mine", module=Other())
    assert str(error.value).startswith("module: Other does not compute what was placed (Tied): ")
    with pytest.raises(InputError, match=r"^Linear: torch\.export fails: TypeError"):
        doppler.Placed.load(tmp_path / "mine", module=nn.Linear(8, 8))
    graph = place(Tied()).problem.graph
    doppler.place(graph, cluster="p100x4", evaluations=1).save(tmp_path / "graph")
    with pytest.raises(InputError, match="graph: no torch module was placed, so it takes none"):
        doppler.Placed.load(tmp_path / "graph", module=Tied())


@pytest.mark.parametrize("wrong", [3, "tied.pt2", {"weight": X}, nn.Linear])
def test_what_is_no_module_is_refused(wrong, tmp_path):
    place(Tied()).save(tmp_path)
    with pytest.raises(InputError, match=r"^module: must be a torch module or an exported program"):
        doppler.Placed.load(tmp_path, module=wrong)


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, x):
        return self.layer(x).square().mean()


def test_a_training_step_without_values_is_that_of_the_module(tmp_path):
    options = {"training": True, "learning_rate": 0.5, "evaluations": 2}
    with torch.device("meta"):
        empty = Loss()
    doppler.place(empty, X, "p100x4", **options).save(tmp_path)
    module = Loss()
    loss, stepped = doppler.execute(doppler.Placed.load(tmp_path, module=module), X)
    expected = module(X)
    expected.backward()
    torch.testing.assert_close(loss, expected.detach())
    for name, one in module.named_parameters():
        torch.testing.assert_close(stepped[name], (one - 0.5 * one.grad).detach())


def test_the_devices_of_modules():
    placed = doppler.place(Towers(), X, "p100x4", evaluations=1, method=SingleDevice())
    names = placed.problem.graph.ops.names
    order = placed.placement.priority

    def on(device_of):
        device = np.array([device_of(name) for name in names])
        placement = Placement.make(placed.problem, device, order)
        return replace(placed, placement=placement).device_map()

    assert on(lambda name: 3) == {"": 3}
    apart = on(lambda name: 1 if name.startswith("first") else 2)
    assert apart == {"first": 1, "second": 2, "third": 2}
    inside = on(lambda name: 1 if name.startswith("first.2") else 0)
    assert inside == {"first.0": 0, "first.2": 1, "second": 0, "third": 0}
    with pytest.raises(InputError, match="device_map: no torch module was placed"):
        graph = placed.problem.graph
        doppler.place(graph, cluster="p100x4", evaluations=1).device_map()
    with pytest.raises(InputError, match=r"device_map: '\w+.weight' is on devices 0, 1"):
        place(Tied(), method="round_robin").device_map()
