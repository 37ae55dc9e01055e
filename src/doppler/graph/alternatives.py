"""Alternatives of an op: backends that can run it, each at its own cost and quality.

Shape suffixes: V ops, D devices, K alternatives.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from doppler.support.errors import InputError
from doppler.support.files.values import fault, read_list, read_number, read_object, read_text

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """One way to run an op.

    Attributes:
        backend: its name.
        seconds: one number for all devices, or one per device, inf where it cannot run.
        loss: expected loss of quality, as the probability of a wrong answer.
        memory_bytes: memory that the backend takes once on every device that runs it, such as the
            weights of a model; the same in all ops.
    """

    backend: str
    seconds: tuple[float, ...]
    loss: float = 0.0
    memory_bytes: float = 0.0

    def on(self, num_devices: int, where: str) -> FloatArray:
        """Return the seconds [D] on each device.

        Args:
            num_devices: D.
            where: start of messages.

        Raises:
            InputError: the alternative has seconds for another number of devices.
        """
        if len(self.seconds) not in (1, num_devices):
            raise InputError(
                f"{where}: seconds for {len(self.seconds)} devices, the cluster has {num_devices}"
            )
        return np.broadcast_to(np.array(self.seconds, dtype=np.float64), (num_devices,)).copy()


def read_alternatives(value: object, where: str) -> tuple[Alternative, ...]:
    """Read a list of objects with the fields of `Alternative`; null means none.

    Args:
        value: from a file.
        where: start of messages.
    """
    return () if value is None else read_list(value, where, _read_one)


def _read_one(value: object, where: str) -> Alternative:
    row = read_object(value, where, ("backend", "seconds"), ("loss", "memory_bytes"))
    seconds = row["seconds"]
    listed = seconds if isinstance(seconds, list) else [seconds]
    return Alternative(
        backend=read_text(row["backend"], f"{where}.backend"),
        seconds=read_list(listed, f"{where}.seconds", _seconds),
        loss=read_number(row.get("loss", 0.0), f"{where}.loss"),
        memory_bytes=read_number(row.get("memory_bytes", 0.0), f"{where}.memory_bytes"),
    )


def _seconds(value: object, where: str) -> float:
    return np.inf if value is None else read_number(value, where)


def alternative_rows(alternatives: Sequence[Alternative]) -> list[dict[str, object]]:
    """Return alternatives as a file writes them.

    Args:
        alternatives: of one op.
    """
    return [
        {
            "backend": one.backend,
            "seconds": [None if each == np.inf else each for each in one.seconds],
            "loss": one.loss,
            **({"memory_bytes": one.memory_bytes} if one.memory_bytes else {}),
        }
        for one in alternatives
    ]


def check_alternatives(alternatives: Sequence[Sequence[Alternative]], where: str) -> None:
    """Refuse invalid times, losses and memory sizes, and different backends with one name.

    Args:
        alternatives: of each op.
        where: start of messages.

    Raises:
        InputError: names the op by its number.
    """
    first: dict[str, tuple[int, float]] = {}  # the first op with a backend, and its bytes
    for v, each in enumerate(alternatives):
        names = [one.backend for one in each]
        if len(set(names)) < len(names):
            raise InputError(f"{where}: op {v} has two alternatives of one backend")
        for one in each:
            what = f"{where}: op {v}, backend {one.backend!r}"
            if not one.seconds or not all(s >= 0 for s in one.seconds):
                raise InputError(f"{what}: seconds must not be negative")
            for name in ("loss", "memory_bytes"):
                if not 0 <= getattr(one, name) < np.inf:
                    raise fault(f"{what}: {name}", "a number from 0", getattr(one, name))
            u, num_bytes = first.setdefault(one.backend, (v, one.memory_bytes))
            if num_bytes != one.memory_bytes:
                raise InputError(
                    f"{what}: memory_bytes is {one.memory_bytes:g}, at op {u} {num_bytes:g}"
                )


def fastest(
    alternatives: Sequence[Sequence[Alternative]], op_seconds: FloatArray, where: str
) -> FloatArray:
    """Return the seconds [V, D] of the fastest alternative on each device.

    Args:
        alternatives: of each op; ops without any keep their seconds.
        op_seconds: [V, D].
        where: start of messages.
    """
    best_VD = op_seconds.copy()
    for v, each in enumerate(alternatives):
        if each:
            seconds_KD = [one.on(op_seconds.shape[1], f"{where}: op {v}") for one in each]
            best_VD[v] = np.min(seconds_KD, axis=0)
    return best_VD
