"""A workload: a program text, differentiated if asked for, decomposed and lowered."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol

from doppler.einsum.differentiation import training_program
from doppler.einsum.language.resolver import parse_program
from doppler.einsum.lowering import lower
from doppler.einsum.program import Program, Splits
from doppler.einsum.published_costs import with_published_costs
from doppler.graph import DataflowGraph
from doppler.support.files import read_text
from doppler.support.options import Count, FilePath, checked
from doppler.support.resources import resource

# Largest size of a program file; people write kilobytes.
_MAX_MB = 1.0


class Decomposition(Protocol):
    """What chooses into how many parts the nodes of a program are split."""

    def splits(self, program: Program, parts: int) -> Splits:
        """Splits by node name, for about ``parts`` ops to each heavy node.

        Raises:
            InputError: names the node, or the number, that makes it impossible.
        """
        ...


class Given:
    """The splits that the program's text gives."""

    def splits(self, program: Program, parts: int) -> Splits:
        return program.given_splits


def load_program(
    path: str,
    *,
    preset: str = "paper",
    params: Mapping[str, int | None] | None = None,
    training: bool = False,
) -> Program:
    """Read an einsum program from a file.

    Args:
        path: of the file, from where the process runs, else one that comes with the package.
        preset: which of the declared values the parameters take.
        params: values by parameter name; they win over the preset, None leaves it.
        training: with the statements of the training section, up to the loss.

    Raises:
        InputError: if the file cannot be read, or as `parse_program` does.
    """
    where = Path(path)
    if not where.is_absolute() and not where.exists():
        where = resource("workloads").parent / path
    text = read_text(where, max_mb=_MAX_MB)
    given = {key: value for key, value in (params or {}).items() if value is not None}
    return parse_program(text, file=path, preset=preset, params=given, training=training)


@checked
def load_workload(
    *,
    program: FilePath,
    decomposition: Decomposition | None = None,
    parts: Count = 1,
    name: str | None = None,
    preset: str = "paper",
    params: Mapping[str, Count | None] | None = None,
    costs: Literal["roofline", "published"] = "roofline",
    training: bool = False,
    learning_rate: float = 1e-3,
) -> DataflowGraph:
    """Read an einsum program from a file, decompose it and lower it.

    Args:
        program: path of the file (`load_program`).
        decomposition: what chooses the splits; those that the text gives by default.
        parts: how many ops a decomposition aims at for one node of the program.
        name: of the graph; the program's own by default.
        preset: which values the program's parameters take (`load_program`).
        params: their values by name (`load_program`).
        costs: roofline (true floating-point operations and bytes) or those of published files.
        training: forward, loss, backward and one step of gradient descent, instead of forward.
        learning_rate: of that step.

    Raises:
        InputError: as `load_program`, the decomposition and `training_program` do.
    """
    whole = load_program(program, preset=preset, params=params, training=training)
    if training:
        whole = training_program(whole, learning_rate=learning_rate)
    graph = lower(whole, (decomposition or Given()).splits(whole, parts), name=name)
    return with_published_costs(graph, whole) if costs == "published" else graph
