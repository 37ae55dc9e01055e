"""Your own method: hill climbing by swaps of two ops, compared with the package's search.

    python examples/own_method.py [evaluations]

A method has `place(session, rng)`; the session executes placements, many in one call.
"""

import sys
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import doppler
from doppler.baselines import SearchResult
from doppler.graph import synthetic
from doppler.problem import Placement
from doppler.system import Session


@dataclass(frozen=True, kw_only=True)
class Swaps:
    """Begins at random; of 20 placements with one op moved or two swapped keeps the best.

    evaluations: executions in all.
    """

    evaluations: int
    uses_order: ClassVar[bool] = False  # it leaves the order to the system
    needs_order: ClassVar[bool] = False

    def place(self, session: Session, rng: np.random.Generator) -> SearchResult:
        """The best placement found on the session's system."""
        problem, neighbours = session.problem, 20
        best_V = rng.integers(problem.num_devices, size=problem.num_ops)
        best_s, used = np.inf, 0
        while used < self.evaluations:
            device_BV = np.repeat(best_V[None], min(neighbours, self.evaluations - used), axis=0)
            for device_V in device_BV[1:]:
                i, j = rng.integers(problem.num_ops, size=2)
                if rng.random() < 0.5:
                    device_V[[i, j]] = device_V[[j, i]]
                else:
                    device_V[i] = rng.integers(problem.num_devices)
            cost_B = session.measure(device_BV, rng=rng).cost_s()  # inf where memory does not do
            used += len(cost_B)
            if cost_B.min() <= best_s:
                best_V, best_s = device_BV[cost_B.argmin()].copy(), float(cost_B.min())
        return SearchResult(
            placement=Placement.make(problem, best_V), makespan_s=best_s, evaluations=used
        )


def main(evaluations: int) -> None:
    """Both on a random graph of 100 ops, at equal evaluations."""
    graph = synthetic(name="layered", family="layered", num_ops=100, transfer_ratio=1.0, seed=0)
    print(doppler.place(graph, cluster="p100x4", method=Swaps(evaluations=evaluations)))
    print(doppler.place(graph, cluster="p100x4", evaluations=evaluations))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
