"""Steps of annealing in plain Python, from what its moves are to do: an oracle, slow and readable.

It knows no schedule: chains are all ops by their work, and no move is judged before it is executed.
"""

import math

import networkx as nx
from plain_draws import uniform

from doppler.problem import Placement, Problem

ORDER_SHARE, CHAIN_SHARE, GROUP_SHARE = 0.25, 0.5, 0.9


class PlainWalk:
    """A walk over placements: `change` it, execute it, `settle` it."""

    def __init__(
        self, problem: Problem, start: Placement, *, seed: int, num_steps: int, **settings
    ) -> None:
        self.problem, self.seed, self.num_steps, self.num_draws = problem, seed, num_steps, 0
        self.order, self.hot, self.cold = settings["order"], settings["hot"], settings["cold"]
        self.device: list[int] = start.device.tolist()
        self.ranked = sorted(range(problem.num_ops), key=start.priority.tolist().__getitem__)
        self.cost, self.best_s = math.inf, math.inf
        edges = problem.graph.edges
        seconds_R = problem.mean_transfer_seconds
        self.neighbours: list[dict[int, float]] = [{} for _ in range(problem.num_ops)]
        self.graph = nx.DiGraph()
        self.graph.add_nodes_from(range(problem.num_ops))
        for src, dst, r in zip(
            edges.src.tolist(), edges.dst.tolist(), problem.graph.regions.of_edge, strict=True
        ):
            self.graph.add_edge(src, dst)
            for one, other in ((src, dst), (dst, src)):
                known = self.neighbours[one].get(other, 0.0)
                self.neighbours[one][other] = known + float(seconds_R[r])

    def draw(self) -> float:
        self.num_draws += 1
        return uniform(self.seed, self.num_draws)

    def draw_weighted(self, weights: dict[int, float]) -> int:
        """One of the keys, in proportion to its weight; all alike where all weigh nothing."""
        items = sorted(weights)
        total = sum(weights.values())
        share, so_far = self.draw(), 0.0
        for item in items:
            so_far += weights[item] / total if total else 1.0 / len(items)
            if so_far >= share:
                return item
        return items[-1]

    def draw_op(self) -> int:
        if self.draw() < CHAIN_SHARE:
            return self.draw_weighted(dict(enumerate(self.problem.mean_op_seconds.tolist())))
        return int(self.draw() * self.problem.num_ops)

    def change(self) -> None:
        self.before = list(self.device), list(self.ranked)
        if self.order and self.draw() < ORDER_SHARE:
            self.reorder()
        else:
            self.move()

    def reorder(self) -> None:
        """One op changes its rank, with its producers or its consumers among the ops between."""
        v, num_ops = self.draw_op(), self.problem.num_ops
        rank, distance = self.ranked.index(v), int(num_ops ** self.draw())
        forward = self.draw() < 0.5
        low = max(0, rank - distance) if forward else rank
        high = rank if forward else min(rank + distance, num_ops - 1)
        between = self.ranked[low : high + 1]
        needed = (nx.ancestors if forward else nx.descendants)(self.graph, v) | {v}
        moved = [u for u in between if u in needed]
        others = [u for u in between if u not in needed]
        self.ranked[low : high + 1] = moved + others if forward else others + moved

    def move(self) -> None:
        """A group of ops, found by a random walk over neighbours, goes to another device."""
        arrays, v = self.problem.arrays, self.draw_op()
        num_devices, here = self.problem.num_devices, self.device[v]
        there = (here + 1 + int(self.draw() * (num_devices - 1))) % num_devices
        group = {v}
        if self.draw() < GROUP_SHARE and self.neighbours[v]:
            for _ in range(self.problem.num_ops):
                v = self.draw_weighted(self.neighbours[v])
                if self.device[v] != here:
                    there = self.device[v]
                    break
                group.add(v)
        roots = {int(arrays.group[u]) for u in group}
        for u in range(self.problem.num_ops):
            together = u in group or int(arrays.group[u]) in roots
            if together and arrays.op_seconds[u, there] < math.inf:
                self.device[u] = there

    def settle(self, step: int, seconds: float, peak_bytes: list[float]) -> bool:
        """Keep the change, or take it back; what lacks memory is worse than any makespan."""
        limits = self.problem.arrays.memory_bytes.tolist()
        lack = sum(
            (peak - limit) / peak
            for peak, limit in zip(peak_bytes, limits, strict=True)
            if peak > limit
        )
        cost = 1e30 * lack if lack > 0 and seconds < math.inf else seconds
        if cost > self.cost:
            temperature = self.cost * self.hot * (self.cold / self.hot) ** (step / self.num_steps)
            if cost - self.cost > -temperature * math.log(self.draw()):
                self.device, self.ranked = self.before
                return False
        self.cost = cost
        if lack == 0:
            self.best_s = min(self.best_s, seconds)
        return True
