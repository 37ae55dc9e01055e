"""Helpers for rules of ops that aggregate over dimensions."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from doppler.extensions.modules.elementwise import Calculator
from doppler.extensions.modules.values import Value

if TYPE_CHECKING:
    from doppler.extensions.modules.conversion import Conversion


def reduce(
    c: "Conversion", value: Value, dims: Sequence[int], aggregation: str, name: str
) -> Value:
    """Aggregate over dimensions; each of them keeps one element.

    Args:
        c: the conversion.
        value: to aggregate.
        dims: to aggregate over.
        aggregation: add, mul, max or min.
        name: of the op.
    """
    shape = tuple(() if dim in dims else own for dim, own in enumerate(value.shape))
    places = [place for dim in dims for place in value.places(dim)]
    return c.builder.reduced(value, places, aggregation, name, shape)


def size_of(value: Value, dims: Sequence[int]) -> int:
    """Return the number of elements along dimensions.

    Args:
        value: that has the dimensions.
        dims: numbers of the dimensions.
    """
    return math.prod(factor for dim in dims for factor in value.shape[dim])


def mean_of(c: "Conversion", value: Value, dims: Sequence[int], name: str) -> Value:
    """Compute the mean over dimensions; each of them keeps one element.

    Args:
        c: the conversion.
        value: to average.
        dims: to average over.
        name: of the op.
    """
    total = reduce(c, value, dims, "add", name)
    return Calculator(value.dtype, total.shape).mul(1 / size_of(value, dims), total)
