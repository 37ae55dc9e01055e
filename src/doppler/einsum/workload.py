"""Workloads: a program text, differentiated on request, decomposed and lowered."""

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

# Largest size of a program file in megabytes; usual ones have kilobytes.
_MAX_MB = 1.0


class Decomposition(Protocol):
    """Chooses into how many parts the nodes of a program are split."""

    def splits(self, program: Program, parts: int) -> Splits:
        """Return splits by node name.

        Args:
            program: to split.
            parts: number of ops to aim at for each node with much work.

        Raises:
            InputError: names the node, or the number, that makes it impossible.
        """
        ...


class Given:
    """Uses the splits that the program's text gives."""

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
        path: of the file, relative to the working directory, or of one that the package contains.
        preset: name of the declared values that parameters take.
        params: values by parameter name, which replace those of the preset; None keeps the
            preset's.
        training: whether to include the statements of the training section, up to the loss.

    Raises:
        InputError: the file cannot be read; or as `parse_program` does.
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
        decomposition: chooses the splits; by default those that the text gives.
        parts: number of ops to aim at for one node of the program.
        name: of the graph; the program's own by default.
        preset: name of the declared values that parameters take (`load_program`).
        params: values by parameter name (`load_program`).
        costs: roofline (true floating-point operations and bytes) or those of published files.
        training: forward pass, loss, backward pass and one step of gradient descent, instead of the
            forward pass alone.
        learning_rate: of that step.

    Raises:
        InputError: as `load_program`, the decomposition and `training_program` do.
    """
    whole = load_program(program, preset=preset, params=params, training=training)
    if training:
        whole = training_program(whole, learning_rate=learning_rate)
    graph = lower(whole, (decomposition or Given()).splits(whole, parts), name=name)
    return with_published_costs(graph, whole) if costs == "published" else graph
