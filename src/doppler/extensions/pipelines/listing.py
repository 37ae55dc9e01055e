"""List scheduling of a pipeline on given devices, within memory limits.

Shape suffixes: S stages, D devices.
"""

import heapq
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.extensions.pipelines.stages import Action, Orders, TrainingPipeline

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class Manner(NamedTuple):
    """The rule that chooses among the actions that can start.

    Attributes:
        deep: forwards of later stages come before those of earlier stages.
        patience: W does not start if I or F will be ready within this many times its seconds.
        ahead: share of the memory that forwards of a device's first stage may fill.
    """

    deep: bool
    patience: float
    ahead: float


class Listed(NamedTuple):
    """A list schedule.

    Attributes:
        seconds: when it ends if transfers do not wait for each other.
        orders: what each device does, in order.
    """

    seconds: float
    orders: Orders


MANNERS = [
    Manner(deep, patience, ahead)
    for deep in (True, False)
    for patience in (0.0, 0.5, 1.0)
    for ahead in (1.0, 0.75)
]


def list_schedule(
    pipeline: TrainingPipeline, device_S: IntArray, memory_D: FloatArray, manner: Manner
) -> Listed | None:
    """Simulate devices that always start an action if they can.

    I comes before F, and F before W; older microbatches come first. A forward starts only if it
    leaves room for one microbatch on every later stage of its device, so that every microbatch that
    has begun can end.

    Args:
        pipeline: its times, sizes and speeds.
        device_S: [S] device of every stage.
        memory_D: [D] bytes of each device.
        manner: chooses among the actions that can start.

    Returns:
        The schedule, or None if it got stuck.

    Source: the greedy rule of Qi, Wan, Huang, Lin, "Zero Bubble Pipeline Parallelism", ICLR 2024,
    extended to any times, sizes, and stages per device.
    """
    return _Listing(pipeline, device_S, memory_D, manner).run()


class _Listing:
    """The state of a list schedule under construction."""

    def __init__(
        self, pipeline: TrainingPipeline, device_S: IntArray, memory_D: FloatArray, manner: Manner
    ) -> None:
        self.pipeline, self.manner = pipeline, manner
        self.device = device_S.tolist()
        num = pipeline.num_stages
        self.stages: list[list[int]] = [
            np.flatnonzero(device_S == d).tolist() for d in range(pipeline.num_devices)
        ]
        self.memory, self.used = memory_D.tolist(), [0.0] * pipeline.num_devices
        # Room that a forward needs on its device: for its microbatch on this and all later stages.
        self.needed = [
            float(pipeline.needed_bytes(np.where(np.arange(num) >= s, device_S, -1))[d])
            for s, d in enumerate(self.device)
        ]
        self.done = {kind: [0] * num for kind in "FIW"}
        self.arrive: dict[str, list[list[float]]] = {
            "F": [[] for _ in range(num)],
            "I": [[] for _ in range(num)],
        }
        self.arrive["F"][0] = [0.0] * pipeline.microbatches
        self.orders: Orders = [[] for _ in self.stages]
        self.fused = pipeline.weight_grad_s is None

    def seconds(self, kind: str, stage: int) -> float:
        pipeline = self.pipeline
        weight_s = pipeline.weight_grad_s
        of_kind = {"F": pipeline.forward_s, "I": pipeline.input_grad_s, "W": weight_s}[kind]
        assert of_kind is not None, "no W where backwards are fused"
        return float(of_kind[stage] / pipeline.speed[self.device[stage]])

    def run(self) -> Listed | None:
        # (time, device): the device is free, or an input of it arrives.
        events = [(0.0, d) for d in range(len(self.stages))]
        busy_until = [0.0] * len(self.stages)
        heapq.heapify(events)
        while events:
            now, d = heapq.heappop(events)
            if busy_until[d] > now:
                continue
            chosen = self._choose(d, now)
            if chosen is None:
                continue
            kind, stage = chosen
            end = now + self.seconds(kind, stage)
            busy_until[d] = end
            for at, other in self._do(d, kind, stage, end):
                heapq.heappush(events, (at, other))
            heapq.heappush(events, (end, d))
        total = sum(len(order) for order in self.orders)
        per_microbatch = self.pipeline.num_stages * (2 if self.fused else 3)
        if total < per_microbatch * self.pipeline.microbatches:
            return None
        return Listed(max(busy_until), self.orders)

    def _choose(self, d: int, now: float) -> tuple[str, int] | None:
        """Return kind and stage of the action that device d starts now; None: it waits."""
        ready_i = [
            (self.done["I"][s], s)
            for s in self.stages[d]
            if self._ready("I", s, now)
            and self.used[d] + self._late(s) <= self.memory[d] * (1 + 1e-12)
        ]
        if ready_i:
            return "I", min(ready_i)[1]
        ready_f = [s for s in self.stages[d] if self._ready("F", s, now) and self._has_room(d, s)]
        if ready_f:
            return "F", max(ready_f) if self.manner.deep else min(ready_f)
        if self.fused:
            return None
        pending = [
            (self.done["W"][s], s) for s in self.stages[d] if self.done["W"][s] < self.done["I"][s]
        ]
        if not pending:
            return None
        stage = min(pending)[1]
        patience = self.manner.patience * self.seconds("W", stage)
        if patience and self._comes_before(d, now, now + patience):
            return None
        return "W", stage

    def _late(self, s: int) -> float:
        """Return the bytes that I of a stage needs in addition to the activation."""
        pipeline = self.pipeline
        return max(0.0, float(pipeline.weight_grad_bytes[s] - pipeline.activation_bytes[s]))

    def _ready(self, kind: str, s: int, now: float) -> bool:
        at = self.arrive[kind][s]
        number = self.done[kind][s]
        return number < len(at) and at[number] <= now

    def _has_room(self, d: int, s: int) -> bool:
        """Whether a forward of stage s fits, and leaves the room that later stages need."""
        first = s == self.stages[d][0]
        limit = self.memory[d] * (self.manner.ahead if first and self.used[d] > 0 else 1.0)
        return self.used[d] + self.needed[s] <= limit * (1 + 1e-12)

    def _comes_before(self, d: int, now: float, until: float) -> bool:
        """Whether I or F that could start will be ready in time to wait for it."""
        for kind in "IF":
            for s in self.stages[d]:
                at, number = self.arrive[kind][s], self.done[kind][s]
                if number < len(at) and now < at[number] < until:
                    return kind == "I" or self._has_room(d, s)
        return False

    def _do(self, d: int, kind: str, s: int, end: float) -> list[tuple[float, int]]:
        """Record an action, and return what it makes ready: times and devices."""
        pipeline = self.pipeline
        number = self.done[kind][s]
        self.done[kind][s] += 1
        shown = "B" if kind == "I" and self.fused else kind
        self.orders[d].append(Action(s, shown, number))
        woken = []
        if kind == "F":
            self.used[d] += float(pipeline.activation_bytes[s])
            if s + 1 < pipeline.num_stages:
                woken.append(("F", s + 1, s))
            else:
                self.arrive["I"][s].append(end)
        elif kind == "I":
            # Freed at its end; until then the device does nothing else.
            left = 0.0 if self.fused else float(pipeline.weight_grad_bytes[s])
            self.used[d] += left - float(pipeline.activation_bytes[s])
            if s > 0:
                woken.append(("I", s - 1, s - 1))
        else:
            self.used[d] -= float(pipeline.weight_grad_bytes[s])
        events = []
        for what, stage, boundary in woken:
            there = self.device[stage]
            at = end + (0.0 if there == d else float(pipeline.transfer_s[boundary]))
            self.arrive[what][stage].append(at)
            events.append((at, there))
        return events
