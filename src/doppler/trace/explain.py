"""Explains why an execution took as long as it did, and how two placements differ.

Shape suffix: D devices.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from doppler.support.errors import InputError
from doppler.trace.causes import Causes, Step
from doppler.trace.events import Trace
from doppler.trace.memory_lines import memory_lines
from doppler.trace.sharing import SharedUse, fluid_tasks, shared_used
from doppler.trace.usage import (
    InterfaceUse,
    LinkUse,
    bytes_text,
    interfaces_used,
    links_used,
    time_text,
)

FloatArray = NDArray[np.float64]
_OF_DEVICES, _OF_LINKS = ("op", "recompute"), ("transfer", "evict", "load")


@dataclass(frozen=True, eq=False, kw_only=True)
class Explanation:
    """What determines a makespan.

    The makespan is compute_s + transfer_s + idle_s.

    Attributes:
        makespan_s: of the execution.
        system_kind: whether it was simulated or measured.
        barriers: whether the system has barriers.
        chain: the tasks that led to the last finish, first to last; each begins when the one before
            it ends.
        compute_s: seconds of ops on the chain.
        transfer_s: seconds of transfers on the chain.
        idle_s: seconds between tasks of the chain: barriers if the system has them, hand-over on a
            real system.
        device_queue_s: seconds in which the next task of the chain waited for a busy device instead
            of its data.
        link_queue_s: likewise for a busy link.
        interface_queue_s: likewise for a busy network interface.
        device_utilisation: [D] busy share of the makespan, mean over streams.
        links: links that were used, the busiest first.
        interfaces: interfaces that were used, the busiest first.
        of_memory: what was offloaded, when, and at what cost, as text.
        shared: resources on which tasks slowed each other down, the busiest first.
        slowed_s: how much longer than alone the tasks of the chain took because of that.
    """

    makespan_s: float
    system_kind: Literal["simulated", "measured"]
    barriers: bool
    chain: tuple[Step, ...]
    compute_s: float
    transfer_s: float
    idle_s: float
    device_queue_s: float
    link_queue_s: float
    device_names: tuple[str, ...]
    device_utilisation: FloatArray
    links: tuple[LinkUse, ...]
    interface_queue_s: float
    interfaces: tuple[InterfaceUse, ...]
    of_memory: tuple[str, ...] = ()
    shared: tuple[SharedUse, ...] = ()
    slowed_s: float = 0.0

    def lines(self) -> list[str]:
        """Return the explanation as a few lines of text."""
        ops = [step for step in self.chain if step.kind in _OF_DEVICES]
        between = "waiting at barriers" if self.barriers else "hand-over"
        found = [
            f"makespan {time_text(self.makespan_s)} ({self.system_kind}), set by a chain of "
            f"{len(ops)} ops and {len(self.chain) - len(ops)} transfers",
            f"on the chain: compute {self._share(self.compute_s)}, "
            f"transfers {self._share(self.transfer_s)}"
            + (f", {between} {self._share(self.idle_s)}" if self.idle_s else ""),
            f"queueing on the chain: {self._queueing('device', self.device_queue_s)}; "
            f"{self._queueing('link', self.link_queue_s)}"
            + (
                f"; {self._queueing('interface', self.interface_queue_s)}"
                if self.interfaces
                else ""
            ),
            "devices busy: "
            + ", ".join(
                f"{name} {share:.0%}"
                for name, share in zip(self.device_names, self.device_utilisation, strict=True)
            ),
        ]
        found += [*self.of_memory, *self._on_chain(), *self._busiest(), *self._sharing()]
        longest = sorted(ops, key=lambda step: -step.seconds)[:3]
        found.append(
            "longest ops of the chain: "
            + ", ".join(f"{step.name} {time_text(step.seconds)} ({step.where})" for step in longest)
        )
        return found

    def _on_chain(self) -> list[str]:
        """The cost of memory: its tasks on the chain, and how often a task waited for room."""
        if not self.of_memory:
            return []
        seconds = sum(step.seconds for step in self.chain if step.kind not in ("op", "transfer"))
        num = sum(step.waited_for == "memory" for step in self.chain)
        return [f"memory on the chain: {self._share(seconds)}; {num} waited for room"]

    def _busiest(self) -> list[str]:
        """The three busiest links and network interfaces."""
        links = [
            f"{use.src} -> {use.dst} {use.utilisation:.0%} "
            f"({use.num_transfers} transfers, {bytes_text(use.bytes)})"
            for use in self.links[:3]
        ]
        interfaces = [
            f"host {use.host} {use.way} {use.utilisation:.0%} "
            f"({use.num_transfers} transfers, {bytes_text(use.bytes)})"
            for use in self.interfaces[:3]
        ]
        named = {"links": links, "network interfaces": interfaces}
        return [f"busiest {what}: {', '.join(uses)}" for what, uses in named.items() if uses]

    def _sharing(self) -> list[str]:
        """The cost of sharing, and how busy shared resources were."""
        if not self.shared:
            return []
        uses = ", ".join(f"{use.name} {use.utilisation:.0%}" for use in self.shared[:3])
        return [f"slowed down by others on the chain: {self._share(self.slowed_s)}; shared: {uses}"]

    def _share(self, seconds: float) -> str:
        return f"{time_text(seconds)} ({seconds / (self.makespan_s or 1.0):.0%})"

    def _queueing(self, resource: str, seconds: float) -> str:
        num = sum(step.waited_for == resource for step in self.chain)
        behind = f", behind {self._share(seconds)} of others" if num else ""
        return f"{num} waited for a busy {resource}{behind}"


def explain(trace: Trace) -> Explanation:
    """Explain the makespan by its critical chain, and by how busy devices and links were.

    The chain is followed backward from the op that finishes last. If data and a free device came at
    the same instant, the data is followed.

    Args:
        trace: of the execution.
    """
    chain = _critical_chain(trace)
    before = list(pairwise(chain))
    compute_s = sum(step.seconds for step in chain if step.kind in _OF_DEVICES)
    transfer_s = sum(step.seconds for step in chain if step.kind in _OF_LINKS)
    gaps = [max(0.0, step.start_s - earlier.finish_s) for earlier, step in before]
    return Explanation(
        makespan_s=trace.makespan_s,
        system_kind=trace.system_kind,
        barriers=trace.rules.barriers,
        chain=tuple(chain),
        compute_s=compute_s,
        transfer_s=transfer_s,
        idle_s=chain[0].start_s + sum(gaps),
        device_queue_s=sum(e.seconds for e, step in before if step.waited_for == "device"),
        link_queue_s=sum(e.seconds for e, step in before if step.waited_for == "link"),
        interface_queue_s=sum(e.seconds for e, step in before if step.waited_for == "interface"),
        device_names=tuple(device.name for device in trace.problem.cluster.devices),
        device_utilisation=_device_utilisation(trace),
        links=links_used(trace),
        interfaces=interfaces_used(trace),
        of_memory=tuple(memory_lines(trace)),
        shared=shared_used(trace),
        slowed_s=_slowed_s(trace, chain),
    )


def _slowed_s(trace: Trace, chain: list[Step]) -> float:
    """How much longer the tasks of the chain took than they would alone."""
    if not trace.rules.shared:
        return 0.0
    tasks, first = fluid_tasks(trace), {"op": 0, "transfer": trace.problem.num_ops}
    return sum(tasks[first[step.kind] + step.id].slowed_s for step in chain)


def compare(trace_a: Trace, trace_b: Trace) -> list[str]:
    """Describe how the placement of ``trace_b`` differs from that of ``trace_a``, as lines of text.

    Args:
        trace_a: of one execution.
        trace_b: of another execution of the same problem.

    Raises:
        InputError: the traces are of different problems.
    """
    problem = trace_a.problem
    if problem.hash != trace_b.problem.hash:
        raise InputError(
            f"traces of two problems cannot be compared: {problem.hash} and {trace_b.problem.hash}"
        )
    a_V, b_V = trace_a.placement.device, trace_b.placement.device
    moved = np.flatnonzero(a_V != b_V)
    change = trace_b.makespan_s / trace_a.makespan_s - 1.0 if trace_a.makespan_s else 0.0
    found = [
        f"makespan {time_text(trace_a.makespan_s)} -> {time_text(trace_b.makespan_s)} "
        f"({change:+.1%})",
        f"ops on another device: {len(moved)} of {problem.num_ops}",
        f"bytes moved: {bytes_text(_moved_bytes(trace_a))} -> {bytes_text(_moved_bytes(trace_b))} "
        f"in {trace_a.num_transfers} -> {trace_b.num_transfers} transfers",
        "devices busy: "
        + ", ".join(
            f"{device.name} {a:.0%} -> {b:.0%}"
            for device, a, b in zip(
                problem.cluster.devices,
                _device_utilisation(trace_a),
                _device_utilisation(trace_b),
                strict=True,
            )
        ),
    ]
    if len(moved):
        names, seconds_V = problem.graph.ops.names, problem.mean_op_seconds
        largest = moved[np.argsort(-seconds_V[moved], kind="stable")][:5]
        texts = [
            f"{names[v]} ({time_text(float(seconds_V[v]))}) {a_V[v]} -> {b_V[v]}" for v in largest
        ]
        found.append("largest ops among them: " + ", ".join(texts))
    return found


def _moved_bytes(trace: Trace) -> float:
    return float(trace.problem.graph.regions.bytes[trace.transfer_region].sum())


def _device_utilisation(trace: Trace) -> FloatArray:
    device, _, start_s, finish_s = trace.on_devices()
    busy_D = np.bincount(device, finish_s - start_s, trace.problem.num_devices)
    return busy_D / ((trace.makespan_s or 1.0) * trace.rules.streams)


def _critical_chain(trace: Trace) -> list[Step]:
    causes = Causes(trace)
    steps, seen = [], set()
    task = int(trace.op_finish_s.argmax())
    # Measured times may disagree slightly; a task that appears again ends the walk.
    while task >= 0 and task not in seen:
        seen.add(task)
        waited_for, before = causes.of(task)
        steps.append(causes.step(task, waited_for))
        task = before
    return steps[::-1]
