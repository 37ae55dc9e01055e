"""Kernels: the computation of an op as a function of torch tensors.

A kernel's result has the shape and dtype of its `KernelSpec`, is contiguous, and shares no memory
with an operand: operands may be freed or overwritten as soon as the kernel is done.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache, reduce
from typing import TypeAlias

import torch

from doppler.executor.elementwise import HALF, TORCH_DTYPES, compile_scalar
from doppler.executor.torch_calls import compile_call
from doppler.graph import KernelSpec
from doppler.graph.scalar import Apply, Scalar, parse_scalar
from doppler.support.errors import InputError

Kernel: TypeAlias = Callable[[Sequence[torch.Tensor]], torch.Tensor]

_PAIRWISE = {"add": torch.add, "mul": torch.mul, "max": torch.maximum, "min": torch.minimum}


@cache
def compile_kernel(spec: KernelSpec, *, device: str = "cpu") -> Kernel:
    """Compile a kernel to a function of its operands, which must be on the device.

    If torch would round an f16 or bf16 intermediate, or be slow on it, the kernel computes in f32
    and rounds its result once.

    Args:
        spec: the kernel.
        device: in torch's notation.

    Raises:
        InputError: names an expression that is invalid, or that does not fit its shapes or dtypes.
    """
    for dtype in (*spec.operand_dtypes, spec.dtype):
        if dtype not in TORCH_DTYPES:
            raise _misfit(spec, f"unknown dtype {dtype!r}")
    if len(spec.operand_dtypes) != len(spec.operand_shapes):
        raise _misfit(
            spec, f"{len(spec.operand_shapes)} operands, {len(spec.operand_dtypes)} dtypes"
        )
    word, _, arguments = spec.expression.partition(":")
    if "->" in word:
        compute = _compile_einsum(spec, word, arguments, torch.device(device))
    elif word in _COMPILERS:
        compute = _COMPILERS[word](spec, arguments, torch.device(device))
    else:
        raise _misfit(spec, "no such kernel")
    dtype = TORCH_DTYPES[spec.dtype]

    def kernel(operands: Sequence[torch.Tensor]) -> torch.Tensor:
        result = compute(operands).to(dtype).expand(spec.output_shape).contiguous()
        memory = result.untyped_storage().data_ptr()
        if any(memory == operand.untyped_storage().data_ptr() for operand in operands):
            return result.clone()
        return result

    return kernel


def _misfit(spec: KernelSpec, reason: str) -> InputError:
    return InputError(f"kernel {spec.expression!r}: {reason}")


def _require_operands(spec: KernelSpec, num: int) -> None:
    if len(spec.operand_shapes) != num:
        raise _misfit(spec, f"{len(spec.operand_shapes)} operands instead of {num}")


def _widened(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in HALF else dtype


# --- Index notation -------------------------------------------------------------------------------


def _compile_einsum(spec: KernelSpec, notation: str, scalar: str, device: torch.device) -> Kernel:
    read, _, written = notation.partition("->")
    indices = read.split(",")
    _require_operands(spec, len(indices))
    extents: dict[str, int] = {}
    for letters, shape in zip(
        (*indices, written), (*spec.operand_shapes, spec.output_shape), strict=True
    ):
        if len(letters) != len(shape):
            raise _misfit(spec, f"{letters!r} cannot index the shape {shape}")
        for letter, extent in zip(letters, shape, strict=True):
            if extents.setdefault(letter, extent) != extent:
                raise _misfit(spec, f"index {letter!r} has {extents[letter]} and {extent} elements")
    if not scalar:
        return _compile_contraction(spec, notation, device)
    text, _, aggregation = scalar.rpartition(":")
    # Without a colon, rpartition leaves the whole text to the right of it.
    text, aggregation = (text, aggregation) if text else (aggregation, "")
    summed = [letter for letter in extents if letter not in written]
    if bool(summed) != bool(aggregation):
        raise _misfit(spec, "needs an aggregation exactly if the result lacks an index")
    try:
        join = parse_scalar(text)
    except ValueError as error:
        raise _misfit(spec, str(error)) from None
    join_order = written + "".join(summed)
    return _compile_join(
        spec,
        join,
        aggregation,
        layouts=[_layout(letters, join_order) for letters in indices],
        join_shape=tuple(extents[letter] for letter in join_order),
        device=device,
    )


def _compile_contraction(spec: KernelSpec, notation: str, device: torch.device) -> Kernel:
    read, written = notation.split("->")
    if missing := set(written) - set(read):
        raise _misfit(spec, f"no operand has the index {min(missing)!r}")
    common = reduce(torch.promote_types, (TORCH_DTYPES[dtype] for dtype in spec.operand_dtypes))
    # On CPUs torch multiplies f16 matrices ten times more slowly than f32 ones.
    common = _widened(common) if device.type == "cpu" else common

    def contract(operands: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.einsum(notation, *(operand.to(common) for operand in operands))

    return contract


def _layout(letters: str, join_order: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that aligns an operand with the join space, as a view with at least one dimension.

    Constants are f64 scalars. As long as operands have dimensions, torch uses the operands' dtype.
    """
    present = [letter for letter in join_order if letter in letters]
    where = tuple(slice(None) if letter in letters else None for letter in join_order) or (None,)
    if len(present) < len(letters):  # a diagonal
        notation = f"{letters}->{''.join(present)}"
        return lambda operand: torch.einsum(notation, operand)[where]
    dims = tuple(letters.index(letter) for letter in present)
    return lambda operand: operand.permute(dims)[where]


def _compile_join(
    spec: KernelSpec,
    join: Scalar,
    aggregation: str,
    *,
    layouts: Sequence[Callable[[torch.Tensor], torch.Tensor]],
    join_shape: tuple[int, ...],
    device: torch.device,
) -> Kernel:
    # A single function rounds only once in any case.
    is_short = not (isinstance(join, Apply) and any(isinstance(x, Apply) for x in join.arguments))
    widen = bool(aggregation) or not is_short
    try:
        evaluate = compile_scalar(join, dtypes=spec.operand_dtypes, widen=widen, device=device)
    except ValueError as error:
        raise _misfit(spec, str(error)) from None
    num_aggregated = len(join_shape) - len(spec.output_shape)
    aggregate = _aggregate(spec, aggregation, num_aggregated) if aggregation else None

    def compute(operands: Sequence[torch.Tensor]) -> torch.Tensor:
        value = evaluate(
            [
                lay_out(operand.to(_widened(operand.dtype)) if widen else operand)
                for lay_out, operand in zip(layouts, operands, strict=True)
            ]
        )
        if aggregate is not None:
            value = aggregate(value.expand(join_shape))
        return value if spec.output_shape else value.reshape(())

    return compute


def _aggregate(
    spec: KernelSpec, aggregation: str, num: int
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Aggregation over the last ``num`` dimensions."""
    dims = tuple(range(-num, 0))
    functions = {
        "add": lambda value: value.sum(dims),
        "mul": lambda value: reduce(lambda product, _: product.prod(-1), dims, value),
        "max": lambda value: value.amax(dims),
        "min": lambda value: value.amin(dims),
    }
    if aggregation not in functions:
        raise _misfit(spec, f"unknown aggregation {aggregation!r}")
    return functions[aggregation]


# --- Other expressions ----------------------------------------------------------------------------


def _compile_formation(spec: KernelSpec, aggregation: str, device: torch.device) -> Kernel:
    if aggregation not in _PAIRWISE:
        raise _misfit(spec, f"unknown aggregation {aggregation!r}")
    if not spec.operand_shapes or set(spec.operand_shapes) != {spec.output_shape}:
        raise _misfit(spec, f"operands {spec.operand_shapes} for a result {spec.output_shape}")
    combine = _PAIRWISE[aggregation]
    widen = aggregation in ("add", "mul") and len(spec.operand_shapes) > 2

    def form(operands: Sequence[torch.Tensor]) -> torch.Tensor:
        first, *others = operands
        return reduce(combine, others, first.to(_widened(first.dtype)) if widen else first)

    return form


def _compile_complex(spec: KernelSpec, _: str, device: torch.device) -> Kernel:
    _require_operands(spec, 1)
    *rest, last = spec.output_shape
    if spec.operand_shapes[0] != (*rest, 2 * last):
        raise _misfit(spec, f"{spec.operand_shapes[0]} does not hold pairs for {spec.output_shape}")
    pairs = (*rest, last, 2)
    return lambda operands: torch.view_as_complex(operands[0].float().reshape(pairs).contiguous())


def _compile_real(spec: KernelSpec, _: str, device: torch.device) -> Kernel:
    _require_operands(spec, 1)
    *rest, last = spec.operand_shapes[0]
    if spec.output_shape != (*rest, 2 * last):
        raise _misfit(spec, f"{spec.output_shape} does not hold pairs of {spec.operand_shapes[0]}")
    return lambda operands: torch.view_as_real(operands[0]).reshape(spec.output_shape)


def _compile_copy(spec: KernelSpec, _: str, device: torch.device) -> Kernel:
    _require_operands(spec, 1)
    if math.prod(spec.operand_shapes[0]) != math.prod(spec.output_shape):
        raise _misfit(spec, f"{spec.operand_shapes[0]} cannot take the shape {spec.output_shape}")
    return lambda operands: operands[0].reshape(spec.output_shape)


def _compile_fill(spec: KernelSpec, arguments: str, device: torch.device) -> Kernel:
    _require_operands(spec, 0)
    shape, dtype = spec.output_shape, TORCH_DTYPES[spec.dtype]
    try:
        below, *rest = arguments.split(",")
        value = float(below)
        if not rest:
            return lambda _: torch.full(shape, value, dtype=dtype, device=device)
        above, offset = float(rest[0]), int(rest[1])
        if len(rest) > 2 or len(shape) < 2:
            raise ValueError
    except (ValueError, IndexError):
        raise _misfit(spec, f"cannot fill the shape {shape}") from None
    is_above = torch.ones(shape[-2:], dtype=torch.bool, device=device).triu(offset + 1)
    return lambda _: torch.full(shape, value, dtype=dtype, device=device).masked_fill_(
        is_above, above
    )


def _compile_cholesky(spec: KernelSpec, _: str, device: torch.device) -> Kernel:
    _require_operands(spec, 1)
    _require_square(spec, spec.operand_shapes[0])
    dtype = _widened(TORCH_DTYPES[spec.operand_dtypes[0]])
    if device.type == "cpu":
        return lambda operands: torch.linalg.cholesky(operands[0].to(dtype))

    def factorise(operands: Sequence[torch.Tensor]) -> torch.Tensor:
        """The same, but a matrix that has no factor gives NaN: to raise, the host would wait."""
        factor, fault = torch.linalg.cholesky_ex(operands[0].to(dtype))
        return factor.masked_fill(fault != 0, math.nan)

    return factorise


def _compile_solve(spec: KernelSpec, _: str, device: torch.device) -> Kernel:
    _require_operands(spec, 2)
    _require_square(spec, spec.operand_shapes[0])
    if spec.operand_shapes[1] != spec.output_shape:
        raise _misfit(spec, f"{spec.operand_shapes[1]} instead of {spec.output_shape} to solve for")
    dtype = _widened(TORCH_DTYPES[spec.dtype])

    def solve(operands: Sequence[torch.Tensor]) -> torch.Tensor:
        factor, right = (operand.to(dtype) for operand in operands)
        return torch.linalg.solve_triangular(factor, right, upper=False)

    return solve


def _compile_torch(spec: KernelSpec, text: str, device: torch.device) -> Kernel:
    try:
        return compile_call(spec, text)
    except ValueError as error:
        raise _misfit(spec, str(error)) from None


def _require_square(spec: KernelSpec, shape: tuple[int, ...]) -> None:
    rows = spec.output_shape[0] if len(spec.output_shape) == 2 else None
    if shape != (rows, rows):
        raise _misfit(spec, f"a matrix {shape} for a result {spec.output_shape}")


_COMPILERS: dict[str, Callable[[KernelSpec, str, torch.device], Kernel]] = {
    "formation": _compile_formation,
    "complex": _compile_complex,
    "real": _compile_real,
    "copy": _compile_copy,
    "fill": _compile_fill,
    "cholesky": _compile_cholesky,
    "solve": _compile_solve,
    "torch": _compile_torch,
}
