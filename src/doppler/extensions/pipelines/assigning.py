"""Assigns the stages of a pipeline to devices, if these are free, by a bound on the makespan.

Shape suffixes: S stages, D devices.
"""

import numpy as np
from numpy.typing import NDArray

from doppler.extensions.pipelines.stages import TrainingPipeline, arranged
from doppler.support.errors import InputError, unrounded

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def assignment_bound_s(
    pipeline: TrainingPipeline, device_S: IntArray, memory_D: FloatArray | None = None
) -> float:
    """Return a lower bound on the seconds of any schedule on given devices.

    A device waits for its first input, and then has all its work to do. If backwards are not
    divided into I and W, the backward from its first stage to stage 0 follows.

    With memory limits there are two more bounds. An activation is held from F to I; in between
    lie the way to the last stage and back. So if k microbatches fit at a time, the first one has
    come back before the (k + 1)-th begins. And the sum of all activations, each times how long it
    is held, is at most memory times seconds.

    Args:
        pipeline: its times, sizes and speeds.
        device_S: [S] device of each stage.
        memory_D: [D] bytes of each device; None: unlimited.
    """
    speed_S = pipeline.speed[device_S]
    forward_S = pipeline.forward_s / speed_S
    back_S = pipeline.backward_s / speed_S
    moved = (device_S[1:] != device_S[:-1]) * pipeline.transfer_s
    before_S = np.concatenate([[0.0], np.cumsum(forward_S[:-1] + moved)])
    after_S = np.concatenate([[0.0], np.cumsum(back_S[:-1] + moved)])
    load_S = pipeline.microbatches * (forward_S + back_S)
    worst = 0.0
    for d in np.unique(device_S):
        on = device_S == d
        tail = after_S[on].min() if pipeline.weight_grad_s is None else 0.0
        worst = max(worst, before_S[on].min() + load_S[on].sum() + tail)
    if memory_D is not None:
        input_S = pipeline.input_grad_s / speed_S
        way_S = np.cumsum((forward_S + input_S)[::-1])[::-1]
        way_S[:-1] += 2 * np.cumsum(moved[::-1])[::-1]
        worst = max(worst, _memory_bound_s(pipeline, device_S, memory_D, before_S, way_S))
    return float(worst)


def _memory_bound_s(
    pipeline: TrainingPipeline,
    device_S: IntArray,
    memory_D: FloatArray,
    before_S: FloatArray,
    way_S: FloatArray,
) -> float:
    """Return the bounds by memory of `assignment_bound_s`.

    ``way_S`` [S] are the seconds from the start of F to the end of I.
    """
    num, worst = pipeline.microbatches, 0.0
    held_S, left_S = pipeline.activation_bytes, pipeline.weight_grad_bytes
    area_S = held_S * way_S
    if pipeline.weight_grad_s is not None:
        area_S = area_S + left_S * pipeline.weight_grad_s / pipeline.speed[device_S]
    for d in np.unique(device_S):
        on, memory = device_S == d, memory_D[d]
        worst = max(worst, before_S[on].min() + num * area_S[on].sum() / memory)
        for s in np.flatnonzero(on & (held_S > 0)):
            at_a_time = max(1.0, np.floor(memory / held_S[s] * (1 + 1e-9)))
            worst = max(worst, before_S[s] + ((num - 1) // at_a_time + 1) * way_S[s])
    return worst


def good_assignments(
    pipeline: TrainingPipeline,
    memory_D: FloatArray,
    rng: np.random.Generator,
    *,
    most: int,
    restarts: int = 24,
) -> list[IntArray]:
    """Find devices of the stages with small lower bounds, by local search over moves and swaps.

    The search starts from loops, vs, contiguous and random assignments. Every device gets a stage,
    because torch runs nothing on a rank without one.

    Args:
        pipeline: its times, sizes and speeds.
        memory_D: [D] bytes of each device.
        rng: for random starts and the order of changes.
        most: largest number of assignments to return.
        restarts: number of random starts.

    Returns:
        Devices [S] of each assignment, smallest bound first; equal ones by how evenly devices are
        loaded, and then by the number of transfers.
    """
    num_stages, num_devices = pipeline.num_stages, pipeline.num_devices
    found: dict[tuple[int, ...], tuple[float, float, int]] = {}

    def cost(device_S: IntArray) -> tuple[float, float, int]:
        key = tuple(device_S.tolist())
        if key not in found:
            short = (pipeline.needed_bytes(device_S) > memory_D).any()
            empty = len(set(key)) < num_devices
            bound = assignment_bound_s(pipeline, device_S, memory_D)
            load_D = np.bincount(
                device_S, (pipeline.forward_s + pipeline.backward_s) / pipeline.speed[device_S]
            )
            found[key] = (
                np.inf if short or empty else bound,
                float((load_D**2).sum()),
                int((device_S[1:] != device_S[:-1]).sum()),
            )
        return found[key]

    starts = [arranged("loop", num_stages, num_devices), arranged("v", num_stages, num_devices)]
    starts.append(np.arange(num_stages) * num_devices // num_stages)
    starts += [rng.integers(num_devices, size=num_stages) for _ in range(restarts)]
    for start in starts:
        _descend(start.copy(), num_devices, cost, rng)
    ranked = sorted((one for one in found if np.isfinite(found[one][0])), key=found.__getitem__)
    return [np.array(one) for one in ranked[:most]]


def _descend(device_S: IntArray, num_devices: int, cost, rng: np.random.Generator) -> None:
    """Move or swap stages as long as that improves the cost."""
    best, num_stages, better = cost(device_S), len(device_S), True
    while better:
        better = False
        for s in rng.permutation(num_stages):
            for d in rng.permutation(num_devices):
                here = device_S[s]
                device_S[s] = d
                if cost(device_S) < best:
                    best, better = cost(device_S), True
                else:
                    device_S[s] = here
            for u in rng.permutation(num_stages):
                device_S[[s, u]] = device_S[[u, s]]
                if cost(device_S) < best:
                    best, better = cost(device_S), True
                else:
                    device_S[[s, u]] = device_S[[u, s]]


def check_room(pipeline: TrainingPipeline, memory_D: FloatArray) -> None:
    """Refuse memory in which no schedule fits, because one microbatch alone needs more.

    Args:
        pipeline: its sizes and arrangement.
        memory_D: [D] bytes of each device.

    Raises:
        InputError: says how much memory there is, and how much would fit.
    """
    device_S = pipeline.devices()
    if device_S is None:
        held_S = np.maximum(pipeline.activation_bytes, pipeline.weight_grad_bytes)
        device_S, left_D = np.zeros(pipeline.num_stages, np.int64), memory_D.astype(float)
        for s in np.argsort(-held_S, kind="stable"):  # largest first, to the device with most room
            device_S[s] = left_D.argmax()
            left_D[device_S[s]] -= held_S[s]
    need_D = pipeline.needed_bytes(device_S)
    short = np.flatnonzero(need_D > memory_D)
    if len(short) == 0:
        return
    if pipeline.arrangement == "free":
        if good_assignments(pipeline, memory_D, np.random.default_rng(0), most=1):
            return
        short = short[[need_D[short].argmax()]]
    d = int(short[0])
    raise InputError(
        f"cluster.memory_bytes: {memory_D[d]:g} on device {d} is too small for any schedule: one "
        f"microbatch takes {need_D[d]:g} there; {unrounded(need_D.max())} on every device would fit"
    )
