"""Scalar functions (graph.scalar), applied to all elements of torch tensors at once."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from doppler.graph.scalar import DTYPES, WHOLE, Apply, Element, Number, Scalar
from doppler.graph.scalar_algebra import dtype_of, list_elements

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


def _divide(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Divide; a quotient of integers is truncated, without a detour through f32.

    A quotient of an integer and 0 is 0. CPUs trap there, and for the least integer over -1, which
    is itself.
    """
    dtype = torch.result_type(one, other)
    if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        return torch.div(one, other)
    is_zero = other == 0
    is_negation = (other == -1) & dtype.is_signed
    divisor = other.masked_fill(is_zero | is_negation, 1)
    quotient = torch.div(one, divisor, rounding_mode="trunc")
    return torch.where(is_negation, -one, quotient).masked_fill(is_zero, 0).to(dtype)


FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    **{"neg": torch.neg, "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt},
    **{"rsqrt": torch.rsqrt, "relu": torch.relu, "square": torch.square, "abs": torch.abs},
    **{"sigmoid": torch.sigmoid, "silu": torch.nn.functional.silu, "tanh": torch.tanh},
    **{"sign": torch.sign, "conj": torch.conj_physical},
    **{"sin": torch.sin, "cos": torch.cos, "erf": torch.erf},
    **{"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": _divide, "pow": torch.pow},
    **{"maximum": torch.maximum, "minimum": torch.minimum},
    **{"equal": _as_number(torch.eq), "less": _as_number(torch.lt)},
    "where": lambda condition, one, other: torch.where(condition != 0, one, other),
}


def compile_scalar(
    scalar: Scalar, *, dtypes: Sequence[str], widen: bool, device: torch.device
) -> Callable[[Sequence[torch.Tensor]], torch.Tensor]:
    """Compile a scalar function to a function of aligned tensors.

    Args:
        scalar: function of elements of the operands.
        dtypes: of the operands.
        widen: f16 and bf16 operands are passed as f32. A cast to f16 or bf16 inside the function
            rounds, and the computation continues in f32.
        device: of the operands; constants are put there too.

    Raises:
        ValueError: the scalar names an operand that does not exist.
    """
    for operand in list_elements(scalar):
        if operand >= len(dtypes):
            raise ValueError(f"x{operand}, but there are {len(dtypes)} operands")
    steps: list[_Step] = []
    _append_steps(scalar, steps, dtypes, widen, device)

    def evaluate(elements: Sequence[torch.Tensor]) -> torch.Tensor:
        stack: list[torch.Tensor] = []
        for function, arity in steps:
            if isinstance(function, int):
                stack.append(elements[function])
            elif isinstance(function, torch.Tensor):
                stack.append(function)
            else:
                stack[-arity:] = [function(*stack[-arity:])]
        return stack[0]

    return evaluate


# An operand by number, a constant, or a function with the number of its arguments.
_Step: TypeAlias = tuple[int | torch.Tensor | Callable[..., torch.Tensor], int]


def _append_steps(
    scalar: Scalar, steps: list[_Step], dtypes: Sequence[str], widen: bool, device: torch.device
) -> None:
    """Append the steps that leave the value of a scalar on a stack."""
    if isinstance(scalar, Number):
        steps.append((torch.tensor(scalar.value, dtype=torch.float64, device=device), 0))
    elif isinstance(scalar, Element):
        steps.append((scalar.operand, 0))
    else:
        is_whole = _is_of_integers(scalar, dtypes)
        for one in scalar.arguments:
            if isinstance(one, Number) and is_whole:
                steps.append((torch.tensor(int(one.value), device=device), 0))
            else:
                _append_steps(one, steps, dtypes, widen, device)
        function = FUNCTIONS.get(scalar.function) or _cast(scalar, widen)
        steps.append((function, len(scalar.arguments)))


def _is_of_integers(call: Apply, dtypes: Sequence[str]) -> bool:
    """Whether a function reads integers, and constants of which torch can make integers as well.

    Beside a constant in f64 torch would compute in f64, which has too few digits for 64 bits.
    """
    arguments = call.arguments[1:] if call.function == "where" else call.arguments
    numbers = [one.value for one in arguments if isinstance(one, Number)]
    least = 0 if call.function == "pow" else -(2.0**63)
    return (
        dtype_of(call, dtypes) in WHOLE
        and call.function not in DTYPES
        and len(numbers) < len(arguments)
        and all(one.is_integer() and least <= one < 2.0**63 for one in numbers)
    )


def _cast(call: Apply, widen: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    dtype = TORCH_DTYPES[call.function]
    if widen and dtype in HALF:
        return lambda value: value.to(dtype).float()
    return lambda value: value.to(dtype)
