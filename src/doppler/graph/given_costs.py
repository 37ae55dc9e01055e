"""Given costs as files write them: a number, one per device, or a table by kinds of devices.

Shape suffixes: V ops, E edges, D devices, K kinds of devices.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from doppler.graph.dataflow import GivenCosts
from doppler.support.errors import InputError
from doppler.support.files.values import fault, read_list, read_number

FloatArray = NDArray[np.float64]

# Given seconds of an op and of an edge, as read from a file.
OpEntry = float | tuple[float, ...]
EdgeEntry = float | Mapping[str, Mapping[str, float]]


def read_op_entry(value: object, where: str) -> OpEntry:
    """Read the seconds of an op: a number, or a list with one per device, where null means never.

    Args:
        value: from a file.
        where: start of messages.

    Raises:
        InputError: it is something else.
    """
    if isinstance(value, list):
        return read_list(value, where, _number_or_never)
    return read_number(value, where)


def _number_or_never(value: object, where: str) -> float:
    return np.inf if value is None else read_number(value, where)


def read_edge_entry(value: object, where: str) -> EdgeEntry:
    """Read the seconds of an edge: a number, or numbers by kind of the sender and of the receiver.

    Args:
        value: from a file.
        where: start of messages.

    Raises:
        InputError: it is something else.
    """
    if not isinstance(value, dict):
        return read_number(value, where)
    for kind, row in value.items():
        if not isinstance(row, dict):
            raise fault(f"{where}.{kind}", "an object of seconds by kind of the receiver", row)
    return {
        kind: {to: read_number(one, f"{where}.{kind}.{to}") for to, one in row.items()}
        for kind, row in value.items()
    }


def given_costs(
    ops: Sequence[OpEntry] | None, edges: Sequence[EdgeEntry] | None, *, counts_memory: bool
) -> GivenCosts | None:
    """Combine the entries of all ops and edges; None if there are none.

    Args:
        ops: entries of ops.
        edges: entries of edges.
        counts_memory: whether bytes of ops and devices count.

    Raises:
        InputError: ops have entries for different numbers of devices.
    """
    if ops is None and edges is None:
        return None
    kinds = sorted({kind for entry in edges or () for kind in _kinds_of(entry)})
    return GivenCosts.make(
        op_seconds=None if ops is None else _op_seconds(ops),
        transfer_seconds=None if edges is None else _edge_seconds(edges, kinds),
        kinds=kinds,
        counts_memory=counts_memory,
    )


def _op_seconds(entries: Sequence[OpEntry]) -> FloatArray:
    lengths = {v: len(entry) for v, entry in enumerate(entries) if isinstance(entry, tuple)}
    if not lengths:
        return np.array(entries, dtype=np.float64)
    num = next(iter(lengths.values()))
    for v, length in lengths.items():
        if length != num:
            raise InputError(
                f"ops[{v}].given_seconds: {length} devices, those of "
                f"ops[{next(iter(lengths))}] are {num}"
            )
    return np.array([entry if isinstance(entry, tuple) else (entry,) * num for entry in entries])


def _kinds_of(entry: EdgeEntry) -> set[str]:
    if not isinstance(entry, Mapping):
        return set()
    return {*entry, *(to for row in entry.values() for to in row)}


def _edge_seconds(entries: Sequence[EdgeEntry], kinds: Sequence[str]) -> FloatArray:
    if not kinds:
        return np.array([0.0 if isinstance(one, Mapping) else one for one in entries])
    seconds_EKK = np.full((len(entries), len(kinds), len(kinds)), np.nan)
    for e, entry in enumerate(entries):
        if isinstance(entry, Mapping):
            for kind, row in entry.items():
                for to, seconds in row.items():
                    seconds_EKK[e, kinds.index(kind), kinds.index(to)] = seconds
        else:
            seconds_EKK[e] = entry
    return seconds_EKK


def op_entry(given: GivenCosts, v: int) -> dict[str, Any]:
    """Return the given seconds of op v as a file writes them; empty if there are none.

    Args:
        given: costs of the graph.
        v: op.
    """
    if given.op_seconds is None:
        return {}
    seconds = given.op_seconds[v].tolist()
    if isinstance(seconds, list):
        seconds = [None if one == np.inf else one for one in seconds]
    return {"given_seconds": seconds}


def edge_entry(given: GivenCosts, e: int) -> dict[str, Any]:
    """Return the given seconds of edge e as a file writes them; empty if there are none.

    Args:
        given: costs of the graph.
        e: edge.
    """
    if given.transfer_seconds is None:
        return {}
    seconds = given.transfer_seconds[e].tolist()
    if isinstance(seconds, list):
        seconds = {
            kind: {to: one for to, one in zip(given.kinds, row, strict=True) if one == one}
            for kind, row in zip(given.kinds, seconds, strict=True)
        }
    return {"given_seconds": seconds}
