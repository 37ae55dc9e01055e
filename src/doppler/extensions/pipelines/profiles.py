"""Files with measured times and memory of stages."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from doppler.graph.formats import write_atomically
from doppler.support.errors import InputError
from doppler.support.files import read_json
from doppler.support.files.values import (
    Table,
    check_version,
    read_list,
    read_number,
    read_object,
    read_text,
)

PROFILE_FORMAT, PROFILE_VERSION = "doppler-stages", 1
STAGE_COLUMNS = (
    *("forward_s", "input_grad_s", "weight_grad_s"),
    *("activation_bytes", "weight_grad_bytes"),
)


@dataclass(frozen=True, kw_only=True)
class StageProfile:
    """Medians of what one stage takes for a microbatch.

    Attributes:
        forward_s: seconds of F.
        input_grad_s: seconds of I.
        weight_grad_s: seconds of W.
        activation_bytes: bytes of tensors that are kept after F.
        weight_grad_bytes: bytes of tensors that are kept after I.
    """

    forward_s: float
    input_grad_s: float
    weight_grad_s: float
    activation_bytes: float
    weight_grad_bytes: float


def save_profile(
    profiles: Sequence[StageProfile], path: str | Path, *, notes: Sequence[str] = ()
) -> None:
    """Write a file that ``workload.profile`` reads, atomically.

    Args:
        profiles: of the stages, in order.
        path: of the file.
        notes: lines of text about the measurement.
    """
    data = {
        "format": PROFILE_FORMAT,
        "version": PROFILE_VERSION,
        "notes": list(notes),
        "stages": [{key: getattr(one, key) for key in STAGE_COLUMNS} for one in profiles],
    }
    write_atomically(path, json.dumps(data, indent=1) + "\n")


def read_profile(path: str | Path) -> tuple[dict[str, object], list[float], list[str]]:
    """Read a file of stages.

    Args:
        path: of the file.

    Returns:
        Columns of numbers by name; the seconds of the transfers between neighbouring stages, empty
        if the file has none; and its notes.

    Raises:
        InputError: names the file and what is wrong in it.
    """
    data = read_json(path)
    try:
        read_object(data, "", ("format", "version", "stages"), ("transfer_s", "notes"))
        if data["format"] != PROFILE_FORMAT:
            raise InputError(f"format: expected {PROFILE_FORMAT!r}, found {data['format']!r}")
        check_version(data, PROFILE_VERSION)
        table = Table(data, "stages", STAGE_COLUMNS)
        numbers = {column: table.numbers(column) for column in STAGE_COLUMNS}
        transfers = read_list(data.get("transfer_s", []), "transfer_s", read_number)
        notes = read_list(data.get("notes", []), "notes", read_text)
        for column, values in numbers.items():
            for s, value in enumerate(values):
                _check_sign(f"stages[{s}].{column}", value)
        for s, value in enumerate(transfers):
            _check_sign(f"transfer_s[{s}]", value)
        if not table.rows:
            raise InputError("stages: the list is empty")
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    columns: dict[str, object] = {key.removesuffix("_s"): one for key, one in numbers.items()}
    return columns, list(transfers), list(notes)


def _check_sign(key: str, value: float) -> None:
    if value < 0:
        raise InputError(f"{key}: must be 0 or more, found {value:g}")
