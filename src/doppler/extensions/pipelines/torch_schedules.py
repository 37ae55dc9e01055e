"""Interface to torch.distributed.pipelining: orders of its schedules, and its runtime for ours.

Internal names of torch are used only in this file; tests check them against the installed version.
"""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from doppler.extensions.pipelines.orders import renumbered
from doppler.extensions.pipelines.schedule_files import FileOrders, work_of
from doppler.extensions.pipelines.stages import Action, Arrangement, Orders, TrainingPipeline
from doppler.support.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed.pipelining import PipelineStage

# For each schedule, the arrangement of its stages, and the range of stages per device.
SCHEDULES: dict[str, tuple[Arrangement, tuple[int, int]]] = {
    "GPipe": ("loop", (1, 1)),
    "1F1B": ("loop", (1, 1)),
    "Interleaved1F1B": ("loop", (2, 1000)),
    "InterleavedZeroBubble": ("loop", (1, 1000)),
    "ZBVZeroBubble": ("v", (2, 2)),
    "DualPipeV": ("v", (2, 2)),
}


def schedules_for(pipeline: TrainingPipeline) -> dict[str, Orders]:
    """Return the orders of torch's schedules that suit a pipeline, by name.

    With one stage on each device, loop and v are the same. Schedules that need another number of
    microbatches are left out. If the pipeline does not divide backwards, I becomes B.

    Args:
        pipeline: its stages, microbatches, devices and arrangement.
    """
    per_device, rest = divmod(pipeline.num_stages, pipeline.num_devices)
    found = {}
    for name, (arrangement, (least, most)) in SCHEDULES.items():
        alike = per_device == 1 or pipeline.arrangement in ("free", arrangement)
        if rest or not alike or not least <= per_device <= most:
            continue
        try:
            orders = orders_of_schedule(
                name, pipeline.num_stages, pipeline.num_devices, pipeline.microbatches
            )
        except InputError:
            continue
        if pipeline.weight_grad_s is None:
            orders = _fused(orders)
        found[name] = orders
    return found


def orders_of_schedule(name: str, num_stages: int, num_devices: int, microbatches: int) -> Orders:
    """Return what each rank does in one of torch's schedules.

    Args:
        name: of the schedule.
        num_stages: of the pipeline.
        num_devices: number of ranks.
        microbatches: of a step.

    Raises:
        InputError: torch has no such schedule, or none for these numbers.
    """
    from torch.distributed.pipelining.schedules import (
        PipelineScheduleSingle,
        get_schedule_class,
    )

    if name not in SCHEDULES:
        raise InputError(f"schedule: must be one of {', '.join(SCHEDULES)}, got {name!r}")
    per_device = num_stages // num_devices
    made: Any = get_schedule_class(name)
    stages: Any = [
        SimpleNamespace(
            num_stages=num_stages,
            group_size=num_devices,
            group_rank=0,
            submod=None,
            stage_index=i,
            has_backward=True,
            is_first=False,
            is_last=False,
        )
        for i in range(per_device)
    ]
    if issubclass(made, PipelineScheduleSingle) and microbatches < num_devices:
        raise InputError(f"schedule {name}: torch needs {num_devices} microbatches at least")
    try:
        schedule = made(
            stages[0] if issubclass(made, PipelineScheduleSingle) else stages, microbatches
        )
    except (ValueError, AssertionError) as error:
        raise InputError(f"schedule {name}: {str(error).splitlines()[0]}") from None
    order: Any = schedule.pipeline_order
    orders = [
        [one for each in order[rank] for one in _actions(each)] for rank in range(num_devices)
    ]
    # Torch 2.13 numbers the forwards of 1F1B's last rank from 1.
    return [renumbered(one) for one in orders] if per_device == 1 else orders


def _actions(action: Any) -> list[Action]:
    """Convert an action of torch: overlapping ones in sequence, those without work to none."""
    if action is None:
        return []
    if action.sub_actions is not None:
        return [one for each in action.sub_actions for one in _actions(each)]
    kind = action.computation_type.value
    if kind not in ("F", "I", "W", "B"):
        return []
    return [Action(action.stage_index, kind, action.microbatch_index)]


def _fused(orders: Orders) -> Orders:
    """Replace every I by B, and leave W out."""
    return [
        [one._replace(kind="B") if one.kind == "I" else one for one in order if one.kind != "W"]
        for order in orders
    ]


def lowered(orders: Orders) -> list[list[str]]:
    """Return what the runtime does on each rank, sends and receives included, as torch writes it.

    Args:
        orders: the schedule.

    Raises:
        InputError: torch finds no order of sends and receives.
    """
    from torch.distributed.pipelining import schedules

    rank_of = {action.stage: rank for rank, order in enumerate(orders) for action in order}
    actions = _torch_actions(orders)
    # Torch removes lists that become empty, and expects none at the start.
    actions = {rank: list(row) for rank, row in actions.items() if row}
    try:
        done: Any = schedules._add_send_recv(actions, rank_of.__getitem__, len(rank_of))
    except (AssertionError, KeyError) as error:
        raise InputError(f"schedule: torch finds no order of sends and receives: {error}") from None
    return [[str(one) for one in done.get(rank, [])] for rank in range(len(orders))]


def _torch_actions(orders: Orders) -> dict[int, list[Any]]:
    """Return what is computed; for orders from a file, also which actions overlap."""
    from torch.distributed.pipelining.schedules import _Action

    if isinstance(orders, FileOrders):
        return _file_actions([[cell for cell in row if work_of(cell)] for row in orders.rows])
    return {
        rank: [_Action.from_str(str(action)) for action in order]
        for rank, order in enumerate(orders)
    }


def _file_actions(rows: Sequence[Sequence[str]]) -> dict[int, list[Any]]:
    from torch.distributed.pipelining.schedules import _Action

    return {rank: [_Action.from_str(cell) for cell in row] for rank, row in enumerate(rows)}


def runtime(
    stages: "Sequence[PipelineStage]",
    orders: Orders,
    num_microbatches: int,
    loss_fn: "Callable[..., Tensor] | None",
    **options: Any,
) -> Any:
    """Make torch's runtime for given orders, which `schedule` has checked.

    Args:
        stages: of this rank.
        orders: the schedule.
        num_microbatches: of the schedule.
        loss_fn: called with the output and the target of a microbatch.
        options: passed on to the runtime.
    """
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    made = _PipelineScheduleRuntime(list(stages), num_microbatches, loss_fn=loss_fn, **options)
    if isinstance(orders, FileOrders) and orders.has_messages:
        made._prepare_schedule_with_comms(_file_actions(orders.rows), format="compute_comms")
        return made
    made.pipeline_order = _torch_actions(orders)
    made._prepare_schedule_with_comms(made.pipeline_order)
    return made


def input_gradient(outputs: Any, grads: Any, inputs: Any, weights: Any) -> tuple[Any, Any]:
    """Do I of a stage as torch's runtime does it.

    Args:
        outputs: of the stage.
        grads: of the outputs; None for a loss.
        inputs: of the stage.
        weights: of the stage.

    Returns:
        Gradients of the inputs, and what `weight_gradient` needs.
    """
    from torch.distributed.pipelining._backward import stage_backward_input

    return stage_backward_input(outputs, grads, inputs, weights)


def weight_gradient(weights: Any, groups: Any) -> Any:
    """Do W of a stage as torch's runtime does it.

    Args:
        weights: of the stage.
        groups: as `input_gradient` returned them.
    """
    from torch.distributed.pipelining._backward import stage_backward_weight

    return stage_backward_weight(weights, groups)
