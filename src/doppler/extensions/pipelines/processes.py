"""Runs schedules with torch's runtime, in gloo processes of this machine that stay alive.

Shape suffix: S stages.
"""

import multiprocessing as mp
import os
import pickle
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from doppler.extensions.pipelines.handing_over import schedule, stages_of_rank
from doppler.extensions.pipelines.stages import Orders
from doppler.support.child_processes import without_working_directory

_READY = "ready"


class Processes:
    """Processes of one gloo group, as a context manager; each `call` runs a function on every rank.

    If a rank raises, or does not answer in time, all processes are killed.

    Args:
        num: of ranks.
        timeout_s: limit for one call.
    """

    def __init__(self, num: int, timeout_s: float = 120.0) -> None:
        self._num, self._timeout_s = num, timeout_s
        self._processes: list[Any] = []
        self._ends: list[Any] = []

    def __enter__(self) -> Self:
        context = mp.get_context("forkserver")
        context.set_forkserver_preload([__name__])  # torch is imported only once
        self._folder = tempfile.TemporaryDirectory()
        meeting = f"file://{self._folder.name}/meeting"
        for rank in range(self._num):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, self._num, meeting, theirs), daemon=True
            )
            with without_working_directory():
                process.start()
            theirs.close()
            self._processes.append(process)
            self._ends.append(ours)
        self._collect()
        return self

    def __exit__(self, *exc: object) -> None:
        for end in self._ends:
            try:
                end.send_bytes(pickle.dumps(None))
            except OSError:
                continue
        for process in self._processes:
            process.join(5.0)
            if process.is_alive():
                process.kill()
                process.join()
        self._folder.cleanup()

    def call(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call a function on every rank, and return the results by rank.

        Args:
            function: called with the rank and ``arguments``; it must be picklable.
            arguments: the same for all ranks.

        Raises:
            TimeoutError: a rank does not answer; the group cannot be used any more.
            RuntimeError: a rank raised an error; the group cannot be used any more.
        """
        for end in self._ends:
            # As bytes, because torch would share tensors, and training would change them here, too.
            end.send_bytes(pickle.dumps((function, arguments)))
        return self._collect()

    def _collect(self) -> list[Any]:
        answers: dict[int, Any] = {}
        until = time.monotonic() + self._timeout_s
        while len(answers) < self._num:
            missing = [self._ends[rank] for rank in range(self._num) if rank not in answers]
            ready = wait(missing, max(0.0, until - time.monotonic()))
            if not ready:
                for process in self._processes:
                    process.kill()
                silent = [rank for rank in range(self._num) if rank not in answers]
                raise TimeoutError(f"ranks {silent} hang")
            for end in ready:
                rank = self._ends.index(end)  # type: ignore[arg-type]
                try:
                    succeeded, answers[rank] = pickle.loads(end.recv_bytes())  # type: ignore[union-attr]
                except EOFError:
                    succeeded, answers[rank] = False, "ended"
                if not succeeded:
                    for process in self._processes:
                        process.kill()
                    raise RuntimeError(f"rank {rank}: {answers[rank]}")
        return [answers[rank] for rank in range(self._num)]


def _serve(rank: int, num: int, meeting: str, end: Connection) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=num)
    end.send_bytes(pickle.dumps((True, _READY)))
    while (asked := pickle.loads(end.recv_bytes())) is not None:
        function, arguments = asked
        try:
            end.send_bytes(pickle.dumps((True, function(rank, *arguments))))
        except Exception as error:
            said = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            end.send_bytes(pickle.dumps((False, said)))
            return
    dist.destroy_process_group()


@dataclass(frozen=True, kw_only=True)
class WaitingStages:
    """Stages that wait instead of computing.

    Attributes:
        forward_s: [S] seconds of F.
        input_grad_s: [S] seconds of I.
        weight_grad_s: [S] seconds of W.
    """

    forward_s: Sequence[float]
    input_grad_s: Sequence[float]
    weight_grad_s: Sequence[float]

    def module(self, stage: int) -> nn.Module:
        """Return a stage as a module.

        Args:
            stage: its number.
        """
        return _Waits(
            self.forward_s[stage],
            # The runtime computes no input gradient in the first stage, so its I is part of W.
            0.0 if stage == 0 else self.input_grad_s[stage],
            self.weight_grad_s[stage] + (self.input_grad_s[stage] if stage == 0 else 0.0),
        )


class _Wait(torch.autograd.Function):
    """The identity, which waits in the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:  # type: ignore[override]
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        _sleep(ctx.seconds)
        return grad, None


def _sleep(seconds: float) -> None:
    if seconds > 0.0:
        time.sleep(seconds)


class _Waits(nn.Module):
    """A stage that waits in F, I and W."""

    def __init__(self, forward_s: float, input_grad_s: float, weight_grad_s: float) -> None:
        super().__init__()
        self.seconds = forward_s, input_grad_s, weight_grad_s
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        forward_s, input_grad_s, weight_grad_s = self.seconds
        _sleep(forward_s)
        return _Wait.apply(x, input_grad_s) + _Wait.apply(self.bias, weight_grad_s)


def step_seconds(
    rank: int,
    orders: Sequence[Orders],
    microbatches: int,
    waits: Sequence[WaitingStages],
    turns: int,
) -> list[list[float]]:
    """Measure training steps of several schedules, in turns; the first turn is not counted.

    A step begins when all ranks are ready, and ends when the last rank has finished.

    Args:
        rank: of this process.
        orders: the schedules.
        microbatches: of a step.
        waits: stages of each schedule.
        turns: number of measured steps of each schedule.

    Returns:
        For each schedule, the seconds of its steps.
    """
    made = []
    for one, waiting in zip(orders, waits, strict=True):
        num = len(waiting.forward_s)
        stages = [
            PipelineStage(waiting.module(i), i, num, torch.device("cpu"))
            for i in stages_of_rank(one, rank)
        ]
        made.append(schedule(stages, one, microbatches, _mean))
    x = torch.zeros(microbatches, 1)
    seconds: list[list[float]] = [[] for _ in made]
    for turn in range(turns + 1):
        for i, runtime in enumerate(made):
            dist.barrier()
            begin = time.perf_counter()
            _step(runtime, x, x)
            dist.barrier()
            if turn:
                seconds[i].append(time.perf_counter() - begin)
    return seconds


def _mean(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).mean()


def _step(runtime: Any, x: Tensor, target: Tensor) -> list[Tensor]:
    """Do one step on this rank; return the losses of the microbatches if this rank has them."""
    has_first = any(stage.is_first for stage in runtime._stages)
    has_last = any(stage.is_last for stage in runtime._stages)
    losses: list[Tensor] = []
    given = {"target": target, "losses": losses} if has_last else {}
    runtime.step(*((x,) if has_first else ()), **given)
    return losses


def gradients(
    rank: int,
    orders: Orders,
    modules: Sequence[nn.Module],
    x: Tensor,
    target: Tensor,
    microbatches: int,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> dict[int, list[Tensor]]:
    """Compute the gradients of the parameters in one step.

    Args:
        rank: of this process.
        orders: the schedule.
        modules: stages.
        x: input of all microbatches.
        target: of all microbatches.
        microbatches: number of them.
        loss: called with output and target of a microbatch.

    Returns:
        For each stage of this rank, the gradients of its parameters.
    """
    mine = stages_of_rank(orders, rank)
    stages = [PipelineStage(modules[i], i, len(modules), torch.device("cpu")) for i in mine]
    _step(schedule(stages, orders, microbatches, loss), x, target)
    return {
        i: [p.grad if p.grad is not None else torch.zeros_like(p) for p in modules[i].parameters()]
        for i in mine
    }


def train(
    rank: int,
    orders: Orders,
    modules: Sequence[nn.Module],
    batches: Sequence[tuple[Tensor, Tensor]],
    microbatches: int,
    loss: Callable[[Tensor, Tensor], Tensor],
    learning_rate: float,
) -> list[float] | None:
    """Do steps of gradient descent, one for each batch.

    Args:
        rank: of this process.
        orders: the schedule.
        modules: stages.
        batches: input and target of each step.
        microbatches: number of them in a batch.
        loss: called with output and target of a microbatch.
        learning_rate: of gradient descent.

    Returns:
        The mean loss of each step on the rank of the last stage; None on other ranks.
    """
    mine = stages_of_rank(orders, rank)
    stages = [PipelineStage(modules[i], i, len(modules), torch.device("cpu")) for i in mine]
    runtime = schedule(stages, orders, microbatches, loss)
    optimizer = torch.optim.SGD(
        [p for i in mine for p in modules[i].parameters()], lr=learning_rate
    )
    told = []
    for x, target in batches:
        optimizer.zero_grad()
        losses = _step(runtime, x, target)
        optimizer.step()
        if losses:
            told.append(float(torch.stack([one.detach() for one in losses]).mean()))
    return told or None


def run_empty(rank: int, orders: Orders, num_stages: int, microbatches: int) -> bool:
    """Run one step of stages that neither wait nor compute; return True when it has ended.

    Args:
        rank: of this process.
        orders: the schedule.
        num_stages: of the pipeline.
        microbatches: of the step.
    """
    waits = WaitingStages(
        forward_s=[0.0] * num_stages,
        input_grad_s=[0.0] * num_stages,
        weight_grad_s=[0.0] * num_stages,
    )
    step_seconds(rank, [orders], microbatches, [waits], 0)
    return True
