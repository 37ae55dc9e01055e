"""Records the torch calls of a function once, then repeats them without Python overhead.

A kernel is a Python function of several torch calls, and each call makes a new tensor. For small
tensors that costs more than the arithmetic, and threads that run Python wait for each other. Since
a kernel makes the same calls for all operands of its shapes, one run tells them. Repeating them
into the tensors of that run needs no allocation, no shape inference and no decisions.
"""

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Action = Callable[[], Any]

_aten: Any = torch.ops.aten
# Their results are copies, and torch has no variant that writes into a given tensor.
_COPIES = (_aten.clone, _aten._to_copy)
_EMPTY = (_aten.empty, _aten.empty_strided)
# A view although its signature does not say so.
_VIEWS = (_aten._unsafe_view,)


class Scratch:
    """Temporary tensors, shared by functions that never run at the same time.

    The tensor returned last is taken first, because it is most likely in a cache.
    """

    def __init__(self) -> None:
        self._free: dict[tuple, list[torch.Tensor]] = defaultdict(list)

    def in_place_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the same shape, dtype and values; the given one if there is none."""
        free = self._free[_kind(tensor)]
        return free.pop().copy_(tensor) if free else tensor

    def put_back(self, tensor: torch.Tensor) -> None:
        """Return a tensor whose values are no longer needed."""
        self._free[_kind(tensor)].append(tensor)


def _kind(tensor: torch.Tensor) -> tuple:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def record(function: Callable[[], torch.Tensor], scratch: Scratch) -> tuple[Action, torch.Tensor]:
    """Run a function and record its torch calls.

    What the function reads must stay at its address, and its calls must not depend on values.

    Args:
        function: to record.
        scratch: memory for temporary tensors.

    Returns:
        An action that repeats the calls, and the result tensor, which each repetition overwrites.
    """
    # Inference mode would hide the calls inside composite functions.
    with torch.inference_mode(False), torch.no_grad():
        with _Recorder(None) as recorder:
            memory = function().untyped_storage().data_ptr()
        made_at = [made.untyped_storage().data_ptr() for made in recorder.made]
        if memory not in made_at:  # it returns a tensor that existed before
            return record(lambda: function().clone(), scratch)
        # The result must not be scratch; a first run tells which tensor it is.
        with _Recorder(scratch, own=made_at.index(memory)) as recorder:
            result = function()
    for i, made in enumerate(recorder.made):
        if i != recorder.own:
            scratch.put_back(made)
    actions = tuple(recorder.actions)
    if len(actions) == 1:
        return actions[0], result

    def repeat() -> None:
        for action in actions:
            action()

    return repeat, result


class _Recorder(TorchDispatchMode):
    """Sees every call that reaches torch's kernels, and the tensors that it makes."""

    def __init__(self, scratch: Scratch | None, own: int = -1) -> None:
        super().__init__()
        self.actions: list[Action] = []
        self.made: list[torch.Tensor] = []
        self.own = own  # the tensor that must not be scratch
        self._scratch = scratch

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        returned = [each.alias_info for each in func._schema.returns]
        if func.overloadpacket in _VIEWS or (returned and all(map(_is_view, returned))):
            return results  # now its address is known
        if returned and not any(returned):
            results = self._keep(results)
        if func.overloadpacket not in _EMPTY:
            self.actions.append(_repetition(func, args, kwargs, results))
        return results

    def _keep(self, results):
        if isinstance(results, tuple | list):
            return type(results)(map(self._keep, results))
        if not isinstance(results, torch.Tensor):
            return results
        if self._scratch is not None and len(self.made) != self.own:
            results = self._scratch.in_place_of(results)
        self.made.append(results)
        return results


def _is_view(alias: Any) -> bool:
    return alias is not None and not alias.is_write


def _repetition(func: Any, args: tuple, kwargs: dict, results: Any) -> Action:
    """The same call again, with its results in the same tensors."""
    schema = func._schema
    writes = any(argument.alias_info is not None for argument in schema.arguments)
    if writes or not schema.returns:
        return partial(func, *args, **kwargs)
    if func.overloadpacket in _COPIES:
        return partial(results.copy_, args[0])
    variant = _out_variant(func)
    if variant is None:
        return partial(_call_and_copy, func, args, kwargs, results)
    outs = results if isinstance(results, tuple) else (results,)
    known = {argument.name for argument in variant._schema.arguments}
    names = [argument.name for argument in variant._schema.arguments if argument.is_out]
    kwargs = {key: value for key, value in kwargs.items() if key in known}
    return partial(variant, *args, **kwargs, **dict(zip(names, outs, strict=True)))


def _call_and_copy(func: Any, args: tuple, kwargs: dict, into: Any) -> None:
    _copy(func(*args, **kwargs), into)


def _copy(results: Any, into: Any) -> None:
    if isinstance(results, torch.Tensor):
        into.copy_(results)
    elif isinstance(results, tuple | list):
        for result, each in zip(results, into, strict=True):
            _copy(result, each)


def _out_variant(func: Any) -> Any:
    """The overload of ``func`` that writes its results into given tensors, if there is one.

    Generated overloads do not count: they make new results first and copy them.
    """
    wanted = _signature(func, without=_OF_NEW_TENSORS)
    for name in func.overloadpacket.overloads():
        variant = getattr(func.overloadpacket, name)
        writes = any(argument.is_out for argument in variant._schema.arguments)
        is_real = writes and torch.Tag.generated not in variant.tags
        if is_real and _signature(variant, without=_OF_NEW_TENSORS) == wanted:
            return variant
    return None


# Arguments that say what kind of tensor to make; where one is given, they need not be there.
_OF_NEW_TENSORS = ("dtype", "layout", "device", "pin_memory")


def _signature(func: Any, *, without: tuple[str, ...]) -> list[tuple[str, str]]:
    return [
        (argument.name, str(argument.type))
        for argument in func._schema.arguments
        if not argument.is_out and argument.name not in without
    ]
