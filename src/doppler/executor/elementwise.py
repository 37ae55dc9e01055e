"""Scalar functions (graph.scalar), applied to all elements of torch tensors at once."""

from collections.abc import Callable, Sequence

import torch

from doppler.graph.scalar import Apply, Element, Number, Scalar

TORCH_DTYPES = {
    "bool": torch.bool,
    "u8": torch.uint8,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "c64": torch.complex64,
}
# Slow on CPUs and rounded after every step, so computed in f32.
HALF = (torch.float16, torch.bfloat16)


def _as_number(compare: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Make a comparison return 1 or 0 in the dtype of its operands."""
    return lambda one, other: compare(one, other).to(torch.result_type(one, other))


FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    **{"neg": torch.neg, "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt},
    **{"rsqrt": torch.rsqrt, "relu": torch.relu, "square": torch.square, "abs": torch.abs},
    **{"sigmoid": torch.sigmoid, "silu": torch.nn.functional.silu, "tanh": torch.tanh},
    **{"sign": torch.sign, "conj": torch.conj_physical},
    **{"sin": torch.sin, "cos": torch.cos, "erf": torch.erf},
    **{"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "pow": torch.pow},
    **{"maximum": torch.maximum, "minimum": torch.minimum},
    **{"equal": _as_number(torch.eq), "less": _as_number(torch.lt)},
    "where": lambda condition, one, other: torch.where(condition != 0, one, other),
}


def compile_scalar(
    scalar: Scalar, *, num_operands: int, widen: bool, device: torch.device
) -> Callable[[Sequence[torch.Tensor]], torch.Tensor]:
    """Compile a scalar function to a function of aligned tensors.

    Args:
        scalar: function of elements of the operands.
        num_operands: number of operands.
        widen: f16 and bf16 operands are passed as f32. A cast to f16 or bf16 inside the function
            rounds, and the computation continues in f32.
        device: of the operands; constants are put there too.

    Raises:
        ValueError: the scalar names an operand that does not exist.
    """
    if isinstance(scalar, Number):
        constant = torch.tensor(scalar.value, dtype=torch.float64, device=device)
        return lambda _: constant
    if isinstance(scalar, Element):
        if scalar.operand >= num_operands:
            raise ValueError(f"x{scalar.operand}, but there are {num_operands} operands")
        return lambda elements: elements[scalar.operand]
    arguments = [
        compile_scalar(one, num_operands=num_operands, widen=widen, device=device)
        for one in scalar.arguments
    ]
    function = (
        _cast(scalar, widen) if scalar.function in TORCH_DTYPES else FUNCTIONS[scalar.function]
    )
    return lambda elements: function(*(argument(elements) for argument in arguments))


def _cast(call: Apply, widen: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    dtype = TORCH_DTYPES[call.function]
    if widen and dtype in HALF:
        return lambda value: value.to(dtype).float()
    return lambda value: value.to(dtype)
