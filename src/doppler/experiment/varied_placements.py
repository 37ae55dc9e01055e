"""Placements of different quality and their measured seconds, to test how well one can measure.

Shape suffixes: B placements, R rounds, V ops.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from doppler.baselines import CPOP, ETF, HEFT, Annealing, CriticalPath
from doppler.baselines.levels import b_level_priority
from doppler.baselines.naive import random_devices
from doppler.problem import Placement, Problem
from doppler.system import Session, System


def measure_rounds(
    session: Session, placements: Sequence[Placement], rounds: int, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Execute all placements once per round, in a new random order each round.

    Args:
        session: of the system that executes them.
        placements: must fit in memory.
        rounds: how many.
        rng: draws the orders.

    Returns:
        Seconds [B, R], and the order of execution as indices of placements [R, B].
    """
    device_BV = np.stack([placement.device for placement in placements])
    priority_BV = np.stack([placement.priority for placement in placements])
    seconds_BR = np.empty((len(placements), rounds))
    order_RB = np.stack([rng.permutation(len(placements)) for _ in range(rounds)])
    for r, order_B in enumerate(order_RB):
        measured = session.measure(device_BV[order_B], priority_BV[order_B], rng=rng)
        seconds_BR[order_B, r] = measured.seconds[:, 0]
    return seconds_BR, order_RB


def varied_placements(
    simulator: System, problem: Problem, num: int, rng: np.random.Generator
) -> tuple[list[Placement], list[str]]:
    """Make placements of different quality.

    A third are random, from balanced to all ops on one device. A third are found by annealing with
    1 to 2,000 evaluations. A third come from heuristics, with a share of their ops moved at random.

    Args:
        simulator: evaluates placements during the searches.
        problem: to place.
        num: of placements.
        rng: for all random choices.

    Returns:
        The placements, and for each the name of its group: random, annealing or heuristic.
    """
    placements, groups = [], []
    with simulator.open(problem) as session:
        for i in range(num):
            kind, degree = i % 3, (i // 3) / max(1, (num - 1) // 3)
            if kind == 0:
                chosen, group = _lopsided(problem, degree, rng), "random"
            elif kind == 1:
                evaluations = round(2000**degree)
                search = Annealing(
                    evaluations=evaluations,
                    order=bool(i % 2),
                    starts=1,
                    draws=1,
                    hot=0.02,
                    cold=1e-4,
                )
                chosen, group = search.place(session, rng).placement, "annealing"
            else:
                heuristic = (HEFT, ETF, CriticalPath, CPOP)[i // 3 % 4](evaluations=1)
                found = heuristic.place(session, rng).placement
                chosen, group = _moved(problem, found, degree, rng), "heuristic"
            placements.append(chosen)
            groups.append(group)
    return placements, groups


def _lopsided(problem: Problem, degree: float, rng: np.random.Generator) -> Placement:
    """Random devices, but a share ``degree`` of the ops goes to one device where it can."""
    able_VD = np.isfinite(problem.arrays.op_seconds)
    favourite = int(rng.integers(problem.num_devices))
    keeps_V = able_VD[:, favourite] & (rng.random(problem.num_ops) < degree)
    keeps_V = keeps_V[problem.arrays.group]
    device_V = np.where(keeps_V, favourite, random_devices(problem, 1, rng)[0])
    return Placement.make(problem, device_V, b_level_priority(problem))


def _moved(
    problem: Problem, placement: Placement, share: float, rng: np.random.Generator
) -> Placement:
    """The placement with a share of its ops moved to random devices."""
    elsewhere_V = _lopsided(problem, 0.0, rng).device
    moves_V = (rng.random(problem.num_ops) < share)[problem.arrays.group]
    device_V = np.where(moves_V, elsewhere_V, placement.device)
    return Placement.make(problem, device_V, placement.priority)
