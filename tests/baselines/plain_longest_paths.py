"""Tails of a schedule and the longest path through moved ops, in plain Python, from definitions."""

from functools import cache

import numpy as np

from doppler.problem import Problem
from doppler.problem.transfer_kernels import move_seconds


class PlainPaths:
    """A schedule in which each device runs one op at a time, and transfers wait for nothing."""

    def __init__(self, problem: Problem, device_V: np.ndarray, start_V, finish_V) -> None:
        self.problem, self.arrays = problem, problem.arrays
        self.device, self.start, self.finish = device_V.tolist(), start_V, finish_V
        self.rows = [
            sorted(np.flatnonzero(device_V == d).tolist(), key=lambda v: (start_V[v], finish_V[v]))
            for d in range(problem.num_devices)
        ]
        edges, region_E = problem.graph.edges, problem.graph.regions.of_edge
        self.edges = list(
            zip(edges.src.tolist(), edges.dst.tolist(), region_E.tolist(), strict=True)
        )
        self.tail_s = cache(self._tail_s)

    def between_s(self, r: int, src: int, dst: int) -> float:
        return 0.0 if src == dst else move_seconds(self.arrays, r, src, dst)

    def _tail_s(self, v: int) -> float:
        """From the start of op v to the end of all that waits for it."""
        row, d = self.rows[self.device[v]], self.device[v]
        behind = [self.tail_s(u) for u in row[row.index(v) + 1 :][:1]]
        behind += [
            self.tail_s(dst) + self.between_s(r, d, self.device[dst])
            for src, dst, r in self.edges
            if src == v
        ]
        return float(self.arrays.op_seconds[v, d]) + max(behind, default=0.0)

    def longest_s(self, moved: list[int], there: int) -> float:
        """The longest path through ops that move to one device, in the order of their starts."""
        ends, longest = {}, 0.0
        stay = [v for v in self.rows[there] if v not in moved]
        for v in sorted(moved, key=lambda v: self.start[v]):
            ready = 0.0  # when it has what it reads
            for src, dst, r in self.edges:
                if dst == v and src in ends:
                    ready = max(ready, ends[src])
                elif dst == v and src not in moved:
                    arrival = self.finish[src] + self.between_s(r, self.device[src], there)
                    ready = max(ready, arrival)
            runs_then = [u for u in self.rows[there] if self.start[u] <= ready][-1:]
            waits = [self.finish[u] for u in runs_then if u not in moved]
            start = max([ready, *waits, *ends.values()])
            ends[v] = start + float(self.arrays.op_seconds[v, there])
            behind = [self.tail_s(u) for u in stay if self.start[u] >= start][:1]
            behind += [
                self.tail_s(dst) + self.between_s(r, there, self.device[dst])
                for src, dst, r in self.edges
                if src == v and dst not in moved
            ]
            longest = max(longest, ends[v] + max(behind, default=0.0))
        return longest
