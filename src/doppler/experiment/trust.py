"""Checks, before much time is spent, whether measurements on this machine are reliable now.

Another program may use a core, two devices may share one, and ops may be so short that noise
decides their ranking. Such measurements are worthless, so the run ends with one paragraph that says
what is wrong and what to do. ``measure.force=true`` continues anyway and marks every row.
"""

import math
import os
import time
from dataclasses import dataclass

import numpy as np

from doppler.executor import Cuda, Threads
from doppler.executor.quiet import OtherLoad, speed_up
from doppler.experiment.run import Run
from doppler.experiment.varied_placements import measure_rounds, varied_placements
from doppler.report.fidelity import split_half
from doppler.search import seeded_generator
from doppler.support.errors import InputError
from doppler.support.waiting import waiting
from doppler.system import Session

# Cores that other programs may use, besides those that no device uses.
_MOST_OTHERS = 0.3
# The least share of its ideal speed-up that each further device must bring.
_LEAST_SHARE = 0.3
# Least rank correlation of two halves of the rounds. 1: they agree; about 0: noise decides.
LEAST_RELIABILITY = 0.5
# Placements of different quality, rounds, and seconds for which other programs are watched.
_PLACEMENTS, _ROUNDS, _WATCH_S = 12, 8, 1.0


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """A reason not to trust measurements, and the remedy.

    Attributes:
        mark: a few words for the rows.
        reason: one sentence.
        remedy: what the user can do, as an imperative.
    """

    mark: str
    reason: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class MachineState:
    """The result of checking a machine.

    Attributes:
        doubt: marks the rows; empty if nothing is wrong.
        execution_s: seconds of a typical execution of the run's problem; nan for a simulator.
    """

    doubt: str = ""
    execution_s: float = math.nan


def check_machine(run: Run) -> MachineState:
    """Check whether the run's system can be measured reliably now.

    Args:
        run: nothing is checked if its system is a simulator.

    Raises:
        InputError: measurements would be worthless, and ``measure.force`` is not set.
    """
    if not run.spec.is_measured:
        return MachineState()
    with waiting(run.say, "looking whether this machine is quiet enough to measure on"):
        doubts, execution_s = _look(run, seeded_generator(run.spec.seed, "machine"))
    return MachineState(doubt=settle_doubts(run, doubts), execution_s=execution_s)


def settle_doubts(run: Run, doubts: list[Doubt]) -> str:
    """End the run if there are doubts, or print them and continue with ``measure.force``.

    Args:
        run: to end or to continue.
        doubts: about its measurements.

    Returns:
        The mark for the rows; empty without doubts.

    Raises:
        InputError: there are doubts, and ``measure.force`` is not set.
    """
    if not doubts:
        return ""
    what = "; ".join(one.reason for one in doubts)
    if not run.spec.cfg.measure.force:
        raise InputError(
            f"measurements on this machine would be unreliable now: {what}. What helps: "
            f"{doubts[0].remedy}, then run the same command again. measure.force=true goes on "
            "anyway, and marks every row"
        )
    run.say(f"measure.force=true: the run goes on, and its rows are marked, although {what}")
    return ", ".join(one.mark for one in doubts)


def others_at_work(run: Run, load: OtherLoad) -> list[Doubt]:
    """Return a doubt if other programs used cores that the devices need during a measurement.

    Args:
        run: gives system and number of devices.
        load: has watched the cores since before the measurement.
    """
    if not isinstance(run.spec.system, Threads):
        return []  # GPUs and agents do not need all cores of this machine
    cores, taken = len(os.sched_getaffinity(0)), load.cores()
    spare = max(0, cores - run.spec.problem.num_devices)
    if taken <= spare + _MOST_OTHERS:
        return []
    return [
        Doubt(
            mark=f"{taken:.1f} cores used by others",
            reason=f"other programs keep {taken:.1f} of this machine's {cores} cores busy",
            remedy="close other programs (top shows them)",
        )
    ]


def disturbed(run: Run, load: OtherLoad) -> str:
    """Return the mark for rows that were measured while other programs used the cores.

    The run does not end, because the expensive work has been done. It prints a line.

    Args:
        run: gives system and number of devices.
        load: has watched the cores since before the measurement.
    """
    doubts = others_at_work(run, load)
    for one in doubts:
        run.say(f"rows are marked: while they were measured, {one.reason}")
    return ", ".join(one.mark for one in doubts)


def _look(run: Run, rng: np.random.Generator) -> tuple[list[Doubt], float]:
    """Return reasons to doubt, and the seconds of a typical execution."""
    with run.open() as session:  # waits for other runs that measure
        load = OtherLoad()
        time.sleep(_WATCH_S)
        found = others_at_work(run, load)
        reliability, execution_s = _reliability(run, session, rng)
    # Sorted by cause: the first doubt probably explains those after it.
    return found + _together(run, rng) + unreliable(reliability, _PLACEMENTS), execution_s


def unreliable(reliability: float | None, placements: int) -> list[Doubt]:
    """Return a doubt if measuring the same placements twice ranks them differently.

    Args:
        reliability: rank correlation of two halves of the rounds; None if there was one round.
        placements: their number.
    """
    if reliability is None or reliability >= LEAST_RELIABILITY:
        return []
    return [
        Doubt(
            mark=f"reliability {reliability:.2f}",
            reason=(
                f"{placements} very different placements, measured in two halves, come in nearly "
                f"another order each time (rank correlation {reliability:.2f}; 1 is the same "
                "order, 0 is chance)"
            ),
            remedy="take a larger workload, whose ops are long beside the noise (workload.preset)",
        )
    ]


def _reliability(
    run: Run, session: Session, rng: np.random.Generator
) -> tuple[float | None, float]:
    """Rank correlation of two halves of the rounds, and the seconds of a typical execution."""
    spec = run.spec
    placements, _ = varied_placements(spec.simulator, spec.problem, _PLACEMENTS, rng)
    fits_B = [
        session.measure(one.device[None], one.priority[None], rng=rng).feasible[0]
        for one in placements
    ]
    placements = [one for one, fits in zip(placements, fits_B, strict=True) if fits]
    if not placements:
        return None, math.nan
    seconds_BR, order_RB = measure_rounds(session, placements, _ROUNDS, rng)
    is_known = len(placements) >= _PLACEMENTS // 2 and spec.problem.num_devices > 1
    return split_half(seconds_BR, order_RB) if is_known else None, float(np.median(seconds_BR))


def _together(run: Run, rng: np.random.Generator) -> list[Doubt]:
    """Return a doubt if several devices together are hardly faster than one."""
    spec = run.spec
    if not isinstance(spec.system, Threads | Cuda):
        return []
    num = min(spec.problem.num_devices, _num_units(spec.system))
    if num < 2:
        return []
    faster = speed_up(spec.system, spec.problem.cluster, rng)
    if faster >= 1.0 + _LEAST_SHARE * (num - 1):
        return []
    return [
        Doubt(
            mark=f"{num} devices only {faster:.2f} times as fast as one",
            reason=(
                f"{spec.problem.num_devices} devices finish independent work only "
                f"{faster:.2f} times as fast as one does (nearly {num} times when each is free)"
            ),
            remedy=(
                "use fewer devices where these share a core (cluster.num_devices)"
                if num > 2
                else "give this process two cores of its own"
            ),
        )
    ]


def _num_units(system: Threads | Cuda) -> int:
    """How many devices of a system can work at the same time without sharing a core or a GPU."""
    if isinstance(system, Threads):
        return len(os.sched_getaffinity(0))
    import torch

    return torch.cuda.device_count()
