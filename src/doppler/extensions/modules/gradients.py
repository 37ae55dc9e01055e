"""Computes the gradients of a module's loss by running torch's autograd while the module is traced.

So every rule is torch's own: for operators at ties and bounds, for the user's autograd functions
and hooks, and for regions without gradients. The ops that autograd runs are recorded in the graph.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import fx, nn
from torch._functorch._aot_autograd import logging_utils

from doppler.extensions.modules.trees import Flat, Tree, leaf_paths
from doppler.support.errors import InputError

Hook = Callable[[torch.Tensor], Any]


@dataclass(frozen=True)
class Returned:
    """The structure of what a call returned.

    Attributes:
        tree: of the results.
        loss: number of the tensor in it that is the loss.
        trained: names of the parameters whose gradients follow those tensors.
    """

    tree: Tree
    loss: int = 0
    trained: tuple[str, ...] = ()


class Gradients:
    """Calls a module and computes the gradients of its loss by its parameters.

    Args:
        module: the user's.
        name: of the module in errors.

    Raises:
        InputError: a parameter has a hook whose effect no gradient shows.
    """

    def __init__(self, module: nn.Module, name: str) -> None:
        self._module, self._name = module, name
        # Tracing replaces parameters by other tensors, one for each name. So the module's own
        # parameters are asked here: which are trained, which names share one, and their hooks.
        self._hooks: dict[str, list[Hook]] = {}
        self._same: dict[str, str] = {}
        every = dict(module.named_parameters(remove_duplicate=False))
        for key, parameter in module.named_parameters():
            if parameter.requires_grad:
                self._hooks[key] = list((parameter._backward_hooks or {}).values())
                self._same |= {other: key for other, one in every.items() if one is parameter}
                if getattr(parameter, "_post_accumulate_grad_hooks", None):
                    raise InputError(
                        f"{name}: parameter {key!r} has a hook that runs after its gradient is "
                        "accumulated (register_post_accumulate_grad_hook); remove it"
                    )

    def __call__(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Returned, list[torch.Tensor]]:
        """Call the module.

        Args:
            args: by position.
            kwargs: by keyword.

        Returns:
            The structure of the results; and the tensors that the module returns, followed by the
            gradients of its loss.

        Raises:
            InputError: the module returns no loss, or its loss has no gradient.
        """
        with torch.enable_grad():
            leaves = {
                key: parameter.detach().requires_grad_()
                for key, parameter in self._module.named_parameters()
                if key in self._hooks
            }
            for key, hooks in self._hooks.items():
                for hook in hooks:
                    leaves[key].register_hook(hook)
            named = {key: leaves[same] for key, same in self._same.items()}
            result = Flat(torch.func.functional_call(self._module, named, args, dict(kwargs)))
            loss = loss_of(self._name, result)
            found = self._differentiated(result.tensors[loss], leaves)
        returned = Returned(result.tree, loss, tuple(found))
        return returned, [one.detach() for one in (*result.tensors, *found.values())]

    def _differentiated(
        self, loss: torch.Tensor, leaves: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        found: Sequence[torch.Tensor | None] = []
        if loss.requires_grad:
            assert loss.grad_fn is not None
            # Gives each op of the backward the number of its op in the forward. Torch resets the
            # flag only if a backward succeeds.
            logging_utils.callback_set = False
            logging_utils.setup_stacktrace_preservation_hooks([loss.grad_fn])
            try:
                found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
            except Exception as error:
                raise InputError(
                    f"{self._name}: its loss has no gradient{own_function(error)}: "
                    f"{type(error).__name__}: {first_line(error)}; training=false places the "
                    "forward alone"
                ) from None
        gradients = dict(zip(leaves, found, strict=False))
        trained = {key: one for key, one in gradients.items() if one is not None}
        if not trained:
            raise InputError(f"{self._name}: its loss depends on no parameter")
        return trained


def loss_of(name: str, result: Flat) -> int:
    """Return the number of the tensor that is the loss: the one named ``loss``, or else the first.

    Args:
        name: of the module in errors.
        result: what the module returned.

    Raises:
        InputError: this tensor is not a single real number.
    """
    paths = list(leaf_paths(result.tree))
    named = [number for number, path in enumerate(paths) if path[-1:] == ("loss",)]
    loss = min(named, key=lambda number: len(paths[number]), default=0)  # the outermost
    if (
        not result.tensors
        or result.tensors[loss].shape
        or not result.tensors[loss].is_floating_point()
    ):
        raise InputError(
            f"{name}: training=true needs a module that returns its loss: one real number, "
            "alone, first, or named 'loss'"
        )
    return loss


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message.

    Args:
        error: whose message it is.
    """
    return (str(error).strip() or "no reason given").split("\n")[0]


def place_backward(graph: fx.Graph) -> None:
    """Record for every op of the backward the submodule of its op in the forward.

    If gradients of a tensor come from several ops, their sum belongs to the innermost module that
    contains all of these ops.

    Args:
        graph: changed in place.
    """
    places: dict[int, Any] = {}
    for node in graph.nodes:
        number, place = node.meta.get("seq_nr"), node.meta.get("nn_module_stack")
        if place and not node.meta.get("autograd_backward"):
            places.setdefault(number, place)
        elif node.meta.get("is_gradient_acc"):
            stacks = [
                list(read.meta["nn_module_stack"].items())
                for read in node.all_input_nodes
                if read.meta.get("nn_module_stack")
            ]
            same = takewhile(lambda each: len(set(each)) == 1, zip(*stacks, strict=False))
            node.meta["nn_module_stack"] = dict(each[0] for each in same)
        elif number in places:
            node.meta["nn_module_stack"] = places[number]


def own_function(error: BaseException) -> str:
    """Return where the user's code failed, such as ``, in Clip.backward (model.py:12)``.

    Args:
        error: with its traceback.

    Returns:
        The innermost function that is neither torch's nor ours; an empty string if there is none.
    """
    ours = (os.path.dirname(torch.__file__), os.path.dirname(os.path.abspath(__file__)))
    found, traceback = "", error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not code.co_filename.startswith((*ours, "<")):
            place = f"{os.path.basename(code.co_filename)}:{traceback.tb_lineno}"
            found = f", in {code.co_qualname} ({place})"
        traceback = traceback.tb_next
    return found
