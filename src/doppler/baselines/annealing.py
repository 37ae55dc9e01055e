"""Simulated annealing over placements, and over placements with priorities."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from doppler.baselines.contract import SearchResult
from doppler.baselines.levels import b_level_priority
from doppler.baselines.simple import random_devices
from doppler.errors import InputError
from doppler.problem import Placement, Problem
from doppler.system import Session


@dataclass(frozen=True, kw_only=True)
class Annealing:
    """Move one op, or exchange two ops' priorities; keep what is worse at times, ever less often.

    A move takes an op to the device of a random neighbour in the graph (a share of ``neighbour``
    of the moves), or to a random other device; if the neighbour is there already, both move.
    evaluations: executions in all. order: whether half of the moves exchange priorities; else ops
    keep the order of their b_level. hot, cold: first and last temperature as shares of the first
    makespan; it falls geometrically.

    Source: Kirkpatrick, Gelatt, Vecchi, "Optimization by simulated annealing", Science 1983; the
    moves are ours (moves to neighbours take 4,000 evaluations from 230 to 179 on llama_block).
    """

    evaluations: int
    order: bool
    neighbour: float
    hot: float
    cold: float

    def __post_init__(self) -> None:
        if self.evaluations < 1:
            raise InputError(f"baseline.annealing.evaluations: at least 1, got {self.evaluations}")
        if not 0 < self.cold <= self.hot:
            raise InputError(
                f"baseline.annealing: needs 0 < cold <= hot, got {self.cold} and {self.hot}"
            )

    @property
    def uses_order(self) -> bool:
        """Whether the method chooses priorities."""
        return self.order

    def place(self, session: Session, rng: np.random.Generator) -> SearchResult:
        """See contract.Baseline."""
        problem = session.problem
        neighbours = _neighbours(problem)
        able_VD = np.isfinite(problem.arrays.op_seconds)
        device_V = random_devices(problem, 1, rng)[0]
        priority_V = b_level_priority(problem)

        def cost() -> float:
            return float(session.measure(device_V[None], priority_V[None], rng=rng).cost_s()[0])

        current = best = first = cost()
        best_device_V, best_priority_V = device_V.copy(), priority_V.copy()
        # A start that does not fit in memory costs inf, one of free ops 0: then the problem's own
        # scale will do.
        scale = first if 0.0 < first < np.inf else problem.scale_s
        for step in range(1, self.evaluations):
            temperature = scale * self.hot * (self.cold / self.hot) ** (step / self.evaluations)
            if self.order and rng.random() < 0.5:
                values, ops = priority_V, rng.integers(problem.num_ops, size=2)
                new = values[ops[::-1]]
            else:
                values, (ops, new) = device_V, self._move(device_V, able_VD, neighbours, rng)
            old = values[ops]
            values[ops] = new
            candidate = cost()
            # Infeasible to infeasible is accepted: the walk must get out of there.
            worse = candidate - current if candidate != current else 0.0
            if worse <= 0 or rng.random() < np.exp(-worse / temperature):
                current = candidate
                if current < best:
                    best = current
                    best_device_V, best_priority_V = device_V.copy(), priority_V.copy()
            else:
                values[ops] = old
        return SearchResult(
            placement=Placement.make(problem, best_device_V, best_priority_V),
            makespan_s=best,
            evaluations=self.evaluations,
        )

    def _move(
        self,
        device_V: NDArray[np.int64],
        able_VD: NDArray[np.bool_],
        neighbours: list[list[int]],
        rng: np.random.Generator,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The ops to move and their new devices; one that cannot run there stays."""
        v = int(rng.integers(len(device_V)))
        num_devices = able_VD.shape[1]
        # Any device but the present one (on a single device there is no other).
        d = int(device_V[v] + rng.integers(1, max(2, num_devices))) % num_devices
        moved = [v]
        if neighbours[v] and rng.random() < self.neighbour:
            u = neighbours[v][rng.integers(len(neighbours[v]))]
            if device_V[u] == device_V[v]:
                moved.append(u)
            else:
                d = int(device_V[u])
        ops = np.array(moved)
        return ops, np.where(able_VD[ops, d], d, device_V[ops])


def _neighbours(problem: Problem) -> list[list[int]]:
    """Producers and consumers of each op."""
    neighbours: list[list[int]] = [[] for _ in range(problem.num_ops)]
    edges = problem.graph.edges
    for src, dst in zip(edges.src.tolist(), edges.dst.tolist(), strict=True):
        neighbours[src].append(dst)
        neighbours[dst].append(src)
    return neighbours
