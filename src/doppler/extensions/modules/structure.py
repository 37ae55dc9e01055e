"""Which tensors the submodules of a module hold, and which of their results meet in whose forward.

From one device to another a tensor goes only where a submodule is called. So results of submodules
on two devices must not meet in an op of the forward of a module that is itself on no single one.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import fx

from doppler.extensions.modules.nodes import path_of, tensors_of

# The arguments of a call of the whole module.
INPUT = -1


class Home(NamedTuple):
    """Where a result is: with the submodule at a path, if that is on one device.

    Else where the operand is that it was computed from.

    Attributes:
        source: number of that one's home.
    """

    path: str
    source: int


class Join(NamedTuple):
    """An op of the forward of the module at a path reads results of several homes."""

    path: str
    homes: tuple[int, ...]


class Structure(NamedTuple):
    """What decides into which parts a module can be divided.

    Attributes:
        tensors: bytes of every parameter and buffer, by name.
        tied: names of one tensor.
        reads: the module in whose forward an op reads a tensor, and the one that holds it, where
            these are two.
    """

    tensors: dict[str, int]
    tied: tuple[tuple[str, ...], ...]
    homes: tuple[Home, ...]
    joins: tuple[Join, ...]
    reads: tuple[tuple[str, str], ...]


def structure_of(
    results: Iterable[fx.Node], state: dict[str, torch.Tensor], state_of: dict[str, str]
) -> Structure:
    """Of the graph of a module's forward.

    Args:
        results: what the forward returns.
        state: parameters and buffers by name.
        state_of: their names, by those of the graph's placeholders.
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
            home_of[node] = None  # made of nothing that is anywhere
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
    """The names of every tensor that has several."""
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
