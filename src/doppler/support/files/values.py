"""Reads values and tables of a file, with errors that say where in the file they are.

Every function takes the value, and where it is, such as ``ops[3].kernel``.
"""

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from doppler.support.errors import InputError

Value = TypeVar("Value")


def fault(where: str, expected: str, found: object) -> InputError:
    """Make the error for a value of the wrong kind.

    Args:
        where: the value is.
        expected: kind of value, in words.
        found: the value.
    """
    shown = repr(found)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return InputError(f"{where}: expected {expected}, found {shown}")


def unknown_key(where: str, key: object, known: Iterable[str]) -> InputError:
    """Make the error for an unknown key, which names the nearest known one.

    Args:
        where: the key is.
        key: that is unknown.
        known: keys that exist there.
    """
    names = list(known)
    nearest = difflib.get_close_matches(str(key), names, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"choose from {', '.join(names)}"
    shown = str(key) if str(key).isidentifier() else repr(key)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return InputError(f"{where}{'.' if where else ''}{shown}: no such key, {hint}")


def read_number(value: object, where: str) -> float:
    """Return a finite number as float.

    Args:
        value: from a file.
        where: the value is.

    Raises:
        InputError: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise fault(where, "a number", value)
    try:
        number = float(value)
    except OverflowError:
        raise InputError(f"{where}: the number is too large") from None
    if not math.isfinite(number):
        raise fault(where, "a finite number", value)
    return number


def read_integer(value: object, where: str) -> int:
    """Return an integer of at most 64 bits.

    Args:
        value: from a file.
        where: the value is.

    Raises:
        InputError: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise fault(where, "an integer", value)
    if abs(value) >= 2**63:
        raise InputError(f"{where}: the integer is too large")
    return value


def read_flag(value: object, where: str) -> bool:
    """Return true or false.

    Args:
        value: from a file.
        where: the value is.

    Raises:
        InputError: it is something else.
    """
    if not isinstance(value, bool):
        raise fault(where, "true or false", value)
    return value


def read_text(value: object, where: str) -> str:
    """Return a string.

    Args:
        value: from a file.
        where: the value is.

    Raises:
        InputError: it is something else.
    """
    if not isinstance(value, str):
        raise fault(where, "text", value)
    return value


def read_integers(value: object, where: str) -> tuple[int, ...]:
    """Return a list of integers.

    Args:
        value: from a file.
        where: the value is.

    Raises:
        InputError: it is something else.
    """
    if not isinstance(value, list):
        raise fault(where, "a list of integers", value)
    return tuple(read_integer(one, where) for one in value)


def read_shape(value: object, where: str) -> tuple[int, ...]:
    """Return a list of sizes, none of them negative.

    Args:
        value: from a file.
        where: the value is.

    Raises:
        InputError: it is something else.
    """
    shape = read_integers(value, where)
    if any(size < 0 for size in shape):
        raise fault(where, "sizes that are not negative", value)
    return shape


def read_list(value: object, where: str, read: Callable[[Any, str], Value]) -> tuple[Value, ...]:
    """Read the elements of a list.

    Args:
        value: from a file.
        where: the value is.
        read: gets an element and where it is, and returns the result.

    Raises:
        InputError: it is not a list; or as ``read`` does.
    """
    if not isinstance(value, list):
        raise fault(where, "a list", value)
    return tuple(read(one, f"{where}[{i}]") for i, one in enumerate(value))


def read_object(
    value: object, where: str, required: Iterable[str], optional: Iterable[str] = ()
) -> dict[str, Any]:
    """Return an object that has all required keys, and no others except optional ones.

    Args:
        value: from a file.
        where: the value is; empty for the whole file.
        required: keys that must exist.
        optional: keys that may exist.

    Raises:
        InputError: it is not an object, or a key is missing or unknown.
    """
    if not isinstance(value, dict):
        raise fault(where or "the file", "an object", value)
    known = [*required, *optional]
    for key in value:
        if key not in known:
            raise unknown_key(where, key, known)
    for key in required:
        if key not in value:
            raise InputError(f"{where}{': ' if where else ''}{key!r} is missing")
    return value


def check_version(data: Mapping[str, Any], *known: int, default: int | None = None) -> int:
    """Return the version of a file; refuse unknown versions.

    Args:
        data: content of the file.
        known: versions that can be read.
        default: version of files that name none; None: they must name one.
    """
    version = data.get("version", default)
    if type(version) is not int or version not in known:
        choices = " and ".join(map(str, known))
        raise InputError(f"version {version!r}, this program reads {choices}")
    return version


class Table:
    """Rows of one list in a file, read column by column, with errors that name the row.

    Args:
        data: content of the file.
        key: of the list; a missing list is empty.
        columns: keys that rows may have.

    Attributes:
        key: of the list.
        rows: of the list.
    """

    def __init__(self, data: Mapping[str, Any], key: str, columns: Iterable[str]) -> None:
        self.key = key
        self.rows = data.get(key, [])
        if not isinstance(self.rows, list) or not all(isinstance(row, dict) for row in self.rows):
            raise InputError(f"{key!r} must be a list of objects")
        known = set(columns)
        for i, row in enumerate(self.rows):
            if not row.keys() <= known:
                wrong = next(name for name in row if name not in known)
                raise unknown_key(f"{key}[{i}]", wrong, columns)

    def has(self, column: str) -> bool:
        return any(column in row for row in self.rows)

    def values(
        self, column: str, read: Callable[[Any, str], Value], default: object = None
    ) -> list[Value]:
        """Read a column.

        Args:
            column: its key.
            read: gets a value and where it is, and returns the result.
            default: value of rows that do not have the column.
        """
        return [
            read(row.get(column, default), f"{self.key}[{i}].{column}")
            for i, row in enumerate(self.rows)
        ]

    def numbers(self, column: str, default: float | None = None) -> list[float]:
        return self.values(column, read_number, default)

    def integers(self, column: str, default: int | None = None) -> list[int]:
        return self.values(column, read_integer, default)

    def texts(self, column: str, default: Callable[[int], str]) -> list[str]:
        """Read a column of texts.

        Args:
            column: its key.
            default: returns the value of a row that does not have the column, given its number.
        """
        return [
            read_text(row.get(column, default(i)), f"{self.key}[{i}].{column}")
            for i, row in enumerate(self.rows)
        ]

    def blocks(self) -> list[int]:
        """Read the column ``block``; rows without it have their own number."""
        return [
            read_integer(row.get("block", i), f"{self.key}[{i}].block")
            for i, row in enumerate(self.rows)
        ]
