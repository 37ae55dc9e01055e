"""Values and tables of a JSON file, read with errors that say where in the file.

Every function takes the value found, and where: ``ops[3].kernel``.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from doppler.errors import InputError
from doppler.graph.kernel import Box

Value = TypeVar("Value")


def fault(where: str, expected: str, found: object) -> InputError:
    """What to raise where something else is found."""
    return InputError(f"{where}: expected {expected}, found {found!r}")


def read_number(value: object, where: str) -> float:
    """A number, as float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise fault(where, "a number", value)
    try:
        return float(value)
    except OverflowError:
        raise InputError(f"{where}: the number is too large") from None


def read_integer(value: object, where: str) -> int:
    """An integer of at most 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise fault(where, "an integer", value)
    if abs(value) >= 2**63:
        raise InputError(f"{where}: the integer is too large")
    return value


def read_text(value: object, where: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise fault(where, "text", value)
    return value


def read_integers(value: object, where: str) -> tuple[int, ...]:
    """A list of integers."""
    if not isinstance(value, list):
        raise fault(where, "a list of integers", value)
    return tuple(read_integer(one, where) for one in value)


def read_box(value: object, where: str) -> Box:
    """A list of [start, stop]."""
    if not isinstance(value, list):
        raise fault(where, "a list of [start, stop]", value)
    spans = []
    for one in value:
        span = read_integers(one, where)
        if len(span) != 2:
            raise fault(where, "[start, stop]", one)
        spans.append((span[0], span[1]))
    return tuple(spans)


def read_list(value: object, where: str, read: Callable[[Any, str], Value]) -> tuple[Value, ...]:
    """A list of what ``read(element, where it is)`` makes of its elements."""
    if not isinstance(value, list):
        raise fault(where, "a list", value)
    return tuple(read(one, f"{where}[{i}]") for i, one in enumerate(value))


def read_object(value: object, where: str, required: Iterable[str]) -> dict[str, Any]:
    """An object that has the required keys."""
    if not isinstance(value, dict):
        raise fault(where, "an object", value)
    for key in required:
        if key not in value:
            raise InputError(f"{where}: {key!r} is missing")
    return value


class Table:
    """Rows of one list of the file, read column by column with errors that name the row."""

    def __init__(self, data: dict, key: str) -> None:
        self.key = key
        self.rows = data.get(key, [])
        if not isinstance(self.rows, list) or not all(isinstance(row, dict) for row in self.rows):
            raise InputError(f"{key!r} must be a list of objects")

    def has(self, column: str) -> bool:
        return any(column in row for row in self.rows)

    def values(
        self, column: str, read: Callable[[Any, str], Value], default: object = None
    ) -> list[Value]:
        """What ``read(entry, where it is)`` makes of each row's entry, or of the default."""
        return [
            read(row.get(column, default), f"{self.key}[{i}].{column}")
            for i, row in enumerate(self.rows)
        ]

    def numbers(self, column: str, default: float | None = None) -> list[float]:
        return self.values(column, read_number, default)

    def integers(self, column: str, default: int | None = None) -> list[int]:
        return self.values(column, read_integer, default)

    def blocks(self) -> list[int]:
        """The column ``block``; rows that have none are numbered."""
        return [
            read_integer(row.get("block", i), f"{self.key}[{i}].block")
            for i, row in enumerate(self.rows)
        ]
