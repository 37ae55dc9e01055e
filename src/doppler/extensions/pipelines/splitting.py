"""Divides a torch module into the stages of a pipeline, and times each stage on this machine.

Shape suffixes: S stages, K blocks.
"""

import itertools
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from doppler.extensions.modules.workload import make_module
from doppler.extensions.pipelines.profiles import STAGE_COLUMNS, StageProfile
from doppler.extensions.pipelines.torch_schedules import input_gradient, weight_gradient
from doppler.support.errors import InputError

Loss = Callable[[Tensor], Tensor]


def split(blocks: Iterable[nn.Module], boundaries: Sequence[int]) -> list[nn.Sequential]:
    """Divide blocks into stages of consecutive blocks.

    Args:
        blocks: of the model.
        boundaries: number of the first block of every stage but the first.

    Raises:
        InputError: the boundaries do not increase, or lie outside the blocks.
    """
    every = list(blocks)
    ends = [0, *boundaries, len(every)]
    if any(high <= low for low, high in itertools.pairwise(ends)):
        raise InputError(
            f"workload.boundaries: {list(boundaries)} do not divide {len(every)} blocks; rising "
            f"numbers from 1 to {len(every) - 1} would fit"
        )
    return [nn.Sequential(*every[low:high]) for low, high in itertools.pairwise(ends)]


def balanced(seconds_K: Sequence[float], num_stages: int) -> list[int]:
    """Return the boundaries that minimise the time of the slowest stage.

    Args:
        seconds_K: [K] seconds of each block.
        num_stages: number of stages.

    Raises:
        InputError: there are fewer blocks than stages.
    """
    num = len(seconds_K)
    if num < num_stages:
        raise InputError(f"workload.stages: {num} blocks make at most {num} stages")
    until = np.concatenate([[0.0], np.cumsum(seconds_K)])
    # best[k]: seconds of the slowest stage if the first k blocks are divided into as many stages as
    # the loop has reached, and the first block of each of these stages.
    best = [(float(until[k]), [0]) for k in range(num + 1)]
    for stage in range(1, num_stages):
        further = list(best)
        for k in range(stage + 1, num + 1):
            further[k] = min(
                (max(best[j][0], float(until[k] - until[j])), [*best[j][1], j])
                for j in range(stage, k)
            )
        best = further
    return best[num][1][1:]


def timed(
    stages: Sequence[nn.Module], example: Tensor, loss: Loss, *, repeats: int = 7
) -> list[StageProfile]:
    """Run every stage on one microbatch as torch's runtime does, and measure it.

    The first stage computes no gradient of its input, so all of its backward is W.

    Args:
        stages: in order.
        example: a microbatch.
        loss: of the last stage's output; its time is part of that stage's F.
        repeats: number of runs, whose medians are returned; one more run comes first.
    """
    found, x = [], example
    for i, stage in enumerate(stages):
        is_last = i + 1 == len(stages)
        runs = [_run(stage, x, loss if is_last else None, i > 0) for _ in range(repeats + 1)][1:]
        medians = np.median(runs, axis=0).tolist()
        found.append(StageProfile(**dict(zip(STAGE_COLUMNS, medians, strict=True))))
        stage.zero_grad()
        with torch.no_grad():
            x = stage(x)
    return found


def _run(
    stage: nn.Module, x: Tensor, loss: Loss | None, has_input_grad: bool
) -> tuple[float, float, float, float, float]:
    """Return seconds of F, I and W, and bytes kept after F and after I."""
    x = x.detach()
    if has_input_grad:
        x.requires_grad_()
    kept = _Kept(stage)
    begin = time.perf_counter()
    with torch.autograd.graph.saved_tensors_hooks(kept.pack, kept.unpack):
        output = stage(x)
        last = output if loss is None else loss(output)
    forward_s = time.perf_counter() - begin
    del output
    activation = kept.num_bytes() + (0 if loss is not None else _size(last))
    grads = None if loss is not None else [torch.ones_like(last)]
    begin = time.perf_counter()
    if not has_input_grad:
        torch.autograd.backward([last], grads)
        return forward_s, 0.0, time.perf_counter() - begin, activation, activation
    _, groups = input_gradient([last], grads, [x], stage.parameters())
    input_s = time.perf_counter() - begin
    del last, grads
    left = kept.num_bytes() + sum(
        _size(grad)
        for group in groups
        for each in group.get("grads") or ()
        for grad in each or ()
        if grad is not None
    )
    begin = time.perf_counter()
    weight_gradient(stage.parameters(), groups)
    return forward_s, input_s, time.perf_counter() - begin, activation, float(left)


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class _Held:
    """Stands for a tensor that autograd keeps; a weak reference to it shows when it is released."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class _Kept:
    """The tensors that autograd keeps for the backward, without parameters."""

    def __init__(self, module: nn.Module) -> None:
        self._own = {p.untyped_storage().data_ptr() for p in module.parameters()}
        self._held: list[weakref.ref[_Held]] = []

    def pack(self, tensor: Tensor) -> _Held:
        held = _Held(tensor)
        self._held.append(weakref.ref(held))
        return held

    def unpack(self, held: _Held) -> Tensor:
        return held.tensor

    def num_bytes(self) -> float:
        sizes = {}
        for reference in self._held:
            held = reference()
            if held is not None:
                storage = held.tensor.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
        return float(sum(size for at, size in sizes.items() if at not in self._own))


def block_seconds(blocks: Iterable[nn.Module], example: Tensor, loss: Loss) -> list[float]:
    """Return the seconds [K] that F, I and W of every block take together.

    Args:
        blocks: of the model.
        example: a microbatch.
        loss: of the last block's output.
    """
    profiles = timed(list(blocks), example, loss, repeats=3)
    return [one.forward_s + one.input_grad_s + one.weight_grad_s for one in profiles]


def stages_of(
    blocks: Sequence[nn.Module],
    example: Tensor,
    num_stages: int,
    loss: Loss,
    boundaries: Sequence[int] | None = None,
) -> tuple[list[nn.Sequential], list[StageProfile]]:
    """Divide blocks into stages, and time the stages.

    Args:
        blocks: of the model.
        example: a microbatch.
        num_stages: number of stages.
        loss: of the last stage's output.
        boundaries: as in `split`; None: those that balance the measured times of blocks.
    """
    if boundaries is None:
        boundaries = balanced(block_seconds(blocks, example, loss), num_stages)
    stages = split(blocks, boundaries)
    return stages, timed(stages, example, loss)


def profile_module(
    factory: str, num_stages: int, boundaries: Sequence[int] | None
) -> list[StageProfile]:
    """Divide the blocks that a function returns into stages, and time these (``workload.module``).

    Args:
        factory: ``FILE.py:function`` or ``package.module:function``. The function returns an
            nn.Sequential of blocks, a microbatch and, optionally, a dictionary with the key
            ``loss``: a function of the output. The default loss is the mean of squares.
        num_stages: number of stages if boundaries are not given.
        boundaries: as in `split`; None: balanced.

    Raises:
        InputError: the function returns something else, or as `make_module` raises it.
    """
    module, examples, keywords = make_module(factory, device="cpu")
    if not isinstance(module, nn.Sequential) or len(examples) != 1:
        raise InputError(
            f"workload.module: {factory} returned {type(module).__name__}; an nn.Sequential of "
            "blocks and one example tensor would fit"
        )
    loss: Any = keywords.get("loss", _mean_square)
    return stages_of(list(module), examples[0], num_stages, loss, boundaries)[1]


def _mean_square(output: Tensor) -> Tensor:
    return output.float().square().mean()
