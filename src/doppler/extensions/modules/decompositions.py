"""Decompositions of torch ops by their definitions, in ops whose gradients torch knows."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Compute attention by its definition; rows that are masked completely give 0, as in torch.

    Args:
        query: [.., queries, width].
        key: [.., keys, width].
        value: [.., keys, value width].
        attn_mask: bool (True: attend) or numbers to add to the scores; None: no mask.
        dropout_p: probability that a weight is dropped.
        is_causal: each query attends only to keys at its position or before.
        scale: of the scores; None: 1 / sqrt(width).
        enable_gqa: keys and values have fewer heads than queries, and are repeated.

    Source: the documentation of torch.nn.functional.scaled_dot_product_attention.
    """
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (one.repeat_interleave(groups, -3) for one in (key, value))
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    if query.dtype == torch.float16:  # scores before scaling may exceed its range
        scores = query * factor @ key.transpose(-2, -1)
    else:
        scores = query @ key.transpose(-2, -1) * factor
    if is_causal:
        rows, columns = scores.shape[-2:]
        mask = torch.ones(rows, columns, dtype=torch.bool, device=scores.device).tril()
        scores = torch.where(mask, scores, -torch.inf)
    elif attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = torch.where(attn_mask, scores, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    shares = torch.softmax(scores, -1)
    if attn_mask is not None:
        nothing = (scores == -torch.inf).logical_not().any(-1, keepdim=True).logical_not()
        shares = torch.where(nothing, 0.0, shares)
    return torch.dropout(shares, dropout_p, train=True) @ value if dropout_p else shares @ value


def _group_norm(
    data: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    num: int,
    channels: int,
    size: int,
    groups: int,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Group norm by layer_norm over the elements of each group; arguments as torch has them."""
    grouped = data.reshape(num, groups, channels // groups * size)
    normed, mean, scale = torch.native_layer_norm(grouped, grouped.shape[2:], None, None, eps)
    per_channel = (1, channels, *(1 for _ in data.shape[2:]))
    result = normed.reshape(data.shape)
    result = result if weight is None else result * weight.reshape(per_channel)
    result = result if bias is None else result + bias.reshape(per_channel)
    return result, mean.reshape(num, groups), scale.reshape(num, groups)


def _softshrink(data: torch.Tensor, bound: float = 0.5) -> torch.Tensor:
    """Keep NaN, which torch's decomposition turns into 0."""
    smaller = torch.where(data < -bound, data + bound, data * 0)
    return torch.where(data > bound, data - bound, smaller)


def _smooth_l1_backward(
    gradient: torch.Tensor,
    data: torch.Tensor,
    target: torch.Tensor,
    reduction: int,
    beta: float,
) -> torch.Tensor:
    """Keep NaN, which torch's decomposition turns into 0."""
    apart = data - target
    norm = 1 / apart.numel() if reduction == 1 else 1.0
    within = torch.where(apart >= beta, norm, norm * apart / beta if beta else apart * 0)
    return torch.where(apart <= -beta, -norm, within) * gradient


aten = torch.ops.aten
# Operators that we decompose ourselves, with or without gradients.
DECOMPOSED: dict[Any, Callable[..., Any]] = {
    aten.native_group_norm.default: _group_norm,
    aten.softshrink.default: _softshrink,
    aten.smooth_l1_loss_backward.default: _smooth_l1_backward,
}


# Operators whose decompositions and kernels have different gradients at ties.
_DIFFERENTIATED = (
    *(aten.softshrink.default, aten.hardshrink.default, aten.multi_margin_loss.default),
    *(aten.multilabel_margin_loss_forward.default, aten.upsample_bilinear2d.default),
    aten.upsample_bicubic2d.default,
)
# Operators that are not decomposed, because torch's decompositions differ from its kernels.
KEPT = (aten.multi_margin_loss.default, aten.multilabel_margin_loss_forward.default)


@contextmanager
def kernels_differentiated() -> Iterator[None]:
    """Let autograd differentiate the kernels of these ops, not their decompositions."""
    key, had = torch._C.DispatchKey.Autograd, {}
    for op in _DIFFERENTIATED:
        if key in op.py_kernels:
            had[op] = op.py_kernels.pop(key)
            op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, kernel in had.items():
            op.py_kernels[key] = kernel
            op._dispatch_cache.clear()


@contextmanager
def plain_attention() -> Iterator[None]:
    """Replace torch's attention by its definition inside the context, gradients included."""
    own = nn.functional.scaled_dot_product_attention
    nn.functional.scaled_dot_product_attention = attention  # type: ignore[assignment]
    try:
        yield
    finally:
        nn.functional.scaled_dot_product_attention = own
