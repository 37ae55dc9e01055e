"""Maps of devices: complete, never finer than a forward allows, accepted by accelerate."""

import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from test_conversion import draw
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils import _pytree as pytree

import doppler
from doppler.baselines import SingleDevice
from doppler.einsum import Given
from doppler.problem import Placement
from doppler.support.errors import InputError


class Block(nn.Module):
    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(dim),
            nn.Linear(dim, 3 * dim),
            nn.Linear(dim, dim),
        )
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.out((q @ k.mT).softmax(-1) @ v)
        return x + self.mlp(x)


class Language(nn.Module):
    """Embeddings that meet, blocks, a tied head."""

    def __init__(self, num: int = 4) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(12, 16), nn.Embedding(8, 16)
        self.blocks = nn.Sequential(*(Block() for _ in range(num)))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 12, bias=False)
        self.head.weight = self.words.weight
        self.unused = nn.Linear(3, 3)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[-1], device=ids.device))
        return self.head(self.norm(self.blocks(x)))


class Images(nn.Module):
    """Norms with buffers, a token of its own at the top."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = self.stem(x)
        return self.head((x + self.body(x)).mean((2, 3)))


class Token(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.body = nn.Parameter(torch.randn(1, 4)), nn.Linear(4, 4)

    def forward(self, x):
        return self.body(torch.cat((self.token, x)))


class Borrowing(nn.Module):
    """Reads the weight of a submodule that it does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return functional.linear(self.first(x), self.second.weight)


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.left(x), self.right(x)


class Scores(Towers):
    def forward(self, x):
        return self.left(x) @ self.right(x).mT


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


IDS, X = torch.arange(8).view(1, 8), draw(2, 4)
MODELS = {
    "language": (Language, IDS),
    "deep language": (lambda: Language(8), IDS),
    "images": (Images, draw(2, 3, 8, 8)),
    "token": (Token, X),
    "borrowing": (Borrowing, X),
    "towers": (Towers, X),
    "scores": (Scores, X),
    "encoder": (encoder, draw(2, 5, 16)),
    "decoder": (lambda: nn.TransformerDecoderLayer(16, 2, 32), (draw(5, 2, 16), draw(4, 2, 16))),
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), X),
    "lstm": (lambda: nn.LSTM(4, 8, 2), draw(3, 2, 4)),
    "bilinear": (lambda: nn.Bilinear(4, 4, 3), (X, X)),
    "norms": (lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.Conv1d(4, 4, 1)), draw(2, 4, 5)),
    "nested": (lambda: nn.Sequential(nn.Sequential(Images()), nn.Softmax(-1)), draw(2, 3, 8, 8)),
    "blocks": (lambda: nn.Sequential(*(Block() for _ in range(6))), draw(5, 2, 16)),
}


@cache
def placed_whole(name: str):
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    module = make().eval()
    placed = doppler.place(
        module, inputs, "p100x4", evaluations=1, method=SingleDevice(), decomposition=Given()
    )
    return module, inputs, placed


def placed_at_random(name: str, seed: int):
    module, inputs, placed = placed_whole(name)
    rng = np.random.default_rng(seed)
    ops = placed.problem.graph.ops
    # In runs of neighbouring ops, as good placements are, and one by one.
    device = np.sort(rng.integers(0, 4, len(ops.names)))
    if seed % 2:
        device = rng.integers(0, 4, len(ops.names))
    placement = Placement.make(placed.problem, device, placed.placement.priority)
    return module, inputs, replace(placed, placement=placement)


def run_apart(make, inputs, devices: dict[str, int]) -> None:
    """Run a module as accelerate dispatches it, with tensors that only know where they are.

    Raises:
        RuntimeError: tensors on two devices meet.
    """

    def moved(tree, device: str):
        is_tensor = lambda one: isinstance(one, torch.Tensor)  # noqa: E731
        return pytree.tree_map(lambda one: one.to(device) if is_tensor(one) else one, tree)

    with FakeTensorMode(), torch.no_grad():
        module = make().eval()
        for path, number in {"": min(devices.values()), **devices}.items():
            part, device = module.get_submodule(path), f"cuda:{number}"
            for one in part.modules() if path in devices else ():
                for key, tensor in one._parameters.items():
                    if tensor is not None:
                        one._parameters[key] = nn.Parameter(tensor.to(device))
                for key, tensor in one._buffers.items():
                    one._buffers[key] = None if tensor is None else tensor.to(device)
            own = part.forward

            def forward(*args, own=own, device=device, **kwargs):
                return own(*moved(args, device), **moved(kwargs, device))

            part.forward = forward
        inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        module(*(torch.empty(one.shape, dtype=one.dtype) for one in inputs))


@pytest.mark.parametrize("name", MODELS)
def test_maps_are_complete_and_can_run(name):
    make, inputs = MODELS[name]
    sizes = set()
    for seed in range(4):
        module, _, placed = placed_at_random(name, seed)
        devices = placed.device_map(nearest=True)
        sizes.add(len(set(devices.values())))
        held = [
            [key for key in devices if not key or tensor == key or tensor.startswith(f"{key}.")]
            for tensor in module.state_dict()
        ]
        assert all(len(keys) == 1 for keys in held), "one device for every tensor"
        assert devices.keys() <= {path for path, _ in module.named_modules()}, "no bare tensors"
        if name not in ("encoder", "decoder"):  # torch's own attention asks the devices themselves
            run_apart(make, inputs, devices)
        try:
            assert placed.device_map() == devices, "exact where it can be"
        except InputError as error:
            assert "device_map(nearest=True)" in str(error)
    if name in ("deep language", "towers", "mlp", "encoder", "blocks"):
        assert max(sizes) > 1, "parts stay apart where they can"


def test_maps_that_cannot_run_are_noticed():
    make, inputs = MODELS["scores"]
    with pytest.raises(RuntimeError, match="at least two devices"):
        run_apart(make, inputs, {"left": 0, "right": 1})


def on(name: str, device_of, **options) -> dict[str, int]:
    """The map of a model whose ops are on the devices that a function gives by their names."""
    _, _, placed = placed_at_random(name, 0)
    device = np.array([device_of(one) for one in placed.problem.graph.ops.names])
    placement = Placement.make(placed.problem, device, placed.placement.priority)
    return replace(placed, placement=placement).device_map(**options)


@pytest.mark.parametrize(
    ("name", "device_of", "why"),
    [
        (
            "scores",
            lambda op: int("right" in op),
            "the forward of the module itself joins results of devices 0, 1, "
            "which accelerate cannot run",
        ),
        ("scores", lambda op: int("addmm" not in op), "ops on the others read no parameters"),
        ("towers", lambda op: int("right" in op), None),
        ("towers", lambda op: 1, None),
    ],
)
def test_a_map_to_one_device_says_why_if_the_placement_uses_several(name, device_of, why, caplog):
    devices = on(name, device_of, nearest=True)
    assert len(set(devices.values())) == 1 or why is None
    told = "device_map: all modules are on device 0, though the placement uses devices 0, 1: "
    assert [record.getMessage() for record in caplog.records if "device_map" in record.name] == (
        [] if why is None else [told + why]
    )


def test_refusals_name_the_module_and_the_remedy():
    assert on("towers", lambda op: int("right" in op)) == {"left": 0, "right": 1}
    for name, told in [
        ("scores", "the forward of the module itself joins results of devices 0, 1"),
        ("borrowing", "the forward of the module itself joins results of devices 0, 1"),
        ("token", "the module itself holds tensors, and submodules, on devices 0, 1"),
    ]:
        with pytest.raises(InputError) as error:
            on(name, lambda op: int("right" in op or "first" in op or "body" in op))
        assert str(error.value).startswith(f"device_map: {told}")
        assert (
            "device_map(nearest=True) puts each such module on the device with most of it"
            in str(error.value)
        )


def test_a_saved_placement_has_the_same_map(tmp_path):
    _, _, placed = placed_at_random("language", 0)
    devices = placed.device_map(nearest=True)
    placed.save(tmp_path)
    assert doppler.Placed.load(tmp_path).device_map(nearest=True) == devices


def test_accelerate_accepts_and_dispatches_maps():
    accelerate = pytest.importorskip("accelerate")
    check = accelerate.utils.check_device_map
    for name, (make, inputs) in MODELS.items():
        _, _, placed = placed_at_random(name, 0)
        devices = placed.device_map(nearest=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check(make(), devices)
        if name in ("language", "images"):
            torch.manual_seed(0)
            module = make().eval()
            with torch.no_grad():
                expected = module(inputs)
                on_cpu = dict.fromkeys(devices, "cpu")
                apart = accelerate.dispatch_model(module, on_cpu, force_hooks=True)
                torch.testing.assert_close(apart(inputs), expected)
