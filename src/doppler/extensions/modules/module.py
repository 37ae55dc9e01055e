"""Converts a torch module to an einsum program."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument

from doppler.einsum.program import Input, Program
from doppler.extensions.modules.binding import Binding, GivenTensor, Result
from doppler.extensions.modules.conversion import Conversion
from doppler.extensions.modules.drawing import evaluated
from doppler.extensions.modules.elementwise import Calculator
from doppler.extensions.modules.exporting import Exported, export
from doppler.extensions.modules.factors import Same
from doppler.extensions.modules.simplifying import wide
from doppler.extensions.modules.structure import structure_of
from doppler.extensions.modules.tidying import tidy
from doppler.support.errors import InputError


@dataclass(frozen=True, eq=False, kw_only=True)
class TorchProgram:
    """The program of a module.

    Attributes:
        program: the einsum program.
        binding: maps the module's tensors to those of the program.
        whole: ops that are not split, each with its place in the module and the reason.
        by_bytes: ops whose time is estimated only from the bytes they read and write, because their
            number of floating-point operations is unknown.
    """

    program: Program
    binding: Binding
    whole: tuple[str, ...]
    by_bytes: tuple[str, ...]


def import_module(
    module: nn.Module | ExportedProgram,
    example_inputs: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    training: bool = False,
    learning_rate: float = 1e-3,
) -> TorchProgram:
    """Convert a torch module to an einsum program.

    Args:
        module: on any device, the meta device included, because nothing is computed; or a program
            that torch.export made, which has example inputs of its own.
        example_inputs: arguments by position: tensors, and containers of tensors.
        example_kwargs: arguments by keyword.
        training: whether the module returns its loss (alone, first, or named ``loss``); backward
            and a step of gradient descent are added.
        learning_rate: of that step.

    Raises:
        InputError: one line that names the op, its place in the module, and a remedy.
    """
    exported = export(module, example_inputs, example_kwargs or {}, training=training)
    imported = _Import(exported)
    imported.add_steps(learning_rate)
    return imported.finished(learning_rate if training else None)


class _Import:
    """The conversion of one exported graph to a program."""

    def __init__(self, exported: Exported) -> None:
        self.exported, self.graph = exported, exported.program.graph
        self.state_of = _state_names(exported.program)
        tidy(self.graph)
        self.results, self.effects = self._returned()
        # For each placeholder of a trained parameter, its gradient.
        self.gradients = self._gradients()
        ties = [
            Same((weight, dim), (gradient.name, dim))
            for weight, gradient in self.gradients.items()
            for dim in range(gradient.meta["val"].dim())
        ]
        self.conversion = Conversion(self.graph, ties)
        # Placeholders by input of the program, and inputs by placeholder.
        self.placeholders: dict[str, fx.Node] = {}
        self.inputs: dict[str, str] = {}
        for node in self.graph.find_nodes(op="placeholder"):
            is_read = node.users or node.name in self.gradients
            if is_read and isinstance(node.meta.get("val"), torch.Tensor):
                asked = self.state_of.get(node.name) or node.name
                name = self.conversion.add_input(node, asked)
                self.placeholders[name], self.inputs[node.name] = node, name
        self.conversion.run()
        self.steps: dict[str, Result] = {}

    def _returned(self) -> tuple[list[fx.Node], dict[int | str, fx.Node]]:
        """Return the tensors that the graph returns, gradients last, and those that it writes."""
        results: list[fx.Node] = []
        effects: dict[int | str, fx.Node] = {}
        args: Any = self.graph.output_node().args[0]
        specs = self.exported.program.graph_signature.output_specs
        for spec, node in zip(specs, args, strict=True):
            if not isinstance(spec.arg, TensorArgument):
                continue
            if spec.kind == OutputKind.USER_OUTPUT:
                results.append(node)
            elif spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION):
                effects[str(spec.target)] = node
            elif spec.kind == OutputKind.USER_INPUT_MUTATION:
                effects[self._user_inputs().index(str(spec.target))] = node
        if not results and not effects:
            raise InputError(
                f"{self.exported.name}: returns no tensor, so there is nothing to compute"
            )
        return results, effects

    def _gradients(self) -> dict[str, fx.Node]:
        """Return, by placeholder of a parameter, the gradient that the graph returns."""
        trained = self.exported.returned.trained
        gradients = [self.results.pop() for _ in trained][::-1]
        state = self.exported.program.state_dict
        found: dict[str, fx.Node] = {}
        for name, gradient in zip(trained, gradients, strict=True):
            # A tensor may have several names, and the graph reads it by one.
            same = {key for key, tensor in state.items() if tensor is state[name]}
            readers = self.graph.find_nodes(op="placeholder")
            names = [one.name for one in readers if self.state_of.get(one.name) in same]
            used = [one.name for one in readers if one.name in names and one.users]
            found[(used or names)[0]] = gradient
        return found

    def add_steps(self, learning_rate: float) -> None:
        """Add the parameters after a step along the gradients that the graph returns.

        Args:
            learning_rate: of the step.
        """
        for placeholder, gradient in self.gradients.items():
            name = self.inputs[placeholder]
            # If the forward writes into the parameter, the step begins where the forward ends.
            written = self.effects.get(self.state_of[placeholder])
            weight = self.conversion.value(written or self.placeholders[name])
            calculator = Calculator(wide(weight.dtype), weight.shape)
            step = calculator.mul(learning_rate, self.conversion.value(gradient))
            new = calculator.sub(weight, step).cast(weight.dtype)
            every = list(range(len(new.extents)))
            self.conversion.builder.computed(f"{name}.new", replace(new, name=""), every)
            self._add_step(name, f"{name}.new")

    def finished(self, learning_rate: float | None) -> TorchProgram:
        """Return the program and its binding.

        Args:
            learning_rate: of the training step; None: no training.
        """
        nodes = [*self.results, *self.effects.values()]
        numbers = self.conversion.results(nodes)
        program = Program(
            name=self.exported.name,
            parameters={},
            nodes=tuple(self.conversion.builder.nodes),
            given_splits={},
            copies_sums=False,
        )
        results = [
            Result(self.conversion.result_name(number), tuple(node.meta["val"].shape))
            for node, number in zip(nodes, numbers, strict=True)
        ]
        num = len(self.results)
        effects = dict(zip(self.effects, results[num:], strict=True))
        binding = self._binding(program, tuple(results[:num]), effects, learning_rate)
        return TorchProgram(
            program=program,
            binding=binding,
            whole=tuple(self.conversion.whole),
            by_bytes=tuple(dict.fromkeys(self.conversion.by_bytes)),
        )

    def _add_step(self, name: str, result: str) -> None:
        """Record the new value of a parameter under all names that the module has for it."""
        placeholder = self.placeholders[name]
        state = self.exported.program.state_dict
        own = state[self.state_of[placeholder.name]]
        for key, tensor in state.items():
            if tensor is own:
                self.steps[key] = Result(result, tuple(placeholder.meta["val"].shape))

    def _user_inputs(self) -> list[str]:
        """Return the placeholders of the tensors of a call, in the order of the tree."""
        return [
            spec.arg.name
            for spec in self.exported.program.graph_signature.input_specs
            if spec.kind == InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument)
        ]

    def _binding(
        self,
        program: Program,
        results: tuple[Result, ...],
        effects: Mapping[int | str, Result],
        learning_rate: float | None,
    ) -> Binding:
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
            digest=hashlib.sha256(repr(program.nodes).encode()).hexdigest()[:16],
            learning_rate=learning_rate,
            parameters=self.exported.parameters,
            arguments=self.exported.arguments,
            returned=self.exported.returned.tree,
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
            structure=structure_of(
                self.results, dict(self.exported.program.state_dict), self.state_of
            ),
            state=state,
        )


def _state_names(exported: ExportedProgram) -> dict[str, str]:
    """Return the module's name of each placeholder of a parameter, buffer or constant."""
    signature = exported.graph_signature
    return {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
