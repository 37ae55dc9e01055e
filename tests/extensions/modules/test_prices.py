"""Floating-point operations of every operator that modules are made of, against torch's counter."""

import math
import re
from collections.abc import Callable

import pytest
import torch
from test_conversion import Function, draw
from torch import Tensor, nn
from torch.export import default_decompositions
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode, flop_registry, register_flop_formula

import doppler
from doppler.extensions.modules import TorchProgram, import_module, prices

aten = torch.ops.aten


def flops_in(imported: TorchProgram, *kinds: str) -> int:
    """Of all ops of a program, or of those of some kinds."""
    return sum(
        node.flops(tuple((0, extent) for extent in getattr(node, "extents", node.shape)))
        for node in imported.program.nodes
        if node.kind in kinds or not kinds
    )


def ints(*shape: int) -> Tensor:
    return torch.randint(-8, 8, shape, dtype=torch.int8)


def grouped(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    return aten._grouped_mm(x, w, offs=ends)


X, IMAGE = draw(16, 32), draw(2, 8, 12, 12)
CONV, UP = (IMAGE, draw(16, 8, 3, 3)), (IMAGE, draw(8, 4, 3, 3))
ENDS = torch.tensor([4, 8, 12, 16], dtype=torch.int32)
# What torch's counter knows.
COUNTED: dict[str, tuple[Callable, tuple]] = {
    "mm": (torch.mm, (X, draw(32, 24))),
    "addmm": (functional.linear, (X, draw(24, 32), draw(24))),
    "bmm": (torch.bmm, (draw(3, 16, 32), draw(3, 32, 24))),
    "baddbmm": (torch.baddbmm, (draw(3, 16, 24), draw(3, 16, 32), draw(3, 32, 24))),
    "einsum": (lambda a, b: torch.einsum("bij,bjk->bik", a, b), (draw(3, 16, 32), draw(3, 32, 8))),
    "attention": (
        lambda q, k, v: (q @ k.mT).softmax(-1) @ v,
        (draw(2, 4, 16, 32), draw(2, 4, 16, 32), draw(2, 4, 16, 32)),
    ),
    "conv1d": (functional.conv1d, (draw(2, 8, 40), draw(16, 8, 3))),
    "conv2d": (
        lambda x, w: functional.conv2d(x, w, padding=1, stride=2),
        (IMAGE, draw(16, 8, 3, 3)),
    ),
    "conv3d": (functional.conv3d, (draw(2, 4, 6, 6, 6), draw(8, 4, 3, 3, 3))),
    "groups": (lambda x, w: functional.conv2d(x, w, groups=4), (IMAGE, draw(16, 2, 3, 3))),
    "depthwise": (lambda x, w: functional.conv2d(x, w, groups=8), (IMAGE, draw(8, 1, 3, 3))),
    "dilated": (lambda x, w: functional.conv2d(x, w, dilation=2), (IMAGE, draw(16, 8, 3, 3))),
    "transposed": (
        lambda x, w: functional.conv_transpose2d(x, w, stride=2),
        (IMAGE, draw(8, 4, 3, 3)),
    ),
    "transposed groups": (
        lambda x, w: functional.conv_transpose2d(x, w, groups=4),
        (IMAGE, draw(8, 2, 3, 3)),
    ),
    "lstm": (nn.LSTM(16, 24, 2), (draw(5, 3, 16),)),
    "gru": (nn.GRU(16, 24), (draw(5, 3, 16),)),
    "transformer": (nn.TransformerEncoderLayer(32, 4, 64).train(), (draw(5, 3, 32),)),
}


@pytest.mark.parametrize("name", COUNTED)
def test_products_cost_what_the_counter_of_torch_says(name):
    function, arguments = COUNTED[name]
    module = function if isinstance(function, nn.Module) else Function(function)
    fused = torch.backends.mkldnn.flags(enabled=False)  # recurrences as their products
    with FlopCounterMode(display=False) as counter, torch.no_grad(), fused:
        module(*arguments)
    imported = import_module(module, arguments)
    products = flops_in(imported, "matmul", "convolution")
    assert products == pytest.approx(counter.get_total_flops(), rel=0.05)
    assert not imported.by_bytes


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_of_convolutions_cost_as_much_as_forward(groups, transposed):
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            kind = nn.ConvTranspose2d if transposed else nn.Conv2d
            self.conv = kind(8, 8, 3, groups=groups, bias=False)
            self.scale = nn.Parameter(torch.ones(8, 1, 1))

        def forward(self, x):
            return self.conv(x * self.scale).square().sum()

    module = Loss()
    imported = import_module(module, (IMAGE,), training=True)
    forward, both = (flops_in(imported, f"convolution{end}") for end in ("", "_backward"))
    assert both == 2 * forward
    if groups == 1:  # torch counts the gradient by the weight as if it had no groups
        with FlopCounterMode(display=False) as counter:
            module(IMAGE).backward()
        assert forward + both == counter.get_total_flops()


def spd(n: int) -> Tensor:
    one = draw(n, n)
    return one @ one.T + n * torch.eye(n)


N = 24
CUBE = N**3
# Function, arguments, and its operations by the textbook, or by counting terms.
KNOWN: dict[str, tuple[Callable, tuple, float]] = {
    "grouped_mm": (
        grouped,
        (X.bfloat16(), draw(4, 32, 24).bfloat16(), ENDS),
        2 * 16 * 32 * 24,
    ),
    "grouped_mm of columns": (
        grouped,
        (draw(4, 8, 32).bfloat16(), draw(32, 16).bfloat16(), ENDS),
        2 * 8 * 32 * 16,
    ),
    "int_mm": (aten._int_mm, (ints(32, 16), ints(16, 24)), 2 * 32 * 16 * 24),
    "whole mm": (torch.mm, (ints(32, 16).int(), ints(16, 24).int()), 2 * 32 * 16 * 24),
    "bilinear": (nn.Bilinear(16, 24, 8), (draw(5, 16), draw(5, 24)), 3 * 5 * 8 * 16 * 24),
    "cdist": (lambda a, b: torch.cdist(a, b, p=1.0), (X, draw(8, 32)), 3 * 16 * 8 * 32),
    "cholesky": (torch.linalg.cholesky, (spd(N),), CUBE / 3),
    "lu": (lambda a: torch.linalg.lu_factor(a)[0], (spd(N),), 2 * CUBE / 3),
    "det": (torch.linalg.det, (spd(N),), 2 * CUBE / 3),
    "inv": (torch.linalg.inv, (spd(N),), 2 * CUBE),
    "solve": (torch.linalg.solve, (spd(N), draw(N, 6)), 2 * CUBE / 3 + 2 * N * N * 6),
    "batch": (torch.linalg.inv, (torch.stack([spd(N)] * 3),), 3 * 2 * CUBE),
    "triangular": (
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=False),
        (spd(N), draw(N, 40)),
        N * N * 40,
    ),
    "cholesky_solve": (torch.cholesky_solve, (draw(N, 40), spd(N)), 2 * N * N * 40),
    "qr": (lambda a: torch.linalg.qr(a)[0], (draw(2 * N, N),), 4 * (2 * CUBE - CUBE / 3)),
    "svd": (lambda a: torch.linalg.svd(a, full_matrices=False)[0], (spd(N),), 22 * CUBE),
    "eigh": (lambda a: torch.linalg.eigh(a)[1], (spd(N),), 9 * CUBE),
    "fft": (torch.fft.fft, (draw(8, 64) * 1j,), 5 * 512 * 6),
    "rfft": (torch.fft.rfft, (draw(8, 64),), 2.5 * 512 * 6),
    "irfft": (torch.fft.irfft, (draw(8, 33) * 1j,), 2.5 * 512 * 6),
    "fft2": (torch.fft.fft2, (draw(8, 64),), 5 * 512 * 9),
    "cumsum": (lambda x: x.cumsum(0), (X,), 512),
    "logcumsumexp": (lambda x: x.logcumsumexp(0), (X,), 3 * 512),
    "sort": (lambda x: x.sort(1)[0], (X,), 512 * 5),
    "max_pool": (lambda x: functional.max_pool2d(x, 3, 2), (IMAGE,), 2 * 8 * 25 * 9),
    "avg_pool": (lambda x: functional.avg_pool2d(x, 2), (IMAGE,), 2 * 8 * 36 * 4),
    "vector_norm": (lambda x: torch.linalg.vector_norm(x, 3), (X,), 2 * 512),
}


@pytest.mark.parametrize("name", KNOWN)
def test_other_operators_cost_what_their_shapes_say(name):
    function, arguments, flops = KNOWN[name]
    module = function if isinstance(function, nn.Module) else Function(function)
    imported = import_module(module, arguments)
    assert not imported.by_bytes
    # Beside the operator a few elementwise ops for each number that is read or made.
    small = 4 * sum(one.numel() for one in arguments)
    assert flops * 0.99 <= flops_in(imported) <= flops + small


def test_experts_cost_what_their_products_do():
    """A layer of experts was priced by its bytes, some 7 times too low, and said nothing."""
    with torch.device("meta"):
        x, w = (torch.empty(s, dtype=torch.bfloat16) for s in ((4096, 1024), (8, 1024, 4096)))
        ends = torch.empty(8, dtype=torch.int32)
    imported = import_module(Function(grouped), (x, w, ends))
    assert flops_in(imported) == pytest.approx(2 * 4096 * 1024 * 4096, rel=0.01)


# --- Every operator -------------------------------------------------------------------------------

# Formats that no module of dense tensors is made of, other vendors' operators, and torch's inside.
OTHER = re.compile(
    "sparse|quant|cudnn|miopen|mkldnn|mps|nested|coo|cs[rc]|bs[rc]|_foreach|_fused_|philox|jagged"
    "|triton|_test|nnpack|_copy$|indices|values|histogramdd|_amp_|dual|q_per|fw_primal|fft_.*freq"
    "|_window|hash|empty|resize|^set$|lift|_assert|_sym_|multi_head|transformer_enc|rnn|_cslt|_slow"
    "|convert_weight|pin_memory|overrideable|_jvp|spdiags|spsolve|hspmm|from_file|token|_foobar"
    "|^slow_|coalesce|_compute_linear|_copy_from|_to_dense|int_repr|dirichlet|^batch_norm_"
    "|lanczos|bias_rescale|linear_backward|matmul_backward|flash_attention_for_cpu"
)
# They depend on values or on convergence: nobody knows a count.
BY_BYTES = {
    *("_ctc_loss", "_ctc_loss_backward", "_segment_reduce_backward", "histogram"),
    *("linalg_matrix_exp", "linalg_pinv", "unique_dim_consecutive"),
}


def operators() -> dict[str, list]:
    """Functions of aten that no table decomposes: what may become a call, by packet."""
    table, found = default_decompositions(), {}
    for full in torch._C._dispatch_get_all_op_names():
        packet, _, overload = full.removeprefix("aten::").partition(".")
        operator = getattr(getattr(aten, packet, None), overload or "default", None)
        if not full.startswith("aten::") or operator is None or operator in table:
            continue
        schema = operator._schema
        writes = schema.is_mutable or any(
            one.alias_info and one.alias_info.is_write for one in schema.arguments
        )
        returns = schema.returns and all("Tensor" in str(one.type) for one in schema.returns)
        plain = not writes and returns and not overload.endswith("out")
        if plain and not operator._can_decompose() and "Dimname" not in str(schema):
            found.setdefault(packet, []).append(operator)
    return found


def test_every_operator_has_a_formula_or_is_listed():
    every = operators()
    tagged = {
        packet
        for packet, overloads in every.items()
        if any({torch.Tag.pointwise, torch.Tag.reduction} & set(one.tags) for one in overloads)
    }
    counted = {str(one).removeprefix("aten.") for one in prices.flop_registry}
    known = counted | tagged | {*prices._FORMULAS, *prices._MOVES, *prices._REDUCTIONS}
    ours = {packet for packet in every if not OTHER.search(packet)}
    assert len(ours) > 250
    assert ours - known == BY_BYTES
    core = {one for one in every if any(torch.Tag.core in each.tags for each in every[one])}
    assert core <= known


@torch.library.custom_op("doppler_tests::mystery", mutates_args=())
def mystery(x: Tensor) -> Tensor:
    return x.sin()


@mystery.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_a_formula_that_is_registered_with_torch_counts():
    packet = torch.ops.doppler_tests.mystery
    register_flop_formula(packet)(lambda shape, **_: 1000 * math.prod(shape))
    try:
        imported = import_module(Function(mystery), (X,))
    finally:
        del flop_registry[packet]
    assert (flops_in(imported), imported.by_bytes) == (1000 * X.numel(), ())


def test_an_operator_of_which_nothing_is_known_is_listed():
    class Mine(nn.Module):
        def forward(self, x):
            return mystery(x) + 1

    imported = import_module(nn.Sequential(Mine()), (X,))
    assert imported.by_bytes == ("op doppler_tests.mystery in module '0' (Mine)",)
    placed = doppler.place(nn.Sequential(Mine()), X, "p100x4", evaluations=2)
    line = "priced by bytes only: op doppler_tests.mystery in module '0' (Mine)"
    assert line in placed.explain().splitlines()
