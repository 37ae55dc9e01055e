"""Models as their users call them: works, or one line; ops, FLOPs, seconds, result against torch.

Run: ``python -m benchmarks.models [NAME ...] [--seconds S] [--training]``, one fresh process a
model; it prints the table of docs/results/whole_models.md. Models of transformers, torchvision and
torch-geometric are made of configurations, without weights, at sizes for two cores: ``pip install
'doppler[models]'``, and a torchvision for the torch that is there. *FLOP* are of all ops; *torch's*
what torch.utils.flop_counter counts of the module; *seconds* those of the whole call, compilation
left out, and of its phases; *error* the largest difference to the module over its largest output.
What is on the meta device is placed, not run.

The functions below return a module and its inputs, by position, or by position and by keyword:
``doppler place benchmarks/models.py:gpt2``.
"""

import argparse
import json
import subprocess
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

# Compiled operators of torchvision are of another build of torch than one for CPUs; no model of the
# table needs them, but transformers imports torchvision where it is.
sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("none"))
Made = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
BATCH, POSITIONS, WORDS = 2, 32, 1000
_SMALL = {
    **{"vocab_size": WORDS, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"intermediate_size": 128},
}
_GROUPED = {**_SMALL, "num_key_value_heads": 2}
_PHASES = ("export", "split", "price", "search")
_COLUMNS = ("model", "ops", "FLOP", "torch's", "seconds", *_PHASES, "cut short", "error")
FACTORIES: dict[str, Callable[[], Made]] = {}


def _model(factory: Callable[[], Made]) -> Callable[[], Made]:
    FACTORIES[factory.__name__] = factory
    return factory


def _tokens() -> dict[str, Tensor]:
    """As a tokenizer returns them: the second sequence is shorter."""
    mask = torch.ones(BATCH, POSITIONS, dtype=torch.int64)
    mask[1, POSITIONS // 2 :] = 0
    return {"input_ids": torch.arange(BATCH * POSITIONS).view(BATCH, -1), "attention_mask": mask}


def _transformer(config: str, model: str, **options: Any) -> Made:
    """A model of transformers as its configuration makes it, called with a tokenizer's dict."""
    import transformers

    made = getattr(transformers, model)(getattr(transformers, config)(**options))
    return made.eval(), (), _tokens()


def _vision(name: str, size: int = 64) -> Made:
    """A model of torchvision."""
    from torchvision import models

    made = getattr(models, name)(weights=None, num_classes=10)
    return made.eval(), (torch.randn(BATCH, 3, size, size),), {}


@_model
def gpt2() -> Made:
    """GPT-2 with its head."""
    sizes = {"vocab_size": WORDS, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
    return _transformer("GPT2Config", "GPT2LMHeadModel", **sizes)


@_model
def llama() -> Made:
    """Llama; its cache is in use, as by default."""
    return _transformer("LlamaConfig", "LlamaForCausalLM", **_GROUPED)


@_model
def mistral() -> Made:
    """Mistral, with its sliding window."""
    return _transformer("MistralConfig", "MistralForCausalLM", **_GROUPED)


@_model
def qwen2() -> Made:
    """Qwen2."""
    return _transformer("Qwen2Config", "Qwen2ForCausalLM", **_GROUPED)


@_model
def gemma() -> Made:
    """Gemma."""
    return _transformer("GemmaConfig", "GemmaForCausalLM", **_GROUPED, head_dim=16)


@_model
def bert() -> Made:
    """BERT."""
    return _transformer("BertConfig", "BertModel", **_SMALL)


@_model
def t5() -> Made:
    """T5, encoder and decoder."""
    sizes = {"vocab_size": WORDS, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2}
    made, _, tokens = _transformer("T5Config", "T5Model", **sizes, num_heads=4)
    return made, (), {**tokens, "decoder_input_ids": torch.arange(BATCH * 8).view(BATCH, 8)}


@_model
def vit() -> Made:
    """ViT of transformers."""
    sizes = {key: value for key, value in _SMALL.items() if key != "vocab_size"}
    made, _, _ = _transformer("ViTConfig", "ViTModel", **sizes, image_size=64, patch_size=16)
    return made, (), {"pixel_values": torch.randn(BATCH, 3, 64, 64)}


@_model
def whisper_encoder() -> Made:
    """The encoder of Whisper."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        d_model=64,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=128,
        max_source_positions=50,
    )
    return WhisperEncoder(config).eval(), (torch.randn(BATCH, 80, 100),), {}


@_model
def mixtral() -> Made:
    """Mixtral: two of four experts a position."""
    return _transformer("MixtralConfig", "MixtralForCausalLM", **_GROUPED, num_local_experts=4)


@_model
def mamba() -> Made:
    """Mamba, its scan in plain operators."""
    sizes = {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
    made, _, tokens = _transformer("MambaConfig", "MambaForCausalLM", **sizes)
    return made, (), {"input_ids": tokens["input_ids"]}


@_model
def resnet18() -> Made:
    """ResNet-18."""
    return _vision("resnet18")


@_model
def resnet50() -> Made:
    """ResNet-50."""
    return _vision("resnet50")


@_model
def convnext() -> Made:
    """ConvNeXt, tiny."""
    return _vision("convnext_tiny")


@_model
def vit_b_16() -> Made:
    """ViT of torchvision, at its own size."""
    made, args, kwargs = _vision("vit_b_16", 224)
    nn.init.normal_(made.heads.head.weight)  # it begins with zeros, which would hide any error
    return made, args, kwargs


@_model
def swin() -> Made:
    """Swin, tiny."""
    return _vision("swin_t")


@_model
def efficientnet() -> Made:
    """EfficientNet B0."""
    return _vision("efficientnet_b0")


class UNet(nn.Module):
    """Two scales down, two up, concatenated across."""

    def __init__(self, channels: int) -> None:
        super().__init__()

        def block(into: int, out: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv2d(into, out, 3, padding=1), nn.GroupNorm(4, out), nn.SiLU()
            )

        self.first, self.second = block(3, channels), block(channels, 2 * channels)
        self.middle = block(2 * channels, 2 * channels)
        self.up = nn.ConvTranspose2d(2 * channels, channels, 2, stride=2)
        self.third, self.last = block(3 * channels, channels), nn.Conv2d(2 * channels, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.first(x)
        two = self.second(functional.max_pool2d(one, 2))
        up = functional.interpolate(self.middle(functional.max_pool2d(two, 2)), scale_factor=2)
        up = self.third(torch.cat((functional.avg_pool2d(one, 2), up), 1))
        up = functional.interpolate(up, scale_factor=2, mode="bilinear")
        return self.last(torch.cat((up, self.up(two)), 1))


@_model
def unet() -> Made:
    """A small UNet."""
    return UNet(16).eval(), (torch.randn(BATCH, 3, 64, 64),), {}


@_model
def lstm() -> Made:
    """Two layers, 50 steps."""
    return nn.LSTM(32, 32, num_layers=2, batch_first=True), (torch.randn(BATCH, 50, 32),), {}


@_model
def gru() -> Made:
    """One layer in both directions, 20 steps."""
    return nn.GRU(32, 32, bidirectional=True), (torch.randn(20, BATCH, 32),), {}


class Experts(nn.Module):
    """A mixture of experts: every expert sees every position, weighed by what the router says."""

    def __init__(self, dim: int, num: int) -> None:
        super().__init__()
        self.router = nn.Linear(dim, num)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
            for _ in range(num)
        )

    def forward(self, x: Tensor, *, top: int = 2) -> dict[str, Tensor]:
        weights, chosen = self.router(x).softmax(-1).topk(top, -1)
        result = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            weight = torch.where(chosen == k, weights, 0.0).sum(-1, keepdim=True)
            result = result + weight * expert(x)
        return {"result": result, "chosen": chosen}


@_model
def experts() -> Made:
    """An own mixture of experts."""
    return Experts(32, 4).eval(), (torch.randn(BATCH, 16, 32),), {"top": 2}


@_model
def gcn() -> Made:
    """Two graph convolutions; self-loops are given, as their number depends on the edges."""
    from torch_geometric.nn import GCNConv

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = GCNConv(16, 32, add_self_loops=False)
            self.two = GCNConv(32, 4, add_self_loops=False)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            return self.two(self.one(x, edges).relu(), edges)

    edges = torch.stack((torch.arange(60) % 20, torch.arange(60) * 7 % 20))
    return Net().eval(), (torch.randn(20, 16), edges), {}


@_model
def encoder() -> Made:
    """A stock TransformerEncoder."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return nn.TransformerEncoder(layer, 2).eval(), (torch.randn(BATCH, POSITIONS, 64),), {}


@_model
def llama_70b() -> Made:
    """The first four layers of a Llama with 70 billion parameters, on the meta device."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=4,
        num_attention_heads=64,
        num_key_value_heads=8,
        dtype=torch.bfloat16,
    )
    with torch.device("meta"):
        return LlamaForCausalLM(config).eval(), (torch.zeros(1, 1024, dtype=torch.int64),), {}


# Called from the command line as functions of this file.
globals().update(FACTORIES)


def trained(name: str) -> Made:
    """The model with its loss, in training mode."""
    module, args, kwargs = FACTORIES[name]()
    module.train()
    if "input_ids" in kwargs and name in ("gpt2", "llama", "mistral", "qwen2", "gemma", "mixtral"):
        return module, args, {**kwargs, "labels": kwargs["input_ids"]}

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *args: Any, **kwargs: Any) -> Tensor:
            (first, *_) = pytree.tree_leaves(self.module(*args, **kwargs))
            return first.float().square().mean()

    return Loss(), args, kwargs


def measure(name: str, seconds: float, training: bool) -> dict[str, Any]:
    """Place one model and run it; what the table shows of it."""
    import doppler
    from doppler.support.errors import InputError

    torch.manual_seed(0)
    module, args, kwargs = trained(name) if training else FACTORIES[name]()
    is_meta = any(one.is_meta for one in module.parameters())
    cluster = "h100x8" if is_meta else "p100x4"
    started_s = time.perf_counter()
    try:
        placed = doppler.place(
            module, args, cluster, seconds, example_kwargs=kwargs, training=training
        )
        wall_s = time.perf_counter() - started_s - placed.phases.get("compile", 0.0)
        torch.manual_seed(1)
        result = None if is_meta else doppler.execute(placed, *args, **kwargs)
    except InputError as error:
        return {"line": str(error)}
    torch.manual_seed(1)
    row = {"ops": placed.problem.num_ops, "seconds": wall_s, "phases": dict(placed.phases)}
    row["flops"] = float(placed.problem.graph.ops.flops.sum())
    row["cut_short"] = ", ".join(placed.cut_short)
    if training:
        row["error"] = _error_of_training(module, args, kwargs, result)
    else:
        row["torch_flops"] = _count_flops(module, args, kwargs)
        with torch.no_grad():
            expected = module(*args, **kwargs)
        row["error"] = None if is_meta else relative_error(result, expected)
    return row


def line_of(name: str, row: dict[str, Any]) -> str:
    """One line of the table."""
    if "line" in row:
        return f"| {name} | {row['line']} |" + " |" * (len(_COLUMNS) - 2)
    phases = [f"{row['phases'].get(phase, 0.0):.1f}" for phase in _PHASES]
    cells = [name, f"{row['ops']:,}", f"{row['flops']:.3g}"]
    cells += [f"{row['torch_flops']:.3g}" if "torch_flops" in row else "", f"{row['seconds']:.1f}"]
    cells += [*phases, row["cut_short"]]
    cells.append("not run" if row["error"] is None else f"{row['error']:.1e}")
    return f"| {' | '.join(cells)} |"


def _error_of_training(module: nn.Module, args: Any, kwargs: Any, result: Any) -> float:
    """Of the step of gradient descent that the run returns beside the loss."""
    expected, new = module(*args, **kwargs), result[1]
    (loss, *_) = pytree.tree_leaves(expected)
    parameters = dict(module.named_parameters())
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    worst = 0.0
    for (name, one), gradient in zip(parameters.items(), gradients, strict=True):
        if gradient is not None:
            step = (one.detach() - new[name]) / 1e-3
            worst = max(
                worst, float((step - gradient).abs().max() / max(1.0, gradient.abs().max()))
            )
    return worst


def relative_error(result: Any, expected: Any) -> float:
    """The largest difference of two results over the largest element of its tensor."""
    worst = 0.0
    assert type(result) is type(expected), (type(result), type(expected))
    pairs = zip(pytree.tree_leaves(result), pytree.tree_leaves(expected), strict=True)
    for one, other in pairs:
        if isinstance(other, Tensor):
            assert one.dtype == other.dtype and one.shape == other.shape
            scale = max(1e-12, float(other.double().abs().max()))
            error = float((one.double() - other.double()).abs().max()) / scale
            worst = max(worst, error if error == error else float("inf"))
    return worst


def _count_flops(module: nn.Module, args: Any, kwargs: Any) -> float:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(*args, **kwargs)
    return float(counter.get_total_flops())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(FACTORIES))
    parser.add_argument("--seconds", type=float, default=5.0, help="of each call")
    parser.add_argument("--training", action="store_true", help="a step of gradient descent")
    parser.add_argument("--here", action="store_true", help="in this process, as JSON")
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure(options.names[0], options.seconds, options.training)))
        return
    print(f"| {' | '.join(_COLUMNS)} |")
    print("| --- |" + " ---: |" * (len(_COLUMNS) - 1))
    for name in options.names:
        words = [sys.executable, "-m", "benchmarks.models", name, "--here"]
        words += ["--seconds", str(options.seconds), *["--training"] * options.training]
        done = subprocess.run(words, capture_output=True, text=True, check=False, encoding="utf-8")
        try:
            row = json.loads(done.stdout.splitlines()[-1])
        except (IndexError, json.JSONDecodeError):
            row = {"line": f"FAILS: {done.stderr.strip().splitlines()[-1]}"}
        print(line_of(name, row), flush=True)


if __name__ == "__main__":
    main()
