"""The gradients of an exported module, by torch's own rules: its ops and those of its backward."""

from typing import Any

from torch._decomp import core_aten_decompositions
from torch.export import exported_program

from doppler.errors import InputError
from doppler.importing.exporting import Exported, quiet


def with_gradients(exported: Exported) -> Exported:
    """What was exported, with the gradients of its loss by its parameters as further results.

    Raises:
        InputError: an op that cannot be differentiated.
    """
    # The joint graph of forward and backward has no public name in torch yet.
    inside: Any = exported_program
    with quiet():
        try:
            program = inside._decompose_exported_program(
                exported.program,
                cia_to_decomp={},
                python_decomp_table=core_aten_decompositions(),
                joint_loss_index=exported.loss,
                decompose_custom_triton_ops=False,
            )
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            raise InputError(
                f"{exported.name}: its loss has no gradient: {type(error).__name__}: {reason}; "
                "training=false places the forward alone"
            ) from None
    return exported._replace(program=program)
