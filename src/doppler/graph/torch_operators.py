"""The operators of torch that a kernel may call, and those of them that a file may name.

A kernel is executed repeatedly, on other threads and on memory that earlier executions used, so its
operator must be a pure function. Anybody may have written a graph file, so its operators may affect
nothing but tensors. torch is imported only for kernels that name an operator.
"""

import re
from typing import Any

from doppler.support.errors import InputError

_NAMESPACES = ("aten", "prims")
# Public operators that a graph file may not name: they return uninitialised memory or read files,
# update statistics although their signature says otherwise, or interpret bytes as a layout (packed,
# sparse, nested, a vendor's own).
_REFUSED = re.compile(
    r"from_file|(new_)?empty|resize|set($|_)|data$|get_gradients|pin_memory|device_put"
    r"|(native_)?batch_norm($|_(update|gather))|instance_norm"
    r"|fbgemm|quantized|q_per|int_repr|(to_)?mkldnn|cudnn|miopen|(lstm_)?mps|convolution_\w*overrideable"
    r"|(to_)?sparse|copy_sparse|nested|to_padded|values|indices|crow_|ccol_|col_ind|row_ind|lift"
)
# Internal operators of torch that exported modules consist of.
_INSIDE = re.compile(
    r"_(adaptive_avg_pool|aminmax|batch_norm_(no_update|with_update_functional)|cdist|conj"
    r"|conv_depthwise|ctc_loss|embedding_bag(_forward_only)?$|euclidean_dist|fft|fused_rms_norm"
    r"|grouped_mm|int_mm|linalg|log_softmax|logcumsumexp|native_batch_norm|neg_view|pdist|prelu"
    r"|reshape_copy|safe_softmax|scaled_dot_product|scaled_mm|softmax|stack|thnn_fused|to_copy"
    r"|trilinear|unique|unsafe_index|unsafe_masked_index|unsafe_view|upsample|weight_norm)"
)


def find_operator(name: str) -> Any:
    """Return torch's operator ``namespace.packet.overload``, which must be a pure function.

    Args:
        name: of the operator.

    Raises:
        ValueError: torch has no such operator, or it changes its arguments, draws random numbers,
            or returns anything but tensors.
    """
    import torch

    parts = name.split(".")
    operator: Any = torch.ops
    for part in parts if len(parts) == 3 else ():
        operator = getattr(operator, part, None) if part.isidentifier() else None
    if not isinstance(operator, torch._ops.OpOverload):
        raise ValueError(f"{name!r} is not the name of an operator of torch")
    schema = operator._schema
    if schema.is_mutable or any(a.alias_info and a.alias_info.is_write for a in schema.arguments):
        raise ValueError(f"{name!r} changes its arguments: it is not a pure function")
    if torch.Tag.nondeterministic_seeded in operator.tags:
        raise ValueError(f"{name!r} draws random numbers: it is not a pure function")
    if not schema.returns or not all("Tensor" in str(one.type) for one in schema.returns):
        raise ValueError(f"{name!r} returns something other than tensors")
    return operator


def check_file_kernel(expression: str, where: str) -> None:
    """Refuse a kernel of a file that calls an operator which is not known to be harmless.

    Args:
        expression: of the kernel.
        where: start of messages.

    Raises:
        InputError: names the operator.
    """
    word, _, call = expression.partition(":")
    if word != "torch":
        return
    name = call.partition(":")[0]
    namespace, *rest = name.split(".")
    if namespace not in _NAMESPACES:  # looking it up might import a module
        raise InputError(f"{where}: {name!r} is not an operator of {' or '.join(_NAMESPACES)}")
    try:
        operator = find_operator(name)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None
    packet = rest[0]
    listed = _INSIDE if packet.startswith("_") else _REFUSED
    if bool(listed.match(packet)) != packet.startswith("_") or _takes_objects(operator):
        raise InputError(f"{where}: {name!r} is not one of the operators that a file may name")


def _takes_objects(operator: Any) -> bool:
    """Whether an operator takes anything but tensors, numbers and texts."""
    types = [str(argument.type) for argument in operator._schema.arguments]
    return any("__torch__" in one or "Storage" in one or "Generator" in one for one in types)
