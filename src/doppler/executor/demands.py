"""How much of a shared resource a kernel uses, measured alone, against itself and against others.

Devices that share processors or memory, such as streams of one GPU, run a kernel at the same time.
First one device runs it alone, then all run it together, then one runs it while the others copy a
large block (which saturates memory) or multiply large matrices (which saturates processors). The
result is the pair of shares with which the simulator predicts the same slowdowns.

Shape suffix: D devices.
"""

import math
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray

from doppler.executor.devices import Devices
from doppler.executor.elementwise import TORCH_DTYPES
from doppler.executor.kernels import compile_kernel
from doppler.executor.recording import Action
from doppler.graph import KernelSpec
from doppler.problem import Problem
from doppler.problem.costs import kernel_key
from doppler.problem.sharing import max_min_rates
from doppler.support.errors import InputError

FloatArray = NDArray[np.float64]

# Most calls of an action, and its target seconds. A GPU gets all calls of an action at once:
# otherwise threads would queue to start kernels, and that waiting would count as sharing.
_MOST_CALLS, _ACTION_S = 40, 2e-3
# Number of windows per measurement (the median counts), and seconds of each.
_WINDOWS, WINDOW_S = 3, 0.02
# The time of shorter calls is that of issuing them, not of running them.
_SHORTEST_S = 50e-6
# Grid of shares; and the weight of a share's distance from the modelled one, relative to the
# squared logarithm of a slowdown's error.
_STEPS, _PREFERRED = 20, 1e-3
# The two reference kernels: elements of a block too large for caches, rows of a matrix.
_BLOCK, _ROWS = 1 << 24, 1536


@dataclass(frozen=True, kw_only=True)
class Slowdowns:
    """How many times longer a kernel takes than alone, on one of several devices that share.

    Attributes:
        itself: while all devices run this kernel.
        memory: while the others copy.
        processors: while the others multiply; None: processors are not shared.
    """

    itself: float
    memory: float
    processors: float | None


def shares_of(measured: Slowdowns, num: int, modelled: tuple[float, float]) -> tuple[float, float]:
    """Find the shares of processors and memory with which the simulator predicts these slowdowns.

    Args:
        measured: how many times longer the kernel takes.
        num: devices that share.
        modelled: the shares from flops and bytes. They are preferred if several shares explain the
            measurement, as all shares below 1 / ``num`` do.
    """
    steps = [i / _STEPS for i in range(_STEPS + 1)]
    processors = steps if measured.processors is not None else [modelled[0]]

    def badness(shares: tuple[float, float]) -> float:
        told = slowdowns_of(*shares, num)
        pairs = [(told.itself, measured.itself), (told.memory, measured.memory)]
        if measured.processors is not None:
            pairs.append((told.processors or 1.0, measured.processors))
        away = sum((one - two) ** 2 for one, two in zip(shares, modelled, strict=True))
        return sum(math.log(one / two) ** 2 for one, two in pairs) + _PREFERRED * away

    return min(product(processors, steps), key=badness)


def slowdowns_of(processors: float, memory: float, num: int) -> Slowdowns:
    """Predict how much slower the simulator makes a kernel beside others that share.

    Args:
        processors: share of the processors that the kernel uses when alone.
        memory: share of the memory bandwidth, likewise.
        num: devices that share.
    """
    own, found = {0: processors, 1: memory}, []
    for other in (own, {1: 1.0}, {0: 1.0}):
        demands = [{k: share for k, share in one.items() if share} for one in (own, other)]
        running = [one for one in (demands[0], *[demands[1]] * (num - 1)) if one]
        weights = [max(one.values()) for one in running]
        rates = max_min_rates(running, weights, (1.0, 1.0))
        found.append(1.0 / rates[0] if demands[0] else 1.0)
    return Slowdowns(itself=found[0], memory=found[1], processors=found[2])


def measure_demands(
    devices: Devices, problem: Problem, *, window_s: float = WINDOW_S
) -> dict[str, FloatArray]:
    """Measure shares [D, 2] of processors and memory by `kernel_key`, NaN where unknown.

    Kernels that are too short to be timed, or that fail on random operands, are left out.

    Args:
        devices: where kernels run.
        problem: whose kernels they are; its machine says which devices share.
        window_s: seconds of each measurement, which is made three times.
    """
    ops, found = problem.graph.ops, {}
    groups = sharing_devices(problem)
    for group in groups:
        runner = _Runner(devices, group, window_s)
        for kernel, v in _distinct(ops.kernels):
            d = group.members[0]
            if not np.isfinite(problem.arrays.op_seconds[v, list(group.members)]).all():
                continue
            slowdowns = runner.slowdowns(kernel)
            if slowdowns is None:
                continue
            shares = shares_of(slowdowns, len(group.members), _modelled(problem, v, d))
            row = found.setdefault(kernel_key(kernel), np.full((problem.num_devices, 2), np.nan))
            row[list(group.members)] = shares
    return found


@dataclass(frozen=True)
class Group:
    """Devices that share a memory, and possibly processors."""

    members: tuple[int, ...]
    processors: bool


def sharing_devices(problem: Problem) -> list[Group]:
    """Return the groups of two or more devices that share a memory or processors.

    Args:
        problem: gives the machine.
    """
    shared = problem.cluster.shared
    groups = dict.fromkeys(one.devices for one in shared if len(one.devices) > 1)
    return [
        Group(
            members,
            any(one.bytes_per_s is None and set(members) <= set(one.devices) for one in shared),
        )
        for members in groups
    ]


def _distinct(kernels: Sequence[KernelSpec | None]) -> Iterable[tuple[KernelSpec, int]]:
    """Each kernel once, with the number of an op that uses it."""
    first: dict[str, tuple[KernelSpec, int]] = {}
    for v, kernel in enumerate(kernels):
        if kernel is not None:
            first.setdefault(kernel_key(kernel), (kernel, v))
    return first.values()


def _modelled(problem: Problem, v: int, d: int) -> tuple[float, float]:
    """Shares of processors and memory that an op uses on a device, from its flops and bytes."""
    sharing = problem.sharing
    assert sharing is not None, "there are groups"
    uses = sharing.uses[sharing.use_ptr[d] : sharing.use_ptr[d + 1]]
    rooms = [float(sharing.capacity[k]) for k in uses.tolist() if sharing.moves_bytes[k]]
    memory = float(sharing.op_bytes[v, d]) / min(rooms) if rooms else 0.0
    return float(sharing.op_processors[v, d]), min(memory, 1.0)


@dataclass
class _Runner:
    """Runs kernels on the devices of a group, alone or several at the same time."""

    devices: Devices
    group: Group
    window_s: float
    _references: dict[tuple[str, int], Action] = field(default_factory=dict)

    def slowdowns(self, kernel: KernelSpec) -> Slowdowns | None:
        """Measure a kernel; None if it is too short or fails."""
        try:
            calls = [self._call_of(kernel, d) for d in self.group.members]
            alone_s = self._seconds(self.group.members[0], calls[0])
            if alone_s < _SHORTEST_S:
                return None
            actions = [
                self.devices.repeating(d, call, _num_calls(alone_s))
                for d, call in zip(self.group.members, calls, strict=True)
            ]
        except (RuntimeError, IndexError, ValueError, InputError):
            return None
        first, others = actions[0], self.group.members[1:]
        alone = self._rate(first, [])
        beside = {
            name: alone / self._rate(first, [self._reference(name, d) for d in others])
            for name in ("memory", *(("processors",) if self.group.processors else ()))
        }
        return Slowdowns(
            itself=alone / self._rate(first, actions[1:]),
            memory=beside["memory"],
            processors=beside.get("processors"),
        )

    def _call_of(self, kernel: KernelSpec, d: int) -> Callable[[], object]:
        """A function that runs a kernel on random operands."""
        place = self.devices.place(d)
        operands = [
            _random(shape, dtype, place)
            for shape, dtype in zip(kernel.operand_shapes, kernel.operand_dtypes, strict=True)
        ]
        compute = compile_kernel(kernel, device=place)
        _await(place)
        return lambda: compute(operands)

    def _reference(self, name: str, d: int) -> Action:
        if (name, d) not in self._references:
            place = self.devices.place(d)
            call = _copy(place) if name == "memory" else _multiplication(place)
            _await(place)
            num = _num_calls(self._seconds(d, call))
            self._references[name, d] = self.devices.repeating(d, call, num)
        return self._references[name, d]

    def _seconds(self, d: int, call: Callable[[], object]) -> float:
        """How long one call takes alone, measured in its second execution."""
        action = self.devices.computing(d, call)
        with torch.inference_mode():
            action()
            begin_s = time.perf_counter()
            action()
            return time.perf_counter() - begin_s

    def _rate(self, action: Action, others: Sequence[Action]) -> float:
        """How often per second an action is done while others are repeated on other devices."""
        stop = threading.Event()
        threads = [
            threading.Thread(target=_until, args=(stop, other), daemon=True) for other in others
        ]
        before = torch.get_num_threads()
        torch.set_num_threads(1)  # as the executor's workers are
        try:
            for thread in threads:
                thread.start()
            with torch.inference_mode():
                action()
                return statistics.median(self._window(action) for _ in range(_WINDOWS))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            torch.set_num_threads(before)

    def _window(self, action: Action) -> float:
        begin_s, num = time.perf_counter(), 0
        while (passed_s := time.perf_counter() - begin_s) < self.window_s or num == 0:
            action()
            num += 1
        return num / passed_s


def _num_calls(alone_s: float) -> int:
    """How many calls make an action, by the seconds of one."""
    return max(1, min(_MOST_CALLS, int(_ACTION_S / alone_s)))


def _copy(place: str) -> Callable[[], object]:
    """What saturates the memory."""
    block, into = (torch.zeros(_BLOCK, device=place) for _ in range(2))
    return lambda: into.copy_(block)


def _multiplication(place: str) -> Callable[[], object]:
    """What saturates the processors."""
    rows = torch.zeros(_ROWS, _ROWS, device=place)

    def multiply() -> None:
        rows[:1].zero_()  # cuBLAS warns if a thread's first call is a product
        torch.mm(rows, rows)

    return multiply


def _await(place: str) -> None:
    """Let tensors be ready that were made on another stream than they are read on."""
    if place.startswith("cuda"):
        torch.cuda.synchronize(place)


def _until(stop: threading.Event, action: Action) -> None:
    torch.set_num_threads(1)
    with torch.inference_mode():
        while not stop.is_set():
            action()


def _random(shape: Sequence[int], dtype: str, place: str) -> torch.Tensor:
    """A tensor that every kernel accepts: whole numbers are 0, diagonals of matrices are large."""
    kind = TORCH_DTYPES[dtype]
    if not (kind.is_floating_point or kind.is_complex):
        return torch.zeros(tuple(shape), dtype=kind, device=place)
    # In torch 2.11 the generator that others use is of no use after a capture that failed.
    generator = torch.Generator(place).manual_seed(0)
    tensor = torch.rand(tuple(shape), device=place, generator=generator).to(kind)
    if len(shape) >= 2 and shape[-1] == shape[-2]:
        tensor += shape[-1] * torch.eye(shape[-1], dtype=kind, device=place)
    return tensor
