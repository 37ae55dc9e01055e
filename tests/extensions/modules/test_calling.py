"""Modules called as their users call them: whatever holds tensors, effects, random numbers."""

import io
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from enum import Enum, Flag, StrEnum
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from programs import random_splits
from test_conversion import draw
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import doppler
from doppler.cluster import preset
from doppler.einsum import Given, lower
from doppler.executor import run_graph
from doppler.extensions.modules import (
    TorchProgram,
    as_call,
    import_module,
    load_exported,
    load_module,
)
from doppler.extensions.modules.saving import binding_as_data, binding_of
from doppler.extensions.modules.trees import Flat, rebuilt
from doppler.support.errors import InputError

Pair = namedtuple("Pair", "left right")


@dataclass
class Setting:
    """Tensors and a number."""

    scale: Tensor
    times: int = 2


class Output(OrderedDict):
    """Items that are attributes too, as outputs of transformers."""

    def __init__(self, **items) -> None:
        super().__init__(**items)
        self.__dict__.update(items)


@dataclass
class Cache:
    """Grows with every call, and starts without elements."""

    keys: list[Tensor] = field(default_factory=list)

    def update(self, key: Tensor) -> Tensor:
        before = self.keys.pop() if self.keys else torch.tensor([])
        self.keys.append(torch.cat((before, key), -1))
        return self.keys[0]


class Calls(nn.Module):
    """Keyword arguments, dictionaries, dataclasses, None, numbers, whole and true numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 4)

    def forward(self, ids, mask=None, *, settings=None, pair=None, cache=None, shift: float = 0.0):
        x = self.words(ids.long()) + shift
        if mask is not None:
            x = torch.where(mask.bool()[..., None], x, 0.0)
        for _ in range(settings["a"].times):
            x = x * settings["a"].scale
        if pair is not None:
            x = x + pair.left - pair.right[0]
        seen = None if cache is None else cache.update(x.flatten(1))
        count = mask.sum(dtype=torch.int32)
        return Output(hidden=x, seen=cache, counts=[count, 3, None, seen is None])


def check_call(imported: TorchProgram, expected, args, kwargs) -> None:
    for seed in range(2):
        splits = random_splits(imported.program, np.random.default_rng(seed), max_parts=2)
        graph = lower(imported.program, splits if seed else {})
        result = imported.binding.outputs(run_graph(graph, imported.binding.inputs(args, kwargs)))
        assert type(result) is type(expected)
        for one, other in zip(Flat(result).tensors, Flat(expected).tensors, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def call_of(ids_dtype=torch.int32, mask_dtype=torch.uint8, cache=None):
    ids = torch.arange(6).view(2, 3).to(ids_dtype)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]]).to(mask_dtype)
    settings = {"a": Setting(draw(4)), "b": None}
    pair = Pair(draw(2, 3, 4), (draw(4, seed=1), "unused"))
    return (ids, mask), {"settings": settings, "pair": pair, "cache": cache, "shift": 0.5}


@pytest.mark.parametrize("ids", [torch.int32, torch.uint8, torch.int16, torch.int64])
@pytest.mark.parametrize("mask", [torch.bool, torch.int8])
def test_a_call_with_all_kinds_of_arguments(ids, mask):
    module = Calls()
    args, kwargs = call_of(ids, mask)
    with torch.no_grad():
        expected = module(*args, **kwargs)
    imported = import_module(module, args, kwargs)
    assert imported.binding.given[0].name == "ids"
    check_call(imported, expected, args, kwargs)
    check_call(imported, expected, (), {**kwargs, "mask": args[1], "ids": args[0]})
    result = rebuilt(imported.binding.returned, imported.binding.results)
    assert result["counts"][1:] == [3, None, True] and result.hidden is result["hidden"]


def test_a_cache_goes_in_and_comes_out_as_data():
    module = Calls()
    for cache in (Cache(), Cache([draw(2, 5)])):
        args, kwargs = call_of(cache=cache)
        imported = import_module(module, args, kwargs)
        assert len(cache.keys) <= 1 and all(not one.is_meta for one in cache.keys)
        with torch.no_grad():
            expected = module(*args, **{**kwargs, "cache": Cache(list(cache.keys))})
        assert len(Flat(expected).tensors) == 3, "the cache's beside the others"
        check_call(imported, expected, args, kwargs)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"shift": 1.0}, "Calls: shift is 1.0, in the example it was 0.5: place the model with"),
        ({"pair": None}, "Calls: pair is None, in the example it was a Pair of 2"),
        ({"cache": draw(1)}, "Calls: cache is a tensor, in the example it was None"),
        (
            {"settings": {"a": Setting(draw(4), 3), "b": None}},
            "Calls: settings.a.times is 3, in the example it was 2",
        ),
        (
            {"settings": {"a": Setting(draw(5)), "b": None}},
            "Calls: 'settings_a_scale' has shape (5,) and torch.float32, the example had (4,)",
        ),
    ],
)
def test_what_is_baked_into_the_program_cannot_change(change, line):
    args, kwargs = call_of()
    imported = import_module(Calls(), args, kwargs)
    with pytest.raises(InputError) as error:
        imported.binding.inputs(args, {**kwargs, **change})
    assert str(error.value).startswith(line)


class Mode(Enum):
    """One of two."""

    SUM = 1
    DIFFERENCE = 2


class Slots:
    """A tensor and a number, without a dictionary of attributes."""

    __slots__ = ("tensor", "times")

    def __init__(self, tensor: Tensor, times: float) -> None:
        self.tensor, self.times = tensor, times


class Chooses(nn.Module):
    """Reads whatever it is given beside x."""

    def forward(self, x, how):
        match how:
            case Mode():
                return x + 1 if how is Mode.SUM else x - 1
            case Slots():
                return x + how.tensor * how.times
            case Pair() | SimpleNamespace():
                return x * how.left
            case torch.Size():
                return x * how[0]
        return how(x)


ONES = torch.ones(3)
CHOICES = {
    "a member of an enumeration": (Mode.SUM, Mode.SUM, Mode.DIFFERENCE),
    "slots": (Slots(ONES, 2.0), Slots(5 * ONES, 2.0), Slots(ONES, 3.0)),
    "a named tuple": (Pair(1.0, 2.0), Pair(1.0, 2.0), Pair(3.0, 2.0)),
    "attributes": (SimpleNamespace(left=1.0), SimpleNamespace(left=1.0), SimpleNamespace(left=2.0)),
    "a shape": (torch.Size([2]), torch.Size([2]), torch.Size([3])),
    "a function": (torch.tanh, torch.tanh, torch.exp),
}


@pytest.mark.parametrize("what", CHOICES)
def test_any_other_value_of_an_argument_is_refused(what):
    module, x, (example, same, other) = Chooses(), draw(3), CHOICES[what]
    imported = import_module(module, (x, example))
    graph = lower(imported.program, {})
    results = run_graph(graph, imported.binding.inputs((x, same)))
    torch.testing.assert_close(imported.binding.outputs(results), module(x, same))
    with pytest.raises(InputError, match=r"how.* in the example it was"):
        imported.binding.inputs((x, other))


def test_members_of_an_enumeration_are_saved(tmp_path):
    module, x = Chooses(), draw(3)
    doppler.place(module, (x, Mode.DIFFERENCE), "p100x4", evaluations=1).save(tmp_path)
    loaded = doppler.Placed.load(tmp_path, trust=True)
    torch.testing.assert_close(doppler.execute(loaded, x, Mode.DIFFERENCE), x - 1)
    with pytest.raises(InputError, match=r"is <Mode\.SUM: 1>, in the example it was <Mode\.DIFF"):
        doppler.execute(loaded, x, Mode.SUM)


class Name(StrEnum):
    """Members that are also texts, as those of transformers."""

    SUM = "sum"


class Bits(Flag):
    """Members that may stand together."""

    ONE, TWO = 1, 2


@pytest.mark.parametrize(
    ("example", "same"),
    [
        (Name.SUM, Name.SUM),
        (np.float64(2.0), np.float64(2.0)),
        (np.bool_(True), np.bool_(True)),
        (Bits.ONE | Bits.TWO, Bits.ONE | Bits.TWO),
        (Bits(0), Bits(0)),
        ({(Name.SUM, 1): 1, (Name.SUM, 2): 2}, {(Name.SUM, 1): 1, (Name.SUM, 2): 2}),
        (np.int64(2), np.int64(2)),
        (torch.device("cpu"), torch.device("cpu")),
        ({Name.SUM: 1, (0, "a"): 2}, {Name.SUM: 1, (0, "a"): 2}),
    ],
)
def test_numbers_texts_and_devices_of_all_kinds_are_saved(example, same):
    module, x = Takes(), draw(3)
    binding = import_module(module, (x, example)).binding
    file = io.BytesIO()
    torch.save(binding_as_data(binding), file)
    file.seek(0)
    loaded = binding_of(torch.load(file, weights_only=True), trust=True)
    assert len(loaded.inputs((x, same))) == 1
    with pytest.raises(InputError, match="in the example it was"):
        loaded.inputs((x, "another"))


def test_arguments_that_cannot_be_saved_are_named_when_it_is_saved(tmp_path, caplog):
    module, x = Takes(), draw(3)
    placed = doppler.place(module, (x, {"by": torch.tanh}), "p100x4", evaluations=1)
    placed.save(tmp_path)
    assert "Takes: how.by (a builtin_function_or_method) cannot be saved, so only" in caplog.text
    with pytest.raises(InputError, match=r"which cannot be saved: place the model in this process"):
        doppler.execute(doppler.Placed.load(tmp_path), x, {"by": torch.tanh})


def test_numbers_of_numpy_are_not_those_of_python(tmp_path):
    module, x = Takes(), draw(3)
    for example, other in ((np.int8(100), 100), (np.int8(100), np.int64(100)), (5, np.int64(5))):
        placed = doppler.place(module, (x, example), "p100x4", evaluations=1)
        placed.save(tmp_path)
        for one in (placed, doppler.Placed.load(tmp_path)):
            with pytest.raises(InputError, match="in the example it was"):
                doppler.execute(one, x, other)


def test_keys_that_cannot_be_saved_are_named_and_not_lost(tmp_path, caplog):
    module, x = Takes(), draw(3)
    keys = {frozenset((1,)): 1, frozenset((2,)): 2}
    doppler.place(module, (x, keys), "p100x4", evaluations=1).save(tmp_path)
    assert "the key frozenset({1}) (a frozenset)" in caplog.text
    with pytest.raises(InputError, match="a key that can be saved"):
        doppler.Placed.load(tmp_path)


class Takes(nn.Module):
    """Returns twice its first argument."""

    def forward(self, x, how):
        return x * 2


def test_place_and_run_are_called_as_the_module_is():
    module, (args, kwargs) = Calls(), call_of()
    quick = {"cluster": "p100x4", "evaluations": 4, "decomposition": "published"}
    placed = doppler.place(module, args, example_kwargs=kwargs, **quick)
    with torch.no_grad():
        expected = module(*args, **kwargs)["hidden"]
    torch.testing.assert_close(doppler.execute(placed, *args, **kwargs)["hidden"], expected)
    all_named = {"ids": args[0], "mask": args[1], **kwargs}
    placed = doppler.place(module, all_named, **quick)
    torch.testing.assert_close(doppler.execute(placed, **all_named)["hidden"], expected)
    torch.testing.assert_close(doppler.execute(placed, all_named)["hidden"], expected)


def test_a_factory_of_a_file_returns_keyword_arguments_too(tmp_path):
    (tmp_path / "made.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Twice(nn.Module):\n"
        "    def forward(self, x, *, other): return {'y': x @ other['z']}\n"
        "def make(): return Twice(), (torch.zeros(8, 8),), {'other': {'z': torch.zeros(8, 8)}}\n"
    )
    cluster = preset(name="p100x4")
    path = f"{tmp_path}/made.py:make"
    graph = load_module(module=path, cluster=cluster, decomposition=Given(), parts=1)
    assert graph.ops.kinds[0] == "matmul"


@pytest.mark.parametrize("as_file", [False, True])
def test_an_exported_program_instead_of_a_module(as_file, tmp_path):
    module, x = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 2)), draw(3, 4)
    exported = torch.export.export(module, (x,))
    if as_file:
        torch.export.save(exported, tmp_path / "module.pt2")
        exported = load_exported(tmp_path / "module.pt2", trust=True)
    placed = doppler.place(exported, None, "p100x4", evaluations=2)
    with torch.no_grad():
        torch.testing.assert_close(doppler.execute(placed, x), module(x))
    other = tmp_path / "other.pt2"
    other.write_text("no archive")
    for path, line in (
        (other, "not an exported program: "),
        (tmp_path / "none.pt2", "No such file"),
    ):
        with pytest.raises(InputError) as error:
            doppler.place(path, None, "p100x4", evaluations=1, trust=True)
        assert str(error.value).startswith(f"{path}: {line}")


def test_dropout_draws_what_the_module_draws():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.3, batch_first=True)
    x = draw(2, 5, 16)
    imported = import_module(layer, (x,))
    assert imported.binding.drawn
    for seed in range(2):
        torch.manual_seed(seed)
        with torch.no_grad():
            expected = layer(x)
        torch.manual_seed(seed)
        graph = lower(imported.program, {})
        result = imported.binding.outputs(run_graph(graph, imported.binding.inputs((x,))))
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


def test_random_numbers_by_the_values_of_tensors_are_placed_and_not_run():
    class Sampling(nn.Module):
        def forward(self, x):
            return torch.multinomial(x.softmax(-1), 2) + torch.rand_like(x)[:, :2]

    placed = doppler.place(Sampling(), draw(3, 4), "p100x4", evaluations=1)
    with pytest.raises(InputError, match=r"'aten.multinomial.default' draws random numbers"):
        doppler.execute(placed, draw(3, 4))


def test_a_run_writes_what_the_forward_writes():
    modules = []
    for _ in range(2):
        torch.manual_seed(0)
        modules.append(nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()))
    x = draw(3, 2, 6, 6)
    placed = doppler.place(modules[0], x, "p100x4", evaluations=1, decomposition="published")
    before = modules[0][1].running_mean.clone()
    for _ in range(2):
        with torch.no_grad():
            expected = modules[1](x)
        torch.testing.assert_close(doppler.execute(placed, x), expected, rtol=1e-4, atol=1e-5)
    assert not torch.equal(modules[0][1].running_mean, before)
    for one, other in zip(modules[0].buffers(), modules[1].buffers(), strict=True):
        torch.testing.assert_close(one, other)


class Decaying(nn.Module):
    """Writes into its parameter in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(draw(4, 2))

    def forward(self, x):
        with torch.no_grad():
            self.weight.mul_(0.5)
        return (x @ self.weight).square().mean()


@pytest.mark.parametrize("training", [False, True])
def test_a_run_writes_into_parameters_what_the_forward_writes(training):
    module, other, x = Decaying(), Decaying(), draw(3, 4)
    imported = import_module(module, (x,), training=training, learning_rate=0.5)
    results = run_graph(lower(imported.program, {}), imported.binding.inputs((x,)))
    loss = other(x)
    (gradient,) = torch.autograd.grad(loss, other.weight)
    torch.testing.assert_close(imported.binding.outputs(results), loss.detach())
    imported.binding.write_effects((x,), {}, results)
    torch.testing.assert_close(module.weight, other.weight)
    if training:
        new = imported.binding.new_parameters(results)["weight"]
        torch.testing.assert_close(new, (other.weight - 0.5 * gradient).detach())


def test_inputs_of_a_module_on_the_meta_device_may_be_elsewhere():
    with torch.device("meta"):
        module = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 8, dtype=torch.float32)).bfloat16()
    imported = import_module(module, (torch.arange(4),))
    assert {node.dtype for node in imported.program.nodes} == {"bf16", "i64"}


def test_trees_are_rebuilt_without_calling_their_classes():
    class Counted(OrderedDict):
        made = 0

        def __init__(self, *args) -> None:
            super().__init__(*args)
            Counted.made += 1

    nested = (Counted({"x": draw(1)}), [Pair(draw(2), 1)], {"z": {"w": draw(3)}})
    flat = Flat(nested)
    new = rebuilt(flat.tree, ["a", "b", "c"])
    assert new == (OrderedDict(x="a"), [Pair("b", 1)], {"z": {"w": "c"}})
    assert type(new[0]) is Counted and Counted.made == 1
    assert as_call(draw(1), {"k": 1})[1] == {"k": 1}
    assert pytree.tree_leaves(as_call({"x": 1}, {"y": 2})) == [1, 2]
