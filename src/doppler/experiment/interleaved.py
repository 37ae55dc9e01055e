"""Executes methods in turns on a real system, writes and prints the comparison.

Shape suffixes: M methods, R rounds.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from doppler.experiment.judging import Method, judged_row, measured_row, nominal_s
from doppler.experiment.specification import Specification
from doppler.report.paired import (
    PAIRED_FILE,
    PairedRatio,
    paired_ratios,
    paired_verdict,
    print_paired,
    read_paired,
    write_paired,
)
from doppler.report.rows import RESULTS_FILE, ResultRow, read_results, write_results
from doppler.report.run_table import print_results
from doppler.search import seeded_generator

# Of the placements that results.csv has measured; of those that another system has measured.
SIMULATED_FILE, SYNCHRONOUS_FILE = "simulated.csv", "synchronous.csv"
# Intervals of a ratio that are no wider than 1% need no more rounds; asked from so many rounds on,
# every so many.
TIGHT = 0.01
_LEAST_ROUNDS, _EVERY = 15, 5


@dataclass(frozen=True, eq=False)
class Contender:
    """A method, and the specification whose system executes its placement."""

    spec: Specification
    method: Method


def measure_interleaved(
    contenders: Sequence[Contender],
    rounds: int,
    rng: np.random.Generator,
    *,
    tight: float = 0.0,
) -> NDArray[np.float64]:
    """Execute each placement once per round, in a random order that changes with the round.

    Methods that found the same placement share its executions: measuring it twice would show a
    difference where there is none.

    Args:
        contenders: the methods.
        rounds: maximum number of rounds.
        rng: draws the orders.
        tight: stop early once no 95% interval of a ratio to the first method is wider than this.
            The rule looks only at the width, so that it favours no result.

    Returns:
        Seconds [M, R]; inf where a placement does not fit in memory.
    """
    first_of: dict[Any, int] = {}
    twin_M = [first_of.setdefault(_identity(one), m) for m, one in enumerate(contenders)]
    seconds_MR = np.empty((len(contenders), rounds))
    with ExitStack() as stack:
        specs = dict.fromkeys(contender.spec for contender in contenders)
        sessions = {spec: stack.enter_context(spec.system.open(spec.problem)) for spec in specs}
        for r in range(rounds):
            for m in rng.permutation(sorted(set(twin_M))):
                placement = contenders[m].method.placement
                measured = sessions[contenders[m].spec].measure(
                    placement.device[None], placement.priority[None], rng=rng
                )
                seconds_MR[m, r] = measured.cost_s()[0]
            done = r + 1
            if tight and done >= _LEAST_ROUNDS and done % _EVERY == 0:
                distinct_MR = seconds_MR[sorted(set(twin_M)), :done]
                if _widest(distinct_MR) <= tight:
                    return seconds_MR[twin_M, :done]
    return seconds_MR[twin_M]


def executions(contenders: Sequence[Contender], seconds_MR: NDArray[np.float64]) -> int:
    """Return how many executions `measure_interleaved` has made.

    Args:
        contenders: the methods.
        seconds_MR: what it returned.
    """
    return len(set(map(_identity, contenders))) * seconds_MR.shape[1]


def _widest(seconds_MR: NDArray[np.float64]) -> float:
    """Width of the widest interval of a ratio to the first method; 0 without other methods."""
    seconds_MR = seconds_MR[np.isfinite(seconds_MR).all(axis=1)]
    if len(seconds_MR) < 2:
        return 0.0
    names = [str(m) for m in range(len(seconds_MR))]
    # A separate generator, so that the number of calls does not change other random draws.
    ratios = paired_ratios(names, seconds_MR, np.random.default_rng(0))
    return max(one.high - one.low for one in ratios)


def _identity(contender: Contender) -> tuple[Any, bytes, bytes]:
    """A key that is equal for the same placement on the same system."""
    placement = contender.method.placement
    return contender.spec, placement.device.tobytes(), placement.priority.tobytes()


def leave_measured(
    directory: Path,
    spec: Specification,
    contenders: Sequence[Contender],
    seconds_MR: NDArray[np.float64],
    doubt: str = "",
) -> tuple[list[ResultRow], list[PairedRatio]]:
    """Write paired ratios, and the tables of the simulator and the synchronous system.

    Args:
        directory: of the run.
        spec: of the run; its system executed most contenders.
        contenders: the methods, the main one first.
        seconds_MR: measured seconds [M, R].
        doubt: marks the measured rows; empty if the measurements are reliable.

    Returns:
        The rows of the run's own system, and the ratios of the first method to all others.
    """
    rows = [
        measured_row(contender.spec, contender.method, seconds_R, doubt)
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
    same_M = [_identity(one) == _identity(contenders[0]) for one in contenders]
    rng = seeded_generator(spec.seed, "bootstrap")
    ratios = paired_ratios(names, seconds_MR, rng, same_M)
    if ratios:
        write_paired(directory / PAIRED_FILE, ratios)
    return own, ratios


def show_beside(directory: Path, console: Console) -> None:
    """Print the further tables of a measured run: simulator, synchronous system, paired ratios."""
    for name in (SIMULATED_FILE, SYNCHRONOUS_FILE):
        if (directory / name).exists():
            print_results(read_results(directory / name), console)
    if (directory / PAIRED_FILE).exists():
        print_paired(read_paired(directory / PAIRED_FILE), console)


def show_rows(directory: Path, console: Console) -> None:
    """Print a run's table and one sentence that sums it up.

    If the methods were measured in turns, the sentence reports their paired ratios.

    Args:
        directory: of the run.
        console: where to print.
    """
    print_results(read_results(directory / RESULTS_FILE), console)
    if (directory / PAIRED_FILE).exists():
        line = paired_verdict(read_paired(directory / PAIRED_FILE))
        console.print(line, highlight=False, markup=False)
