"""The gradients of a module's loss: torch's own autograd runs while the module is traced.

So every rule is torch's: of its operators at ties and bounds, of autograd functions and hooks of
the user, of regions without gradients. What they compute is recorded as ops of the same graph.
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
    """What a call returned.

    Attributes:
        tree: of its results.
        loss: which of the tensors in it is the loss.
        trained: the parameters whose gradients stand behind those tensors.
    """

    tree: Tree
    loss: int = 0
    trained: tuple[str, ...] = ()


class Gradients:
    """The gradients of a module's loss by its parameters.

    Raises:
        InputError: a parameter has a hook that no gradient shows.
    """

    def __init__(self, module: nn.Module, name: str) -> None:
        self._module, self._name = module, name
        # Tracing puts other tensors in the place of parameters, one for each name: what is trained,
        # which names are of the same, and its hooks are said by those of the module.
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
        """Call the module; the tensors that it returns, and the gradients of its loss."""
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
            # Numbers the ops of the backward like those of the forward that they belong to. Torch
            # resets this only where a backward succeeds.
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
    """Which tensor is the loss: the one of this name, or else the first."""
    paths = [path[-1:] for path in leaf_paths(result.tree)]
    loss = paths.index(("loss",)) if ("loss",) in paths else 0
    if (
        not result.tensors
        or result.tensors[loss].shape
        or not result.tensors[loss].is_floating_point()
    ):
        raise InputError(
            f"{name}: training=true needs a module that returns its loss, one real number, alone, "
            "first, or as 'loss'"
        )
    return loss


def first_line(error: BaseException) -> str:
    """The first line of what an error says."""
    return (str(error).strip() or "no reason given").split("\n")[0]


def place_backward(graph: fx.Graph) -> None:
    """Say of every op of the backward in which submodule it is: where the op of the forward is.

    Gradients that come by several ways are added in the innermost module that has all of these.
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
    """``, in Clip.backward (model.py:12)``: the innermost function that is not torch's or ours."""
    ours = (os.path.dirname(torch.__file__), os.path.dirname(os.path.abspath(__file__)))
    found, traceback = "", error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not code.co_filename.startswith((*ours, "<")):
            place = f"{os.path.basename(code.co_filename)}:{traceback.tb_lineno}"
            found = f", in {code.co_qualname} ({place})"
        traceback = traceback.tb_next
    return found
