"""Converts the exported graph of a torch module to an einsum program, op by op."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import getitem
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from doppler.einsum.program import Formation, Input
from doppler.extensions.modules.calls import Call, render_call, shared_dims
from doppler.extensions.modules.drawing import is_random
from doppler.extensions.modules.factors import Factors, Tie
from doppler.extensions.modules.nodes import has_elements, path_of, place_of, tensors_of
from doppler.extensions.modules.ops import CONSTANTS, convert_op
from doppler.extensions.modules.prices import flops_of
from doppler.extensions.modules.ties import all_ties, is_tensor, shape_of
from doppler.extensions.modules.values import Builder, Shape, Value
from doppler.graph.scalar import Element, count_calls
from doppler.support.errors import InputError

DTYPES = {
    **{torch.bool: "bool", torch.uint8: "u8", torch.int8: "i8", torch.int16: "i16"},
    **{torch.int32: "i32", torch.int64: "i64", torch.float16: "f16", torch.bfloat16: "bf16"},
    **{torch.float32: "f32", torch.float64: "f64", torch.complex64: "c64"},
}

# Functions that elementwise ops have together if they become one. Some read their operand several
# times, so without a limit a chain of them would grow exponentially.
_MOST_CALLS = 100


class Conversion:
    """The conversion of one tidied graph to a program.

    Args:
        graph: exported and tidied.
        ties: between dimensions, in addition to those that the ops imply.

    Attributes:
        builder: holds the nodes of the program.
        folded: inputs of the program that depend on no input of the module: the node of the graph
            that computes each, or a number n for the integers 0, 1, ..., n - 1.
        drawn: functions that draw the inputs of the program that are random.
        whole: ops that cannot be split, each with the reason.
        by_bytes: ops whose number of floating-point operations is unknown.
        statistics: of each norm, the values that all its results are computed from.
        factors: of all dimensions of the graph's tensors.
    """

    def __init__(self, graph: fx.Graph, ties: Sequence[Tie] = ()) -> None:
        self.builder = Builder()
        self.folded: dict[str, fx.Node | int] = {}
        self.drawn: dict[str, Callable[[], torch.Tensor]] = {}
        self.whole: list[str] = []
        self.by_bytes: list[str] = []
        # For each norm, the values that all of its results are computed from.
        self.statistics: dict[fx.Node, tuple[Value, ...]] = {}
        self._drawn_by: dict[fx.Node, Value] = {}
        self._nodes = list(graph.nodes)
        for node in self._nodes:
            _check(node)
        shapes = {
            node.name: shape_of(node)
            for node in self._nodes
            if node.op != "output" and tensors_of(node)
        }
        self.factors = Factors(shapes, [*ties, *all_ties(self._nodes)])
        self._values: dict[fx.Node, Value] = {}
        self._foldable = self._find_foldable()

    def add_input(self, node: fx.Node, name: str, *, is_weight: bool = False) -> str:
        """Make a placeholder of the graph an input of the program.

        Args:
            node: the placeholder.
            name: of the input.
            is_weight: whether training changes it.

        Returns:
            The name in the program, which differs if ``name`` is taken.
        """
        shape = self.shape(node)
        value = self.builder.input(name, shape, self.dtype(node), is_weight=is_weight)
        self._values[node] = value
        return self.builder.nodes[-1].name

    def add_drawn(
        self, op: fx.Node, like: fx.Node, dtype: str, draw: Callable[[], torch.Tensor]
    ) -> Value:
        """Add random numbers that depend on no values, as an input that is drawn for every run.

        Args:
            op: the random op; further calls for the same op return the same value.
            like: node of the same shape.
            dtype: of the numbers.
            draw: draws them.
        """
        if op not in self._drawn_by:
            name = f"{self.name(op)}.drawn"
            self._drawn_by[op] = self.builder.input(name, self.shape(like), dtype)
            self.drawn[self.builder.nodes[-1].name] = draw
        return self._drawn_by[op]

    def add_folded(self, name: str, extent: int) -> Value:
        """Add the integers 0, 1, ..., extent - 1 as an input of the program.

        Args:
            name: of the input.
            extent: number of the integers.
        """
        value = self.builder.input(name, ((extent,),), "i64")
        self.folded[self.builder.nodes[-1].name] = extent
        return value

    def run(self) -> None:
        """Convert every op whose result is needed.

        Raises:
            InputError: names an op that cannot be converted, and its place in the module.
        """
        for node in self._nodes:
            if node.op != "call_function" or not is_tensor(node) or node in self._foldable:
                continue
            value = self._converted(node)
            if not value.name:
                value = replace(value, name=self.name(node))
            is_shared = len(node.users) > 1 and not value.is_at_hand
            if is_shared or count_calls(value.scalar) > _MOST_CALLS:
                value = self.builder.stored(value, value.name)
            self._values[node] = value

    def _converted(self, node: fx.Node) -> Value:
        """Convert an op by its rule or, if the rule fails, as a call of torch's own operator."""
        parts = (*self.builder.parts(), self.folded, self.drawn, self.whole, self.by_bytes)
        parts = (*parts, self.statistics, self._values, self._drawn_by)
        sizes = [len(part) for part in parts]
        try:
            return convert_op(self, node)
        except InputError:
            raise
        except Exception as error:  # our rule does not cover an unusual call of the op
            reason = error
        for part, size in zip(parts, sizes, strict=True):
            while len(part) > size:
                part.popitem() if isinstance(part, dict) else part.pop()
        try:
            return self.call(node)
        except InputError:
            raise
        except Exception:
            told = (str(reason) or type(reason).__name__).splitlines()[0]
            raise InputError(f"{place_of(node)}: cannot be converted: {told}") from None

    def value(self, node: fx.Node) -> Value:
        """Return the value of a tensor that an op reads.

        Args:
            node: that computes the tensor.
        """
        if node not in self._values:
            # It depends on no input of the module, so it is computed before the run.
            name = self.add_input(node, self.name(node))
            self.folded[name] = node
        return self._values[node]

    def shape(self, node: fx.Node) -> Shape:
        """Return the factors of all dimensions of a tensor.

        Args:
            node: that computes the tensor.
        """
        return tuple(self.factors.of(node.name, dim) for dim in range(len(shape_of(node))))

    def dtype(self, node: fx.Node) -> str:
        """Return the dtype of a tensor.

        Args:
            node: that computes the tensor.

        Raises:
            InputError: programs have no such dtype.
        """
        dtype = node.meta["val"].dtype
        if dtype not in DTYPES:
            what = place_of(node) if node.op == "call_function" else f"input {node.name!r}"
            known = ", ".join(str(one).removeprefix("torch.") for one in DTYPES)
            raise InputError(f"{what}: dtype {dtype} is not one of {known}: cast it")
        return DTYPES[dtype]

    def name(self, node: fx.Node) -> str:
        """Return the name of a node's ops: the path in the module, and the operator.

        Args:
            node: of the exported graph.
        """
        source = node.args[0] if node.target is getitem else node
        assert isinstance(source, fx.Node)
        own = str(source.target).split(".")
        base = own[1].strip("_") if len(own) > 1 else source.name
        path = path_of(source)
        return f"{path}.{base}" if path else base

    def results(self, nodes: Sequence[fx.Node]) -> list[int]:
        """Return, for each tensor that the module returns, a program node that has it.

        No op reads these nodes, and they differ from each other.

        Args:
            nodes: that compute the returned tensors.

        Returns:
            The numbers of the program nodes.
        """
        builder = self.builder
        wholes = [builder.whole(self.value(node), f"output{k}") for k, node in enumerate(nodes)]
        numbers = [whole.operands[0].node for whole in wholes]
        is_read = {operand for node in builder.nodes for operand in node.operands}
        found = tuple(numbers)
        for k, (number, whole) in enumerate(zip(found, wholes, strict=True)):
            is_input = isinstance(builder.nodes[number], Input)
            # Every result that shares its node is copied, because the copies read the node.
            if number in is_read or is_input or found.count(number) > 1:
                every, whole = list(range(len(whole.extents))), replace(whole, name="")
                copy = builder.computed(f"output{k}", whole, every)
                numbers[k] = copy.operands[0].node
        return numbers

    def result_name(self, number: int) -> str:
        """Return the name that lowering gives to the tensor of a program node.

        Args:
            number: of the node.
        """
        node = self.builder.nodes[number]
        return (
            self.builder.nodes[node.operands[0]].name if isinstance(node, Formation) else node.name
        )

    def call(self, node: fx.Node) -> Value:
        """Convert an op to a call of torch's own operator.

        Args:
            node: the op, or one of its results.

        Raises:
            InputError: an argument has no JSON form.
        """
        source, output = node, None
        if node.target is getitem:
            source, output = node.args  # type: ignore[assignment]
        assert isinstance(source, fx.Node)
        shape, dtype, name = self.shape(node), self.dtype(node), self.name(node)
        result = Value(shape, Element(0), (), dtype)
        reads = [one for one in source.all_input_nodes if is_tensor(one)]
        # A further result is split like the first one if it has the same shape.
        shared = shared_dims(source) if shape_of(source) == shape_of(node) else {}
        numbers, dims = [], []
        for read in reads:
            own = self.builder.whole(self.value(read), f"{name}.operand")
            numbers.append(own.operands[0].node)
            dims.append(_places_in(result, own, shared.get(read, {})))
        if result.extents and not any(one is not None for each in dims for one in each):
            is_reshape = source.name in self.factors.refused
            reason = "no common factors" if is_reshape else "no rule says how to split it"
            self.whole.append(f"{place_of(source)}: {reason}")
        factors = {read: [len(one) for one in self.shape(read)] for read in reads}
        try:
            arguments = render_call(source, factors, output)  # type: ignore[arg-type]
        except TypeError as error:
            raise InputError(f"{place_of(source)}: {error} cannot be written as JSON") from None
        flops = flops_of(source)
        if flops is None:
            flops = math.prod(result.extents)
            self.by_bytes.append(place_of(source))
        nodes = self.builder.nodes
        call = Call(
            name=name,
            shape=result.extents,
            dtype=dtype,
            operands=tuple(numbers),
            operand_dtypes=tuple(nodes[number].dtype for number in numbers),
            operand_shapes=tuple(nodes[number].shape for number in numbers),
            operand_dims=tuple(dims),
            operator=str(source.target),
            arguments=arguments,
            total_flops=flops,
        )
        return self.builder.tensor(call, shape)

    def _find_foldable(self) -> set[fx.Node]:
        """Return the ops that depend on no input of the module."""
        found: set[fx.Node] = set()
        for node in self._nodes:
            is_op = node.op == "call_function" and node.target not in CONSTANTS
            if (
                is_op
                and not is_random(node)
                and all(
                    one in found or (one.target in CONSTANTS and not one.all_input_nodes)
                    for one in node.all_input_nodes
                )
            ):
                found.add(node)
        return found


def _check(node: fx.Node) -> None:
    """Refuse an op that no program can express.

    Raises:
        InputError: names the op, its place in the module, and a remedy.
    """
    what = place_of(node) if node.op == "call_function" else f"input {node.name!r}"
    if node.users and node.op != "output" and not has_elements(node):
        raise InputError(f"{what}: a tensor without elements; leave it out")
    if node.op in ("output", "get_attr") or node.target is getitem:
        return
    if node.op == "call_function" and not isinstance(node.target, OpOverload):
        raise InputError(
            f"{what}: control flow that depends on the values of a tensor; compute both "
            "sides and choose by torch.where"
        )
    values: Any = node.meta.get("val")
    for value in values if isinstance(values, tuple | list) else [values]:
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise InputError(
                f"{what}: converts a tensor's value to a number (.item()); keep it a tensor"
            )
        if isinstance(value, torch.Tensor) and not all(type(one) is int for one in value.shape):
            if node.op == "placeholder":
                raise InputError(f"{what}: its shape is not fixed; export without dynamic shapes")
            raise InputError(
                f"{what}: the shape of its result depends on the values of a tensor; "
                "keep the shape and mask by torch.where"
            )


def _places_in(result: Value, read: Value, shared: Mapping[int, int]) -> tuple[int | None, ...]:
    """Return, for each factor of a tensor, the factor of the result that it is split with, or None.

    Args:
        result: of the op.
        read: the tensor.
        shared: dimensions of the result by dimensions of the tensor.
    """
    into: list[int | None] = [None] * len(read.extents)
    for dim, result_dim in shared.items():
        if read.shape[dim] == result.shape[result_dim]:
            for place, one in zip(read.places(dim), result.places(result_dim), strict=True):
                into[place] = one
    return tuple(into)
