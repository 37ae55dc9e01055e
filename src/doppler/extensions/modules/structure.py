"""The structure of a module: tensors of its submodules, and where their results meet.

accelerate moves tensors between devices only where a submodule is called. So if a module is divided
over several devices, results of its parts on different devices must not meet in its own forward.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import fx

from doppler.extensions.modules.nodes import path_of, tensors_of

# The arguments of a call of the whole module.
INPUT = -1


class Home(NamedTuple):
    """The submodule that computes a result, or that holds a parameter.

    If the submodule is on one device, the result is there. If it is divided, the result is where
    the operand is from which it was computed.

    Attributes:
        path: of the submodule.
        source: number of that operand's home; `INPUT` for an argument of the whole module.
    """

    path: str
    source: int


class Join(NamedTuple):
    """An op in the forward of a module that reads results of several homes.

    Attributes:
        path: of the module.
        homes: numbers of the homes.
    """

    path: str
    homes: tuple[int, ...]


class Structure(NamedTuple):
    """How a module can be divided into parts on different devices.

    Attributes:
        tensors: size of every parameter and buffer in bytes, by name.
        tied: groups of names of the same tensor.
        homes: of results.
        joins: of homes.
        reads: (module, holder) where an op in the forward of one module reads a tensor that another
            module holds.
    """

    tensors: dict[str, int]
    tied: tuple[tuple[str, ...], ...]
    homes: tuple[Home, ...]
    joins: tuple[Join, ...]
    reads: tuple[tuple[str, str], ...]


def structure_of(
    results: Iterable[fx.Node], state: dict[str, torch.Tensor], state_of: dict[str, str]
) -> Structure:
    """Return the structure of a module from the graph of its forward.

    Args:
        results: nodes that compute what the forward returns.
        state: parameters and buffers by name.
        state_of: names in ``state``, by the names of the graph's placeholders.
    """
    results = list(results)
    numbers: dict[Home, int] = {}
    tied = _names_of_one(state)
    holders = {name: [name.rpartition(".")[0]] for name in state}
    for names in tied:
        every = [one.rpartition(".")[0] for one in names]
        holders.update(dict.fromkeys(names, every))
    home_of: dict[fx.Node, int | None] = {}
    paths: dict[int, str] = {}
    joins: dict[Join, None] = {}
    reads: dict[tuple[str, str], None] = {}
    needed = _upstream(results)
    for node in results[0].graph.nodes if results else ():
        if node not in needed or not tensors_of(node):
            continue
        path = path_of(node)
        if node.op == "placeholder":
            name = state_of.get(node.name)
            if name is None:
                home_of[node] = INPUT
            elif name in state:
                home = Home(name.rpartition(".")[0], INPUT)
                home_of[node] = numbers.setdefault(home, len(numbers))
                paths[numbers[home]] = home.path
            continue
        homes: list[int] = []
        for read in node.all_input_nodes:
            number = home_of.get(read)
            if read.op == "placeholder" and read.name in state_of:
                own = holders.get(state_of[read.name], [path])
                if path not in own:
                    reads[path, own[0]] = None
            if number is not None and number not in homes:
                homes.append(number)
        if not homes:
            home_of[node] = None  # it depends on no argument and no tensor of the module
            continue
        if len(homes) > 1:
            joins[Join(path, tuple(homes))] = None
        source = homes[0]
        if source == INPUT or paths[source] != path:
            source = numbers.setdefault(Home(path, source), len(numbers))
            paths[source] = path
        home_of[node] = source
    sizes = {name: one.numel() * one.element_size() for name, one in state.items()}
    return Structure(sizes, tied, tuple(numbers), tuple(joins), tuple(reads))


def _names_of_one(state: dict[str, torch.Tensor]) -> tuple[tuple[str, ...], ...]:
    """Return the names of each tensor that has several names."""
    same: dict[int, list[str]] = {}
    for name, tensor in state.items():
        same.setdefault(id(tensor), []).append(name)
    return tuple(tuple(names) for names in same.values() if len(names) > 1)


def _upstream(results: list[fx.Node]) -> set[fx.Node]:
    found, queue = set(results), list(results)
    while queue:
        for node in queue.pop().all_input_nodes:
            if node not in found:
                found.add(node)
                queue.append(node)
    return found
