"""The workload pipeline_parallel, with numbers from the configuration, a file, or measurements."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from doppler.cluster import Cluster
from doppler.extensions.pipelines.assigning import check_room
from doppler.extensions.pipelines.profiles import STAGE_COLUMNS, read_profile, save_profile
from doppler.extensions.pipelines.stages import (
    ARRANGEMENTS,
    PipelineGraph,
    TrainingPipeline,
    graph_of,
)
from doppler.support.errors import InputError
from doppler.support.options import Amount, Count, FilePath, Positive, checked, one_of

FloatArray = NDArray[np.float64]
# One number for all stages or devices, or one number for each.
Amounts = Amount | Sequence[Amount]
Speeds = Positive | Sequence[Positive]

MAX_OPS = 200_000


@checked
def pipeline_parallel(
    *,
    cluster: Cluster,
    microbatches: Count,
    name: str = "pipeline",
    stages: Count | None = None,
    forward: Amounts = 1.0,
    input_grad: Amounts = 1.0,
    weight_grad: Amounts | None = 1.0,
    activation_bytes: Amounts = 1.0,
    weight_grad_bytes: Amounts = 0.0,
    transfer: Amounts = 0.0,
    stages_of_device: Annotated[str, one_of(ARRANGEMENTS)] = "loop",
    speed: Speeds = 1.0,
    profile: FilePath | None = None,
    module: FilePath | None = None,
    boundaries: Sequence[Count] | None = None,
) -> PipelineGraph:
    """Make the graph of a pipeline: stages that are trained on microbatches, as ops F, I and W.

    Args:
        cluster: where it will run: the number of devices, and their memory.
        microbatches: of one step.
        name: of the graph.
        stages: number of stages; None: the length of the lists, or the number of devices.
        forward: seconds of F, of all stages or of each.
        input_grad: seconds of I; of the whole backward B if ``weight_grad`` is None.
        weight_grad: seconds of W.
        activation_bytes: held from the start of F to the end of I, or of B.
        weight_grad_bytes: held from the end of I to the end of W.
        transfer: seconds between neighbouring stages on two devices: one number, or S - 1.
        stages_of_device: ``loop`` (0, 1, .., 0, 1, ..), ``v`` (0, 1, .., 1, 0, ..) or ``free``.
        speed: of all devices or of each; times are those on a device of speed 1.
        profile: file of stages (see `save_profile`) in place of the numbers of stages.
        module: ``FILE.py:function`` or ``package.module:function`` that returns an nn.Sequential of
            blocks and a microbatch. The blocks are divided into ``stages``, and each stage is timed
            on this machine. If ``profile`` is given, too, the result is saved there, and read from
            there the next time, if module and boundaries are the same.
        boundaries: first block of every stage but the first; None: blocks are balanced.

    Raises:
        InputError: lists have different lengths, a stage takes no time, there are more devices than
            stages, no schedule fits in memory, or a file is not a profile.
    """
    num_devices = cluster.num_devices
    columns: dict[str, object] = {
        "forward": forward,
        "input_grad": input_grad,
        "weight_grad": weight_grad,
        "activation_bytes": activation_bytes,
        "weight_grad_bytes": weight_grad_bytes,
    }
    if module is not None and (profile is None or not Path(profile).exists()):
        num_wanted = len(boundaries) + 1 if boundaries else stages or num_devices
        columns = _measure(module, num_wanted, boundaries, profile)
    elif profile is not None:
        columns, moving, notes = read_profile(profile)
        transfer = moving or transfer
        wanted = _notes(module, boundaries)
        if module is not None and notes[: len(wanted)] != wanted:
            raise InputError(
                f"{profile}: was not measured of {', '.join(wanted)}: it says "
                f"{', '.join(notes) or 'nothing'}; name another file, or delete it"
            )
    num = _num_stages(columns, stages, num_devices)
    values = {key: _each(key, value, num, "stages") for key, value in columns.items()}
    memory_D = np.array([device.memory_bytes for device in cluster.devices], dtype=np.float64)
    pipeline = TrainingPipeline(
        forward_s=values["forward"],
        input_grad_s=values["input_grad"],
        weight_grad_s=None if columns["weight_grad"] is None else values["weight_grad"],
        transfer_s=_each("transfer", transfer, num - 1, "boundaries between stages"),
        activation_bytes=values["activation_bytes"],
        weight_grad_bytes=values["weight_grad_bytes"] * (columns["weight_grad"] is not None),
        microbatches=microbatches,
        arrangement=stages_of_device,  # type: ignore[arg-type]
        speed=_each("speed", speed, num_devices, "devices"),
    )
    if num < num_devices:
        raise InputError(
            f"workload.stages: {num} stages are too few for {num_devices} devices; "
            f"cluster.num_devices={num} would fit"
        )
    if num * microbatches * 3 > MAX_OPS:
        raise InputError(
            f"workload.microbatches: {num} stages x {microbatches} are more than {MAX_OPS} ops; "
            f"at most {MAX_OPS // (3 * num)} would fit"
        )
    _check_time("forward", pipeline.forward_s)
    _check_time("input_grad and weight_grad", pipeline.backward_s)
    check_room(pipeline, memory_D)
    return graph_of(pipeline, name)


def _num_stages(columns: dict[str, object], stages: int | None, num_devices: int) -> int:
    lengths = {key: len(one) for key, one in columns.items() if isinstance(one, Sequence)}
    if stages is None:
        stages = max(lengths.values(), default=num_devices)
    for key, length in lengths.items():
        if length != stages:
            raise InputError(f"workload.{key}: {length} numbers for {stages} stages")
    return stages


def _each(key: str, value: object, num: int, what: str) -> FloatArray:
    """Return one number for each of ``num``."""
    if value is None:
        return np.zeros(num)
    array = np.array(value, dtype=np.float64)
    if array.ndim == 0:
        return np.full(num, float(array))
    if len(array) != num:
        raise InputError(f"workload.{key}: {len(array)} numbers for {num} {what}")
    return array


def _check_time(key: str, seconds_S: FloatArray) -> None:
    without = np.flatnonzero(seconds_S <= 0)
    if len(without):
        raise InputError(
            f"workload.{key}: stage {without[0]} takes no time; seconds above 0 would fit"
        )


def _notes(module: str | None, boundaries: Sequence[int] | None) -> list[str]:
    """What was measured, for the notes of its profile."""
    where = "balanced" if boundaries is None else " ".join(map(str, boundaries))
    return [str(module), f"boundaries: {where}"]


def _measure(
    module: str, stages: int, boundaries: Sequence[int] | None, path: str | None
) -> dict[str, object]:
    # Imported lazily: torch takes a second.
    from doppler.extensions.pipelines.splitting import profile_module

    profiles = profile_module(module, stages, boundaries)
    if path is not None:
        save_profile(profiles, path, notes=_notes(module, boundaries))
    return {
        column.removesuffix("_s"): [getattr(one, column) for one in profiles]
        for column in STAGE_COLUMNS
    }
