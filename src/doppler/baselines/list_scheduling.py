"""What list schedulers share: ready ops, earliest starts and gaps, memory, random ties.

A list scheduler takes one op at a time whose producers are all scheduled, and gives it a device
and a start. A region's transfer to another device begins when its producer ends and takes its
seconds, whatever else the link carries: like the published methods, these know no contention.

Memory, by the rule of room.py: an op goes to the device that its method prefers among those where
the sum of what was brought stays within the memory, and if there is none, to the one that overflows
least. In the first and every other run regions and copies stay, so that what fits there fits for
certain. Measured under tight memory, runs of the second kind more often fit and the others are a
quarter faster: of several runs the best is as fast as with one kind and fits as often as with the
other. What fits is decided by the system.

Groups of the problem: the first op of a group takes all of it to the device on which, by the start
of this op and the groups that are there already, the group would end first; memory as above, with
the inputs of the whole group. The others have no choice.

Shape suffixes: B runs, V ops, R regions, I inputs, D devices.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.baselines.best_of_runs import ListDecisions, make_decisions
from doppler.baselines.room import (
    Room,
    bring_inputs,
    empty_room,
    give_back,
    make_room,
    overflow_bytes,
    take_room,
)
from doppler.problem import Problem
from doppler.problem.arrays import ProblemArrays, move_seconds
from doppler.support.compiled import compiled
from doppler.support.compiled.draws import uniform
from doppler.support.compiled.heap import ENTRY, heap_pop, heap_push

# Sums of the same seconds in another order differ in the last digits: such times are tied.
_TIE = 1e-9

_OP = np.dtype(
    [
        ("start", np.float64),
        ("finish", np.float64),
        ("before", np.int32),  # the op before it on its device, -1 if there is none
        ("gap", np.int32),  # the last op before it there with a gap that some op could take
        ("pending", np.int32),  # regions whose producer is not scheduled
        ("device", np.int32),
    ]
)
_DEVICE = np.dtype(
    [
        ("last", np.int32),  # the last of its ops, -1 if there is none
        ("gap", np.int32),  # the last with a gap before it that some op could take, -1 if none
    ]
)


class PartialSchedule(NamedTuple):
    """Buffers of one run, reused by the next; after a run they hold its schedule."""

    ops: NDArray[np.void]  # _OP [V]
    devices: NDArray[np.void]  # _DEVICE [D]
    ready: NDArray[np.float64]  # [V, D] when what an op reads can be on a device
    released: NDArray[np.int64]  # [V] the ops that the last commit made ready
    candidates: NDArray[np.void]  # ENTRY [V]
    room: Room
    near: bool  # whether copies are asked for where nothing can overflow, too
    tie_s: float
    shortest: NDArray[np.float64]  # [D] seconds of the op that takes least
    home: NDArray[
        np.int64
    ]  # [V] of groups, by their first op: their device, -1 before it is chosen
    load: NDArray[np.float64]  # [V, D] seconds of all ops of an op's group
    other_inputs: NDArray[np.float64]  # [V] bytes that the group of an op needs beside the op's own
    booked: NDArray[np.float64]  # [D] seconds of the groups that have it as their home
    after: NDArray[np.float64]  # [V, D] seconds that count beside the end of an op


def make_schedule(
    problem: Problem,
    tie_s: float,
    *,
    near: bool = False,
    after_VD: NDArray[np.float64] | None = None,
) -> PartialSchedule:
    """Buffers for schedules of one problem; times that differ by at most ``tie_s`` are tied."""
    p = problem.arrays
    num_ops, num_devices = p.op_seconds.shape
    room = make_room(p)
    return PartialSchedule(
        ops=np.zeros(num_ops, _OP),
        devices=np.zeros(num_devices, _DEVICE),
        ready=np.zeros((num_ops, num_devices)),
        released=np.zeros(num_ops, np.int64),
        candidates=np.zeros(num_ops, ENTRY),
        room=room,
        near=near,
        tie_s=float(tie_s),
        shortest=p.op_seconds.min(axis=0),
        home=np.zeros(num_ops, np.int64),
        load=problem.group_seconds,
        other_inputs=_other_inputs(p, room),
        booked=np.zeros(num_devices),
        after=np.zeros((num_ops, num_devices)) if after_VD is None else after_VD,
    )


def _other_inputs(p: ProblemArrays, room: Room) -> NDArray[np.float64]:
    """Bytes [V] of the inputs that an op's group needs and the op does not."""
    op_N, input_N = np.repeat(np.arange(len(p.group)), np.diff(room.input_ptr)), room.inputs
    own_V = np.bincount(op_N, p.input_bytes[input_N], len(p.group))
    root_M, input_M = np.unique(np.stack([p.group[op_N], input_N]), axis=1)
    all_V = np.bincount(root_M, p.input_bytes[input_M], len(p.group))[p.group]
    return np.asarray(all_V - own_V, dtype=np.float64)


def tie_seconds(level_V: NDArray[np.float64]) -> float:
    """The difference up to which times of a problem with these levels are tied."""
    return _TIE * float(level_V.max(initial=0.0))


def queue_keys(
    level_V: NDArray[np.float64], num: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Keys [num, V] that rise where levels fall; equal levels have random order in every row."""
    order_V = np.argsort(-level_V)
    fallen_V = np.diff(level_V[order_V], prepend=np.inf) < -tie_seconds(level_V)
    class_V = np.empty(len(level_V))
    class_V[order_V] = np.cumsum(fallen_V)
    return class_V + rng.random((num, len(level_V)))


def schedule_ops(
    problem: Problem,
    level_V: NDArray[np.float64],
    num: int,
    rng: np.random.Generator,
    *,
    insertion: bool,
    home_BV: NDArray[np.int64] | None = None,
    after_VD: NDArray[np.float64] | None = None,
) -> ListDecisions:
    """Take the candidate of the largest level to its best device, ties at random, ``num`` times.

    insertion: the best device is the one on which the op ends first, gaps between scheduled ops
    included; else the one on which it starts first, after all ops that are there already.
    home_BV: devices preferred beforehand, -1 where the op is free. An op leaves its home only where
    it cannot run or does not fit, or where its group is elsewhere. after_VD: seconds that count
    beside the end of an op on a device.
    """
    if home_BV is None:
        home_BV = np.full((num, problem.num_ops), -1)
    decisions = make_decisions(num, problem)
    _schedule_batch(
        problem.arrays,
        make_schedule(problem, tie_seconds(level_V), after_VD=after_VD),
        queue_keys(level_V, num, rng),
        home_BV,
        insertion,
        rng.integers(0, 2**62, size=num),
        decisions,
    )
    return decisions


@compiled
def _schedule_batch(p, s, key_BV, home_BV, insertion, seeds_B, decisions):
    for b in range(len(seeds_B)):
        size, num_released = 0, begin(p, s, b)
        for step in range(len(s.ops)):
            size = queue_released(s, key_BV[b], size, num_released)
            v = heap_pop(s.candidates, 0, size)
            size -= 1
            d = best_device(p, s, v, home_BV[b, v], insertion, seeds_B[b], step)
            num_released = schedule(p, s, v, d, insertion, b, step, decisions)


@compiled
def begin(p, s, run):
    """Empty the schedule for run ``run``; returns how many ops are released."""
    num_released = 0
    s.home[:] = -1
    s.booked[:] = 0.0
    for d in range(len(s.devices)):
        s.devices[d].last = -1
        s.devices[d].gap = -1
    for v in range(len(s.ops)):
        s.ops[v].pending = p.read_ptr[v + 1] - p.read_ptr[v]
        for d in range(len(s.devices)):
            s.ready[v, d] = 0.0
        if s.ops[v].pending == 0:
            s.released[num_released] = v
            num_released += 1
    if s.room.limited or s.near:
        empty_room(p, s.room, run % 2 == 0)
    return num_released


@compiled
def queue_released(s, key_V, size, num_released):
    """Add the released ops to a heap of ``size`` candidates; returns its new size."""
    for i in range(num_released):
        v = s.released[i]
        heap_push(s.candidates, 0, size, key_V[v], v)
        size += 1
    return size


@compiled
def earliest(p, s, v, d, insertion):
    """When op v can start on device d, and the op there that it would precede, -1 if none."""
    ready = s.ready[v, d]
    last, u = s.devices[d].last, s.devices[d].gap
    start, following = ready, -1
    if last >= 0:
        start = max(ready, s.ops[last].finish)
    # Gaps are tried from the last to the first; those that end before `ready` are of no use.
    while insertion and u >= 0 and s.ops[u].start >= ready:
        before = s.ops[u].before
        opens = ready
        if before >= 0:
            opens = max(ready, s.ops[before].finish)
        if opens + p.op_seconds[v, d] <= s.ops[u].start + s.tie_s:
            start, following = opens, u
        u = s.ops[u].gap
    return start, following


@compiled
def lacking_bytes(p, s, v, d):
    """By how much device d would overflow with op v on it; see the rule on top."""
    if not s.room.limited:
        return 0.0
    others = s.other_inputs[v] if s.home[p.group[v]] < 0 else 0.0
    return overflow_bytes(p, s.room, v, d, others)


@compiled
def may_run(p, s, v, d):
    """Whether op v may run on device d: where its group is, if that is anywhere."""
    home = s.home[p.group[v]]
    return p.op_seconds[v, d] < np.inf and (home < 0 or home == d)


@compiled
def best_device(p, s, v, home, insertion, seed, step):
    """The home if it can take op v, else the device that overflows least, earliest; see above."""
    num_devices, group = len(s.devices), p.group[v]
    if s.home[group] >= 0:
        return s.home[group]
    if home >= 0 and p.op_seconds[v, home] < np.inf and lacking_bytes(p, s, v, home) == 0.0:
        return home
    if len(p.members) > 0 and p.member_ptr[group + 1] - p.member_ptr[group] > 1:
        return choose_home(p, s, v, s.load[v], s.booked, seed, step * num_devices, 1)
    best, tied, least, time = 0, 0, np.inf, np.inf
    for d in range(num_devices):
        if p.op_seconds[v, d] == np.inf:
            continue
        over = lacking_bytes(p, s, v, d)
        t, _ = earliest(p, s, v, d, insertion)
        if insertion:
            t += p.op_seconds[v, d] + s.after[v, d]
        if over < least or (over == least and t < time - s.tie_s):
            best, tied, least, time = d, 1, over, t
        elif over == least and t <= time + s.tie_s:
            tied += 1
            if uniform(seed, step * num_devices + d) * tied < 1.0:
                best = d
    return best


@compiled
def choose_home(p, s, v, load_D, booked_D, seed, draw, turn):
    """Where a group of ops goes that takes ``load_D`` seconds there, and whose first op is v.

    booked_D: seconds of the groups that are there. draw, turn: numbers of the random draws of ties.
    """
    best, tied, least, time = 0, 0, np.inf, np.inf
    for d in range(len(s.devices)):
        if load_D[d] == np.inf:
            continue
        over = lacking_bytes(p, s, v, d)
        start, _ = earliest(p, s, v, d, False)
        finish = max(start, booked_D[d]) + load_D[d]
        if over < least or (over == least and finish < time - s.tie_s):
            best, tied, least, time = d, 1, over, finish
        elif over == least and finish <= time + s.tie_s:
            tied += 1
            if uniform(seed, draw + turn * d) * tied < 1.0:
                best = d
    return best


@compiled
def schedule(p, s, v, d, insertion, b, step, decisions):
    """Schedule op v on device d, step ``step`` of run b; returns how many ops it releases."""
    start, following = earliest(p, s, v, d, insertion)
    decisions.op[b, step] = v
    decisions.device[b, step] = d
    decisions.start[b, step] = start
    return _commit(p, s, v, d, start, following)


@compiled
def _commit(p, s, v, d, start, following):
    """Schedule op v on device d before the op ``following``; returns how many ops it releases."""
    finish = start + p.op_seconds[v, d]
    s.ops[v].start = start
    s.ops[v].finish = finish
    s.ops[v].device = d
    if following < 0:
        s.ops[v].before = s.devices[d].last
        s.devices[d].last = v
        s.ops[v].gap = s.devices[d].gap
        if _has_gap(s, v, d):
            s.devices[d].gap = v
    else:
        s.ops[v].before = s.ops[following].before
        s.ops[following].before = v
        _split_gap(s, v, d, following)
    if s.home[p.group[v]] < 0:
        s.home[p.group[v]] = d
        s.booked[d] += s.load[v, d]
        if s.room.limited and len(p.members) > 0:
            for i in range(p.member_ptr[p.group[v]], p.member_ptr[p.group[v] + 1]):
                bring_inputs(p, s.room, p.members[i], d)
    if s.room.limited or s.near:
        take_room(p, s.room, v, d)
        give_back(p, s.room, v)
    num_released = 0
    for r in range(p.region_ptr[v], p.region_ptr[v + 1]):
        for i in range(p.consumer_ptr[r], p.consumer_ptr[r + 1]):
            c = p.consumers[i]
            for to in range(len(s.devices)):
                arrival = finish
                if to != d:
                    arrival += move_seconds(p, r, d, to)
                s.ready[c, to] = max(s.ready[c, to], arrival)
            s.ops[c].pending -= 1
            if s.ops[c].pending == 0:
                s.released[num_released] = c
                num_released += 1
    return num_released


@compiled
def _has_gap(s, v, d):
    """Whether the gap before op v is long enough for any op, however early this one is ready."""
    before = s.ops[v].before
    opens = s.ops[before].finish if before >= 0 else 0.0
    return opens + s.shortest[d] <= s.ops[v].start + s.tie_s


@compiled
def _split_gap(s, v, d, following):
    """Op v has taken a part of the gap before the op ``following``."""
    rest = s.ops[following].gap
    if _has_gap(s, v, d):
        s.ops[v].gap = rest
        rest = v
    if _has_gap(s, following, d):
        s.ops[following].gap = rest
    elif s.devices[d].gap == following:
        s.devices[d].gap = rest
    else:
        u = s.devices[d].gap
        while s.ops[u].gap != following:
            u = s.ops[u].gap
        s.ops[u].gap = rest
