"""Measured costs: a table of seconds per kernel, device and link that replaces modelled costs.

A file holds the tables of one host, one for every set of devices that was calibrated on it. Kernels
are identified by what they compute, so that workloads share them.

Shape suffix: D devices.
"""

import json
import math
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from doppler.graph import KernelSpec
from doppler.graph.formats import write_atomically
from doppler.support.errors import InputError
from doppler.support.files import lock_file, read_json
from doppler.support.files.values import (
    check_version,
    fault,
    read_list,
    read_number,
    read_object,
    read_text,
)

FloatArray = NDArray[np.float64]

_FORMAT, _VERSION = "doppler-costs", 1
# A writer holds the lock for a moment only.
_LOCK_S = 60.0

# Limit for all ops and transfers of a problem together: thirty years, so that 64 bits can count the
# nanoseconds of a schedule.
MAX_SECONDS = 1e9


def kernel_key(kernel: KernelSpec) -> str:
    """Return what a kernel computes as text; equal work has equal texts, whatever its index names.

    Args:
        kernel: to describe.
    """
    notation, colon, rest = kernel.expression.partition(":")
    if "->" in notation:
        letters = dict.fromkeys(letter for letter in notation if letter.isalpha())
        renamed = {letter: chr(ord("a") + i) for i, letter in enumerate(letters)}
        notation = "".join(renamed.get(letter, letter) for letter in notation)
    tensors = [
        f"{dtype}[{','.join(map(str, shape))}]"
        for shape, dtype in zip(
            (*kernel.operand_shapes, kernel.output_shape),
            (*kernel.operand_dtypes, kernel.dtype),
            strict=True,
        )
    ]
    return " ".join([f"{notation}{colon}{rest}", *tensors[:-1], "=>", tensors[-1]])


@dataclass(frozen=True, eq=False, kw_only=True)
class CostTable:
    """The measurements on one set of devices; NaN where nothing was measured.

    Attributes:
        devices: their names.
        kernels: by `kernel_key`, seconds [D] for which an op with that kernel occupies each device,
            including the hand-over.
        latency_s: [D, D] latency of links, one row per sender; the diagonal is unused.
        seconds_per_byte: [D, D] of links, likewise.
        demands: by `kernel_key`, if devices share processors or memory: the shares [D, 2] of the
            two that a kernel uses when it runs alone.
    """

    devices: tuple[str, ...]
    kernels: Mapping[str, FloatArray]
    latency_s: FloatArray = field(repr=False)
    seconds_per_byte: FloatArray = field(repr=False)
    demands: Mapping[str, FloatArray] = field(default_factory=dict, repr=False)

    @classmethod
    def empty(cls, devices: tuple[str, ...]) -> "CostTable":
        """Make a table without measurements."""
        nothing = np.full((len(devices), len(devices)), np.nan)
        return cls(devices=devices, kernels={}, latency_s=nothing, seconds_per_byte=nothing.copy())

    @property
    def has_links(self) -> bool:
        """Whether all links are measured."""
        between = ~np.eye(len(self.devices), dtype=bool)
        return bool(np.isfinite((self.latency_s + self.seconds_per_byte)[between]).all())

    def seconds(self, kernel: KernelSpec | None) -> FloatArray:
        """Return the seconds [D] of a kernel, NaN if unknown."""
        nothing = np.full(len(self.devices), np.nan)
        return nothing if kernel is None else self.kernels.get(kernel_key(kernel), nothing)

    def demand(self, kernel: KernelSpec | None) -> FloatArray:
        """Return the shares [D, 2] of processors and memory that a kernel uses, NaN if unknown."""
        nothing = np.full((len(self.devices), 2), np.nan)
        return nothing if kernel is None else self.demands.get(kernel_key(kernel), nothing)

    def updated(self, other: "CostTable") -> "CostTable":
        """Return this table with the measurements of ``other``, which take precedence."""
        assert self.devices == other.devices
        return CostTable(
            devices=self.devices,
            kernels=_merged(self.kernels, other.kernels),
            demands=_merged(self.demands, other.demands),
            latency_s=_first(other.latency_s, self.latency_s),
            seconds_per_byte=_first(other.seconds_per_byte, self.seconds_per_byte),
        )


def _merged(old: Mapping[str, FloatArray], new: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """The costs of kernels; new ones take precedence, except where they are NaN."""
    found = dict(old)
    for key, numbers in new.items():
        found[key] = _first(numbers, found.get(key, np.full_like(numbers, np.nan)))
    return found


def _first(one: FloatArray, other: FloatArray) -> FloatArray:
    """One, or the other where it is NaN."""
    return np.where(np.isfinite(one), one, other)


def load_costs(path: str | Path, devices: tuple[str, ...]) -> CostTable:
    """Read the table of some devices from a file of cost tables; an empty one if it has none.

    Args:
        path: of the file.
        devices: their names.

    Raises:
        InputError: no such file, or it does not hold cost tables.
    """
    return load_all(path).get(devices, CostTable.empty(devices))


def load_all(path: str | Path) -> dict[tuple[str, ...], CostTable]:
    """Read the tables of a file by their devices (see `load_costs`)."""
    data = read_json(path)
    try:
        if not isinstance(data, dict) or data.get("format") != _FORMAT:
            raise InputError(f"not a file of cost tables (no 'format': '{_FORMAT}')")
        check_version(data, _VERSION)
        read_object(data, "", ("format", "version", "tables"), ("host",))
        tables = read_list(data["tables"], "tables", _table)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    found = {table.devices: table for table in tables}
    if len(found) < len(tables):
        raise InputError(f"{path}: tables: two of the same devices")
    return found


def save_costs(path: str | Path, table: CostTable, *, replace: bool) -> CostTable:
    """Add a table to a file atomically.

    Args:
        path: of the file.
        table: to add.
        replace: whether the new table replaces entries of the file. Otherwise these stay, so that
            the hashes of runs that used them stay valid.

    Returns:
        What the file then has about these devices.

    Raises:
        InputError: the file exists but does not hold cost tables, or it cannot be written.
    """
    path = Path(path)
    with _locked(path):
        known = load_all(path) if path.exists() else {}
        old = known.get(table.devices, CostTable.empty(table.devices))
        known[table.devices] = old.updated(table) if replace else table.updated(old)
        rendered = {
            "format": _FORMAT,
            "version": _VERSION,
            "host": platform.node(),
            "tables": [_render(one) for one in known.values()],
        }
        write_atomically(path, json.dumps(rendered, indent=1) + "\n")
        return known[table.devices]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other processes from replacing the file between reading and writing it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    lock = lock_file(path.with_name(f".{path.name}.lock"), str(path), limit_s=_LOCK_S)
    try:
        yield
    finally:
        os.close(lock)


def _table(value: object, where: str) -> CostTable:
    required = ("devices", "latency_s", "seconds_per_byte", "kernels")
    row = read_object(value, where, required, ("demands",))
    devices = read_list(row["devices"], f"{where}.devices", read_text)
    for key in ("kernels", "demands"):
        if not isinstance(row.get(key, {}), dict):
            raise fault(f"{where}.{key}", "an object", row[key])
    num = len(devices)

    def seconds(value: object, where: str) -> FloatArray:
        numbers = read_list(value, where, _seconds)
        if len(numbers) != num:
            raise InputError(f"{where}: {len(numbers)} numbers for {num} devices")
        return np.array(numbers, dtype=np.float64)

    def links(key: str) -> FloatArray:
        rows = read_list(row[key], f"{where}.{key}", seconds)
        if len(rows) != num:
            raise InputError(f"{where}.{key}: {len(rows)} rows for {num} devices")
        return np.array(rows, dtype=np.float64).reshape(num, num)

    def shares(value: object, where: str) -> FloatArray:
        rows = read_list(value, where, seconds)
        if len(rows) != 2 or np.nanmax(rows, initial=0.0) > 1.0:
            raise InputError(f"{where}: must be two lists of shares from 0 to 1")
        return np.array(rows, dtype=np.float64).T

    return CostTable(
        devices=devices,
        kernels={
            key: seconds(one, f"{where}.kernels[{key!r}]") for key, one in row["kernels"].items()
        },
        demands={
            key: shares(one, f"{where}.demands[{key!r}]")
            for key, one in row.get("demands", {}).items()
        },
        latency_s=links("latency_s"),
        seconds_per_byte=links("seconds_per_byte"),
    )


def _seconds(value: object, where: str) -> float:
    """A number of seconds; NaN if nothing was measured."""
    seconds = math.nan if value is None else read_number(value, where)
    if seconds < 0 or seconds > MAX_SECONDS:
        raise InputError(f"{where}: must be from 0 to {MAX_SECONDS:g} s, got {seconds:g}")
    return seconds


def _render(table: CostTable) -> dict[str, Any]:
    demands = {key: _numbers(shares.T) for key, shares in sorted(table.demands.items())}
    return {
        "devices": list(table.devices),
        "latency_s": _numbers(table.latency_s),
        "seconds_per_byte": _numbers(table.seconds_per_byte),
        "kernels": {key: _numbers(row) for key, row in sorted(table.kernels.items())},
        **({"demands": demands} if demands else {}),
    }


def _numbers(array: FloatArray) -> list:
    """Nested lists, with null for NaN because JSON has no NaN."""
    if array.ndim > 1:
        return [_numbers(row) for row in array]
    return [float(value) if np.isfinite(value) else None for value in array]
