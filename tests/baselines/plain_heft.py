"""HEFT as its paper says, in plain Python: an oracle, slow and readable.

Source: Topcuoglu, Hariri, Wu, "Performance-effective and low-complexity task scheduling for
heterogeneous computing", IEEE TPDS 2002: upward ranks (equation 5), the insertion-based policy
(figure 2), earliest finish times (equations 6 and 7). Edges carry one mean transfer, equal
processors, no contention.
"""

from typing import NamedTuple


class Task(NamedTuple):
    """seconds; before and after: its neighbours, and the seconds of the transfer from or to each.

    A neighbour may be there twice.
    """

    seconds: float
    before: list[tuple[int, float]]
    after: list[tuple[int, float]]


def upward_ranks(tasks: list[Task]) -> list[float]:
    """The length of the longest path from each task to an exit, by its definition."""
    known: dict[int, float] = {}

    def rank(v: int) -> float:
        if v not in known:
            behind = [transfer + rank(w) for w, transfer in tasks[v].after]
            known[v] = tasks[v].seconds + max(behind, default=0.0)
        return known[v]

    return [rank(v) for v in range(len(tasks))]


class Schedule:
    """Slots on processors, filled one task at a time."""

    def __init__(self, tasks: list[Task], num_processors: int) -> None:
        self.tasks = tasks
        self.slots: list[list[tuple[float, float]]] = [[] for _ in range(num_processors)]
        self.placed: dict[int, tuple[int, float]] = {}  # processor and finish

    def earliest_finish(self, v: int, processor: int) -> float:
        """In the first gap that is long enough, once all that the task reads has come."""
        ready = 0.0
        for u, transfer in self.tasks[v].before:
            there, finish = self.placed[u]
            ready = max(ready, finish if there == processor else finish + transfer)
        begin = ready
        for start, end in self.slots[processor]:
            if begin + self.tasks[v].seconds <= start:
                break
            begin = max(begin, end)
        return begin + self.tasks[v].seconds

    def place(self, v: int, processor: int) -> None:
        finish = self.earliest_finish(v, processor)
        self.slots[processor].append((finish - self.tasks[v].seconds, finish))
        self.slots[processor].sort()
        self.placed[v] = processor, finish

    @property
    def makespan(self) -> float:
        return max(finish for _, finish in self.placed.values())


def heft(tasks: list[Task], num_processors: int) -> Schedule:
    """Tasks by falling rank, each to the processor where it ends first; the first of equal ones."""
    ranks = upward_ranks(tasks)
    schedule = Schedule(tasks, num_processors)
    for v in sorted(range(len(tasks)), key=lambda v: -ranks[v]):
        finish = [schedule.earliest_finish(v, d) for d in range(num_processors)]
        schedule.place(v, finish.index(min(finish)))
    return schedule
