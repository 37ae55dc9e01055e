"""Where ops may run: on devices that support their kind, where they are pinned, with their group.

One mechanism serves all: seconds are inf on a device that is not allowed, and a group allows what
all of its ops allow. So a method that chooses a device with finite seconds for a whole group at
once cannot break a rule.

Shape suffixes: V ops, D devices.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.cluster import Cluster
from doppler.graph import DataflowGraph
from doppler.support.errors import InputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class OpGroups(NamedTuple):
    """Groups of ops that go to one device.

    The ops of group g are ``members[ptr[g]:ptr[g + 1]]``; ptr and members are empty if there are no
    groups.

    Attributes:
        of_op: [V] the first op of each op's group; the op itself if it is alone.
        ptr: [V + 1] where the members of each group begin.
        members: [V] ops by group.
    """

    of_op: IntArray
    ptr: IntArray
    members: IntArray


def listed(group_V: IntArray) -> OpGroups:
    """Make groups from the first op ``group_V[v]`` of each op's group."""
    size_V = np.bincount(group_V, minlength=len(group_V))
    return OpGroups(group_V, np.append(0, size_V.cumsum()), np.argsort(group_V, kind="stable"))


def groups_of(graph: DataflowGraph) -> OpGroups:
    """Return the groups that the graph names."""
    label_V, every_V = graph.ops.group, np.arange(graph.num_ops)
    grouped_V = label_V >= 0
    _, first, which = np.unique(label_V[grouped_V], return_index=True, return_inverse=True)
    group_V = every_V.copy()
    group_V[grouped_V] = every_V[grouped_V][first][which]
    if (group_V == every_V).all():
        return OpGroups(every_V, np.zeros(0, np.int64), np.zeros(0, np.int64))
    return listed(group_V)


def restrict(
    graph: DataflowGraph, cluster: Cluster, groups: OpGroups, op_seconds: FloatArray
) -> None:
    """Set the seconds [V, D] of ops to inf on devices where they may not run.

    Args:
        graph: to execute.
        cluster: that executes it.
        groups: of ops.
        op_seconds: [V, D], changed.

    Raises:
        InputError: no device runs an op, a pinned device does not exist, or no device runs all ops
            of a group.
    """
    _forbid_unsupported(graph, cluster, op_seconds)
    _forbid_but_pins(graph, cluster, op_seconds)
    if len(groups.members):
        together_VD = np.ones(op_seconds.shape, dtype=bool)
        np.logical_and.at(together_VD, groups.of_op, np.isfinite(op_seconds))
        for root in np.flatnonzero(~together_VD.any(axis=1)):
            raise _no_device(graph, cluster, np.flatnonzero(groups.of_op == root), op_seconds)
        op_seconds[~together_VD[groups.of_op]] = np.inf


def _op(graph: DataflowGraph, v: int) -> str:
    return f"op {v} ({graph.ops.names[v]!r})"


def _forbid_unsupported(graph: DataflowGraph, cluster: Cluster, op_seconds: FloatArray) -> None:
    kinds = np.array(graph.ops.kinds)
    for d, device in enumerate(cluster.devices):
        op_seconds[np.isin(kinds, list(device.unsupported_kinds)), d] = np.inf
    homeless = np.flatnonzero(~np.isfinite(op_seconds).any(axis=1))
    if len(homeless):
        v = homeless[0]
        raise InputError(
            f"cluster {cluster.name!r}: no device runs {_op(graph, v)} "
            f"of kind {graph.ops.kinds[v]!r}"
        )


def _forbid_but_pins(graph: DataflowGraph, cluster: Cluster, op_seconds: FloatArray) -> None:
    for v in np.flatnonzero(graph.ops.pinned >= 0):
        d, where = (
            int(graph.ops.pinned[v]),
            f"graph {graph.name!r}: {_op(graph, int(v))} is pinned to",
        )
        if d >= cluster.num_devices:
            raise InputError(
                f"{where} device {d}, but the devices of {cluster.name!r} are "
                f"0 to {cluster.num_devices - 1}"
            )
        if not np.isfinite(op_seconds[v, d]):
            raise InputError(f"{where} device {d} of {cluster.name!r}, which cannot run it")
        op_seconds[v, np.arange(cluster.num_devices) != d] = np.inf


def _no_device(
    graph: DataflowGraph, cluster: Cluster, members: IntArray, op_seconds: FloatArray
) -> InputError:
    """An error that names two ops of a group without a common device, or the whole group."""
    where = f"graph {graph.name!r}: group {graph.ops.group[members[0]]}"
    able_GD = np.isfinite(op_seconds[members])
    for i in range(len(members)):
        for j in np.flatnonzero(~(able_GD[:i] & able_GD[i]).any(axis=1)):
            one, other = (
                f"{_op(graph, members[k])} runs on {_devices(able_GD[k])}" for k in (int(j), i)
            )
            return InputError(f"{where} has no device: {one} alone, {other} alone")
    return InputError(f"{where}: no device of {cluster.name!r} runs all of its {len(members)} ops")


def _devices(able_D: NDArray[np.bool_]) -> str:
    (numbers,) = np.nonzero(able_D)
    return f"device{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
