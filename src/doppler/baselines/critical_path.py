"""Critical path list scheduling.

Shape suffixes: B runs, V ops, D devices.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from doppler.baselines.contract import SearchResult
from doppler.baselines.levels import b_levels
from doppler.compilation import compiled
from doppler.errors import InputError
from doppler.problem import Placement, Problem
from doppler.simulator.state import uniform
from doppler.system import Session, measure_placements

# Sums of the same seconds in another order differ in the last digits: such ops are tied.
_TIE = 1e-9


@dataclass(frozen=True, kw_only=True)
class CriticalPath:
    """Take the candidate with the largest b_level, to the device on which it can start earliest.

    Ties are broken at random; the best of ``runs`` runs on the system counts. The order in which
    ops were taken is their priority.

    Source: Kwok and Ahmad, ACM Computing Surveys 1999, as used by DOPPLER (Yao et al., ICLR 2026),
    whose released code draws ties from the wrong list and starts ops too early; this is the
    heuristic as described.
    """

    runs: int
    uses_order: bool = True

    def __post_init__(self) -> None:
        if self.runs < 1:
            raise InputError(f"baseline.critical_path.runs: at least 1, got {self.runs}")

    def decide(
        self, problem: Problem, num_episodes: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See contract.Teacher."""
        b_level_V = b_levels(problem)
        op_BV = np.empty((num_episodes, problem.num_ops), dtype=np.int64)
        device_BV = np.empty_like(op_BV)
        num_ops, num_devices = problem.num_ops, problem.num_devices
        _schedule_batch(
            problem.arrays,
            b_level_V,
            _TIE * b_level_V.max(),
            rng.integers(0, 2**62, size=num_episodes),
            op_BV,
            device_BV,
            np.empty(num_ops, dtype=np.int64),
            np.empty(num_ops, dtype=np.int64),
            np.empty((num_ops, num_devices)),
            np.empty(num_devices),
        )
        return op_BV, device_BV

    def place(self, session: Session, rng: np.random.Generator) -> SearchResult:
        """See contract.Baseline."""
        problem = session.problem
        placements = []
        for op_V, device_V in zip(*self.decide(problem, self.runs, rng), strict=True):
            device, priority = np.empty_like(op_V), np.empty_like(op_V)
            device[op_V], priority[op_V] = device_V, np.arange(len(op_V))
            placements.append(Placement.make(problem, device, priority))
        cost_B = measure_placements(session, placements, rng)
        best = int(cost_B.argmin())
        return SearchResult(
            placement=placements[best], makespan_s=float(cost_B[best]), evaluations=self.runs
        )


@compiled
def _schedule_batch(
    p, b_level_V, tie_s, seeds_B, op_BV, device_BV, candidates, pending, ready_VD, free_D
):
    for b in range(len(seeds_B)):
        _schedule(
            p,
            b_level_V,
            tie_s,
            seeds_B[b],
            op_BV[b],
            device_BV[b],
            candidates,
            pending,
            ready_VD,
            free_D,
        )


@compiled
def _schedule(p, b_level_V, tie_s, seed, op_V, device_V, candidates, pending, ready_VD, free_D):
    """One run; fills op_V and device_V [V] in the order of decisions."""
    num_ops, num_devices = p.op_seconds.shape
    count = 0
    for d in range(num_devices):
        free_D[d] = 0.0
    for v in range(num_ops):
        pending[v] = p.read_ptr[v + 1] - p.read_ptr[v]
        for d in range(num_devices):
            ready_VD[v, d] = 0.0
        if pending[v] == 0:
            candidates[count] = v
            count += 1
    for step in range(num_ops):
        top, tied, index = -np.inf, 0, 0
        for i in range(count):
            level = b_level_V[candidates[i]]
            if level > top + tie_s:
                top, tied, index = level, 1, i
            elif level >= top - tie_s:
                tied += 1
                if uniform(seed, 2 * (step * num_ops + i)) * tied < 1.0:
                    index = i
        v = candidates[index]
        count -= 1
        candidates[index] = candidates[count]
        best, tied, device = np.inf, 0, 0
        for d in range(num_devices):
            start = max(free_D[d], ready_VD[v, d])
            if p.op_seconds[v, d] == np.inf:
                continue
            if start < best - tie_s:
                best, tied, device = start, 1, d
            elif start <= best + tie_s:
                tied += 1
                if uniform(seed, 2 * (step * num_ops + d) + 1) * tied < 1.0:
                    device = d
        op_V[step], device_V[step] = v, device
        finish = max(free_D[device], ready_VD[v, device]) + p.op_seconds[v, device]
        free_D[device] = finish
        for r in range(p.region_ptr[v], p.region_ptr[v + 1]):
            for i in range(p.consumer_ptr[r], p.consumer_ptr[r + 1]):
                c = p.consumers[i]
                for d in range(num_devices):
                    arrival = finish
                    if d != device:
                        move = p.size[r] * p.seconds_per_size[device, d]
                        arrival += p.latency_s[device, d] + move
                    ready_VD[c, d] = max(ready_VD[c, d], arrival)
                pending[c] -= 1
                if pending[c] == 0:
                    candidates[count] = c
                    count += 1
