"""A torch module as an einsum program, and the way between its tensors and the program's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.utils import _pytree as pytree

from doppler.einsum.differentiation import training_program
from doppler.einsum.program import Input, Node, Program
from doppler.errors import InputError
from doppler.importing.conversion import Conversion
from doppler.importing.exporting import export

_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)


@dataclass(frozen=True, eq=False, kw_only=True)
class TorchProgram:
    """A program, and the exported module that it was made from.

    whole: the ops that are not split, each with its place in the module and the reason.
    sources: per input of the program its node in the exported graph, or a number n for the numbers
    0 to n - 1. results: per tensor that the module returns, the name of the program's result.
    """

    program: Program
    exported: ExportedProgram
    whole: tuple[str, ...]
    sources: Mapping[str, fx.Node | int]
    results: tuple[str, ...]

    def inputs(self, arguments: Sequence[Any]) -> dict[str, torch.Tensor]:
        """The inputs of the program: the module's parameters and buffers, and what it is given.

        Raises:
            InputError: the arguments are not like the example inputs, or parameters have no values.
        """
        given = self._given(arguments)
        shapes = {node.name: node.shape for node in self.program.nodes if isinstance(node, Input)}
        tensors = {}
        for name, node in self.sources.items():
            if isinstance(node, int):
                tensor = torch.arange(node)
            else:
                tensor = _evaluated(node) if node.op == "call_function" else given[node.name]
            if tensor.is_meta:
                raise InputError(f"{name!r} is on the meta device: there are no values to run with")
            tensors[name] = tensor.detach().reshape(shapes[name])
        return tensors

    def outputs(self, results: Mapping[str, torch.Tensor]) -> Any:
        """What the module returns, from the results of the program."""
        shapes = {node.name: node.meta["val"].shape for node in _returned(self.exported)}
        names, leaves = iter(self.results), []
        for spec in self.exported.graph_signature.output_specs:
            if isinstance(spec.arg, TensorArgument):
                leaves.append(results[next(names)].reshape(shapes[spec.arg.name]))
            else:
                leaves.append(getattr(spec.arg, "value", None))
        assert self.exported.call_spec.out_spec is not None
        return pytree.tree_unflatten(leaves, self.exported.call_spec.out_spec)

    def new_parameters(self, results: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The parameters after the step, by the module's names; none if nothing is trained."""
        shapes = {name: tensor.shape for name, tensor in self.exported.state_dict.items()}
        return {
            name: results[f"{name}.new"].reshape(shape)
            for name, shape in shapes.items()
            if f"{name}.new" in results
        }

    def _given(self, arguments: Sequence[Any]) -> dict[str, torch.Tensor]:
        """Per placeholder of the exported graph its tensor."""
        leaves, spec = pytree.tree_flatten((tuple(arguments), {}))
        expected = self.exported.call_spec.in_spec
        if spec != expected:
            raise InputError(
                f"{self.program.name}: called with {len(arguments)} arguments that are not built "
                "like the example inputs"
            )
        state = {**self.exported.state_dict, **self.exported.constants}
        placeholders = {node.name: node for node in _placeholders(self.exported)}
        given, user = {}, iter(leaves)
        for one in self.exported.graph_signature.input_specs:
            value = next(user) if one.kind == InputKind.USER_INPUT else state[one.target]  # type: ignore[index]
            if isinstance(one.arg, TensorArgument):
                like = placeholders[one.arg.name].meta["val"]
                if (value.shape, value.dtype) != (like.shape, like.dtype):
                    raise InputError(
                        f"{self.program.name}: {one.arg.name!r} has shape {tuple(value.shape)} and "
                        f"{value.dtype}, the example had {tuple(like.shape)} and {like.dtype}"
                    )
                given[one.arg.name] = value
        return given


def import_module(
    module: nn.Module,
    example_inputs: Sequence[Any],
    *,
    training: bool = False,
    learning_rate: float = 1e-3,
) -> TorchProgram:
    """A torch module as an einsum program.

    Args:
        module: on any device, the meta device included; nothing is computed.
        example_inputs: tensors of the shapes and dtypes that it will be called with.
        training: the module returns its loss; backward and a step of gradient descent are added.
        learning_rate: of that step.

    Raises:
        InputError: one line that names the op, where in the module it is, and what can be done.
    """
    exported = export(module, example_inputs)
    conversion = Conversion(exported.graph)
    sources: dict[str, fx.Node | int] = {}
    parameters = _parameters(exported)
    for node in _placeholders(exported):
        if node.users and isinstance(node.meta.get("val"), torch.Tensor):
            sources[conversion.add_input(node, parameters.get(node.name, node.name))] = node
    conversion.run()
    name = type(module).__name__
    numbers = conversion.results(_result_tensors(exported, name))
    program = Program(
        name=name,
        parameters={},
        nodes=tuple(conversion.builder.nodes),
        given_splits={},
        copies_sums=False,
    )
    if training:
        trainable = {parameters[name] for name in _trainable(exported)}
        program = _trained(program, numbers, trainable, learning_rate)
    return TorchProgram(
        program=program,
        exported=exported,
        whole=tuple(conversion.whole),
        sources={**sources, **conversion.folded},
        results=tuple(conversion.result_name(number) for number in numbers),
    )


def _result_tensors(exported: ExportedProgram, name: str) -> list[fx.Node]:
    """What the module of this name returns; no op may change what it was given."""
    returned = {node.name: node for node in _returned(exported)}
    tensors: list[fx.Node] = []
    for spec in exported.graph_signature.output_specs:
        if spec.kind in _MUTATIONS:
            raise InputError(
                f"{name}: its forward changes {str(spec.target)!r}, as norms do "
                "in training; call .eval(), or keep what changes out of the module"
            )
        if isinstance(spec.arg, TensorArgument):
            tensors.append(returned[spec.arg.name])
    return tensors


def _trained(
    program: Program, results: Sequence[int], trainable: set[str], learning_rate: float
) -> Program:
    """The program, its gradients and the step, for the parameters that the loss depends on."""
    nodes = list(program.nodes)
    if len(results) != 1 or nodes[results[0]].shape or nodes[results[0]].dtype[0] not in "fb":
        raise InputError(
            f"{program.name}: training=true needs a module that returns its loss, one real number"
        )
    reached = _upstream(nodes, results[0])
    for number in reached:
        node = nodes[number]
        if isinstance(node, Input) and node.name in trainable:
            nodes[number] = replace(node, is_weight=True)
    program = replace(program, nodes=tuple(nodes), loss=results[0])
    try:
        return training_program(program, learning_rate=learning_rate)
    except InputError as error:
        raise InputError(f"{error}; training=false places the forward alone") from None


def _upstream(nodes: Sequence[Node], number: int) -> set[int]:
    found, queue = {number}, [number]
    while queue:
        for operand in nodes[queue.pop()].operands:
            if operand not in found:
                found.add(operand)
                queue.append(operand)
    return found


def _placeholders(exported: ExportedProgram) -> list[fx.Node]:
    return [node for node in exported.graph.nodes if node.op == "placeholder"]


def _returned(exported: ExportedProgram) -> list[fx.Node]:
    (output,) = (node for node in exported.graph.nodes if node.op == "output")
    return [node for node in output.all_input_nodes]


def _parameters(exported: ExportedProgram) -> dict[str, str]:
    """Per placeholder of a parameter or buffer, what the module calls it."""
    signature = exported.graph_signature
    return {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }


def _trainable(exported: ExportedProgram) -> list[str]:
    signature = exported.graph_signature
    return [
        name
        for name, target in signature.inputs_to_parameters.items()
        if exported.state_dict[target].requires_grad
    ]


@torch.no_grad()
def _evaluated(node: fx.Node) -> torch.Tensor:
    """The value of an op on constants."""

    def value(argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            return _evaluated(argument)
        return torch.device("cpu") if isinstance(argument, torch.device) else argument

    arguments = pytree.tree_map(value, list(node.args), is_leaf=lambda x: isinstance(x, fx.Node))
    options = {key: value(one) for key, one in node.kwargs.items()}
    assert callable(node.target)
    return node.target(*arguments, **options)
