"""Methods executed in turns on a real system, and what is left and shown of that.

Shape suffixes: M methods, R rounds.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from doppler.experiment.judging import Method, judged_row, measured_row, nominal_s
from doppler.experiment.specification import Specification
from doppler.report.paired import (
    PAIRED_FILE,
    PairedRatio,
    paired_ratios,
    paired_table,
    read_paired,
    write_paired,
)
from doppler.report.rows import ResultRow, print_results, read_results, write_results
from doppler.search import seeded_generator

# Of the placements that results.csv has measured; of those that another system has measured.
SIMULATED_FILE, SYNCHRONOUS_FILE = "simulated.csv", "synchronous.csv"


@dataclass(frozen=True, eq=False)
class Contender:
    """A method, and the specification whose system executes its placement."""

    spec: Specification
    method: Method


def measure_interleaved(
    contenders: Sequence[Contender], rounds: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Seconds [M, R]; in every round each placement is executed once, in an order of its own.

    inf where it does not fit in memory.
    """
    seconds_MR = np.empty((len(contenders), rounds))
    with ExitStack() as stack:
        specs = dict.fromkeys(contender.spec for contender in contenders)
        sessions = {spec: stack.enter_context(spec.system.open(spec.problem)) for spec in specs}
        for r in range(rounds):
            for m in rng.permutation(len(contenders)):
                placement = contenders[m].method.placement
                measured = sessions[contenders[m].spec].measure(
                    placement.device[None], placement.priority[None], rng=rng
                )
                seconds_MR[m, r] = measured.cost_s()[0]
    return seconds_MR


def leave_measured(
    directory: Path,
    spec: Specification,
    contenders: Sequence[Contender],
    seconds_MR: NDArray[np.float64],
) -> tuple[list[ResultRow], list[PairedRatio]]:
    """Write paired ratios, and tables of what other systems than the specification's say.

    Returns the rows of the specification's own system, and the first method against all others.
    """
    rows = [
        measured_row(contender.spec, contender.method, seconds_R)
        for contender, seconds_R in zip(contenders, seconds_MR, strict=True)
    ]
    own = [row for row, one in zip(rows, contenders, strict=True) if one.spec is spec]
    others = [row for row, one in zip(rows, contenders, strict=True) if one.spec is not spec]
    if others:
        write_results(directory / SYNCHRONOUS_FILE, others)
    simulated = spec.on(spec.simulator)
    write_results(
        directory / SIMULATED_FILE,
        [
            judged_row(
                simulated,
                replace(one.method, makespan_s=nominal_s(simulated, one.method.placement)),
                simulated.bound,
            )
            for one in contenders
            if one.spec is spec
        ],
    )
    names = [contender.method.name for contender in contenders]
    ratios = paired_ratios(names, seconds_MR, seeded_generator(spec.seed, "bootstrap"))
    write_paired(directory / PAIRED_FILE, ratios)
    return own, ratios


def show_beside(directory: Path, console: Console) -> None:
    """Print what stands beside the table of measured methods, each in a table of its own."""
    for name in (SIMULATED_FILE, SYNCHRONOUS_FILE):
        if (directory / name).exists():
            print_results(read_results(directory / name), console)
    console.print(paired_table(read_paired(directory / PAIRED_FILE)))
