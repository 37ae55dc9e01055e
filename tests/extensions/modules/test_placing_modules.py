"""Modules in doppler.place and doppler.execute, as a user calls them."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from benchmarks.torch_modules import ConvNet, Transformer, llama_7b_block
from torch import nn

import doppler
from doppler.cluster import preset
from doppler.executor import Threads
from doppler.simulator import WorkConserving
from doppler.support.errors import InputError

X = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def module() -> nn.Module:
    torch.manual_seed(0)
    return Transformer(16, 4, 24, 6)


@pytest.fixture(scope="module")
def placed(module) -> doppler.Placed:
    return doppler.place(module, X, "p100x4", 0.3, decomposition="published")


def test_what_is_placed_runs_and_returns_what_the_module_does(module, placed):
    with torch.no_grad():
        torch.testing.assert_close(doppler.execute(placed, X), module(X), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(doppler.execute(placed, (2 * X,)), module(2 * X))


class Words(nn.Module):
    """Whole numbers in and out, and calls of torch's operators between."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.rnn = nn.Conv1d(6, 6, 3)

    def forward(self, numbers):
        mixed = self.rnn(self.words(numbers)).cumsum(1)
        return {"best": mixed.argmax(-1), "sorted": mixed.sort(1).values, "near": mixed > 0}


@pytest.mark.parametrize(
    ("module", "x"),
    [
        (nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 4)), torch.randn(6, 8)),
        (ConvNet(4, 5).eval(), torch.randn(3, 3, 16, 16)),
        (Words(), torch.arange(12).reshape(2, 6)),
        (nn.Sequential(nn.Linear(8, 8), nn.GELU()).bfloat16(), torch.randn(4, 8).bfloat16()),
    ],
)
def test_other_modules_run_on_this_machine_as_they_are_placed(module, x):
    placed = doppler.place(module, x, "p100x4", 0.05, decomposition="published")
    assert len(set(placed.placement.device.tolist())) > 1
    with torch.no_grad():
        expected = module(x)
    tolerance = 2e-2 if x.dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(doppler.execute(placed, x), expected, rtol=tolerance, atol=tolerance)


def test_a_small_model_is_not_split(module, placed):
    alone = doppler.place(module, X, "p100x4", 0.3)
    assert alone.problem.num_ops < placed.problem.num_ops
    assert alone.makespan_s <= min(placed.makespan_s, alone.single_device_s)
    assert alone.single_device_s == placed.single_device_s


@dataclass(frozen=True, kw_only=True)
class Crowded(WorkConserving):
    """A machine on which every further device slows all of them down, which no split expects."""

    def open(self, problem):
        return CrowdedSession(super().open(problem))


class CrowdedSession:
    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.inner.__exit__(*exc)

    def measure(self, device_BV, *args, **options):
        found = self.inner.measure(device_BV, *args, **options)
        used_B = np.array([len(set(row)) for row in device_BV.tolist()])
        return replace(found, seconds=found.seconds * 4.0 ** (used_B[:, None] - 1))


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("method", ["auto", "policy"])
def test_where_one_device_is_faster_the_module_is_placed_whole_on_it(method, noise, tmp_path):
    wide = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512))
    x, crowded = torch.randn(256, 512), Crowded(noise=noise)
    fast = doppler.place(wide, x, "p100x4", evaluations=4)
    placed = doppler.place(wide, x, "p100x4", evaluations=4, method=method, system=crowded)
    assert fast.problem.num_ops > placed.problem.num_ops and fast.beaten_s is None
    assert len(set(placed.placement.device.tolist())) == 1 and placed.evaluations <= 4
    assert placed.makespan_s == placed.single_device_s < placed.beaten_s
    assert noise or placed.lower_bound_s <= placed.makespan_s
    assert "(used, because the best that the search found takes " in repr(placed)
    torch.testing.assert_close(doppler.execute(placed, x), wide(x).detach(), rtol=1e-4, atol=1e-4)
    assert repr(doppler.Placed.load(placed.save(tmp_path))) == repr(placed)


@pytest.mark.parametrize("forced", [{"decomposition": "published"}, {"method": "round_robin"}])
def test_a_split_or_method_that_is_asked_for_is_kept_with_a_word(forced):
    wide = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512))
    placed = doppler.place(
        wide, torch.randn(256, 512), "p100x4", evaluations=1, system=Crowded(), **forced
    )
    assert placed.beaten_s is None and placed.makespan_s > placed.single_device_s
    told = "times slower: use one device, as method=auto with decomposition=auto does)"
    assert told in repr(placed)


def test_it_says_what_is_not_split():
    flipped = nn.Sequential(nn.Linear(8, 8), nn.PixelShuffle(2))
    placed = doppler.place(flipped, torch.randn(1, 4, 8, 8), "p100x4", 0.1, method="heft")
    assert "not split" not in placed.explain()

    class Flip(nn.Module):
        def forward(self, x):
            return (x @ x).flip(0, 1)

    placed = doppler.place(Flip(), torch.randn(8, 8), "p100x4", 0.1, method="heft")
    assert "not split: op aten.flip in Flip: no rule says how to split it" in placed.explain()


def test_a_machine_of_hosts_is_placed_on_and_what_is_placed_runs_here(module):
    on_hosts = doppler.place(module, X, "ethernet_4x1", evaluations=20)
    assert on_hosts.problem.cluster.num_hosts == 4
    with torch.no_grad():
        torch.testing.assert_close(doppler.execute(on_hosts, X), module(X), rtol=1e-4, atol=1e-4)
    with pytest.raises(InputError, match="'ethernet_4x1': has 4 hosts, and executors run on this"):
        Threads().open(on_hosts.problem)


def test_a_training_step_runs_too():
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x, y):
            return nn.functional.mse_loss(self.layer(x), y)

    module, inputs = Loss(), (torch.randn(6, 4), torch.randn(6, 2))
    placed = doppler.place(
        module, inputs, "p100x4", 0.1, method="heft", training=True, learning_rate=0.1
    )
    loss, parameters = doppler.execute(placed, inputs)
    expected = module(*inputs)
    expected.backward()
    torch.testing.assert_close(loss, expected.detach())
    for name, parameter in module.named_parameters():
        step = parameter.detach() - parameters[name]
        torch.testing.assert_close(step, 0.1 * parameter.grad, rtol=1e-4, atol=1e-6)


def test_a_module_that_is_too_large_for_the_machine():
    with torch.device("meta"):
        module, inputs = llama_7b_block()
        layers = nn.Sequential(*(nn.Linear(60_000, 60_000, bias=False) for _ in range(5)))
        example = torch.zeros(1, 60_000)
    with pytest.raises(InputError) as error:
        doppler.place(layers, example, "p100x4", 0.1)
    assert str(error.value) == (
        "Sequential: its parameters and inputs take 72 GB, but the 4 devices of 'p100x4' have "
        "64 GB: use a machine with more devices, half precision or memory=offload, or place a "
        "part of the module"
    )
    machine = preset(name="p100x4")
    small = tuple(replace(device, memory_bytes=1e9) for device in machine.devices)
    machine = replace(machine, name="small", devices=small)
    placed = doppler.place(module, inputs, machine, 1.0)
    assert placed.single_device_s == np.inf
    assert max(placed.memory_bytes.values()) <= 1e9
    assert "one device   has too little memory" in repr(placed)
    with pytest.raises(InputError, match="is on the meta device, so it has no values to run with"):
        doppler.execute(placed, inputs)


def test_a_module_comes_with_its_inputs(module):
    with pytest.raises(InputError, match=r"^place: a module needs example_inputs"):
        doppler.place(module, cluster="p100x4", seconds=0.1)
