"""A pipeline: stages of a model that is trained on microbatches, as a graph of F, I and W.

F is the forward of a stage on a microbatch, I the gradient of its input, and W the gradient of its
weights. B is I and W in one op. Shape suffixes: S stages, M microbatches, D devices, V ops.
"""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from doppler.graph import DataflowGraph, Edges, GivenCosts, Inputs, Ops

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Arrangement = Literal["loop", "v", "free"]
ARRANGEMENTS: tuple[str, ...] = get_args(Arrangement)


class Action(NamedTuple):
    """An op of a pipeline.

    Attributes:
        stage: number of the stage.
        kind: F, I, W or B.
        microbatch: number of the microbatch.
    """

    stage: int
    kind: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


# For each device, its actions in order.
Orders = list[list[Action]]


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainingPipeline:
    """Times and sizes of the stages of a pipeline.

    Attributes:
        forward_s: [S] seconds of F on a device of speed 1.
        input_grad_s: [S] seconds of I on a device of speed 1; of B if ``weight_grad_s`` is None.
        weight_grad_s: [S] seconds of W on a device of speed 1; None: backwards are not divided.
        transfer_s: [S - 1] seconds between neighbouring stages on two devices.
        activation_bytes: [S] held from the start of F to the end of I (or B).
        weight_grad_bytes: [S] held from the end of I to the end of W.
        microbatches: M.
        arrangement: devices of the stages: ``loop`` (0, 1, .., 0, 1, ..), ``v`` (0, 1, .., 1, 0,
            ..) or ``free`` (any).
        speed: [D] relative speed of the devices.
    """

    forward_s: FloatArray
    input_grad_s: FloatArray
    weight_grad_s: FloatArray | None
    transfer_s: FloatArray
    activation_bytes: FloatArray
    weight_grad_bytes: FloatArray
    microbatches: int
    arrangement: Arrangement
    speed: FloatArray

    @property
    def num_stages(self) -> int:
        """Number of stages, S."""
        return len(self.forward_s)

    @property
    def num_devices(self) -> int:
        """Number of devices, D."""
        return len(self.speed)

    @property
    def backward_s(self) -> FloatArray:
        """Seconds [S] of I and W together."""
        return self.input_grad_s + (0.0 if self.weight_grad_s is None else self.weight_grad_s)

    def devices(self) -> IntArray | None:
        """Return the device of every stage [S]; None if they are free."""
        return (
            None
            if self.arrangement == "free"
            else arranged(self.arrangement, self.num_stages, self.num_devices)
        )

    def needed_bytes(self, device_S: IntArray) -> FloatArray:
        """Return the bytes [D] that one microbatch alone takes: a minimum for every schedule.

        Args:
            device_S: [S] device of every stage.
        """
        need_D = np.zeros(self.num_devices)
        for d in range(self.num_devices):
            held = self.activation_bytes[device_S == d]
            left = self.weight_grad_bytes[device_S == d]
            before = np.concatenate([[0.0], np.cumsum(held)[:-1]]) if len(held) else held
            # I of the last stage comes first, while the activations of all earlier stages are held.
            need_D[d] = max([held.sum(), *(before + np.maximum(held, left))])
        return need_D


def arranged(arrangement: str, num_stages: int, num_devices: int) -> IntArray:
    """Return the device of every stage [S].

    Args:
        arrangement: ``loop`` (in turns) or ``v`` (back and forth).
        num_stages: S.
        num_devices: D.
    """
    turn, place = np.divmod(np.arange(num_stages), num_devices)
    back = (arrangement == "v") & (turn % 2 == 1)
    return np.where(back, num_devices - 1 - place, place)


@dataclass(frozen=True, eq=False, kw_only=True)
class PipelineGraph(DataflowGraph):
    """The graph of a pipeline.

    Attributes:
        pipeline: that the graph was made of.
        fused: [S, M] whether I and W are one op, B.
    """

    pipeline: TrainingPipeline
    fused: NDArray[np.bool_]

    @property
    def actions(self) -> list[Action]:
        """The action of each op [V]."""
        nodes, blocks = self.ops.node.tolist(), self.ops.block.tolist()
        return [Action(*one) for one in zip(nodes, self.ops.kinds, blocks, strict=True)]


def graph_of(
    pipeline: TrainingPipeline, name: str = "pipeline", fused: NDArray[np.bool_] | None = None
) -> PipelineGraph:
    """Return the graph of a pipeline.

    What W needs is the part of the activation that stays after I. If it is larger than the
    activation, I makes the rest, which is held from the start of I.

    Args:
        pipeline: to make a graph of.
        name: of the graph.
        fused: [S, M] which backwards are B; None: all if the pipeline does not divide backwards,
            otherwise none.
    """
    num_stages, num = pipeline.num_stages, pipeline.microbatches
    if fused is None:
        fused = np.full((num_stages, num), pipeline.weight_grad_s is None)
    actions = [
        Action(s, kind, m)
        for s in range(num_stages)
        for m in range(num)
        for kind in ("FB" if fused[s, m] else "FIW")
    ]
    index = {action: v for v, action in enumerate(actions)}
    seconds = _seconds(pipeline)
    edges = _edges(pipeline, fused)
    stage_V = np.array([action.stage for action in actions])
    device_S = pipeline.devices()
    return PipelineGraph(
        name=name,
        ops=Ops.make(
            flops=np.zeros(len(actions)),
            names=[str(action) for action in actions],
            kinds=[action.kind for action in actions],
            node=stage_V,
            block=[action.microbatch for action in actions],
            group=stage_V,
            pinned=None if device_S is None else device_S[stage_V],
        ),
        edges=Edges.make(
            src=[index[src] for src, *_ in edges],
            dst=[index[dst] for _, dst, *_ in edges],
            region=[region for *_, region, _, _ in edges],
            bytes=[held for *_, held, _ in edges],
        ),
        inputs=Inputs.make(),
        given_costs=GivenCosts.make(
            op_seconds=_by_speed([seconds[one.kind][one.stage] for one in actions], pipeline.speed),
            transfer_seconds=[moving for *_, moving in edges],
            counts_memory=True,
        ),
        pipeline=pipeline,
        fused=fused,
    )


def _seconds(pipeline: TrainingPipeline) -> dict[str, FloatArray]:
    weight_s = pipeline.weight_grad_s
    return {
        "F": pipeline.forward_s,
        "I": pipeline.input_grad_s,
        "W": np.zeros(pipeline.num_stages) if weight_s is None else weight_s,
        "B": pipeline.backward_s,
    }


def _by_speed(seconds_V: list[float], speed_D: FloatArray) -> FloatArray:
    """Return seconds [V], or [V, D] if devices differ."""
    if (speed_D == 1.0).all():
        return np.array(seconds_V)
    return np.array(seconds_V)[:, None] / speed_D


def _edges(
    pipeline: TrainingPipeline, fused: NDArray[np.bool_]
) -> list[tuple[Action, Action, int, float, float]]:
    """Return, for each edge, source, destination, region, held bytes and seconds of the transfer.

    Region 0 goes to the neighbouring stage, region 1 is what I or B reads, and region 2 is the part
    of the activation that W reads. What I makes for W is region 1 of I.
    """
    found = []
    held_S, left_S = _exact(pipeline.activation_bytes, pipeline.weight_grad_bytes)
    for s in range(pipeline.num_stages):
        held, left = held_S[s], left_S[s]
        kept = min(held, left)
        for m in range(pipeline.microbatches):
            forward, back = Action(s, "F", m), Action(s, "B" if fused[s, m] else "I", m)
            if s + 1 < pipeline.num_stages:
                seconds = float(pipeline.transfer_s[s])
                after = Action(s + 1, "B" if fused[s + 1, m] else "I", m)
                found.append((forward, Action(s + 1, "F", m), 0, 0.0, seconds))
                found.append((after, back, 0, 0.0, seconds))
            if fused[s, m]:
                found.append((forward, back, 1, held, 0.0))
            else:
                weights = Action(s, "W", m)
                found.append((forward, back, 1, held - kept, 0.0))
                found.append((back, weights, 1, left - kept, 0.0))
                if kept > 0.0:
                    found.append((forward, weights, 2, kept, 0.0))
    return found


def _exact(held_S: FloatArray, left_S: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Round bytes down to multiples of a power of two, by at most a billionth.

    Otherwise rounding errors could make ten times 0.4 larger than 4, so that it would not fit.
    """
    both = np.stack([held_S, left_S])
    if (both == np.rint(both)).all():
        return held_S, left_S
    quantum = 2.0 ** (np.ceil(np.log2(both.max())) - 30)
    return tuple(np.floor(both / quantum) * quantum)  # type: ignore[return-value]


def with_stages_divided(
    pipeline: TrainingPipeline, parts: int, arrangement: Arrangement
) -> TrainingPipeline:
    """Divide each stage into several of equal times and sizes.

    Args:
        pipeline: whose stages are divided.
        parts: number of stages for each stage.
        arrangement: of the new stages.
    """

    def divided(values: FloatArray) -> FloatArray:
        return np.repeat(values / parts, parts)

    weight_s, num = pipeline.weight_grad_s, pipeline.num_stages * parts
    transfer_s = np.full(num - 1, pipeline.transfer_s.mean() if num > parts else 0.0)
    return replace(
        pipeline,
        forward_s=divided(pipeline.forward_s),
        input_grad_s=divided(pipeline.input_grad_s),
        weight_grad_s=None if weight_s is None else divided(weight_s),
        transfer_s=transfer_s,
        activation_bytes=divided(pipeline.activation_bytes),
        weight_grad_bytes=divided(pipeline.weight_grad_bytes),
        arrangement=arrangement,
    )
