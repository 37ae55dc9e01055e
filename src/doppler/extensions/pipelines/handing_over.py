"""Hands schedules to torch: checks that they cannot deadlock, and makes torch's runtime."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doppler.extensions.pipelines.schedule_files import (
    FileOrders,
    check_messages,
    check_rows,
    load_orders,
)
from doppler.extensions.pipelines.stages import Action, Orders
from doppler.extensions.pipelines.torch_schedules import lowered, runtime
from doppler.support.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed.pipelining import PipelineStage


def schedule(
    stages: "Sequence[PipelineStage]",
    orders: Orders | str | Path,
    num_microbatches: int,
    loss_fn: "Callable[..., Tensor] | None" = None,
    **options: Any,
) -> Any:
    """Return a ``_PipelineScheduleRuntime`` of torch.distributed.pipelining; call its ``step``.

    Args:
        stages: of this rank, as the schedule has them (`stages_of_rank`).
        orders: the schedule, or the path of a file that this package or torch wrote.
        num_microbatches: of the schedule.
        loss_fn: called with the output and the target of a microbatch.
        options: passed on to the runtime (``scale_grads``, chunk specs).

    Raises:
        InputError: the schedule is incomplete, has a deadlock, or has other stages or ranks.
    """
    found = load_orders(orders) if isinstance(orders, str | Path) else orders
    check_orders(found, num_microbatches)
    if not stages:
        raise InputError("stages: this rank has none, and torch runs nothing there")
    ranks, rank = stages[0].group_size, stages[0].group_rank
    if len(found) != ranks:
        raise InputError(f"schedule: has {len(found)} ranks, the process group {ranks}")
    given = sorted(stage.stage_index for stage in stages)
    if given != stages_of_rank(found, rank):
        raise InputError(
            f"schedule: rank {rank} has stages {stages_of_rank(found, rank)}, not {given}"
        )
    return runtime(stages, found, num_microbatches, loss_fn, **options)


def stages_of_rank(orders: Orders, rank: int) -> list[int]:
    """Return the stages of a rank in ascending order.

    Args:
        orders: the schedule.
        rank: whose stages are wanted.
    """
    return sorted({action.stage for action in orders[rank]})


def check_orders(orders: Orders, num_microbatches: int | None = None) -> None:
    """Refuse a schedule that torch's runtime would not finish.

    Every rank has a stage, and every stage is on one rank. A stage does F, then B or I and W,
    once for every microbatch. The forwards of the last stage are in the order of microbatches,
    because torch keeps losses in a list. Neither the orders, nor the sends and receives that torch
    adds to them, wait for each other in a circle, even if each send and receive waits for its
    counterpart.

    Args:
        orders: the schedule.
        num_microbatches: that it has to have; None: as many as it has.

    Raises:
        InputError: says what is wrong.
    """
    _check_complete(orders, num_microbatches)
    _check_progress(orders)
    if isinstance(orders, FileOrders) and orders.has_messages:
        check_messages(orders.rows)
        check_rows(orders.rows)
    else:
        check_messages(lowered(orders))


def _check_complete(orders: Orders, num_microbatches: int | None) -> None:
    rank_of: dict[int, int] = {}
    seen: Counter[Action] = Counter()
    for rank, order in enumerate(orders):
        if not order:
            raise InputError(f"schedule: rank {rank} has no stage, and torch runs nothing there")
        for action in order:
            if rank_of.setdefault(action.stage, rank) != rank:
                raise InputError(
                    f"schedule: stage {action.stage} is on ranks {rank_of[action.stage]} and {rank}"
                )
            if action.kind not in ("F", "I", "W", "B"):
                raise InputError(f"schedule: rank {rank}: {action} is not an action")
            seen[action] += 1
            if seen[action] > 1:
                raise InputError(f"schedule: rank {rank}: {action} is there twice")
    if not rank_of:
        raise InputError("schedule: is empty")
    num_stages = 1 + max(rank_of)
    num = num_microbatches or 1 + max(action.microbatch for action in seen)
    for stage in range(num_stages):
        for m in range(num):
            kinds = "".join(kind for kind in "FIWB" if Action(stage, kind, m) in seen)
            if kinds not in ("FIW", "FB"):
                raise InputError(
                    f"schedule: stage {stage}, microbatch {m}: does {kinds or 'nothing'}, "
                    "not F, I, W or F, B"
                )
    last = [
        one.microbatch
        for one in orders[rank_of[num_stages - 1]]
        if one.kind == "F" and one.stage == num_stages - 1
    ]
    if last != sorted(last):
        raise InputError(
            "schedule: the forwards of the last stage are not in the order of microbatches, so "
            "torch would mix up their losses"
        )
    most = max(action.microbatch for action in seen)
    if most >= num:
        raise InputError(f"schedule: microbatch {most}, but there are {num}")


def needs(action: Action, num_stages: int, fused: set[tuple[int, int]]) -> list[Action]:
    """Return the actions that an action waits for: of its own stage and of the neighbour's.

    Args:
        action: that waits.
        num_stages: of the pipeline.
        fused: (stage, microbatch) of the backwards that are B.
    """
    stage, kind, m = action
    if kind == "F":
        return [Action(stage - 1, "F", m)] if stage else []
    if kind == "W":
        return [Action(stage, "I", m)]
    before = [Action(stage, "F", m)]
    if stage + 1 < num_stages:
        before.append(Action(stage + 1, "B" if (stage + 1, m) in fused else "I", m))
    return before


def _check_progress(orders: Orders) -> None:
    """Refuse orders with a deadlock, by letting each rank do its next action when it can."""
    num_stages = 1 + max(action.stage for order in orders for action in order)
    fused = {(one.stage, one.microbatch) for order in orders for one in order if one.kind == "B"}
    position, done, moved = [0] * len(orders), set(), True
    while moved:
        moved = False
        for rank, order in enumerate(orders):
            while position[rank] < len(order) and done.issuperset(
                needs(order[position[rank]], num_stages, fused)
            ):
                done.add(order[position[rank]])
                position[rank] += 1
                moved = True
    for rank, order in enumerate(orders):
        if position[rank] < len(order):
            waits = order[position[rank]]
            missing = next(one for one in needs(waits, num_stages, fused) if one not in done)
            raise InputError(
                f"schedule: waits for itself: rank {rank} stops before {waits}, which needs "
                f"{missing}"
            )
