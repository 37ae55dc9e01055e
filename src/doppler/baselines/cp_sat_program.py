"""Placement and order of a problem as a constraint program for CP-SAT.

Times are whole ticks, and every duration is rounded down. So every schedule is also a solution of
the program, since floor(a + b) >= floor(a) + floor(b), and the program's bound holds for every
execution. If all durations are whole multiples of some time, as in many made-up problems, that time
is the tick: nothing is rounded, and the search counts in whole steps.

Shape suffixes: V ops, D devices.
"""

import itertools
import math
from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.baselines.bounds import heads_and_tails, lower_bound, pairs
from doppler.problem.arrays import ProblemArrays, link_seconds, same_when_swapped
from doppler.problem.transfer_kernels import move_seconds
from doppler.trace import Trace

IntArray = NDArray[np.int64]

# A makespan is between half and all of 2 ** _TICK_BITS ticks, so rounding lowers the bound by less
# than a ten-thousandth at a thousand ops. A tick is a power of two in seconds, so exact times stay
# exact.
_TICK_BITS = 24
# Bytes are counted in 2 ** -_BYTE_BITS of a device's memory.
_BYTE_BITS = 30
# Heads, tails and bounds are sums with rounding errors, which may push them up by a tick. Starts
# may be a tick later and the makespan two, so that every schedule still satisfies them.
_SLACK_TICKS = 2


class Solution(NamedTuple):
    """A solution of the program.

    Attributes:
        device: [V] device of every op.
        start: [V] start of every op, in ticks.
    """

    device: IntArray
    start: IntArray


class ConstraintProgram:
    """A problem as a constraint program, with a traced execution as its hint.

    ``model`` minimises the makespan. An op has a variable for its start, and for each device that
    can run it a literal and an optional interval; exactly one of its literals holds. A group uses
    the literals of its first op. At most ``streams`` intervals of a device overlap. An op starts
    after its producers end, plus the transfer if one is on another device. Two redundant
    constraints are decisive: heads and tails (bounds.heads_and_tails), and that no device has more
    work than the makespan. Limited memory counts only for ops and reads on devices without a
    choice. Of devices that can be exchanged, the k-th heaviest op may only use the first k.

    If transfers contend, each is an optional interval too. Those of a channel or an engine do not
    overlap, and no more of them leave or enter a host than it has interfaces. With barriers,
    contention is relaxed away.

    Source: Laborie, Rogerie, Shaw, Vilim, "IBM ILOG CP Optimizer for scheduling", Constraints 2018
    (optional intervals).
    """

    def __init__(self, hint: Trace) -> None:
        from ortools.sat.python.cp_model import CpModel

        self._problem, self._rules = hint.problem, hint.rules
        finest_s = 2.0 ** (math.ceil(math.log2(hint.makespan_s or 1.0)) - _TICK_BITS)
        whole_s = whole_tick_s(self._problem.arrays, finest_s)
        self._tick_s = finest_s if whole_s is None else whole_s
        self._slack = _SLACK_TICKS if whole_s is None else 0
        # Systems with their own rounding of times may be a little faster than ours.
        self._horizon = self._ticks(1.01 * hint.makespan_s) + self._slack
        self.model = CpModel()
        self._start: list[Any] = []
        self._end: list[Any] = []
        self._on: list[dict[int, Any]] = []  # per op: device -> literal
        self._add_ops(hint)
        if hint.memory is None:  # else whatever does not fit is moved to the host
            self._add_memory()
        renamed_D = self._break_symmetry(hint.placement.device)
        self._hint_ops(hint, renamed_D[hint.placement.device])
        if self._rules.contention == "none" or self._rules.barriers:
            self._add_delays()
        else:
            self._add_transfers(hint, renamed_D)

    def bound_s(self, objective_bound: float) -> float:
        """Convert a bound on the program's objective to seconds that hold for any execution."""
        return max(0.0, objective_bound - self._slack) * self._tick_s

    def read(self, values: Any) -> Solution:
        """Read the solution for which a callback is called."""
        device = [
            next(d for d, literal in on.items() if values.boolean_value(literal)) for on in self._on
        ]
        start = [values.value(start) for start in self._start]
        return Solution(np.array(device, dtype=np.int64), np.array(start, dtype=np.int64))

    def _ticks(self, seconds: float) -> int:
        return math.floor(seconds / self._tick_s)

    def _choose(self, on: dict[int, Any], seconds_D: NDArray[np.float64]) -> Any:
        """Ticks on the device whose literal holds: a number if all are equal, else a sum."""
        ticks = {d: self._ticks(seconds_D[d]) for d in on}
        if len(set(ticks.values())) == 1:
            return next(iter(ticks.values()))
        return sum(ticks[d] * literal for d, literal in on.items())

    def _add_ops(self, hint: Trace) -> None:
        model, problem, streams = self.model, self._problem, self._rules.streams
        seconds_VD = problem.arrays.op_seconds
        head_VD, tail_VD = heads_and_tails(problem, streams=streams)
        least = self._ticks(lower_bound(problem, streams=streams).seconds)
        makespan = model.new_int_var(least, self._horizon, "makespan")
        model.add_hint(makespan, self._ticks(hint.makespan_s))
        model.minimize(makespan)
        intervals, work = defaultdict(list), defaultdict(list)
        for v, root in enumerate(problem.arrays.group):
            able = np.flatnonzero(np.isfinite(seconds_VD[v])).tolist()
            if root == v:
                on = {d: model.new_bool_var(f"op {v} on {d}") for d in able}
                model.add_exactly_one(on.values())
            else:
                on = self._on[root]
            start = model.new_int_var(0, self._horizon, f"start {v}")
            end = start + self._choose(on, seconds_VD[v])
            model.add(start >= self._choose(on, head_VD[v]))
            model.add(end + self._choose(on, tail_VD[v]) <= makespan)
            for d in able:
                ticks = self._ticks(seconds_VD[v, d])
                interval = model.new_optional_fixed_size_interval_var(start, ticks, on[d], "")
                intervals[d].append(interval)
                work[d].append(ticks * on[d])
            self._start.append(start)
            self._end.append(end)
            self._on.append(on)
        self._intervals = intervals  # of the ops of each device
        for d in intervals:
            if streams == 1:
                model.add_no_overlap(intervals[d])
            else:
                model.add_cumulative(intervals[d], [1] * len(intervals[d]), streams)
            model.add(sum(work[d]) <= streams * makespan)

    def _add_memory(self) -> None:
        """Constrain memory: a region is held from the start of its op until its last reader ends.

        This counts only regions whose op and readers can all run on a single device, the same one.
        Bytes are rounded down, so that whatever fits in memory also fits here.
        """
        p = self._problem.arrays
        able_VD = np.isfinite(p.op_seconds)
        only_V = np.where(able_VD.sum(axis=1) == 1, able_VD.argmax(axis=1), -1)
        held: dict[int, list[tuple[int, list[int], float]]] = defaultdict(list)
        for r in np.flatnonzero(p.region_bytes > 0):
            readers = p.consumers[p.consumer_ptr[r] : p.consumer_ptr[r + 1]].tolist()
            src = int(p.region_src[r])
            if only_V[src] >= 0 and (only_V[readers] == only_V[src]).all():
                held[int(only_V[src])].append((src, readers, float(p.region_bytes[r])))
        for d, regions in held.items():
            memory = float(p.memory_bytes[d])
            if sum(size for *_, size in regions) <= memory:
                continue
            quantum = 2.0 ** (math.ceil(math.log2(memory)) - _BYTE_BITS)
            intervals, demands = [], []
            for src, readers, size in regions:
                end = self.model.new_int_var(0, self._horizon, "")
                length = self.model.new_int_var(0, self._horizon, "")
                for v in readers:
                    self.model.add(end >= self._end[v])
                intervals.append(self.model.new_interval_var(self._start[src], length, end, ""))
                demands.append(math.floor(size / quantum))
            self.model.add_cumulative(intervals, demands, math.floor(memory / quantum))

    def in_order(self, ops: list[int]) -> None:
        """Allow only schedules in which these ops begin one after another.

        This loses nothing if the ops are interchangeable.
        """
        for before, after in itertools.pairwise(ops):
            self.model.add(self._start[after] >= self._start[before])

    def _break_symmetry(self, device_V: IntArray) -> IntArray:
        """Forbid placements that differ by device names; return names [D] for a given placement."""
        heaviest_V = np.argsort(-self._problem.arrays.op_seconds.min(axis=1), kind="stable")
        renamed_D = np.arange(self._problem.num_devices)
        for twins in exchangeable(self._problem.arrays):
            used = [d for d in device_V[heaviest_V].tolist() if d in twins]
            renamed_D[list(dict.fromkeys(used + twins))] = twins
            for k, v in enumerate(heaviest_V[: len(twins) - 1]):
                for d in twins[k + 1 :]:
                    if d in self._on[v]:
                        self.model.add(self._on[v][d] == 0)
        return renamed_D

    def _hint_ops(self, hint: Trace, device_V: IntArray) -> None:
        for v, on in enumerate(self._on):
            self.model.add_hint(self._start[v], self._ticks(hint.op_start_s[v]))
            for d, literal in on.items() if self._problem.arrays.group[v] == v else ():
                self.model.add_hint(literal, bool(device_V[v] == d))

    def _add_delays(self) -> None:
        """Without contention, an op starts at least a transfer after a producer elsewhere ends."""
        src_P, dst_P, moves = pairs(self._problem)
        seconds_PDD = link_seconds(moves, slice(None))
        for u, v, seconds_DD in zip(src_P.tolist(), dst_P.tolist(), seconds_PDD, strict=True):
            self.model.add(self._start[v] >= self._end[u])
            for d, here in self._on[v].items():
                seconds_D = seconds_DD[:, d].copy()
                seconds_D[d] = 0.0
                delay = self._choose(self._on[u], seconds_D)
                self.model.add(self._start[v] >= self._end[u] + delay).only_enforce_if(here)

    def _add_transfers(self, hint: Trace, renamed_D: IntArray) -> None:
        """With contention, a region moves once to a device, alone on its channel or engines.

        If the sending device makes transfers, it runs no op meanwhile. A transfer may go later here
        than in the system.
        """
        model, p = self.model, self._problem.arrays
        device_V = renamed_D[hint.placement.device]
        begin_s = {
            (int(r), int(renamed_D[d])): begin
            for r, d, begin in zip(
                hint.transfer_region, hint.transfer_dst, hint.transfer_start_s, strict=True
            )
        }
        alone = defaultdict(list)
        if self._rules.contention == "sender":
            alone |= {("device", d, d): ops.copy() for d, ops in self._intervals.items()}
        for r, u in enumerate(p.region_src.tolist()):
            readers = p.consumers[p.consumer_ptr[r] : p.consumer_ptr[r + 1]].tolist()
            for v in readers:
                model.add(self._start[v] >= self._end[u])
            for d in range(self._problem.num_devices):
                begin = model.new_int_var(0, self._horizon, f"region {r} to {d}")
                model.add(begin >= self._end[u])
                model.add_hint(begin, self._ticks(begin_s.get((r, d), hint.op_finish_s[u])))
                local = [v for v in readers if d in self._on[v]]
                for s, there in self._on[u].items():
                    if s == d:
                        continue
                    ticks = self._ticks(move_seconds(p, r, s, d))
                    moves = model.new_bool_var(f"region {r} from {s} to {d}")
                    model.add_hint(moves, bool(device_V[u] == s and d in device_V[local]))
                    interval = model.new_optional_fixed_size_interval_var(begin, ticks, moves, "")
                    for resource in self._held(s, d):
                        alone[resource].append(interval)
                    for v in local:
                        here = self._on[v][d]
                        model.add_bool_or(~there, ~here, moves)
                        model.add(self._start[v] >= begin + ticks).only_enforce_if(there, here)
        for (what, *_), intervals in alone.items():
            if what in ("leaves", "enters"):
                nics = self._problem.cluster.nics
                model.add_cumulative(intervals, [1] * len(intervals), nics)
            else:
                model.add_no_overlap(intervals)

    def _held(self, src: int, dst: int) -> list[tuple[str, int, int]]:
        """What a transfer occupies: its channel, two engines or a device; interfaces of hosts."""
        held = [("sends", src, src), ("receives", dst, dst)]
        if self._rules.contention == "fifo":
            held = [("channel", src, dst)]
        elif self._rules.contention == "sender":
            held = [("device", src, src)]
        hosts = self._problem.cluster.hosts
        if hosts is not None and hosts[src] != hosts[dst]:
            held += [("leaves", hosts[src], 0), ("enters", hosts[dst], 0)]
        return held


def whole_tick_s(p: ProblemArrays, finest_s: float) -> float | None:
    """Return the largest power of two, in seconds, that divides every duration.

    Sums of such durations are exact. None if it would be below finest_s.
    """
    transfer_s = np.unique(p.size)[:, None] * np.unique(p.seconds_per_size)
    durations = [p.op_seconds[np.isfinite(p.op_seconds)], p.latency_s, transfer_s, p.kind_seconds]
    seconds = np.unique(np.concatenate([each.ravel() for each in durations]))
    tick_s = finest_s
    if (seconds % tick_s).any():
        return None
    while seconds.any() and not (seconds % (2 * tick_s)).any():
        tick_s *= 2
    return tick_s


def exchangeable(p: ProblemArrays) -> list[list[int]]:
    """Return groups of devices that can swap names without changing the problem."""
    groups: list[list[int]] = []
    for d in range(p.op_seconds.shape[1]):
        group = next((group for group in groups if same_when_swapped(p, group[0], d)), None)
        if group is None:
            groups.append([d])
        else:
            group.append(d)
    return groups
