"""Shortens programs with equal layers, so that a few layers are split in place of all.

Layers are recognised by names. A layer is everything below one number of a path, as modules name
it: ``decoder.layers.7.mlp.mm``. Nodes that ``repeat`` makes in a text have the number at the end;
they get such a path. In a stack 0, 1, 2, ... whose layers from 1 on are alike, only two of these
are kept: layer 1 and the last one. A reader of a missing layer reads the same node of a kept one.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from doppler.einsum.program import Input, Node, Program, Splits

# Smallest number of equal layers that are split as one.
_LEAST = 3


@dataclass(frozen=True, eq=False, kw_only=True)
class Shortened:
    """A program in which some layers represent others.

    Attributes:
        program: with fewer layers.
        stand_ins: by name of each missing node, the name of the node that represents it.
        missing_inputs: the inputs among the missing nodes.
    """

    program: Program
    stand_ins: Mapping[str, str]
    missing_inputs: tuple[Node, ...] = ()

    def splits_of_all(self, splits: Splits) -> Splits:
        """Return the splits of the whole program.

        Args:
            splits: of the short program.
        """
        missing = {
            name: splits[stand_in]
            for name, stand_in in self.stand_ins.items()
            if stand_in in splits
        }
        return {**splits, **missing}


def shorten(program: Program) -> Shortened:
    """Leave out all layers that others can represent.

    Args:
        program: to shorten.
    """
    name_of = _names_by_path(program)
    if not name_of:
        return _shorten(program)
    path_of = {name: path for path, name in name_of.items()}
    short = _shorten(_renamed(program, path_of))
    return Shortened(
        program=_renamed(short.program, name_of),
        stand_ins={name_of[one]: name_of[other] for one, other in short.stand_ins.items()},
        missing_inputs=short.missing_inputs,
    )


def _names_by_path(program: Program) -> dict[str, str]:
    """Return names by path for a text with ``repeat`` (``q.3`` by ``repeat.2.q``); else nothing."""
    names = {node.name for node in program.nodes}
    repeated = {name for name in names if f"{name}.2" in names}
    found = {}
    for name in names if repeated else ():
        path, words = [], name.split(".")
        for word, after in pairwise([*words, ""]):
            bare = word.removeprefix("d_")
            layer = int(after) - 1 if after.isdecimal() else 0
            if bare in repeated:
                path.append(f"{word.removesuffix(bare)}repeat.{layer}.{bare}")
            elif not word.isdecimal():
                path.append(word)
        found[".".join(path)] = name
    return found if len(found) == len(names) else {}


def _renamed(program: Program, names: Mapping[str, str]) -> Program:
    nodes = tuple(replace(node, name=names[node.name]) for node in program.nodes)
    return replace(program, nodes=nodes, given_splits={})


def _shorten(program: Program) -> Shortened:
    found = Shortened(program=program, stand_ins={})
    for stack in _stacks(program):
        shorter = _without_repeats(found.program, stack)
        if shorter is not None:
            found = Shortened(
                program=shorter.program,
                stand_ins={**found.stand_ins, **shorter.stand_ins},
                missing_inputs=found.missing_inputs + shorter.missing_inputs,
            )
    return found


def _stacks(program: Program) -> list[str]:
    """Return the paths in front of numbers, shortest first, if there are enough numbers."""
    layers: dict[str, set[str]] = defaultdict(set)
    for node in program.nodes:
        parts = node.name.removeprefix("d_").split(".")
        for i, part in enumerate(parts[:-1]):
            if part.isdecimal():
                layers["".join(f"{one}." for one in parts[:i])].add(part)
    found = [stack for stack, numbers in layers.items() if len(numbers) > _LEAST]
    return sorted(found, key=lambda stack: (stack.count("."), stack))


class _Layers:
    """The layer of a stack that each node is in, -1 for none, and its name within the layer."""

    def __init__(self, program: Program, stack: str) -> None:
        self.nodes = program.nodes
        begin = re.compile(rf"(?:d_)?{re.escape(stack)}(\d+)\.")
        # The name of a gradient may contain the path of another node as well.
        before = r"(?<!\w)" if stack else "^"
        path = re.compile(rf"{before}((?:d_)?){re.escape(stack)}(\d+)(?=\.)")
        self.layer = [-1] * len(self.nodes)
        self.own_name = [node.name for node in self.nodes]
        self.of: dict[int, dict[str, int]] = defaultdict(dict)
        for number, node in enumerate(self.nodes):
            match = begin.match(node.name)
            if match is None:
                continue
            layer = int(match[1])
            name = path.sub(lambda one, own=layer: f"{one[1]}{int(one[2]) - own:+}", node.name)
            self.layer[number], self.own_name[number] = layer, name
            self.of[layer][name] = number

    def alike(self, layer: int, other: int) -> bool:
        """Whether two layers compute the same from the same."""
        names = self.of[layer]
        return names.keys() == self.of[other].keys() and all(
            self._same(number, self.of[other][name], other - layer)
            for name, number in names.items()
        )

    def _same(self, number: int, other: int, distance: int) -> bool:
        one, two = self.nodes[number], self.nodes[other]
        if _bare(one) != _bare(two):
            return False
        return all(
            self._same_operand(a, b, distance)
            for a, b in zip(one.operands, two.operands, strict=True)
        )

    def _same_operand(self, a: int, b: int, distance: int) -> bool:
        if a == b:
            return self.layer[a] < 0 or distance == 0
        if self.layer[a] >= 0:
            return (
                self.layer[b] == self.layer[a] + distance and self.own_name[a] == self.own_name[b]
            )
        one, two = self.nodes[a], self.nodes[b]
        return isinstance(one, Input) and self.layer[b] < 0 and _bare(one) == _bare(two)


def _bare(node: Node) -> Node:
    return replace(node, name="", operands=())


def _without_repeats(program: Program, stack: str) -> Shortened | None:
    """Leave out the layers from 2 on that equal layer 1, except the last of these."""
    layers = _Layers(program, stack)
    end = 2
    while end in layers.of and layers.alike(1, end):
        end += 1
    missing = range(2, end - 1)
    if len(missing) < _LEAST - 2:
        return None
    numbers: dict[int, int] = {}  # new numbers of the nodes that stay
    nodes: list[Node] = []
    for number, node in enumerate(program.nodes):
        if layers.layer[number] in missing:
            continue
        operands = [_present(layers, one, number, missing) for one in node.operands]
        if any(one not in numbers for one in operands):
            return None  # layers are read in another order than that of the stack
        numbers[number] = len(nodes)
        nodes.append(replace(node, operands=tuple(numbers[one] for one in operands)))
    gone = [number for number in range(len(program.nodes)) if number not in numbers]
    stand_ins = {
        program.nodes[one].name: program.nodes[layers.of[1][layers.own_name[one]]].name
        for one in gone
    }
    loss = None if program.loss is None else numbers.get(program.loss)
    return Shortened(
        program=replace(program, nodes=tuple(nodes), loss=loss, given_splits={}),
        stand_ins=stand_ins,
        missing_inputs=tuple(_inputs([program.nodes[one] for one in gone])),
    )


def _inputs(nodes: Sequence[Node]) -> list[Node]:
    return [node for node in nodes if isinstance(node, Input)]


def _present(layers: _Layers, operand: int, reader: int, missing: range) -> int:
    """Return an operand, or its stand-in: in layer 1 for readers behind the gap, else behind it."""
    if layers.layer[operand] not in missing:
        return operand
    stays = missing.stop if 0 <= layers.layer[reader] <= 1 else 1
    return layers.of[stays][layers.own_name[operand]]
