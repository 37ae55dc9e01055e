"""Whether seconds measured on this machine now say anything, looked at before much time is spent.

A program beside takes a core, two devices may share one, and ops may be so short that noise decides
their order. What is measured then is worthless: a run ends with one paragraph that says what is
wrong and what to do. ``measure.force=true`` goes on, and marks every row.
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

# Cores that others may keep busy beyond those that no device uses.
_MOST_OTHERS = 0.3
# Of what each further device could bring, the share that it has to bring.
_LEAST_SHARE = 0.3
# Rank correlation of two halves of the rounds: 1 where they agree, about 0 where noise decides.
LEAST_RELIABILITY = 0.5
# Placements of different quality, rounds, and seconds for which others are watched.
_PLACEMENTS, _ROUNDS, _WATCH_S = 12, 8, 1.0


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """A reason not to believe what is measured, and what helps.

    Attributes:
        mark: what rows say, in a few words.
        reason: one sentence.
        remedy: what to do, as an order.
    """

    mark: str
    reason: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class MachineState:
    """What was found when a machine was looked at.

    Attributes:
        doubt: what rows are marked with; empty where nothing is wrong.
        execution_s: a typical execution of the run's problem; nan of a simulator.
    """

    doubt: str = ""
    execution_s: float = math.nan


def check_machine(run: Run) -> MachineState:
    """Look whether the run's system can be measured now.

    Args:
        run: of a measured system; nothing is looked at on a simulator.

    Raises:
        InputError: a measurement would be worthless, and ``measure.force`` is not set.
    """
    if not run.spec.is_measured:
        return MachineState()
    with waiting(run.say, "looking whether this machine is quiet enough to measure on"):
        doubts, execution_s = _look(run, seeded_generator(run.spec.seed, "machine"))
    return MachineState(doubt=settle_doubts(run, doubts), execution_s=execution_s)


def settle_doubts(run: Run, doubts: list[Doubt]) -> str:
    """End the run for its doubts, or say them and go on where it is told to.

    Returns:
        What rows are marked with.

    Raises:
        InputError: there are doubts, and ``measure.force`` is not set.
    """
    if not doubts:
        return ""
    what = "; ".join(one.reason for one in doubts)
    if not run.spec.cfg.measure.force:
        raise InputError(
            f"what is measured on this machine now would say nothing: {what}. What helps: "
            f"{doubts[0].remedy}, then run the same command again. measure.force=true goes on in "
            "spite of this, and marks every row"
        )
    run.say(f"measure.force=true: the run goes on, and its rows are marked, although {what}")
    return ", ".join(one.mark for one in doubts)


def others_at_work(run: Run, load: OtherLoad) -> list[Doubt]:
    """Doubts because of what other programs took of the cores while a run measured."""
    if not isinstance(run.spec.system, Threads):
        return []  # what GPUs and agents do does not need all cores of this machine
    cores, taken = len(os.sched_getaffinity(0)), load.cores()
    spare = max(0, cores - run.spec.problem.num_devices)
    if taken <= spare + _MOST_OTHERS:
        return []
    return [
        Doubt(
            mark=f"{taken:.1f} cores busy otherwise",
            reason=f"other programs keep {taken:.1f} of this machine's {cores} cores busy",
            remedy="close other programs (top shows them)",
        )
    ]


def disturbed(run: Run, load: OtherLoad) -> str:
    """What rows are marked with where other programs worked while they were measured.

    Nothing ends then: what took long has been done. A line says so.
    """
    doubts = others_at_work(run, load)
    for one in doubts:
        run.say(f"rows are marked: while they were measured, {one.reason}")
    return ", ".join(one.mark for one in doubts)


def _look(run: Run, rng: np.random.Generator) -> tuple[list[Doubt], float]:
    """Reasons to doubt, and seconds of a typical execution."""
    with run.open() as session:  # waits first for other runs that measure
        load = OtherLoad()
        time.sleep(_WATCH_S)
        found = others_at_work(run, load)
        reliability, execution_s = _reliability(run, session, rng)
    # The first is the likeliest cause of those behind it.
    return found + _together(run, rng) + unreliable(reliability, _PLACEMENTS), execution_s


def unreliable(reliability: float | None, placements: int) -> list[Doubt]:
    """Doubts because measuring the same placements twice ranks them differently.

    Args:
        reliability: rank correlation of two halves of the rounds; None of a single round.
        placements: how many.
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
    """Rank correlation of two halves of the rounds, and seconds of a typical execution."""
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
    """Doubts because several devices together do hardly more than one."""
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
            mark=f"{num} devices {faster:.2f} times one",
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
    """How many devices of a system can work at the same time without sharing anything."""
    if isinstance(system, Threads):
        return len(os.sched_getaffinity(0))
    import torch

    return torch.cuda.device_count()
