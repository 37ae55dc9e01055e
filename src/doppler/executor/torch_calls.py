"""Kernels that call one of torch's own operators."""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from doppler.graph import KernelSpec
from doppler.graph.torch_operators import find_operator


def compile_call(spec: KernelSpec, text: str) -> Callable[[Sequence[torch.Tensor]], torch.Tensor]:
    """Compile ``aten.mul.Tensor:{"args": [...], "kwargs": {...}}`` to a function of operands.

    An operand ``{"x": number, "factors": [...]}`` has a dimension for each factor of its
    dimensions; the operator gets it with these factors merged.

    Args:
        spec: the kernel.
        text: its expression.

    Raises:
        ValueError: not a call of an operator that torch has, or the operator is not a function.
    """
    name, _, arguments = text.partition(":")
    operator = find_operator(name)
    try:
        call = json.loads(arguments)
        args, kwargs, output = call["args"], call["kwargs"], call.get("output")
        if not (isinstance(args, list) and isinstance(kwargs, dict)):
            raise TypeError
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ValueError(f"{name!r} is not called like an operator of torch") from None

    def compute(operands: Sequence[torch.Tensor]) -> torch.Tensor:
        result = operator(
            *(_value(one, operands) for one in args),
            **{key: _value(one, operands) for key, one in kwargs.items()},
        )
        return (result if output is None else result[output]).reshape(spec.output_shape)

    return compute


def _value(argument: Any, operands: Sequence[torch.Tensor]) -> Any:
    match argument:
        case {"x": number, "factors": factors}:
            operand = operands[number]
            extents = iter(operand.shape)
            shape = [math.prod(next(extents) for _ in range(num)) for num in factors]
            return operand.reshape(shape)
        case {"real": real, "imag": imag}:
            return complex(real, imag)
        case {"dtype": name}:
            return getattr(torch, name)
        case list():
            return [_value(one, operands) for one in argument]
    return argument
