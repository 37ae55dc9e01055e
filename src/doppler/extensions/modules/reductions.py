"""What rules of ops have in common that aggregate over dimensions."""

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
    """Aggregate over dimensions and keep one element of each."""
    shape = tuple(() if dim in dims else own for dim, own in enumerate(value.shape))
    places = [place for dim in dims for place in value.places(dim)]
    return c.builder.reduced(value, places, aggregation, name, shape)


def size_of(value: Value, dims: Sequence[int]) -> int:
    """How many elements there are along dimensions."""
    return math.prod(factor for dim in dims for factor in value.shape[dim])


def mean_of(c: "Conversion", value: Value, dims: Sequence[int], name: str) -> Value:
    """The mean over dimensions; each keeps one element."""
    total = reduce(c, value, dims, "add", name)
    return Calculator(value.dtype, total.shape).mul(1 / size_of(value, dims), total)
