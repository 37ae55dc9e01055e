"""The memory of a session's devices, planned once for all placements, and actions on it.

Every device has a place for each input and for the result of each op, whether the op runs there or
its result is moved there. So a task uses the same memory in every placement.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import torch

from doppler.executor.devices import Devices
from doppler.executor.kernels import compile_kernel
from doppler.executor.operands import assemble, cut
from doppler.executor.recording import Action, Scratch, record
from doppler.executor.tasks import Tasks
from doppler.executor.tensors import Outputs, input_blocks
from doppler.graph import Box, DataflowGraph
from doppler.graph.reads import regions_of_reads
from doppler.support.errors import InputError

T = TypeVar("T")


class Memory:
    """The memory of the devices of one executable graph with given inputs.

    Raises:
        InputError: the graph does not fit into the memory of a device, or an input does not fit
            (`input_blocks`).
    """

    def __init__(
        self,
        graph: DataflowGraph,
        devices: Devices,
        inputs: Mapping[str, torch.Tensor],
    ) -> None:
        _check_room(graph, devices)
        num_devices = devices.num_devices
        self._graph, self._devices = graph, devices
        blocks = input_blocks(graph, inputs)
        self._inputs = [self._on(d, partial(self._load, d, blocks)) for d in range(num_devices)]
        self._results: list[dict[int, torch.Tensor]] = [{} for _ in range(num_devices)]
        self._scratch = [Scratch() for _ in range(num_devices)]  # a device runs one op at a time
        self._computations: list[dict[int, Action]] = [{} for _ in range(num_devices)]
        self._moves: dict[tuple[int, int, int], Action] = {}
        self._boxes = region_boxes(graph)
        self._producer = graph.regions.src.tolist()

    def _on(self, device: int, function: Callable[[], T]) -> T:
        """Call a function on tensors of a device, wait for the device, and return the result."""
        returned: list[T] = []
        self._devices.computing(device, lambda: returned.append(function()))()
        return returned[0]

    @torch.inference_mode(False)
    def _load(self, device: int, blocks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        place = self._devices.place(device)
        try:
            return [block.to(place, copy=True).contiguous() for block in blocks]
        except torch.OutOfMemoryError:
            raise InputError(
                f"graph {self._graph.name!r}: its inputs do not fit into the memory of {place}"
            ) from None

    def plan(self, op: int, device: int) -> None:
        """Run an op on a device that has all its operands, and record its torch calls."""
        action, self._results[device][op] = self._on(device, partial(self._record, op, device))
        self._computations[device][op] = self._devices.computing(device, action)

    @torch.inference_mode(False)
    def _record(self, op: int, device: int) -> tuple[Action, torch.Tensor]:
        inputs, results = self._inputs[device], self._results[device]
        kernel, reads = self._graph.ops.kernels[op], self._graph.ops.reads[op]
        assert kernel is not None
        place = self._devices.place(device)
        pieces = [cut((inputs if r.from_input else results)[r.source], r.box) for r in reads]
        compute = compile_kernel(kernel, device=place)
        return record(
            lambda: compute(assemble(kernel, reads, pieces, device=place)), self._scratch[device]
        )

    def actions(self, tasks: Tasks) -> list[Action]:
        """Return the actions of the ops and transfers of a placement; all ops must be planned."""
        return [
            *(self.computation(v, d) for v, d in enumerate(tasks.resource[: tasks.num_ops])),
            *(
                self.move(region, *tasks.channel(task))
                for task, region in enumerate(tasks.region, start=tasks.num_ops)
            ),
        ]

    def computation(self, op: int, device: int) -> Action:
        """Return the action that runs an op on a device; the op must be planned."""
        return self._computations[device][op]

    def move(self, region: int, src: int, dst: int) -> Action:
        """Return the action that copies a region from one device to another."""
        if (region, src, dst) not in self._moves:
            there, here = (self.region(region, d) for d in (dst, src))
            self._moves[region, src, dst] = self._devices.copying(src, dst, here, there)
        return self._moves[region, src, dst]

    def region(self, region: int, device: int) -> torch.Tensor:
        """Where a region is on a device."""
        return cut(self._results[device][self._producer[region]], self._boxes[region])

    def result(self, op: int, device: int) -> torch.Tensor:
        """The result of an op on a device."""
        return self._results[device][op]

    def wipe(self) -> None:
        """Overwrite all results, so that an execution cannot use those of an earlier one."""
        for d, results in enumerate(self._results):
            self._on(d, partial(_wipe, results.values()))

    def free(self) -> None:
        """Give the memory back; nothing can be executed any more."""
        for of_device in (self._inputs, self._results, self._computations, self._scratch):
            of_device.clear()
        self._moves.clear()

    def outputs(self, device_V: Sequence[int]) -> dict[str, torch.Tensor]:
        """Return the results of the program after an execution of a placement, by name."""
        outputs = Outputs(self._graph)
        for v, d in enumerate(device_V):
            outputs.take(v, self._results[d][v])
        return outputs.tensors


def _wipe(tensors: Iterable[torch.Tensor]) -> None:
    for tensor in tensors:
        has_nan = tensor.is_floating_point() or tensor.is_complex()
        tensor.fill_(float("nan") if has_nan else 0)


def _check_room(graph: DataflowGraph, devices: Devices) -> None:
    """Refuse a graph that cannot fit, because the system would kill the process."""
    needed = float(graph.inputs.bytes.sum() + graph.ops.output_bytes.sum())
    for d in range(devices.num_devices):
        if needed > (room := devices.room_bytes(d)):
            raise InputError(
                f"graph {graph.name!r}: needs {needed / 1e9:.3g} GB on device {d}, which has "
                f"{room / 1e9:.3g} GB (workload.preset=small is smaller)"
            )


def region_boxes(graph: DataflowGraph) -> list[Box]:
    """For each region, which part of its producer's result it is."""
    boxes: dict[int, Box] = {}
    for reads, regions in zip(graph.ops.reads, regions_of_reads(graph), strict=True):
        for read, region in zip(reads, regions, strict=True):
            if region >= 0:
                boxes[region] = read.box
    return [boxes[r] for r in range(len(graph.regions))]
