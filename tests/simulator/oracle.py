"""A slow, plain simulator of the work-conserving semantics, to hold the compiled engine against.

At every instant it looks at all tasks anew: what has ended, what is ready, what can start. It
shares no code with the engine and reads the graph's edges, not the engine's arrays of them.

A task is an op ``("op", v)`` or a transfer ``("transfer", region, device)``, where regions are
numbered by (producer, label). Tuples of one kind sort by id, which is how ties are decided.

Where tasks share what the machine declares, rates are found as SimGrid's solver finds them: the
speed of a task alone is one more resource, of which it is the only user, and the resource with the
least left for each of its users is settled first.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from doppler.problem import Placement, Problem

Task = tuple


@dataclass
class Schedule:
    """Start and finish of every task that ran, in seconds; peak memory per device in bytes."""

    makespan_s: float
    start: dict[Task, float]
    finish: dict[Task, float]
    peak_bytes: list[float]


@dataclass
class _Plan:
    """What is to be done: the tasks, what each one takes and waits for, the memory it moves."""

    seconds: dict[Task, float] = field(default_factory=dict)
    needs: dict[Task, list[Task]] = field(default_factory=dict)
    resources: dict[Task, list[tuple]] = field(default_factory=dict)
    rank: dict[Task, float] = field(default_factory=dict)
    # of transfers: by region, then by the first op to read it there
    listed: dict[Task, tuple[int, int]] = field(default_factory=dict)
    # (device, bytes, the task that brings them, the tasks after which they can go)
    holdings: list[tuple[int, float, Task, list[Task]]] = field(default_factory=list)


def simulate(
    problem: Problem,
    placement: Placement,
    *,
    contention: str = "fifo",
    queue: str = "priority",
    streams: int = 1,
    random_key: Callable[[int], float] | None = None,
) -> Schedule:
    """Run one placement.

    random_key: for ``queue="random"``, the key of a task by its number: ops first, then the
    transfers of this placement by (region, device).
    """
    sharing = None
    if contention == "shared":
        cluster = problem.cluster
        contention = "sender" if cluster.cores and cluster.num_hosts == 1 else "fifo"
        sharing = Sharing(problem, placement)
    plan = _make_plan(problem, placement, contention)
    tasks = sorted(plan.seconds)  # ops come first: "op" < "transfer"
    many = {"device": streams, "out of": problem.cluster.nics, "into": problem.cluster.nics}
    capacity = {r: many.get(r[0], 1) for t in tasks for r in plan.resources[t]}
    order = sorted(range(problem.num_ops), key=lambda v: placement.priority[v])

    start: dict[Task, float] = {}
    finish: dict[Task, float] = {}
    start_round: dict[Task, int] = {}
    end_round: dict[Task, int] = {}
    ready_since: dict[Task, float] = {}
    now, rounds = 0.0, 0

    def is_ready(task: Task) -> bool:
        if any(need not in end_round for need in plan.needs[task]):
            return False
        if queue == "strict" and task[0] == "op":
            d = placement.device[task[1]]
            for v in order:
                if v == task[1]:
                    break
                if placement.device[v] == d and ("op", v) not in start:
                    return False
        return True

    def key(task: Task) -> tuple:
        if contention == "sender" and task[0] == "transfer":  # before all ops
            keeps_order = queue in ("priority", "strict")
            rank = plan.rank[task] if keeps_order else -np.inf
            return (-1e9 + rank, *plan.listed[task], task)
        if queue == "fifo":
            return (ready_since[task], task)
        if queue == "random":
            assert random_key is not None
            return (random_key(_number(problem, task)), task)
        return (plan.rank[task], task)

    while True:
        started = True
        while started:  # in strict order a start can make the next op ready
            started = False
            waiting = [task for task in tasks if task not in start and is_ready(task)]
            for task in waiting:
                ready_since.setdefault(task, now)
            for task in sorted(waiting, key=key):
                if all(capacity[r] > 0 for r in plan.resources[task]):
                    for r in plan.resources[task]:
                        capacity[r] -= 1
                    start[task] = now
                    finish[task] = now + plan.seconds[task]
                    start_round[task] = rounds
                    started = queue == "strict"
        running = [task for task in start if task not in end_round]
        if not running:
            break
        if sharing is None:
            now = min(finish[task] for task in running)
        else:
            now = sharing.next_instant(now, running, start, finish)
        rounds += 1
        for task in running:
            if finish[task] == now:
                end_round[task] = rounds
                for r in plan.resources[task]:
                    capacity[r] += 1

    complete = len(end_round) == len(tasks)
    return Schedule(
        makespan_s=now if complete else np.inf,
        start=start,
        finish=finish,
        peak_bytes=_peaks(problem, placement, plan, start_round, end_round) if complete else [],
    )


class Sharing:
    """What running tasks use together: by name how much there is, and how much a task uses.

    A resource is (its name); the speed of a task alone is the resource (task,).
    """

    def __init__(self, problem: Problem, placement: Placement) -> None:
        self.problem, self.device = problem, placement.device.tolist()
        self.rate: dict[Task, float] = {}
        largest = max((one.bytes_per_s or 0.0 for one in problem.cluster.shared), default=0.0)
        self.unit = largest or 1.0  # bytes count in this

    def latency_s(self, task: Task) -> float:
        """How long a task runs before it uses anything that is shared."""
        if task[0] == "op":
            return 0.0
        src, dst = self._ends(task)
        return float(self.problem.arrays.latency_s[src, dst])

    def _ends(self, task: Task) -> tuple[int, int]:
        regions = self.problem.graph.regions
        return self.device[regions.src[task[1]]], task[2]

    def uses(self, task: Task) -> list[tuple[str, float]]:
        """What a task uses at full speed, a pair per use."""
        problem, graph = self.problem, self.problem.graph
        found = []
        if task[0] == "op":
            v, d = task[1], self.device[task[1]]
            seconds, device = problem.arrays.op_seconds[v, d], problem.cluster.devices[d]
            moved = graph.ops.read_bytes[v] + graph.ops.output_bytes[v]
            for one in problem.cluster.shared:
                if d not in one.devices or seconds == 0:
                    continue
                if one.bytes_per_s is not None:
                    # A device gets no more alone than its resources have.
                    least = min(
                        other.bytes_per_s or np.inf
                        for other in problem.cluster.shared
                        if d in other.devices
                    )
                    found.append((one.name, min(moved / seconds, least) / self.unit))
                elif graph.given_costs is not None:
                    found.append((one.name, 1.0))
                else:
                    share = graph.ops.flops[v] / device.flop_per_s["f32"] / seconds
                    found.append((one.name, min(share, 1.0)))
        else:
            src, dst = self._ends(task)
            r = task[1]
            seconds = problem.arrays.size[r] * problem.arrays.seconds_per_size[src, dst]
            for one in problem.cluster.shared:
                if seconds > 0:
                    rate = graph.regions.bytes[r] / seconds / self.unit
                    found += [(one.name, rate)] * one.links.count((src, dst))
        return [(name, amount) for name, amount in found if amount > 0]

    def next_instant(self, now, running, start, finish) -> float:
        """Move the ends of what runs to where the rates from now on put them; the next event."""
        quiet_until = {task: start[task] + self.latency_s(task) for task in running}
        fluid = [task for task in running if quiet_until[task] <= now and self.uses(task)]
        rates = fair_rates(
            {task: self.uses(task) for task in fluid},
            {
                one.name: one.bytes_per_s / self.unit if one.bytes_per_s else 1.0
                for one in self.problem.cluster.shared
            },
        )
        for task, rate in rates.items():
            before = self.rate.get(task, 1.0)
            if rate != before:
                finish[task] = now + (finish[task] - now) * before / rate
            self.rate[task] = rate
        soonest = min(finish[task] for task in running)
        for task in running:  # what differs by rounding is one instant
            if finish[task] <= soonest * (1 + 1e-12):
                finish[task] = soonest
        waiting = [quiet_until[t] for t in running if quiet_until[t] > now and self.uses(t)]
        return min([soonest, *waiting])


def fair_rates(uses: dict[Task, list[tuple[str, float]]], capacity: dict[str, float]):
    """Max-min fair rates [0 to 1] of tasks by what they use.

    Speeds, in units of what a task uses most of, rise together until a resource is used up.
    """
    speed = {task: max(amount for _, amount in pairs) for task, pairs in uses.items()}
    left = {name: float(room) for name, room in capacity.items()}
    # How much of each resource a task needs for a speed of 1.
    need: dict[Task, dict] = {}
    for task, pairs in uses.items():
        need[task] = {("own", task): 1.0}
        left["own", task] = speed[task]
        for name, amount in pairs:
            need[task][name] = need[task].get(name, 0.0) + amount / speed[task]
    found: dict[Task, float] = {}
    while need:
        asked: dict = {}
        for task in need:
            for name, amount in need[task].items():
                asked[name] = asked.get(name, 0.0) + amount
        # Speeds alone first where they tie: then nothing is slowed down.
        least = min(
            asked, key=lambda name: (left[name] / asked[name] * (1 + _own(name)), str(name))
        )
        level = left[least] / asked[least]
        for task in [task for task in need if least in need[task]]:
            found[task] = 1.0 if least == ("own", task) else level / speed[task]
            for name, amount in need.pop(task).items():
                left[name] -= amount * found[task] * speed[task]
    return found


def _own(name) -> float:
    return -1e-9 if isinstance(name, tuple) else 0.0


def _number(problem: Problem, task: Task) -> int:
    if task[0] == "op":
        return task[1]
    return problem.num_ops + task[1] * problem.num_devices + task[2]


def _make_plan(problem: Problem, placement: Placement, contention: str) -> _Plan:
    graph, arrays, plan = problem.graph, problem.arrays, _Plan()
    edges = graph.edges
    device = placement.device.tolist()
    rank = placement.priority.tolist()
    producers = sorted(set(zip(edges.src.tolist(), edges.region.tolist(), strict=True)))
    number = {producer: r for r, producer in enumerate(producers)}
    readers: dict[int, list[int]] = {r: [] for r in range(len(producers))}
    given_s: dict[int, np.ndarray] = {}
    num_bytes: dict[int, float] = {}
    for e in range(len(edges)):
        r = number[int(edges.src[e]), int(edges.region[e])]
        readers[r].append(int(edges.dst[e]))
        num_bytes[r] = float(edges.bytes[e])
        given = graph.given_costs
        if given is not None and given.transfer_seconds is not None:
            given_s[r] = given.transfer_seconds[e]

    for v in range(graph.num_ops):
        plan.seconds["op", v] = float(arrays.op_seconds[v, device[v]])
        plan.needs["op", v] = []
        plan.resources["op", v] = [("device", device[v])]
        plan.rank["op", v] = rank[v]
        if v not in edges.src:  # nobody reads it: it stays to the end
            plan.holdings.append((device[v], float(graph.ops.output_bytes[v]), ("op", v), []))

    for r, (src, _) in enumerate(producers):
        here = device[src]
        uses_here: list[Task] = []
        for d in sorted({device[v] for v in readers[r]}):
            there = [("op", v) for v in readers[r] if device[v] == d]
            if d == here:
                for op in there:
                    plan.needs[op].append(("op", src))
                uses_here += there
                continue
            transfer = ("transfer", r, d)
            if r not in given_s:
                seconds = (
                    arrays.latency_s[here, d] + num_bytes[r] * arrays.seconds_per_size[here, d]
                )
            elif given_s[r].ndim == 0:
                seconds = given_s[r]
            else:
                kinds = [problem.cluster.devices[i].name.split(":")[0] for i in (here, d)]
                seconds = given_s[r][tuple(map(graph.given_costs.kinds.index, kinds))]
            plan.seconds[transfer] = float(seconds)
            plan.needs[transfer] = [("op", src)]
            plan.resources[transfer] = {
                "none": [],
                "fifo": [("channel", here, d)],
                "engines": [("sender", here), ("receiver", d)],
                "sender": [("device", here)],
            }[contention]
            hosts = problem.cluster.hosts or [0] * problem.num_devices
            if hosts[here] != hosts[d] and contention != "none":
                plan.resources[transfer] += [("out of", hosts[here]), ("into", hosts[d])]
            plan.rank[transfer] = min(rank[v] for _, v in there)
            plan.listed[transfer] = r, min(v for _, v in there)
            for op in there:
                plan.needs[op].append(transfer)
            plan.holdings.append((d, num_bytes[r], transfer, there))
            uses_here.append(transfer)
        plan.holdings.append((here, num_bytes[r], ("op", src), uses_here))
    return plan


def _peaks(
    problem: Problem,
    placement: Placement,
    plan: _Plan,
    start_round: dict[Task, int],
    end_round: dict[Task, int],
) -> list[float]:
    """Largest memory in use per device, counted once everything of a round has started."""
    inputs = problem.graph.inputs
    last = max(end_round.values()) + 1
    peaks = []
    for d in range(problem.num_devices):
        held = [0.0] * (last + 1)
        for i, consumers in enumerate(inputs.consumers):
            if any(placement.device[v] == d for v in consumers):
                held = [value + float(inputs.bytes[i]) for value in held]
        for where, num_bytes, bringer, users in plan.holdings:
            if where == d:
                end = max((end_round[user] for user in users), default=last + 1)
                for i in range(start_round[bringer], end):
                    held[i] += num_bytes
        peaks.append(max(held))
    return peaks
