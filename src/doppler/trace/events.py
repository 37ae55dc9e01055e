"""Trace: what ran where and when in one execution, simulated or measured.

Shape suffixes: V ops, T transfers, D devices.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from doppler.problem import Placement, Problem

Contention = Literal["none", "fifo", "engines", "sender"]
Queue = Literal["priority", "fifo", "random", "strict"]
Interfaces = Literal["both", "outgoing", "none"]


@dataclass(frozen=True, kw_only=True)
class ExecutionRules:
    """The rules of a system that its traces must follow.

    Attributes:
        streams: number of ops that a device runs at a time.
        contention: of transfers. ``fifo``: one at a time per ordered pair of devices. ``engines``:
            one at a time per sender and per receiver. With both, one at a time per network
            interface if they leave the host. ``sender``: on the device that made the region, before
            its next op. ``none``: no contention.
        interfaces: which interfaces a trace records: those of ``both`` hosts, the ``outgoing`` ones
            of senders, or ``none``.
        queue: which ready task goes first.
        barriers: whether everything waits for the end of a level.
        shared: whether tasks on shared resources of the machine slow each other down.
    """

    streams: int = 1
    contention: Contention = "fifo"
    queue: Queue = "priority"
    barriers: bool = False
    interfaces: Interfaces = "both"
    shared: bool = False

    @property
    def work_conserving(self) -> bool:
        """Whether nothing may wait for a free resource."""
        return self.queue != "strict" and not self.barriers


HostKind = Literal["evict", "load", "recompute"]


@dataclass(frozen=True, eq=False, kw_only=True)
class MemoryEvents:
    """What an execution within memory limits did besides ops and transfers; M further tasks.

    Attributes:
        kinds: [M] ``evict``: a copy to host memory; ``load``: a copy from there; ``recompute``: an
            op that runs again on its device.
        ops: [M] the op whose output it is; -1: an input.
        names: [M] of the op or input.
        device: [M] where it happens.
        stream: [M] of the device, if an op runs.
        bytes: [M] size.
        start_s: [M] start.
        finish_s: [M] end.
        ready_s: [V + T + M] when all that a task waited for had ended, including memory.
        last: [V + T + M] which task ended last of these, by the same numbering; -1: none.
        in_use: for each device rows of (time, bytes in use from then on).
        limit_bytes: [D] memory limits.
        offloaded_bytes: bytes that are kept in host memory.
    """

    kinds: tuple[HostKind, ...]
    ops: NDArray[np.int64]
    names: tuple[str, ...]
    device: NDArray[np.int64]
    stream: NDArray[np.int64]
    bytes: NDArray[np.float64]
    start_s: NDArray[np.float64]
    finish_s: NDArray[np.float64]
    ready_s: NDArray[np.float64]
    last: NDArray[np.int64]
    in_use: tuple[NDArray[np.float64], ...]
    limit_bytes: NDArray[np.float64]
    offloaded_bytes: float

    def of(self, kind: HostKind) -> NDArray[np.bool_]:
        """Whether each of the further tasks [M] is of a kind."""
        return np.array([one == kind for one in self.kinds], dtype=bool)


@dataclass(frozen=True, eq=False, kw_only=True)
class Trace:
    """One execution of one placement. All times are seconds from its start.

    Attributes:
        problem: what was executed.
        placement: that was executed.
        system_kind: whether times are simulated or measured.
        rules: of the system, such as its queue.
        op_stream: [V] stream of the device that ran each op.
        op_start_s: [V] start of each op.
        op_finish_s: [V] end of each op.
        transfer_region: [T] index into ``graph.regions`` of what was transferred.
        transfer_src: [T] sending device.
        transfer_dst: [T] receiving device.
        transfer_start_s: [T] start of each transfer.
        transfer_finish_s: [T] end of each transfer.
        peak_bytes: [D] largest memory in use.
        transfer_outlet: [T] interface of the sender's host; -1: none.
        transfer_inlet: [T] interface of the receiver's host; -1: none.
        tolerance_s: how much two clocks may disagree.
        memory: events of a memory plan, if there was one.
    """

    problem: Problem
    placement: Placement
    system_kind: Literal["simulated", "measured"]
    rules: ExecutionRules
    op_stream: NDArray[np.int64]
    op_start_s: NDArray[np.float64]
    op_finish_s: NDArray[np.float64]
    transfer_region: NDArray[np.int64]
    transfer_src: NDArray[np.int64]
    transfer_dst: NDArray[np.int64]
    transfer_start_s: NDArray[np.float64]
    transfer_finish_s: NDArray[np.float64]
    peak_bytes: NDArray[np.float64]
    transfer_outlet: NDArray[np.int64]
    transfer_inlet: NDArray[np.int64]
    tolerance_s: float = 0.0
    memory: MemoryEvents | None = None

    @property
    def makespan_s(self) -> float:
        """When the last op finishes, in seconds."""
        return float(self.op_finish_s.max())

    def on_devices(self) -> tuple[NDArray, NDArray, NDArray[np.float64], NDArray[np.float64]]:
        """Return device, stream, start and finish of ops, then of ops that were computed again."""
        columns = self.placement.device, self.op_stream, self.op_start_s, self.op_finish_s
        if (more := self.memory) is None:
            return columns
        again = more.of("recompute")
        others = more.device, more.stream, more.start_s, more.finish_s
        return tuple(  # pyright: ignore[reportReturnType]
            np.concatenate([one, two[again]]) for one, two in zip(columns, others, strict=True)
        )

    def on_links(self) -> tuple[NDArray, NDArray, NDArray[np.float64], NDArray[np.float64]]:
        """Return source, destination, start and finish of transfers, then of copies of the host.

        The memory of the host of device d is device D + d.
        """
        columns = self.transfer_src, self.transfer_dst, self.transfer_start_s
        columns = *columns, self.transfer_finish_s
        if (more := self.memory) is None:
            return columns
        moves, evicts = ~more.of("recompute"), more.of("evict")
        host = more.device + self.problem.num_devices
        ends = np.where(evicts, more.device, host), np.where(evicts, host, more.device)
        others = *ends, more.start_s, more.finish_s
        return tuple(  # pyright: ignore[reportReturnType]
            np.concatenate([one, two[moves]]) for one, two in zip(columns, others, strict=True)
        )

    @property
    def num_transfers(self) -> int:
        """Number of transfers, T."""
        return len(self.transfer_region)

    def op_ready_s(self) -> NDArray[np.float64]:
        """When each op [V] had all its inputs on its device, and room."""
        if self.memory is not None:
            return self.memory.ready_s[: self.problem.num_ops]
        regions, device_V = self.problem.graph.regions, self.placement.device
        edges = self.problem.graph.edges
        arrived = {
            (int(r), int(d)): finish
            for r, d, finish in zip(
                self.transfer_region, self.transfer_dst, self.transfer_finish_s, strict=True
            )
        }
        ready_V = np.zeros(self.problem.num_ops)
        for e in range(len(edges)):
            src, dst, r = edges.src[e], edges.dst[e], int(regions.of_edge[e])
            if device_V[src] == device_V[dst]:
                there = self.op_finish_s[src]
            else:
                there = arrived.get((r, int(device_V[dst])), np.inf)
            ready_V[dst] = max(ready_V[dst], there)
        return ready_V

    def transfer_ready_s(self) -> NDArray[np.float64]:
        """When the producer of each transferred region [T] had finished, and there was room."""
        if self.memory is not None:
            begin = self.problem.num_ops
            return self.memory.ready_s[begin : begin + self.num_transfers]
        return self.op_finish_s[self.problem.graph.regions.src[self.transfer_region]]
