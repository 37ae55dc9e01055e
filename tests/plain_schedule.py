"""List schedules in plain Python, to hold the compiled ones against."""

from dataclasses import replace

import numpy as np
from problems import random_problem

from doppler.baselines.best_of_runs import ListDecisions
from doppler.baselines.levels import b_levels
from doppler.problem import Problem


def with_arrays(problem: Problem, **arrays) -> Problem:
    return replace(problem, arrays=problem.arrays._replace(**arrays))


def with_less_memory(problem: Problem, share: float) -> Problem:
    """Every device holds this share of all bytes, and at least what any one op needs."""
    p, edges = problem.arrays, problem.graph.edges
    need_V = p.sink_bytes.copy()
    np.add.at(need_V, p.region_src, p.region_bytes)
    np.add.at(need_V, edges.dst, edges.bytes)
    np.add.at(need_V, p.input_consumers, np.repeat(p.input_bytes, np.diff(p.input_ptr)))
    total = p.region_bytes.sum() + p.sink_bytes.sum() + p.input_bytes.sum()
    room = max(need_V.max(), share * total)
    return with_arrays(problem, memory_bytes=np.full(problem.num_devices, room))


def published_schedule(problem: Problem, decisions: ListDecisions, run: int) -> dict:
    """(start, finish) of each op by processor, counted from 1 as in the paper's figure."""
    rows = {}
    for op, device, start in zip(*(column[run].tolist() for column in decisions), strict=True):
        finish = start + problem.arrays.op_seconds[op, device]
        rows.setdefault(f"P{device + 1}", {})[op + 1] = (start, finish)
    return rows


class PlainSchedule:
    """A list schedule in progress: gaps by trying every moment, memory by listing what is there."""

    def __init__(self, problem: Problem, *, regions_stay: bool) -> None:
        self.problem, self.regions_stay = problem, regions_stay
        self.edges = list(
            zip(
                problem.graph.edges.src.tolist(),
                problem.graph.edges.dst.tolist(),
                problem.graph.regions.of_edge.tolist(),
                strict=True,
            )
        )
        self.device: dict[int, int] = {}
        self.start: dict[int, float] = {}
        self.finish: dict[int, float] = {}
        self.held: list[dict[tuple, float]] = [{} for _ in range(problem.num_devices)]
        self.tie_s = 1e-9 * b_levels(problem).max()

    def candidates(self) -> list[int]:
        waiting = {dst for src, dst, _ in self.edges if src not in self.device}
        return [v for v in range(self.problem.num_ops) if v not in waiting | self.device.keys()]

    def able(self, v: int) -> list[int]:
        return np.flatnonzero(np.isfinite(self.problem.arrays.op_seconds[v])).tolist()

    def ready_s(self, v: int, d: int) -> float:
        p, ready = self.problem.arrays, 0.0
        for src, dst, r in self.edges:
            if dst == v:
                s = self.device[src]
                seconds = p.latency_s[s, d] + p.size[r] * p.seconds_per_size[s, d]
                ready = max(ready, self.finish[src] + (seconds if s != d else 0.0))
        return ready

    def earliest_s(self, v: int, d: int, *, insertion: bool) -> float:
        ready, seconds = self.ready_s(v, d), self.problem.arrays.op_seconds[v, d]
        there = [u for u in self.device if self.device[u] == d]
        if not insertion:
            return max([ready, *(self.finish[u] for u in there)])
        for moment in sorted([ready, *(self.finish[u] for u in there if self.finish[u] > ready)]):
            if all(
                self.finish[u] <= moment + self.tie_s
                or self.start[u] + self.tie_s >= moment + seconds
                for u in there
            ):
                return moment
        raise AssertionError

    def brought(self, v: int) -> dict[tuple, float]:
        p, graph = self.problem.arrays, self.problem.graph
        data = {("sink", v): p.sink_bytes[v]}
        for src, dst, r in self.edges:
            if v in (src, dst):
                data["region", r] = p.region_bytes[r]
        for i, consumers in enumerate(graph.inputs.consumers):
            if v in consumers:
                data["input", i] = p.input_bytes[i]
        return data

    def overflow(self, v: int, d: int) -> float:
        total = sum({**self.held[d], **self.brought(v)}.values())
        return max(0.0, total - self.problem.arrays.memory_bytes[d])

    def devices(self, v: int, *, insertion: bool) -> dict[int, tuple[float, float]]:
        """(overflow, start or finish) of every device that can run op v."""
        return {
            d: (
                self.overflow(v, d),
                self.earliest_s(v, d, insertion=insertion)
                + (self.problem.arrays.op_seconds[v, d] if insertion else 0.0),
            )
            for d in self.able(v)
        }

    def incoming_s(self, v: int, d: int) -> float:
        """Seconds of transfers of what op v reads and device d does not have."""
        p, missing = self.problem.arrays, {}
        for src, dst, r in self.edges:
            if dst == v and self.device[src] != d:
                missing[r] = p.latency_s[self.device[src], d]
                missing[r] += p.size[r] * p.seconds_per_size[self.device[src], d]
        there = {r for _, dst, r in self.edges if self.device.get(dst) == d}
        return sum(seconds for r, seconds in missing.items() if r not in there)

    def place(self, v: int, d: int, start: float) -> None:
        self.device[v], self.start[v] = d, start
        self.finish[v] = start + self.problem.arrays.op_seconds[v, d]
        self.held[d].update(self.brought(v))
        if not self.regions_stay:
            unread = {r for _, dst, r in self.edges if dst not in self.device}
            read = {r for _, _, r in self.edges} - unread
            for held in self.held:
                for r in read:
                    held.pop(("region", r), None)


class PlainQueues:
    """What was sent over each link, and when it is there."""

    def __init__(self, problem: Problem) -> None:
        self.p, self.free_D = problem.arrays, np.zeros(problem.num_devices)
        self.device: dict[int, int] = {}
        self.finish: dict[int, float] = {}
        self.there: dict[tuple[int, int], float] = {}  # of a region on a device
        # Of links; of interfaces of a host, outgoing and incoming.
        self.link_free: dict[tuple, float] = {}
        cluster = problem.cluster
        self.hosts, self.nics = cluster.hosts or (0,) * problem.num_devices, range(cluster.nics)

    def _interfaces(self, s: int, d: int, free: dict) -> list[tuple]:
        """Of each host of a transfer between hosts the interface that is free first."""
        if self.hosts[s] == self.hosts[d]:
            return []
        ways = (("out", self.hosts[s]), ("in", self.hosts[d]))
        return [min(((*way, i) for i in self.nics), key=lambda k: free.get(k, 0.0)) for way in ways]

    def start_s(self, v: int, d: int) -> tuple[float, dict, dict]:
        """When v could start on d, and what is then known of regions and links."""
        p, there, link_free, start = self.p, dict(self.there), dict(self.link_free), self.free_D[d]
        for r in p.reads[p.read_ptr[v] : p.read_ptr[v + 1]].tolist():
            producer = int(p.region_src[r])
            source, ready = self.device[producer], self.finish[producer]
            if source != d and (r, d) not in there:
                held = [(source, d), *self._interfaces(source, d, link_free)]
                began = max(ready, *(link_free.get(one, 0.0) for one in held))
                seconds = p.latency_s[source, d] + p.size[r] * p.seconds_per_size[source, d]
                there[r, d] = began + seconds
                link_free.update(dict.fromkeys(held, there[r, d]))
            start = max(start, ready if source == d else there[r, d])
        return start, there, link_free

    def place(self, v: int, d: int) -> None:
        start, self.there, self.link_free = self.start_s(v, d)
        self.device[v], self.finish[v] = d, start + self.p.op_seconds[v, d]
        self.free_D[d] = self.finish[v]


def problems(num: int):
    """Problems of all kinds, three of four with too little memory for carefree placement."""
    for seed in range(num):
        costs = "tied" if seed % 2 else "distinct"
        problem = random_problem(seed, num_ops=1 + seed % 23, costs=costs, given_costs=False)
        yield seed, problem if seed % 4 == 0 else with_less_memory(problem, 0.15 * (1 + seed % 4))


def steps(decisions: ListDecisions):
    """Runs, each as a list of (op, device, start)."""
    for run in zip(*(column.tolist() for column in decisions), strict=True):
        yield list(zip(*run, strict=True))
