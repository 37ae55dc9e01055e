"""Dataclasses as comma-separated text: a column per field, a line per record."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from doppler.errors import InputError

Record = TypeVar("Record")
_READ: dict[Any, Callable[[str], Any]] = {
    str: str,
    int: int,
    float: float,
    bool: lambda text: text == "True",
}


def to_csv(kind: type, records: Sequence[Any]) -> str:
    """Records of one dataclass, full precision."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(kind)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(record) for record in records)
    return text.getvalue()


def read_csv(path: str | Path, kind: type[Record]) -> list[Record]:
    """Read what `to_csv` wrote.

    Raises:
        InputError: a column is missing, or a value is not of its field's type.
    """
    records = []
    with Path(path).open(newline="") as file:
        reader = csv.DictReader(file)
        for line in reader:
            try:
                values = {
                    field.name: _READ[field.type](line[field.name])
                    for field in fields(kind)  # pyright: ignore[reportArgumentType]
                }
            except KeyError as error:
                raise InputError(f"{path}: no column {error}; another version wrote it") from None
            except (TypeError, ValueError) as error:
                raise InputError(f"{path}: line {reader.line_num}: {error}") from None
            records.append(kind(**values))
    return records
