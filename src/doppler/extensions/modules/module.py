"""A torch module as an einsum program."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument

from doppler.einsum.differentiation import training_program
from doppler.einsum.program import Input, Node, Program
from doppler.extensions.modules.binding import Binding, GivenTensor, Result
from doppler.extensions.modules.conversion import Conversion
from doppler.extensions.modules.drawing import evaluated
from doppler.extensions.modules.elementwise import Calculator
from doppler.extensions.modules.exporting import Exported, export
from doppler.extensions.modules.factors import Same
from doppler.extensions.modules.joint import stops_gradients, with_gradients
from doppler.extensions.modules.tidying import tidy
from doppler.support.errors import InputError


@dataclass(frozen=True, eq=False, kw_only=True)
class TorchProgram:
    """A program, and how the module's tensors are those of it.

    whole: the ops that are not split, each with its place in the module and the reason.
    """

    program: Program
    binding: Binding
    whole: tuple[str, ...]


def import_module(
    module: nn.Module | ExportedProgram,
    example_inputs: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    training: bool = False,
    learning_rate: float = 1e-3,
) -> TorchProgram:
    """A torch module as an einsum program.

    Args:
        module: on any device, the meta device included; nothing is computed. Or what torch.export
            made of one, which brings its example inputs.
        example_inputs: what it will be called with, by position: tensors, and what holds them.
        example_kwargs: the same, by keyword.
        training: the module returns its loss, alone, first, or under that name; backward and a step
            of gradient descent are added.
        learning_rate: of that step.

    Raises:
        InputError: one line that names the op, where in the module it is, and what can be done.
    """
    exported = export(module, example_inputs, example_kwargs or {}, training=training)
    if not training:
        return _Import(exported).finished()
    if not stops_gradients(exported.traced):
        # Torch knows the gradients of ops that are no einsums.
        with suppress(InputError):
            return _Import(exported).finished(by_einsums=learning_rate)
    imported = _Import(with_gradients(exported))
    imported.add_steps(learning_rate)
    return imported.finished()


class _Import:
    """One exported graph on its way to a program."""

    def __init__(self, exported: Exported) -> None:
        self.exported, self.graph = exported, exported.program.graph
        self.state_of = _state_names(exported.program)
        tidy(self.graph)
        # Per placeholder of a parameter its gradient, if the graph returns any.
        self.gradients = self._gradients()
        ties = [
            Same((weight, dim), (gradient.name, dim))
            for weight, gradient in self.gradients.items()
            for dim in range(gradient.meta["val"].dim())
        ]
        self.conversion = Conversion(self.graph, ties)
        # Per input of the program its placeholder, and the other way.
        self.placeholders: dict[str, fx.Node] = {}
        self.inputs: dict[str, str] = {}
        for node in self.graph.find_nodes(op="placeholder"):
            if node.users and isinstance(node.meta.get("val"), torch.Tensor):
                asked = self.state_of.get(node.name) or node.name
                name = self.conversion.add_input(node, asked)
                self.placeholders[name], self.inputs[node.name] = node, name
        self.conversion.run()
        self.steps: dict[str, Result] = {}

    def _gradients(self) -> dict[str, fx.Node]:
        placeholder_of = {target: name for name, target in self.state_of.items()}
        specs = self.exported.program.graph_signature.output_specs
        args: Any = self.graph.output_node().args[0]
        return {
            placeholder_of[str(spec.target)]: node
            for spec, node in zip(specs, args, strict=True)
            if spec.kind == OutputKind.GRADIENT_TO_PARAMETER and node is not None
        }

    def add_steps(self, learning_rate: float) -> None:
        """The parameters after a step along the gradients that the graph returns."""
        for placeholder, gradient in self.gradients.items():
            name = self.inputs[placeholder]
            weight = self.conversion.value(self.placeholders[name])
            calculator = Calculator(weight.dtype, weight.shape)
            step = calculator.mul(learning_rate, self.conversion.value(gradient))
            new = calculator.sub(weight, step)
            every = list(range(len(new.extents)))
            self.conversion.builder.computed(f"{name}.new", replace(new, name=""), every)
            self._add_step(name, f"{name}.new")

    def finished(self, by_einsums: float | None = None) -> TorchProgram:
        """The program and its binding.

        by_einsums: learning rate of a step whose gradients are einsums too.

        Raises:
            InputError: an op has no such gradient.
        """
        specs = self.exported.program.graph_signature.output_specs
        args: Any = self.graph.output_node().args[0]
        wanted = [
            (spec, node)
            for spec, node in zip(specs, args, strict=True)
            if isinstance(spec.arg, TensorArgument) and spec.kind in _RESULTS
        ]
        numbers = self.conversion.results([node for _, node in wanted])
        program = Program(
            name=self.exported.name,
            parameters={},
            nodes=tuple(self.conversion.builder.nodes),
            given_splits={},
            copies_sums=False,
        )
        if by_einsums is not None:
            of_user = [
                number
                for (spec, _), number in zip(wanted, numbers, strict=True)
                if spec.kind == OutputKind.USER_OUTPUT
            ]
            program = self._trained(program, of_user[self.exported.loss], by_einsums)
        results: list[Result] = []
        effects: dict[int | str, Result] = {}
        for (spec, node), number in zip(wanted, numbers, strict=True):
            shape = tuple(node.meta["val"].shape)
            result = Result(self.conversion.result_name(number), shape)
            if spec.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT):
                results.append(result)
            elif spec.kind == OutputKind.BUFFER_MUTATION:
                effects[str(spec.target)] = result
            else:
                effects[self._user_inputs().index(str(spec.target))] = result
        binding = self._binding(tuple(results), effects)
        return TorchProgram(program=program, binding=binding, whole=tuple(self.conversion.whole))

    def _trained(self, program: Program, loss: int, learning_rate: float) -> Program:
        """The program, its gradients and the step, for parameters that the loss depends on."""
        nodes = list(program.nodes)
        state = self.exported.program.state_dict
        for number in _upstream(nodes, loss):
            node = nodes[number]
            if not isinstance(node, Input) or node.name not in self.placeholders:
                continue
            placeholder = self.placeholders[node.name].name
            is_parameter = placeholder in self.exported.program.graph_signature.inputs_to_parameters
            if is_parameter and state[self.state_of[placeholder]].requires_grad:
                nodes[number] = replace(node, is_weight=True)
                self._add_step(node.name, f"{node.name}.new")
        program = replace(program, nodes=tuple(nodes), loss=loss)
        return training_program(program, learning_rate=learning_rate)

    def _add_step(self, name: str, result: str) -> None:
        """Of an input of the program that is a parameter, by all names that the module has."""
        placeholder = self.placeholders[name]
        state = self.exported.traced.state_dict
        own = state[self.state_of[placeholder.name]]
        for key, tensor in state.items():
            if tensor is own:
                self.steps[key] = Result(result, tuple(placeholder.meta["val"].shape))

    def _user_inputs(self) -> list[str]:
        """The placeholders of the tensors of a call, in the order of the tree."""
        return [
            spec.arg.name
            for spec in self.exported.program.graph_signature.input_specs
            if spec.kind == InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument)
        ]

    def _binding(self, results: tuple[Result, ...], effects: Mapping[int | str, Result]) -> Binding:
        conversion, users = self.conversion, self._user_inputs()
        state: Any = {**self.exported.program.state_dict, **self.exported.program.constants}
        values = {one.name: one.meta["val"] for one in self.graph.find_nodes(op="placeholder")}
        names = {name: node.name for name, node in self.placeholders.items()}
        folded = {
            name: partial(torch.arange, node) if isinstance(node, int) else partial(evaluated, node)
            for name, node in conversion.folded.items()
        }
        shapes = {
            node.name: node.shape for node in conversion.builder.nodes if isinstance(node, Input)
        }
        return Binding(
            name=self.exported.name,
            parameters=self.exported.parameters,
            arguments=self.exported.arguments,
            returned=self.exported.returned,
            given=tuple(
                GivenTensor(one, tuple(values[one].shape), values[one].dtype) for one in users
            ),
            shapes=shapes,
            from_arguments={name: users.index(one) for name, one in names.items() if one in users},
            from_state={
                name: self.state_of[one] for name, one in names.items() if one in self.state_of
            },
            computed={**folded, **conversion.drawn},
            drawn=tuple(conversion.drawn),
            results=results,
            effects=effects,
            steps=self.steps,
            state=state,
        )


_RESULTS = (
    *(OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT),
    *(OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION),
)


def _upstream(nodes: Sequence[Node], number: int) -> set[int]:
    found, queue = {number}, [number]
    while queue:
        for operand in nodes[queue.pop()].operands:
            if operand not in found:
                found.add(operand)
                queue.append(operand)
    return found


def _state_names(exported: ExportedProgram) -> dict[str, str]:
    """Per placeholder of a parameter, buffer or constant, what the module calls it."""
    signature = exported.graph_signature
    return {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
