"""MemoryPlan: the tasks of a placement, with the evictions, loads and waits that save memory.

Shape suffixes: V ops, D devices, K tasks, W waits, C copies, L uses of copies.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from doppler.extensions.memory.arrays import (
    EVICT,
    FREE,
    LOAD,
    MOVE,
    NOTHING,
    OP,
    RECOMPUTE,
    PlanState,
)
from doppler.problem import Placement, Problem

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

KINDS = {
    OP: "op",
    MOVE: "transfer",
    EVICT: "evict",
    LOAD: "load",
    RECOMPUTE: "recompute",
    FREE: "free",
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Copies:
    """Copies of data on devices [C]. Each stays at one address from when it is written.

    Attributes:
        region: region of graph.regions that it holds, or -1.
        input: input that it holds, or -1.
        output: op whose output, which no op reads, it holds, or -1.
        creator: task that writes it; -1: it is there from the start.
        device: that it is on.
        address: first byte in the device's memory.
        bytes: size.
        gone: whether its memory is free again before the end.
    """

    region: IntArray
    input: IntArray
    output: IntArray
    creator: IntArray
    device: IntArray
    address: FloatArray
    bytes: FloatArray
    gone: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.bytes)


@dataclass(frozen=True, eq=False, kw_only=True)
class MemoryPlan:
    """How a placement is executed within memory limits: tasks, waits, and copies at addresses.

    The plan is safe for every order of execution in which each task starts after those that it
    waits for: no device holds more than its limit, and no task reads data that are not there
    (`checks.violations` proves it).

    Attributes:
        problem: that is planned.
        placement: that is planned.
        limit_bytes: [D] memory limit of each device.
        kind: [K] one of `KINDS`: first the ops in their order, then the transfers of the placement,
            then the tasks that the plan adds. A ``free`` task takes no time; it waits for all tasks
            that use a copy.
        op: [K] that is executed, or whose output is moved; -1 for inputs and ``free``.
        device: [K] that the task runs on; for a transfer, a load or an eviction the device whose
            memory it uses.
        source: [K] device that a transfer comes from; -1 for other tasks.
        seconds: [K] duration without jitter.
        key: [K] priority in the queue of its resource, small first.
        waits: [W, 2] a task, and a task that waits for it.
        copies: [C] of data on devices.
        made: [K] first copy that a task writes.
        num_made: [K] number of copies that it writes.
        uses: [L, 2] a copy, and a task that reads it.
        offloaded_bytes: of all evictions, and of inputs that are loaded.
        loaded_bytes: of all loads.
        recomputed_s: seconds of all recomputations.
    """

    problem: Problem
    placement: Placement
    limit_bytes: FloatArray
    kind: IntArray
    op: IntArray
    device: IntArray
    source: IntArray
    seconds: FloatArray
    key: FloatArray
    waits: IntArray
    copies: Copies
    made: IntArray
    num_made: IntArray
    uses: IntArray
    offloaded_bytes: float
    loaded_bytes: float
    recomputed_s: float

    @property
    def num_tasks(self) -> int:
        """Number of tasks, K."""
        return len(self.kind)

    def count(self, kind: int) -> int:
        """Return the number of tasks of a kind.

        Args:
            kind: one of `KINDS`.
        """
        return int((self.kind == kind).sum())

    @cached_property
    def moved(self) -> IntArray:
        """The copy [K] that a transfer, an eviction or a load reads or writes; else -1."""
        moved = np.full(self.num_tasks, NOTHING)
        for c, task in self.uses.tolist():
            if self.kind[task] == EVICT:
                moved[task] = c
        writes = np.isin(self.kind, (MOVE, LOAD, RECOMPUTE))
        moved[writes] = self.made[writes]
        return moved

    def describe(self, task: int) -> str:
        """Describe a task in words, for messages.

        Args:
            task: its number.
        """
        kind, d, graph = int(self.kind[task]), int(self.device[task]), self.problem.graph
        where = self.problem.cluster.devices[d].name
        c = self.moved[task] if kind in (MOVE, EVICT, LOAD) else self.made[task]
        what = f"op {self.op[task]} ({graph.ops.names[self.op[task]]!r})"
        if self.op[task] < 0 and c >= 0:
            what = f"input {graph.inputs.names[self.copies.input[c]]!r}"
        if kind == MOVE:
            origin = self.problem.cluster.devices[int(self.source[task])].name
            return f"transfer of {what} from device {origin} to {where}"
        ways = {EVICT: f"from device {where} to the host", LOAD: f"from the host to device {where}"}
        if kind in ways:
            return f"copy of {what} {ways[kind]}"
        return f"{what} on device {where}"

    @property
    def reserved_bytes(self) -> FloatArray:
        """The end of the highest address in use on each device [D]."""
        ends = np.zeros(len(self.limit_bytes))
        np.maximum.at(ends, self.copies.device, self.copies.address + self.copies.bytes)
        return ends


def read_plan(m: PlanState, problem: Problem, placement: Placement) -> MemoryPlan:
    """Return the plan that a state holds.

    Args:
        m: after planning.
        problem: that was planned.
        placement: that was planned.
    """
    counts, num_ops = m.counts[0], problem.num_ops
    num_tasks, num_placed = int(counts["tasks"]), int(counts["placed"])
    planned = m.planned[:num_tasks]
    copies = _read_copies(m, problem, num_placed)
    kind = planned["kind"].astype(np.int64)
    made = np.where(planned["num_copies"] > 0, planned["made"], NOTHING).astype(np.int64)
    region_T = m.free.tasks["number"][num_ops:num_placed].astype(np.int64)
    subject = planned["made"].astype(np.int64)  # the copy that an added task is about
    of_copy = _ops_of(copies, problem)[subject]
    op = np.where(kind == FREE, NOTHING, of_copy)
    op[:num_ops] = np.arange(num_ops)
    op[num_ops:num_placed] = problem.arrays.region_src[region_T]
    device = copies.device[subject]
    device[:num_ops] = placement.device
    device[num_ops:num_placed] = m.free.tasks["destination"][num_ops:num_placed]
    source = np.full(num_tasks, NOTHING)
    source[num_ops:num_placed] = m.free.tasks["source"][num_ops:num_placed]
    seconds = planned["seconds"].copy()
    seconds[:num_placed] = (m.free.tasks["finish"] - m.free.tasks["start"])[:num_placed]
    links = m.links[: int(counts["links"])]
    input_loads = (kind == LOAD) & (copies.input[subject] >= 0)
    return MemoryPlan(
        problem=problem,
        placement=placement,
        limit_bytes=m.machine.limit.copy(),
        kind=kind,
        op=op,
        device=device,
        source=source,
        seconds=seconds,
        key=planned["key"].copy(),
        waits=m.waits[: int(counts["waits"])].astype(np.int64),
        copies=copies,
        made=made,
        num_made=planned["num_copies"].astype(np.int64),
        uses=np.stack([links["read"], links["task"]], axis=1).astype(np.int64),
        offloaded_bytes=float(counts["offloaded"] + copies.bytes[subject][input_loads].sum()),
        loaded_bytes=float(counts["loaded"]),
        recomputed_s=float(counts["recomputed"]),
    )


def _read_copies(m: PlanState, problem: Problem, num_placed: int) -> Copies:
    """Return the copies. Data are numbered: regions, then transfers, outputs and inputs."""
    p, num_ops = problem.arrays, problem.num_ops
    copies = m.copies[: int(m.counts[0]["copies"])]
    num_regions, most = len(p.size), len(m.free.tasks) - num_ops
    input_of = np.full(len(m.data), NOTHING)
    slots = np.repeat(np.arange(len(p.input_bytes)), np.diff(p.input_ptr))
    input_of[m.input_datum] = slots
    region_of = np.full(len(m.data), NOTHING)
    region_of[:num_regions] = np.arange(num_regions)
    moved = m.free.tasks["number"][num_ops:num_placed].astype(np.int64)
    region_of[num_regions : num_regions + len(moved)] = moved
    output_of = np.full(len(m.data), NOTHING)
    first = num_regions + most
    output_of[first : first + num_ops] = np.arange(num_ops)
    datum = copies["datum"]
    is_input = datum >= first + num_ops
    return Copies(
        region=region_of[datum],
        input=np.where(is_input, input_of[datum], NOTHING),
        output=output_of[datum],
        creator=copies["creator"].astype(np.int64),
        device=copies["on"].astype(np.int64),
        address=copies["address"].copy(),
        bytes=copies["bytes"].copy(),
        gone=copies["gone"] != 0,
    )


def _ops_of(copies: Copies, problem: Problem) -> IntArray:
    """Return the op that computes the data of each copy, -1 for an input."""
    src = np.append(problem.arrays.region_src, NOTHING)
    return np.where(copies.output >= 0, copies.output, src[copies.region])
