"""Counts floating-point operations of torch's operators from the shapes of their arguments.

The count is that of torch's own counter (torch.utils.flop_counter) if it knows the operator, and
otherwise of a formula in this file. Complex numbers count four times, as their product does.

Sources: factorisations: Golub, Van Loan, Matrix Computations, 4th ed., sections 5.2, 7.5, 8.3, 8.6,
and LAPACK Working Note 41; Fourier transforms: Frigo, Johnson, FFTW3 (5 n log2 n).
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry

from doppler.extensions.modules.nodes import argument, tensors_of

Formula = Callable[[fx.Node], float]
aten = torch.ops.aten


def flops_of(node: fx.Node) -> int | None:
    """Return the floating-point operations of a call of an operator.

    Args:
        node: the call.

    Returns:
        None if neither torch nor this file has a formula.
    """
    packet = getattr(node.target, "overloadpacket", None)
    if packet is aten.convolution_backward:
        return _convolution_backward(node)
    if packet in flop_registry:
        return _counted_by_torch(node)
    name, tags = str(node.target).split(".")[1], getattr(node.target, "tags", ())
    if str(node.target).startswith(("aten.", "transformers.")):
        if name in _FORMULAS:
            is_complex = any(one.is_complex() for one in _tensors(node))
            return int(_FORMULAS[name](node)) * (4 if is_complex and name in _COMPLEX else 1)
        if name in _MOVES or torch.Tag.pointwise in tags:
            return _elements(node)
        if name in _REDUCTIONS or torch.Tag.reduction in tags:
            return _read(node)
    return None


def _counted_by_torch(node: fx.Node) -> int:
    def meta(one: Any) -> Any:
        return one.meta["val"] if isinstance(one, fx.Node) else one

    arguments = [
        [meta(one) for one in given] if isinstance(given, list) else meta(given)
        for given in node.args
    ]
    options: Mapping[str, Any] = {key: meta(one) for key, one in node.kwargs.items()}
    formula = flop_registry[node.target.overloadpacket]  # type: ignore[union-attr]
    return int(formula(*arguments, **options, out_val=node.meta["val"]))


def _convolution_backward(node: fx.Node) -> int:
    """Count each gradient like the forward; torch's counter ignores groups for one of them."""
    gradient, data, weight = (node.args[k].meta["val"] for k in range(3))  # type: ignore[union-attr]
    transposed, mask = argument(node, "transposed"), argument(node, "output_mask")
    places = (data if transposed else gradient).shape[2:]
    forward = 2 * data.shape[0] * math.prod(places) * weight.numel()
    return forward * (bool(mask[0]) + bool(mask[1]))


def _tensors(node: fx.Node) -> Iterator[torch.Tensor]:
    for read in node.all_input_nodes:
        yield from tensors_of(read)
    yield from tensors_of(node)


def _elements(node: fx.Node) -> int:
    """Count one operation for each element of the result."""
    return tensors_of(node)[0].numel()


def _read(node: fx.Node) -> int:
    """Count one operation for each element that is read."""
    return sum(one.numel() for read in node.all_input_nodes for one in tensors_of(read))


def _per(factor: float, of: Formula = _elements) -> Formula:
    return lambda node: factor * of(node)


def _given(node: fx.Node, name: str) -> torch.Tensor:
    return argument(node, name).meta["val"]


def _matrices(shape: torch.Size) -> tuple[int, int, int]:
    """Return the number of matrices, and the longer and the shorter of their two dimensions."""
    return math.prod(shape[:-2]), max(shape[-2:]), min(shape[-2:])


def _factoring(longer: Callable[[int, int], float]) -> Formula:
    """Make a formula that sums ``longer(m, n)`` over the matrices [m, n] of the first operand."""

    def formula(node: fx.Node) -> float:
        num, most, least = _matrices(next(_tensors(node)).shape)
        return num * longer(most, least)

    return formula


def _lu(most: int, least: int) -> float:
    return most * least**2 - least**3 / 3


def _solving(matrix: str, factor: float, factoring: float = 0.0) -> Formula:
    """Make a formula for systems of equations: factor n^2 per column, factoring n^3 per matrix.

    ``matrix`` is the name of the argument with the matrices.
    """

    def formula(node: fx.Node) -> float:
        num, n, _ = _matrices(_given(node, matrix).shape)
        return factor * n * _elements(node) + factoring * num * n**3

    return formula


def _qr(node: fx.Node) -> float:
    """Count the reflections, and those that make the columns of Q."""
    num, m, n = _matrices(_given(node, "A").shape)
    mode = argument(node, "mode")
    if mode == "complete":
        return num * (2 * _lu(m, n) + 4 * (m**2 * n - m * n**2 + n**3 / 3))
    return num * (2 if mode == "r" else 4) * _lu(m, n)


def _svd(node: fx.Node) -> float:
    num, m, n = _matrices(_given(node, "A").shape)
    if not argument(node, "compute_uv"):
        return num * (4 * m * n**2 - 4 / 3 * n**3)
    if argument(node, "full_matrices"):
        return num * (4 * m**2 * n + 22 * n**3)
    return num * (14 * m * n**2 + 8 * n**3)


def _eigh(node: fx.Node) -> float:
    num, _, n = _matrices(_given(node, "A").shape)
    return num * n**3 * (9 if argument(node, "compute_v") else 4 / 3)


def _least_squares(node: fx.Node) -> float:
    num, m, n = _matrices(node.args[0].meta["val"].shape)  # type: ignore[union-attr]
    right = node.args[1].meta["val"]  # type: ignore[union-attr]
    return 2 * num * _lu(m, n) + 4 * n * right.numel()


def _reflections(node: fx.Node) -> float:
    """Count Householder reflections that are applied to a matrix."""
    factors = _given(node, "tau").shape[-1]
    return 4.0 * factors * tensors_of(node)[0].numel()


def _fourier(factor: float, of: Formula) -> Formula:
    def formula(node: fx.Node) -> float:
        data = tensors_of(node)[0] if "c2r" in str(node.target) else _given(node, "self")
        length = math.prod(data.shape[dim] for dim in argument(node, "dim"))
        return factor * of(node) * math.log2(max(length, 2))

    return formula


def _grouped_product(node: fx.Node) -> float:
    """Count a product whose groups divide the rows of [m, k], the columns of [k, n], or k."""
    one, other = (node.args[k].meta["val"] for k in range(2))  # type: ignore[union-attr]
    columns = other.shape[-1]
    if one.dim() == 3 and other.dim() == 2:  # a column belongs to one group
        return 2.0 * one.shape[1] * one.shape[2] * columns
    return 2.0 * one.numel() * columns


def _product(rows: str = "self") -> Formula:
    """Make a formula for [.., k] times a matrix; ``rows`` names the argument [.., k]."""
    return lambda node: 2.0 * _elements(node) * _given(node, rows).shape[-1]


def _trilinear(node: fx.Node) -> float:
    shapes = []
    for k in range(3):
        shape = list(node.args[k].meta["val"].shape)  # type: ignore[union-attr]
        for dim in sorted(node.args[3 + k]):  # type: ignore[arg-type]
            shape.insert(dim, 1)
        shapes.append(shape)
    return 3.0 * math.prod(torch.broadcast_shapes(*shapes))


def _distances(node: fx.Node) -> float:
    rows = _given(node, "x1" if "cdist" in str(node.target) else "self")
    return 3.0 * rows.shape[-1] * tensors_of(node)[0].numel()


def _pool(node: fx.Node) -> float:
    """Count the elements of a window for each element of the smaller side."""
    window = argument(node, "kernel_size")
    window = window * _dims_of_space(node) if len(window) == 1 else window
    return float(min(one.numel() for one in _tensors(node)) * math.prod(window))


def _dims_of_space(node: fx.Node) -> int:
    """Return the number in an operator's name, such as 2 of ``max_pool2d``."""
    return int(next(char for char in str(node.target) if char in "123"))


def _depthwise(node: fx.Node) -> float:
    weight = _given(node, "weight")
    return 2.0 * _elements(node) * math.prod(weight.shape[1:])


def _steps_of_time(node: fx.Node) -> float:
    """Count a convolution along time: [t, b, c] with [k, c, o]."""
    window, channels, _ = _given(node, "weight").shape
    return 2.0 * _elements(node) * window * channels


def _interpolation(node: fx.Node) -> float:
    """Count two operations for each element that an interpolated one depends on."""
    name = str(node.target)
    if "nearest" in name:
        return _elements(node)
    taps = 4 if "bicubic" in name else 6 if "lanczos" in name else 2
    larger = max(one.numel() for one in _tensors(node))
    return 2.0 * larger * taps ** _dims_of_space(node)


def _grid(node: fx.Node) -> float:
    dims = _dims_of_space(node)
    larger = max(one.numel() for one in _tensors(node))
    taps = 1 if argument(node, "interpolation_mode") == 1 else 2
    return 2.0 * larger * taps**dims


def _sorting(node: fx.Node) -> float:
    data = next(_tensors(node))
    dim = argument(node, "dim") if "sort" in str(node.target) or "topk" in str(node.target) else -1
    length = data.shape[dim] if data.dim() else 1
    return data.numel() * math.log2(max(length, 2))


def _searching(node: fx.Node) -> float:
    first = "boundaries" if "bucketize" in str(node.target) else "sorted_sequence"
    return _elements(node) * math.log2(max(_given(node, first).shape[-1], 2))


def _bag(node: fx.Node) -> float:
    return float(_given(node, "indices").numel() * _given(node, "weight").shape[-1])


_OF_BAGS = ("_backward", "_dense_backward", "_per_sample_weights_backward")
_PACKED = [(8, ""), (4, ""), (4, "_for_cpu"), (4, "_with_scales_and_zeros")]
_POOLS = [f"{kind}_pool{dims}d" for kind in ("avg", "max") for dims in (1, 2, 3)]
_FORMULAS: dict[str, Formula] = {
    # Products.
    "_grouped_mm": _grouped_product,
    "_scaled_grouped_mm": _grouped_product,
    "_scaled_grouped_mm_v2": _grouped_product,
    "grouped_mm_fallback": _grouped_product,  # of transformers
    "grouped_mm_fallback_backward": lambda node: 2.0 * _grouped_product(node),
    "_int_mm": _product(),
    **{f"_weight_int{bits}pack_mm{end}": _product() for bits, end in _PACKED},
    "_mixed_dtypes_linear": _product("input"),
    "_addmm_activation": _product("mat1"),
    "_scaled_mm_v2": _product(),
    "addbmm": lambda node: 2.0 * _given(node, "batch1").numel() * _given(node, "batch2").shape[-1],
    "addmv": lambda node: 2.0 * _given(node, "mat").numel(),
    "mv": lambda node: 2.0 * _given(node, "self").numel(),
    **dict.fromkeys(["dot", "vdot"], lambda node: 2.0 * _given(node, "self").numel()),
    "_trilinear": _trilinear,
    **dict.fromkeys(["_cdist_forward", "_cdist_backward"], _distances),
    **dict.fromkeys(["_pdist_forward", "_pdist_backward"], _distances),
    "_conv_depthwise2d": _depthwise,
    "conv_depthwise3d": _depthwise,
    "conv_tbc": _steps_of_time,
    # Factorisations, and systems solved with them.
    **dict.fromkeys(["linalg_cholesky_ex", "cholesky"], _factoring(lambda m, n: n**3 / 3)),
    "linalg_ldl_factor_ex": _factoring(lambda m, n: n**3 / 3),
    "cholesky_inverse": _factoring(lambda m, n: 2 * n**3 / 3),
    **dict.fromkeys(["linalg_lu_factor_ex", "linalg_lu", "_linalg_det"], _factoring(_lu)),
    "_linalg_slogdet": _factoring(_lu),
    "linalg_inv_ex": _factoring(lambda m, n: 2 * n**3),
    "linalg_qr": _factoring(lambda m, n: 4 * _lu(m, n)),
    **dict.fromkeys(
        ["geqrf", "linalg_householder_product"], _factoring(lambda m, n: 2 * _lu(m, n))
    ),
    "linalg_eig": _factoring(lambda m, n: 25 * n**3),
    **dict.fromkeys(["_linalg_eigvals", "linalg_eigvals"], _factoring(lambda m, n: 10 * n**3)),
    "_linalg_eigh": _eigh,
    "_linalg_svd": _svd,
    "linalg_lstsq": _least_squares,
    "ormqr": _reflections,
    "_linalg_solve_ex": _solving("A", 2, factoring=2 / 3),
    "linalg_lu_solve": _solving("LU", 2),
    "linalg_ldl_solve": _solving("LD", 2),
    "cholesky_solve": _solving("input2", 2),
    "_cholesky_solve_helper": _solving("A", 2),
    "linalg_solve_triangular": _solving("self", 1),
    "triangular_solve": _solving("A", 1),
    # Fourier transforms: half as many operations if one side is real.
    "_fft_c2c": _fourier(5, _elements),
    "_fft_r2c": _fourier(2.5, _read),
    "_fft_c2r": _fourier(2.5, _elements),
    # Windows, interpolations.
    **dict.fromkeys([*_POOLS, *(f"{one}_backward" for one in _POOLS)], _pool),
    **{
        f"max_pool{dims}d_with_indices{part}": _pool
        for dims in (2, 3)
        for part in ("", "_backward")
    },
    **{
        f"{kind}{dims}d{part}": (lambda node: float(max(one.numel() for one in _tensors(node))))
        for kind in ("_adaptive_avg_pool", "adaptive_max_pool", "fractional_max_pool")
        for dims in (2, 3)
        for part in ("", "_backward")
    },
    **{
        f"{kind}{part}": _interpolation
        for kind in (
            *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"),
            *("upsample_bicubic2d", "_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa"),
            *(f"upsample_nearest{dims}d" for dims in (1, 2, 3)),
            *(f"_upsample_nearest_exact{dims}d" for dims in (1, 2, 3)),
        )
        for part in ("", "_backward")
    },
    **{
        f"{kind}{part}": _grid
        for kind in ("grid_sampler_2d", "grid_sampler_3d", "_grid_sampler_2d_cpu_fallback")
        for part in ("", "_backward")
    },
    # Sorting and searching: a comparison counts as one.
    **dict.fromkeys(
        ["sort", "topk", "unique_dim", "_unique2", "_unique", "unique_consecutive"], _sorting
    ),
    **dict.fromkeys(["median", "nanmedian", "kthvalue", "mode"], _read),
    **dict.fromkeys(["bucketize", "searchsorted"], _searching),
    # Scans: one operation per element; three if exponentials are summed.
    **dict.fromkeys(["cumsum", "cumprod", "cummax", "cummin"], _elements),
    **dict.fromkeys(["logcumsumexp", "_logcumsumexp"], _per(3)),
    # Bags, norms, random numbers.
    **dict.fromkeys(["_embedding_bag", "_embedding_bag_forward_only"], _bag),
    **dict.fromkeys([f"_embedding_bag{end}" for end in _OF_BAGS], _read),
    **dict.fromkeys(["linalg_vector_norm", "dist", "renorm", "native_norm"], _per(2, _read)),
    **dict.fromkeys(["native_group_norm", "native_layer_norm", "native_batch_norm"], _per(8)),
    **dict.fromkeys(["_native_batch_norm_legit", "_fused_rms_norm", "_softmax"], _per(8)),
    **dict.fromkeys(["_native_batch_norm_legit_functional", "_log_softmax"], _per(8)),
    **dict.fromkeys(["_native_batch_norm_legit_no_training", "_masked_softmax"], _per(8)),
    **dict.fromkeys(["_batch_norm_no_update", "_batch_norm_with_update_functional"], _per(8)),
    **dict.fromkeys(["batch_norm_backward", "_masked_softmax_backward"], _per(8)),
    "_weight_norm_interface_backward": _per(8),
}
# Operators of products and sums, which take four times as many operations on complex numbers.
_COMPLEX = {name for name in _FORMULAS if re.search("linalg|cholesky|solve|geqrf|ormqr", name)}

# Operators that move or make elements, or compute one from one: one operation for each element,
# which never takes longer than moving its bytes.
_MOVES = frozenset(
    "_add_relu _conj _efficientzerotensor _index_put_impl _is_all_true _is_any_true "
    "_lazy_clone _masked_scale _neg_view _new_zeros_with_same_feature_meta "
    "_pack_padded_sequence _reshape_copy _stack _standard_gamma _standard_gamma_grad "
    "_to_copy _unsafe_index _unsafe_index_put _unsafe_masked_index "
    "_unsafe_masked_index_put_accumulate _unsafe_view alias arange as_strided "
    "as_strided_copy as_strided_scatter bernoulli bincount binomial cat cauchy clone col2im "
    "complex constant_pad_nd copy detach diag_embed diagonal diagonal_copy diagonal_scatter "
    "embedding embedding_dense_backward embedding_renorm empty empty_like empty_permuted "
    "empty_strided expand exponential eye fill flip full full_like gather geometric "
    "hardshrink_backward histc im2col index index_add index_copy index_fill index_put "
    "index_reduce index_select lift_fresh_copy log_normal lu_unpack masked_fill "
    "masked_scatter masked_scatter_backward masked_select multi_margin_loss_backward "
    "multilabel_margin_loss_backward multinomial narrow_copy native_dropout "
    "native_dropout_backward new_empty new_full nonzero nonzero_static normal "
    "normal_functional one_hot ones permute permute_copy pixel_shuffle pixel_unshuffle "
    "poisson polar put rand rand_like randint randint_like randn randn_like random randperm "
    "range reflection_pad1d reflection_pad1d_backward reflection_pad2d "
    "reflection_pad2d_backward reflection_pad3d reflection_pad3d_backward repeat "
    "repeat_interleave replication_pad1d replication_pad1d_backward replication_pad2d "
    "replication_pad2d_backward replication_pad3d replication_pad3d_backward reshape roll "
    "rrelu_with_noise_backward rrelu_with_noise_functional scalar_tensor scatter "
    "scatter_add scatter_reduce select select_copy select_scatter slice slice_copy "
    "slice_inverse slice_scatter softshrink_backward split split_copy split_with_sizes "
    "split_with_sizes_copy squeeze stack t take to_padded_tensor transpose tril "
    "tril_indices triu triu_indices unbind unbind_copy unfold unfold_backward uniform "
    "unsqueeze view view_as_complex view_as_real view_copy where zeros".split()
)
# Operators with one operation for each element that they read.
_REDUCTIONS = frozenset(
    "_aminmax aminmax all any argmax argmin amax amin count_nonzero max mean min nansum prod sum "
    "std std_mean trace var var_mean logsumexp segment_reduce equal".split()
)
