"""Reads and checks those entries of summary.json that a report uses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from doppler.report.rows import SUMMARY_FILE
from doppler.support.errors import InputError
from doppler.support.files import read_json
from doppler.support.files.values import fault, read_integer, read_number, read_text


def read_summary(directory: Path) -> dict[str, Any]:
    """Read the summary of a finished run.

    Args:
        directory: of the run.

    Raises:
        InputError: names the file and the entry that is damaged.
    """
    path = directory / SUMMARY_FILE
    summary = read_json(path)
    if not isinstance(summary, dict) or not _NEEDED <= summary.keys():
        raise InputError(f"{path}: not the summary of a run")
    needed = _OF_FIDELITY if "fidelity" in summary else ()
    for key in needed:
        if key not in summary:
            raise InputError(f"{path}: {key!r} is missing")
    for key, read in _ENTRIES.items():
        if key in summary:
            read(summary[key], f"{path}: {key}")
    return summary


def _count(value: object, where: str) -> None:
    if read_integer(value, where) < 0:
        raise fault(where, "a number of at least 0", value)


def _amount(value: object, where: str) -> None:
    if read_number(value, where) < 0:
        raise fault(where, "a number of at least 0", value)


def _truth(value: object, where: str) -> None:
    if not isinstance(value, bool):
        raise fault(where, "true or false", value)


def _object(value: object, where: str) -> None:
    if not isinstance(value, dict):
        raise fault(where, "an object", value)


def _texts(value: object, where: str) -> None:
    _object(value, where)
    assert isinstance(value, dict)
    for key, one in value.items():
        read_text(one, f"{where}.{key}")


def _fidelity(value: object, where: str) -> None:
    _object(value, where)
    assert isinstance(value, dict)
    for label, figures in value.items():
        _object(figures, f"{where}.{label}")
        for key in ("placements", "mean_error", "median_ratio"):
            if key not in figures:
                raise InputError(f"{where}.{label}: {key!r} is missing")
        for key, figure in figures.items():  # a correlation may be NaN or None
            is_number = isinstance(figure, int | float) and not isinstance(figure, bool)
            if not is_number and (figure is not None or key in ("mean_error", "median_ratio")):
                raise fault(f"{where}.{label}.{key}", "a number", figure)
            if isinstance(figure, int):
                read_integer(figure, f"{where}.{label}.{key}")


_NEEDED = {"stage", "seed"}
_OF_FIDELITY = ("workload", "cluster", "num_devices")
_ENTRIES: dict[str, Callable[[object, str], object]] = {
    **{"stage": read_text, "workload": read_text, "cluster": read_text},
    **{"seed": _count, "num_ops": _count, "num_devices": _count},
    **{"episodes_per_s": _amount, "peak_memory_bytes": _amount, "optimum_s": _amount},
    "optimum_is_proven": _truth,
    **{"versions": _texts, "host": _object, "fidelity": _fidelity},
}
