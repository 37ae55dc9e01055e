"""Memory plans and addresses against exact ones, by CP-SAT (extra ``dev``).

    python -m benchmarks.memory_exact planner    makespans of plans of small random graphs
    python -m benchmarks.memory_exact offsets    least capacity of tests/extensions/memory/offsets

--num says how many, --seconds how long CP-SAT may take for each.
"""

import argparse
import csv
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from doppler.extensions.memory import Offload
from doppler.extensions.memory.addresses_kernels import assign
from doppler.extensions.memory.arrays import (
    NOTHING,
    PlanState,
    make_machine,
    make_plan_state,
    op_need_bytes,
)
from doppler.problem import Placement, Problem, build
from doppler.simulator import WorkConserving

INSTANCES = Path(__file__).parents[1] / "tests/extensions/memory/offsets"
_STAYS = 3  # of a datum, at most


def main() -> None:
    """Run one of the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    tables = {"planner": planner, "offsets": offsets}
    parser.add_argument("table", choices=tables)
    parser.add_argument("--num", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    begin = time.perf_counter()
    for line in tables[arguments.table](arguments):
        print(line, flush=True)
    print(f"{time.perf_counter() - begin:.0f} s")


# Addresses


def read_instance(path: Path) -> np.ndarray:
    """Rows [N, 3] of lower, upper and size: a buffer lives from lower up to, not at, upper."""
    with path.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    return np.array([[int(row[key]) for key in ("lower", "upper", "size")] for row in rows])


def least_capacity(rows: np.ndarray, seconds: float) -> tuple[int, bool]:
    """By CP-SAT: rectangles of time and address that do not overlap; and whether it is proven."""
    model = cp_model.CpModel()
    most = int(rows[:, 2].sum())
    height = model.new_int_var(largest_load(rows), most, "")
    in_time, in_space = [], []
    for lower, upper, size in rows.tolist():
        offset = model.new_int_var(0, most, "")
        in_time.append(model.new_fixed_size_interval_var(lower, upper - lower, ""))
        in_space.append(model.new_fixed_size_interval_var(offset, size, ""))
        model.add(offset + size <= height)
    model.add_no_overlap_2d(in_time, in_space)
    model.minimize(height)
    solver = _solver(seconds)
    status = solver.solve(model)
    return int(solver.objective_value), status == cp_model.OPTIMAL


def largest_load(rows: np.ndarray) -> int:
    """The most that lives at one time."""
    return max(int(rows[(rows[:, 0] <= t) & (t < rows[:, 1]), 2].sum()) for t in rows[:, 0])


def our_capacity(rows: np.ndarray, least: int) -> int:
    """The first of the capacities, from the least on by 0.5%, for which ours finds addresses."""
    capacity = least
    while not _has_addresses(rows, capacity):
        capacity += max(1, least // 200)
    return capacity


def _has_addresses(rows: np.ndarray, capacity: int) -> bool:
    problem = _two_ops()
    machine = make_machine(problem, np.array([float(capacity)]))
    m = make_plan_state(problem.arrays, machine=machine, choices=Offload().choices)
    m = _with_stays(m, rows[np.argsort(rows[:, 0], kind="stable")])
    if not assign(m):
        return False
    copies = m.copies[: len(rows)]
    begin, end = copies["address"], copies["address"] + copies["bytes"]
    lower, upper = copies["born"], copies["died"]
    in_space = (begin[:, None] < end) & (begin < end[:, None])
    in_time = (lower[:, None] < upper) & (lower < upper[:, None])
    assert (end <= capacity).all()
    assert not np.triu(in_space & in_time, 1).any()
    return True


def _with_stays(m: PlanState, rows: np.ndarray) -> PlanState:
    """A state whose walk is done, and left these stays."""
    num = len(rows)
    copies = np.zeros(num, m.copies.dtype)
    copies["born"], copies["died"], copies["bytes"] = rows.T
    copies["gone"], copies["freed"], copies["uses"] = 1, NOTHING, NOTHING
    m.counts[0]["copies"], m.counts[0]["steps"] = num, int(rows[:, 1].max())
    return m._replace(
        copies=copies,
        segments=np.zeros(2 * num + 1, m.segments.dtype),
        heap=np.zeros(num, m.heap.dtype),
        waits=np.zeros((20 * num, 2), np.int64),
        planned=np.zeros(2 * num, m.planned.dtype),
    )


def _two_ops() -> Problem:
    from tests.problems import cluster_of, graph_of

    return build(graph_of([1, 1], [(0, 1, 1.0)]), cluster_of([1.0]))


def offsets(arguments: argparse.Namespace) -> Iterator[str]:
    """The table of the instances."""
    yield "| instance | buffers | load | least | ours | ours over least |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for path in sorted(INSTANCES.glob("*.csv"))[: arguments.num]:
        rows = read_instance(path)
        least, proven = least_capacity(rows, arguments.seconds)
        ours = our_capacity(rows, least)
        told = f"{least}" if proven else f"{least}, not proven"
        sizes = f"{len(rows)} | {largest_load(rows)}"
        yield f"| {path.stem} | {sizes} | {told} | {ours} | {ours / least:.3f} |"


# Plans


def planner(arguments: argparse.Namespace) -> Iterator[str]:
    """Makespans of ours over those of CP-SAT, which has no addresses and any order."""
    from tests.problems import random_problem

    rng, rows = np.random.default_rng(7), []
    while len(rows) < arguments.num:
        drawn = random_problem(
            int(rng.integers(2**31)),
            num_ops=int(rng.integers(6, 21)),
            num_devices=int(rng.integers(1, 3)),
            costs="tied",
            given_costs=False,
        )
        cluster = replace(drawn.cluster, host_bytes_per_s=1.0, host_latency_s=0.0)
        problem = build(drawn.graph, cluster)
        device_V = np.array(
            [rng.choice(np.flatnonzero(row)) for row in np.isfinite(problem.arrays.op_seconds)]
        )
        tight = _tight(problem, device_V, float(rng.choice([0.0, 0.25, 0.5])))
        placement = Placement.make(tight, device_V)
        with Offload().applied(WorkConserving()).open(tight, num_threads=1) as session:
            ours_s = float(session.measure(placement.device[None]).seconds[0, 0])
        if ours_s == 0.0:
            continue
        found_s, bound_s = _Exact(tight, device_V, ours_s).solve(arguments.seconds)
        rows.append(
            (ours_s / found_s, ours_s / max(bound_s, 1e-9), found_s <= bound_s * (1 + 1e-9))
        )
    ours, over_bound, proven = np.array(rows).T
    yield f"{arguments.num} graphs of 6 to 20 ops, {int(proven.sum())} optima proven"
    for what, ratio in (
        ("best found", ours),
        ("proven ones", ours[proven > 0]),
        ("its lower bound", over_bound),
    ):
        yield (
            f"ours over {what}: mean {ratio.mean():.3f}, median {np.median(ratio):.3f}, "
            f"worst {ratio.max():.3f}, equal {(ratio < 1 + 1e-9).sum()}"
        )


def _tight(problem: Problem, device_V: np.ndarray, share: float) -> Problem:
    """Between the least that would do and what it takes without limits."""
    arrays = problem.arrays
    free = replace(
        problem, arrays=arrays._replace(memory_bytes=np.full(problem.num_devices, np.inf))
    )
    with WorkConserving().open(free, num_threads=1) as session:
        held_D = session.measure(device_V[None]).peak_bytes[0]
    least_D = np.zeros(problem.num_devices)
    np.maximum.at(least_D, device_V, op_need_bytes(arrays))
    limit_D = np.ceil(np.maximum(least_D, least_D + share * (held_D - least_D)))
    return replace(problem, arrays=arrays._replace(memory_bytes=limit_D))


class _Exact:
    """Least makespan of a placement within memory limits, in thousandths of a second.

    A datum is on its device in stays, each from the start of who writes it till all that read it
    have ended; loads follow its eviction; a device does one op, one load, one eviction at a time.
    """

    def __init__(self, problem: Problem, device_V: np.ndarray, horizon_s: float) -> None:
        self.problem, self.p, self.device_V = problem, problem.arrays, device_V
        self.model, self.horizon = cp_model.CpModel(), round(horizon_s * 1000) + 1
        self.end = self.model.new_int_var(0, self.horizon, "")
        self.busy: dict[Any, list] = defaultdict(list)  # resource -> intervals
        self.rooms: dict[int, list] = defaultdict(list)  # device -> (interval, bytes)
        self.ops = [self._task(("op", d), self.p.op_seconds[v, d]) for v, d in enumerate(device_V)]
        for op in self.ops:
            self.model.add(op[1] <= self.end)
        self._regions()
        self._inputs()

    def _time(self) -> Any:
        return self.model.new_int_var(0, self.horizon, "")

    def _task(self, resource: Any, seconds: float, present: Any = None) -> tuple[Any, Any]:
        """Start and end of a task of a resource."""
        start, end, length = self._time(), self._time(), round(seconds * 1000)
        if present is None:
            interval = self.model.new_interval_var(start, length, end, "")
        else:
            interval = self.model.new_optional_interval_var(start, length, end, present, "")
        self.busy[resource].append(interval)
        return start, end

    def _regions(self) -> None:
        p, regions = self.p, self.problem.graph.regions
        for r in range(len(p.region_bytes)):
            maker, home = self.ops[regions.src[r]], int(self.device_V[regions.src[r]])
            readers: dict[int, list] = defaultdict(list)
            for v in regions.consumers[regions.consumer_ptr[r] : regions.consumer_ptr[r + 1]]:
                readers[int(self.device_V[v])].append(self.ops[v])
            for d in [d for d in readers if d != home]:
                cluster = self.problem.cluster
                seconds = (
                    cluster.latency_s[home, d] + p.region_bytes[r] / cluster.bytes_per_s[home, d]
                )
                move = self._task(("link", home, d), seconds)
                readers[home].append(move)
                self._datum(d, p.region_bytes[r], readers[d], writer=move)
            self._datum(home, p.region_bytes[r], readers[home], writer=maker)
        for v in np.flatnonzero(np.diff(p.region_ptr) == 0).tolist():
            self._datum(int(self.device_V[v]), p.sink_bytes[v], [], writer=self.ops[v])

    def _inputs(self) -> None:
        p = self.p
        for i in range(len(p.input_bytes)):
            readers: dict[int, set[int]] = defaultdict(set)
            for v in p.input_consumers[p.input_ptr[i] : p.input_ptr[i + 1]].tolist():
                readers[int(self.device_V[v])].add(v)
            for d, ops in readers.items():
                self._datum(d, p.input_bytes[i], [self.ops[v] for v in ops], writer=None)

    def _datum(self, d: int, size: float, readers: list, *, writer: Any) -> None:
        """Its stays; of an input the first is there from the start, or never."""
        if size == 0:
            for reader in readers if writer is not None else []:
                self.model.add(reader[0] >= writer[1])
            return
        model, cluster = self.model, self.problem.cluster
        seconds = cluster.host_latency_s + size / cluster.host_bytes_per_s
        stays = []  # present, readable from, end
        first = model.new_bool_var("") if writer is None else model.new_constant(1)
        begin = model.new_constant(0) if writer is None else writer[0]
        stays.append(
            (first, begin if writer is None else writer[1], self._stay(d, size, first, begin))
        )
        evicted, gone = model.new_bool_var(""), model.new_constant(0)
        if writer is not None:
            start, gone = self._task(("evict", d), seconds, evicted)
            model.add(start >= writer[1])
            model.add(gone <= stays[0][2]).only_enforce_if(evicted)
            if not readers:  # a result: it stays where it is, or has been copied
                model.add(stays[0][2] >= self.horizon).only_enforce_if(~evicted)
        for _ in range(_STAYS - 1 if readers else 0):
            present = model.new_bool_var("")
            start, end = self._task(("load", d), seconds, present)
            if writer is not None:
                model.add_implication(present, evicted)
                model.add(start >= gone).only_enforce_if(present)
            stays.append((present, end, self._stay(d, size, present, start)))
        for reader in readers:
            chosen = [model.new_bool_var("") for _ in stays]
            model.add_exactly_one(chosen)
            for one, (present, since, until) in zip(chosen, stays, strict=True):
                model.add_implication(one, present)
                model.add(reader[0] >= since).only_enforce_if(one)
                model.add(reader[1] <= until).only_enforce_if(one)

    def _stay(self, d: int, size: float, present: Any, begin: Any) -> Any:
        until, length = self._time(), self._time()
        self.rooms[d].append(
            (self.model.new_optional_interval_var(begin, length, until, present, ""), int(size))
        )
        return until

    def solve(self, seconds: float) -> tuple[float, float]:
        """The least makespan that was found, ours if none was, and what none undercuts."""
        for intervals in self.busy.values():
            self.model.add_no_overlap(intervals)
        for d, rooms in self.rooms.items():
            limit = int(self.p.memory_bytes[d])
            self.model.add_cumulative([one for one, _ in rooms], [b for _, b in rooms], limit)
        self.model.minimize(self.end)
        solver = _solver(seconds)
        status = solver.solve(self.model)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return (self.horizon - 1) / 1000, solver.best_objective_bound / 1000
        return solver.objective_value / 1000, solver.best_objective_bound / 1000


def _solver(seconds: float) -> cp_model.CpSolver:
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 2
    return solver


if __name__ == "__main__":
    main()
