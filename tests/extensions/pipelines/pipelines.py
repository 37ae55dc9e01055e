"""Pipelines for tests, and a second, slow account of what a schedule takes."""

import numpy as np

from doppler.cluster import preset
from doppler.extensions.pipelines import Action, Orders, TrainingPipeline, graph_of
from doppler.problem import Problem, build


def pipeline_of(
    seconds,
    microbatches: int,
    *,
    devices: int | None = None,
    arrangement="loop",
    activation=1.0,
    left=0.4,
    transfer=0.0,
    fused=False,
) -> TrainingPipeline:
    """F, I and W of a stage take the same."""
    seconds_S = np.array(seconds, dtype=float)
    num = len(seconds_S)
    return TrainingPipeline(
        forward_s=seconds_S,
        input_grad_s=2 * seconds_S if fused else seconds_S,
        weight_grad_s=None if fused else seconds_S,
        transfer_s=np.full(num - 1, transfer),
        activation_bytes=np.full(num, activation),
        weight_grad_bytes=np.full(num, 0.0 if fused else left),
        microbatches=microbatches,
        arrangement=arrangement,
        speed=np.ones(devices or num),
    )


def problem_of(pipeline: TrainingPipeline, memory_bytes: float | None = None) -> Problem:
    cluster = preset(name="identical", num_devices=pipeline.num_devices, memory_bytes=memory_bytes)
    return build(graph_of(pipeline), cluster)


def plain_account(pipeline: TrainingPipeline, orders: Orders) -> tuple[float, list[float]]:
    """Makespan and peaks, action by action: what is done when, what is held at every instant."""
    device = {action.stage: d for d, order in enumerate(orders) for action in order}
    fused = {(a.stage, a.microbatch) for order in orders for a in order if a.kind == "B"}
    weight_s = pipeline.weight_grad_s
    seconds = {
        "F": pipeline.forward_s,
        "I": pipeline.input_grad_s,
        "W": weight_s,
        "B": pipeline.backward_s,
    }
    start, end = {}, {}

    def back(stage, m):
        return (stage, "B" if (stage, m) in fused else "I", m)

    def ready(action):
        stage, kind, m = action
        needed = {
            "F": [(stage - 1, "F", m)] if stage else [],
            "W": [(stage, "I", m)],
        }.get(kind)
        if needed is None:
            needed = [(stage, "F", m)]
            if stage + 1 < pipeline.num_stages:
                needed.append(back(stage + 1, m))
        if any(one not in end for one in needed):
            return None
        return max(
            (
                end[one]
                + (
                    pipeline.transfer_s[min(one[0], stage)]
                    if device[one[0]] != device[stage]
                    else 0.0
                )
                for one in needed
            ),
            default=0.0,
        )

    position, free = [0] * len(orders), [0.0] * len(orders)
    while any(position[d] < len(order) for d, order in enumerate(orders)):
        before = list(position)
        for d, order in enumerate(orders):
            while position[d] < len(order) and (at := ready(order[position[d]])) is not None:
                action = order[position[d]]
                start[action] = max(at, free[d])
                took = seconds[action.kind][action.stage] / pipeline.speed[d]
                end[action] = free[d] = start[action] + took
                position[d] += 1
        assert position != before, "the orders wait for each other"
    peaks = []
    for order in orders:
        changes = []
        for action in order:
            held = pipeline.activation_bytes[action.stage]
            left = pipeline.weight_grad_bytes[action.stage]
            if action.kind == "F":
                changes.append((start[action], 1, held))
            elif action.kind == "W":
                changes.append((end[action], 0, -left))
            else:
                kept = left if action.kind == "I" else 0.0
                changes.append((end[action], 0, kept - held))
        total, peak = 0.0, 0.0
        for *_, change in sorted(changes, key=lambda one: (round(one[0], 9), one[1])):
            total += change
            peak = max(peak, total)
        peaks.append(peak)
    return max(end.values()), peaks


def random_orders(pipeline, device_S, rng):
    """Each device does any of what could be done next, were all others as far as they are."""
    num, microbatches = pipeline.num_stages, pipeline.microbatches
    done, orders = set(), [[] for _ in range(pipeline.num_devices)]
    kinds = "FB" if pipeline.weight_grad_s is None else "FIW"
    left = {Action(s, k, m) for s in range(num) for k in kinds for m in range(microbatches)}

    def needs(action):
        stage, kind, m = action
        if kind == "F":
            return [Action(stage - 1, "F", m)] * (stage > 0)
        if kind == "W":
            return [Action(stage, "I", m)]
        return [Action(stage, "F", m), *([Action(stage + 1, kind, m)] * (stage + 1 < num))]

    while left:
        ready = sorted(one for one in left if done.issuperset(needs(one)))
        action = ready[rng.integers(len(ready))]
        left.remove(action)
        done.add(action)
        orders[device_S[action.stage]].append(action)
    return orders
