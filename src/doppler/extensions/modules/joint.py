"""The gradients of an exported module, by torch's own rules: its ops and those of its backward."""

from typing import Any

import torch
from torch import fx
from torch._decomp import core_aten_decompositions
from torch.export import ExportedProgram, exported_program

from doppler.extensions.modules.decompositions import DECOMPOSED
from doppler.extensions.modules.exporting import Exported, quiet
from doppler.extensions.modules.tidying import tensors_of
from doppler.support.errors import InputError

aten = torch.ops.aten


def with_gradients(exported: Exported) -> Exported:
    """What was exported, with the gradients of its loss by its parameters as further results.

    Raises:
        InputError: the loss depends on no parameter, or an op cannot be differentiated.
    """
    _freeze_others(exported)
    # The joint graph of forward and backward has no public name in torch yet.
    inside: Any = exported_program
    with quiet():
        try:
            program = inside._decompose_exported_program(
                exported.traced,
                cia_to_decomp={},
                python_decomp_table={**core_aten_decompositions(), **DECOMPOSED},
                joint_loss_index=exported.loss,
                decompose_custom_triton_ops=False,
            )
        except Exception as error:
            reason = (str(error).strip() or "no reason given").split("\n")[0]
            raise InputError(
                f"{exported.name}: its loss has no gradient: {type(error).__name__}: {reason}; "
                "training=false places the forward alone"
            ) from None
    return exported._replace(program=program)


def stops_gradients(traced: ExportedProgram) -> bool:
    """Whether a part of the forward is said to have no gradient."""
    output = traced.graph.output_node()
    return any(
        (node.target is aten.detach.default and set(node.users) != {output})
        or "set_grad_enabled" in str(node.target)
        for node in traced.graph.nodes
        if node.op == "call_function"
    )


def _freeze_others(exported: Exported) -> None:
    """Parameters on which the loss does not depend are not trained: torch would fail."""
    reached = _upstream(exported.traced, exported.loss)
    if reached.isdisjoint(exported.traced.graph_signature.inputs_to_parameters):
        raise InputError(f"{exported.name}: its loss depends on no parameter")
    for node in exported.traced.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if node.name not in reached and isinstance(value, torch.Tensor):
            node.meta["val"] = value.detach()


def _upstream(program: ExportedProgram, loss: int) -> set[str]:
    """What the loss depends on by real numbers."""
    specs = list(program.graph_signature.user_outputs)
    (start,) = (
        node for node in program.graph.output_node().all_input_nodes if node.name == specs[loss]
    )
    found, queue = {start.name}, [start]
    while queue:
        for node in queue.pop().all_input_nodes:
            if node.name not in found and _is_real(node):
                found.add(node.name)
                queue.append(node)
    return found


def _is_real(node: fx.Node) -> bool:
    stops = node.target is aten.detach.default
    return not stops and any(one.dtype.is_floating_point for one in tensors_of(node))
