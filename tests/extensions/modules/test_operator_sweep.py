"""Values and gradients of torch's operators at special points, against torch in float64.

One module holds a parameter for every operator, so one import checks many of them.
"""

import math
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from doppler.einsum import lower
from doppler.executor import run_graph
from doppler.extensions.modules import import_module
from doppler.support.errors import InputError

Operators = Mapping[str, Callable[..., Tensor]]
INF, NAN = math.inf, math.nan
special = torch.special

UNARY: Operators = {
    **{
        name: getattr(torch, name)
        for name in (
            "abs neg exp log sqrt rsqrt square reciprocal sin cos tan asin acos atan sinh cosh "
            "tanh asinh acosh atanh erf erfc erfinv expm1 log1p log2 log10 exp2 sigmoid sign sgn "
            "round floor ceil trunc frac lgamma digamma i0 sinc nan_to_num deg2rad rad2deg positive"
        ).split()
    },
    **{
        name: getattr(functional, name)
        for name in (
            "relu relu6 leaky_relu elu selu celu hardtanh hardsigmoid hardswish hardshrink "
            "softshrink tanhshrink softsign mish silu gelu logsigmoid softplus"
        ).split()
    },
    **{f"special_{name}": getattr(special, name) for name in "entr ndtr log_ndtr i0e i1".split()},
    "gelu_tanh": lambda w: functional.gelu(w, approximate="tanh"),
    "leaky_0.2": lambda w: functional.leaky_relu(w, 0.2),
    "elu_2": lambda w: functional.elu(w, 2.0),
    "softplus_beta": lambda w: functional.softplus(w, 2.0, 1.0),
    "threshold": lambda w: functional.threshold(w, 0.5, -3.0),
    "rrelu": lambda w: functional.rrelu(w, training=False),
    "prelu": lambda w: functional.prelu(w, torch.tensor([0.3], dtype=w.dtype)),
    "glu": lambda w: functional.glu(torch.cat((w, w.flip(0)))),
    "clamp": lambda w: w.clamp(0, 1),
    "clamp_min": lambda w: w.clamp(min=0),
    "clamp_max": lambda w: w.clamp(max=1),
    "clamp_crossed": lambda w: w.clamp(1, 0),
    "clamp_tensor": lambda w: torch.clamp(w, torch.zeros_like(w), torch.ones_like(w)),
    **{f"pow_{p}": lambda w, p=p: w**p for p in (0, 1, 2, 3, -1, 0.5, -0.5, 2.5)},
    "pow_0.0": lambda w: w**0.0,
    **{f"{base}_pow": lambda w, base=base: base**w for base in (0.0, 1.0, 2.0)},
    "logit": lambda w: torch.logit(w, 1e-3),
    "xlogy_self": lambda w: torch.xlogy(w, w),
    "times_zero": lambda w: w * 0,
    "times_itself": lambda w: w * w - w / w,
    "zero_by": lambda w: 0 / w,
    "minus_itself": lambda w: (w - w) + (w + w),
    "detached": lambda w: w * w.detach(),
    "where_zero": lambda w: torch.where(w > 0, w.log(), w),
    "where_safe": lambda w: torch.where(w > 0, torch.where(w > 0, w, 1.0).sqrt(), 0.0),
    "masked_fill": lambda w: w.masked_fill(w == 0, 2.0),
    "fmod": lambda w: torch.fmod(w, 0.7),
    "remainder": lambda w: torch.remainder(w, 0.7),
    "heaviside": lambda w: torch.heaviside(w, torch.full_like(w, 0.5)) * w,
    "reciprocal_chain": lambda w: 1 / (1 + (-w).exp()),
}

BINARY: Operators = {
    **{
        name: getattr(torch, name)
        for name in (
            "add sub mul div pow atan2 maximum minimum fmax fmin hypot copysign xlogy logaddexp "
            "logaddexp2 remainder fmod lerp_ max_ min_ dist_"
        ).split()
        if not name.endswith("_")
    },
    "lerp": lambda w, v: torch.lerp(w, v, 0.3),
    "lerp_weight": lambda w, v: torch.lerp(w, v, v),
    "addcmul": lambda w, v: torch.addcmul(w, w, v, value=2.0),
    "addcdiv": lambda w, v: torch.addcdiv(w, w, v, value=2.0),
    "where": lambda w, v: torch.where(w > v, w, v),
    "clamp_by": lambda w, v: torch.clamp(w, max=v),
    "clamp_between": lambda w, v: torch.clamp(w, v, w),
    "floored": lambda w, v: torch.div(w, v, rounding_mode="floor") + w,
    "truncated": lambda w, v: torch.div(w, v, rounding_mode="trunc") + v,
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "smooth_l1": functional.smooth_l1_loss,
    "huber": functional.huber_loss,
    "bce": lambda w, v: functional.binary_cross_entropy(w.sigmoid(), v.sigmoid()),
    "bce_logits": lambda w, v: functional.binary_cross_entropy_with_logits(w, v),
    "kl_div": lambda w, v: functional.kl_div(w, v, reduction="sum"),
    "soft_margin": lambda w, v: functional.soft_margin_loss(w, v),
    "margin": lambda w, v: functional.margin_ranking_loss(w, v, torch.ones_like(w)),
    "hinge": lambda w, v: functional.hinge_embedding_loss(w, v.sign()),
    "poisson": lambda w, v: functional.poisson_nll_loss(w, v),
    "cosine": lambda w, v: functional.cosine_similarity(w, v, dim=0),
    "pairwise": lambda w, v: functional.pairwise_distance(w, v),
    "dist": lambda w, v: torch.dist(w, v),
    "dot": lambda w, v: torch.dot(w, v),
    "outer": lambda w, v: torch.outer(w, v),
}


def of_rows(w: Tensor) -> Tensor:
    return torch.arange(w.shape[0]) % w.shape[1]


MATRIX: Operators = {
    **{
        name: getattr(torch, name)
        for name in (
            "sum mean prod amax amin max min median nanmedian std var logsumexp_ nansum norm"
        ).split()
        if not name.endswith("_")
    },
    **{
        f"{name}_{dim}": lambda w, name=name, dim=dim: getattr(torch, name)(w, dim)
        for name in (
            "sum mean prod amax amin std var logsumexp cumsum cumprod logcumsumexp softmax "
            "log_softmax nansum diff"
        ).split()
        for dim in (0, 1)
    },
    **{
        f"{name}_{dim}": lambda w, name=name, dim=dim: getattr(torch, name)(w, dim)[0]
        for name in "max min median mode cummax cummin sort var_mean std_mean".split()
        for dim in (0, 1)
    },
    "std_0": lambda w: w.std(1, correction=0),
    "var_0": lambda w: w.var(1, correction=0),
    "aminmax": lambda w: torch.stack(torch.aminmax(w)),
    "topk": lambda w: w.topk(min(2, w.shape[1]), 1)[0],
    "kthvalue": lambda w: w.kthvalue(1, 1)[0],
    **{
        f"norm_{p}": lambda w, p=p: torch.linalg.vector_norm(w, p, 1)
        for p in (0.5, 1, 2, 3, INF, -INF)
    },
    "norm_all": lambda w: torch.linalg.norm(w),
    "normalize": lambda w: functional.normalize(w),
    "renorm": lambda w: torch.renorm(w, 2, 0, 1.0),
    "max_pair": lambda w: torch.maximum(w, w.flip(0)),
    "cat": lambda w: torch.cat((w, w * 2), 1),
    "stack": lambda w: torch.stack((w, w), 0),
    "flip": lambda w: w.flip(0, 1) * w,
    "roll": lambda w: w.roll(1, 1) * w,
    "gather": lambda w: w.gather(1, of_rows(w)[:, None]),
    "take_along": lambda w: torch.take_along_dim(w, w.argsort(1), 1),
    "index_select": lambda w: w.index_select(0, torch.tensor([0, 0])),
    "index": lambda w: w[torch.tensor([0, 0]), torch.tensor([0, -1])],
    "index_rows": lambda w: w[torch.zeros(2, dtype=torch.int64)],
    "scatter": lambda w: torch.zeros_like(w).scatter(1, of_rows(w)[:, None], w[:, :1]),
    "scatter_add": lambda w: torch.ones_like(w).scatter_add(1, of_rows(w)[:, None], w[:, :1]),
    **{
        f"scatter_{how}": lambda w, how=how: torch.ones_like(w).scatter_reduce(
            0, torch.zeros_like(w, dtype=torch.int64), w, how
        )
        for how in ("sum", "prod", "mean", "amax", "amin")
    },
    "index_add": lambda w: w.index_add(0, torch.tensor([0]), w[:1]),
    "index_put": lambda w: w.index_put((torch.tensor([0]),), w[0] * 2),
    "index_put_add": lambda w: w.index_put((torch.tensor([0]),), w[0] * 2, accumulate=True),
    "index_copy": lambda w: w.index_copy(0, torch.tensor([0]), w[:1] * 3),
    "index_fill": lambda w: w.index_fill(0, torch.tensor([0]), 2.0),
    "take": lambda w: torch.take(w, torch.tensor([0, 0])),
    "tril": torch.tril,
    "triu": torch.triu,
    "diag": torch.diag,
    "trace": torch.trace,
    "diagonal": lambda w: torch.diagonal(w),
    "diag_embed": lambda w: torch.diag_embed(w),
    "unfold": lambda w: w.unfold(1, 1, 1),
    "repeat": lambda w: w.repeat(2, 3),
    "repeat_interleave": lambda w: w.repeat_interleave(2, 1),
    "expand": lambda w: w[:, :1].expand(-1, 5),
    "narrow": lambda w: w.narrow(1, 0, 1),
    "strided": lambda w: w[:, ::2],
    "set_slice": lambda w: w.slice_scatter(w[:1] * 2, 0, 0, 1),
    "select_scatter": lambda w: w.select_scatter(w[0] * 2, 0, 0),
    "pad": lambda w: functional.pad(w, (1, 2), value=3.0),
    "pad_replicate": lambda w: functional.pad(w[None], (1, 2), mode="replicate"),
    "pad_circular": lambda w: functional.pad(w[None], (1, 1), mode="circular"),
    "matmul": lambda w: w @ w.mT,
    "matvec": lambda w: w @ w[0],
    "bmm": lambda w: torch.bmm(w[None], w.mT[None]),
    "addmm": lambda w: torch.addmm(w[:, :1], w, w.mT, alpha=2.0, beta=0.5),
    "einsum": lambda w: torch.einsum("ij,kj->ik", w, w),
    "kron": lambda w: torch.kron(w, w),
    "cdist_1": lambda w: torch.cdist(w, w, p=1.0),
    "cdist_inf": lambda w: torch.cdist(w, w, p=INF),
    "cdist_2": lambda w: torch.cdist(w, w),
    "layer_norm": lambda w: functional.layer_norm(w, w.shape[1:]),
    "rms_norm": lambda w: functional.rms_norm(w, w.shape[1:]),
    "cross_entropy": lambda w: functional.cross_entropy(w, of_rows(w)),
    "smoothed": lambda w: functional.cross_entropy(w, of_rows(w), label_smoothing=0.1),
    "ignored": lambda w: functional.cross_entropy(w, of_rows(w), ignore_index=0, reduction="sum"),
    "soft_labels": lambda w: functional.cross_entropy(w, torch.ones_like(w) / w.shape[1]),
    "nll": lambda w: functional.nll_loss(w, of_rows(w)),
    "multi_margin": lambda w: functional.multi_margin_loss(w, of_rows(w)),
    "multilabel_margin": lambda w: functional.multilabel_margin_loss(
        w, torch.zeros_like(w, dtype=torch.int64)
    ),
    "multilabel": lambda w: functional.multilabel_soft_margin_loss(w, torch.ones_like(w)),
    "triplet": lambda w: functional.triplet_margin_loss(w, w.flip(0), w * 2),
    "softmin": lambda w: functional.softmin(w, 1),
    "attention": lambda w: functional.scaled_dot_product_attention(w[None], w[None], w[None]),
    "masked_attention": lambda w: functional.scaled_dot_product_attention(
        w[None], w[None], w[None], attn_mask=torch.ones(len(w), len(w), dtype=torch.bool).tril(-1)
    ),
    "embedding": lambda w: functional.embedding(torch.tensor([0, 0]), w),
    "embedding_pad": lambda w: functional.embedding(torch.tensor([0, 0]), w, padding_idx=0),
    "trapezoid": lambda w: torch.trapezoid(w, dim=1),
    "bucket": lambda w: torch.bucketize(w, torch.tensor([0.0, 1.0], dtype=w.dtype)) * w,
}


def image(w: Tensor) -> Tensor:
    return w.reshape(1, 1, *w.shape)


IMAGE: Operators = {
    "max_pool1d": lambda w: functional.max_pool1d(w[None], 2),
    "max_pool2d": lambda w: functional.max_pool2d(image(w), 2, 1),
    "max_pool3d": lambda w: functional.max_pool3d(image(w)[None], (1, 2, 2)),
    "padded_max": lambda w: functional.max_pool2d(image(w), 3, 2, padding=1),
    "avg_pool1d": lambda w: functional.avg_pool1d(w[None], 2),
    "avg_pool2d": lambda w: functional.avg_pool2d(image(w), 2, 1, padding=1),
    "avg_uncounted": lambda w: functional.avg_pool2d(
        image(w), 2, 2, padding=1, count_include_pad=False
    ),
    "adaptive_avg": lambda w: functional.adaptive_avg_pool2d(image(w), (2, 3)),
    "adaptive_max": lambda w: functional.adaptive_max_pool2d(image(w), 2),
    "lp_pool": lambda w: functional.lp_pool2d(image(w), 2, 2),
    **{
        f"interpolate_{mode}": lambda w, mode=mode: functional.interpolate(
            image(w), scale_factor=2, mode=mode
        )
        for mode in ("nearest", "bilinear", "bicubic", "area", "nearest-exact")
    },
    "grid_sample": lambda w: functional.grid_sample(
        image(w), w[None, :2, :2, None].expand(-1, -1, -1, 2).sigmoid(), align_corners=False
    ),
    "pad_reflect": lambda w: functional.pad(image(w), (1, 1, 1, 1), mode="reflect"),
    "conv": lambda w: functional.conv2d(image(w), image(w)[..., :2, :2]),
    "conv_transpose": lambda w: functional.conv_transpose2d(image(w), image(w)[..., :2, :2]),
    "batch_norm": lambda w: functional.batch_norm(w, None, None, training=True),
    "instance_norm": lambda w: functional.instance_norm(image(w)),
    "group_norm": lambda w: functional.group_norm(w[None], 2),
    "local_norm": lambda w: functional.local_response_norm(image(w), 2),
    "unfolded": lambda w: functional.unfold(image(w), 2),
    "pixel_shuffle": lambda w: functional.pixel_shuffle(w.reshape(1, 4, 2, -1), 2),
    "prod_pool": lambda w: w.reshape(2, 2, -1).prod(1),
}

VECTORS = {
    "finite": [-3.0, -1.0, -0.5, -0.0, 0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 6.0],
    "wild": [-INF, -1e300, -1e-300, 0.0, 1e-300, 1e300, INF, NAN],
    "one": [0.0],
}
PAIRS = {
    "ties": ([0.0, 0.5, -1.0, 2.0, 0.0, 1.0], [0.0, 0.5, -1.0, 2.0, 1.0, 0.0]),
    "signs": ([-2.0, -0.0, 0.0, 1.0, -1.0], [0.0, 0.0, -0.0, -1.0, 1.0]),
    "wild": ([INF, -INF, INF, 0.0, NAN, 1.0], [INF, INF, 0.0, INF, 1.0, NAN]),
    "one": ([0.0], [0.0]),
}
MATRICES = {
    "zeros": [[0.0] * 4] * 3,
    "ones": [[1.0] * 4] * 3,
    "ties": [[1.0, 2.0, 2.0, 0.0], [1.0, 2.0, 0.0, 0.0], [1.0, 0.0, 2.0, -3.0]],
    "negative": [[-1.0, -1.0, -2.0, -0.5], [-1.0, -4.0, -2.0, -0.5], [-3.0, -1.0, -2.0, -0.5]],
    "wild": [[INF, 1.0, 2.0, 0.0], [-INF, INF, 0.0, INF], [1.0, -INF, 2.0, 3.0]],
    "row": [[0.0, 2.0, 2.0, -1.0]],
    "column": [[0.0], [2.0], [2.0]],
    "one": [[0.0]],
}
IMAGES = {
    "zeros": [[0.0] * 6] * 4,
    "ties": [[1.0, 2.0, 2.0, 0.0, 1.0, 1.0], [2.0, 2.0, 0.0, 0.0, 1.0, 1.0]] * 2,
    "spread": torch.arange(24.0).reshape(4, 6).sin().tolist(),
}


class Sweep(nn.Module):
    """The sum of all operators' results, weighted by numbers that differ."""

    def __init__(self, operators: Operators, points: list[Tensor]) -> None:
        super().__init__()
        self.operators, self.num = operators, len(points)
        self.weights = nn.ParameterDict(
            {
                f"{number}_{k}": nn.Parameter(point.clone())
                for number in range(len(operators))
                for k, point in enumerate(points)
            }
        )

    def forward(self):
        results = []
        for number, operator in enumerate(self.operators.values()):
            results.append(operator(*(self.weights[f"{number}_{k}"] for k in range(self.num))))
        loss = 0.0
        for one in results:
            scale = torch.arange(1.0, one.numel() + 1, dtype=one.dtype).reshape(one.shape)
            loss = loss + (one * scale).sum()
        return loss, results


def faults(operators: Operators, *points: list) -> dict[str, str]:
    """What differs from torch, of the operators that torch has for these points."""
    tensors = [torch.tensor(point, dtype=torch.float64) for point in points]
    known: dict[str, Callable] = {}
    for name, operator in operators.items():
        try:
            Sweep({name: operator}, tensors)()[0].backward()
            known[name] = operator
        except (RuntimeError, IndexError, ValueError):
            continue  # torch does not define it for this shape
    module = Sweep(known, tensors)
    imported = import_module(module, training=True, learning_rate=1.0)
    loss, results = module()
    weights = dict(module.named_parameters())
    gradients = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    told = {}
    for how, each in (("forward", imported), ("inference", import_module(module.eval()))):
        found = run_graph(lower(each.program, {}), each.binding.inputs(()))
        _, ours = each.binding.outputs(found)
        for name, one, other in zip(known, ours, results, strict=True):
            if not close(one, other.detach(), name):
                told[f"{name} {how}"] = f"{one.tolist()} instead of {other.tolist()}"
        if how == "forward":
            new = imported.binding.new_parameters(found)
    for (key, weight), gradient in zip(weights.items(), gradients, strict=True):
        name = list(known)[int(key.removeprefix("weights.").split("_")[0])]
        if key not in new:  # it stays as it is
            if gradient is not None and gradient.any():
                told[f"{name} {key}"] = "has no gradient"
            continue
        assert gradient is not None
        expected = weight.detach() - gradient
        if not close(new[key], expected, name):
            step = weight.detach() - new[key]
            told[f"{name} {key}"] = f"{step.tolist()} instead of {gradient.tolist()}"
    return told


def close(one: Tensor, other: Tensor, name: str) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, other)
    bound = 1e-7 if name == "hardsigmoid" else 1e-9  # torch's own has 1 / 6 in f32
    return torch.allclose(one, other, rtol=bound, atol=bound, equal_nan=True)


# Known to differ, where numbers are infinite: with several zeros torch looks at the values first,
# and its kernels of attention differ among themselves in rows that are masked altogether.
APART = {("matrix", "wild"): {"prod", "masked_attention"}}
# Made of tensors without elements, which are refused.
APART |= {("matrix", name): {"diff_1"} for name in ("column", "one")}

GROUPS = [
    *(("unary", UNARY, (point,), name) for name, point in VECTORS.items()),
    *(("binary", BINARY, pair, name) for name, pair in PAIRS.items()),
    *(("matrix", MATRIX, (point,), name) for name, point in MATRICES.items()),
    *(("image", IMAGE, (point,), name) for name, point in IMAGES.items()),
]


# One kind of points of each; `make test-slow` runs all.
QUICK = ("unary-finite", "binary-ties", "matrix-ties", "image-ties")


@pytest.mark.parametrize(
    ("kind", "operators", "points", "name"),
    [
        pytest.param(*group, id=label, marks=() if label in QUICK else pytest.mark.slow)
        for group in GROUPS
        for label in [f"{group[0]}-{group[3]}"]
    ],
)
def test_values_and_gradients_are_those_of_torch(kind, operators, points, name):
    without = APART.get((kind, name), set())
    operators = {key: one for key, one in operators.items() if key not in without}
    assert faults(operators, *points) == {}


# Torch asks for values on the way, or has no gradient: what is said, and how to place it.
REFUSED = {
    "gaussian_nll_loss": (
        lambda w: functional.gaussian_nll_loss(w, w, w.square()),
        "a branch depends on the values of a tensor",
    ),
    "cov": (torch.cov, "DataDependentOutputException: aten.equal.default"),
    "empty": (lambda w: w[:0].sum() + w.sum(), "a tensor without elements; leave it out"),
    "norm of order 0": (
        lambda w: torch.linalg.vector_norm(w, 0),
        "its loss depends on no parameter",
    ),
    "masked_select": (
        lambda w: w.masked_select(w > 0),
        "the shape of its result depends on the values of a tensor",
    ),
    "fft": (lambda w: torch.fft.fft(w).abs(), "dtype torch.complex128 is not one of"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_refused_in_one_line(name):
    operator, line = REFUSED[name]
    module = Sweep({name: operator}, [torch.tensor(MATRICES["ties"], dtype=torch.float64)])
    with pytest.raises(InputError) as error:
        import_module(module, training=True)
    assert line in str(error.value) and "\n" not in str(error.value)
