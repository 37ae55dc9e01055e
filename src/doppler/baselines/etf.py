"""Earliest task first.

Shape suffixes: B runs, V ops.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from doppler.baselines.best_of_runs import ListDecisions, ListScheduler, make_decisions
from doppler.baselines.earliest import (
    UNSURE,
    first_candidate,
    list_released,
    make_ready_ops,
    nothing_ready,
    orders_and_ranks,
    take_candidate,
)
from doppler.baselines.levels import b_levels, static_levels
from doppler.baselines.list_scheduling import (
    begin,
    earliest,
    lacking_bytes,
    make_schedule,
    may_run,
    queue_keys,
    schedule,
    tie_seconds,
)
from doppler.problem import Problem
from doppler.problem.arrays import move_seconds
from doppler.support.compiled import compiled
from doppler.support.compiled.draws import uniform
from doppler.support.options import checked


@checked
@dataclass(frozen=True, kw_only=True)
class ETF(ListScheduler):
    """Of all candidates on all devices, schedule the pair that can start earliest.

    Among ops that can start together the one with the largest static level goes first: the longest
    path to a sink, transfers not included. Where its device has no room it goes to the next that
    has. Further ties are broken at random; the best of ``evaluations`` runs on the system counts.
    The order in which ops were taken is their priority.

    Source: Hwang, Chow, Anger, Lee, "Scheduling precedence graphs in systems with interprocessor
    communication times", SIAM Journal on Computing 1989; the static level as in Kwok and Ahmad,
    ACM Computing Surveys 1999.
    """

    name: ClassVar[str] = "etf"
    near: ClassVar[bool] = False

    def schedule(self, problem: Problem, num: int, rng: np.random.Generator) -> ListDecisions:
        """See ListScheduler."""
        decisions = make_decisions(num, problem)
        partial = make_schedule(problem, tie_seconds(b_levels(problem)), near=self.near)
        key_BV = queue_keys(static_levels(problem), num, rng)
        _schedule_batch(
            problem.arrays,
            partial,
            make_ready_ops(problem, partial),
            key_BV,
            *orders_and_ranks(key_BV),
            rng.integers(0, 2**62, size=num),
            decisions,
        )
        return decisions


@checked
@dataclass(frozen=True, kw_only=True)
class NearETF(ETF):
    """ETF, but of pairs that can start together, those that cause the fewest transfers go first.

    Of transfers their seconds count; a region that is on the device already moves no more. Then
    comes the static level, then chance.

    Source: ETF's; this breaking of ties is ours.
    """

    name: ClassVar[str] = "etf_near"
    near: ClassVar[bool] = True
    # It looks at all ready ops, minutes long on larger graphs: searches leave it out there.
    most_ops: ClassVar[int] = 20_000


@compiled
def _schedule_batch(p, s, ready, key_BV, order_BV, rank_BV, seeds_B, decisions):
    num_ops, num_devices = p.op_seconds.shape
    for b in range(len(seeds_B)):
        nothing_ready(ready)
        size, num_released = 0, begin(p, s, b)
        for step in range(num_ops):
            size = list_released(_start, p, s, s, ready, rank_BV[b], size, num_released)
            for d in range(num_devices):
                last = s.devices[d].last
                ready.free[d] = s.ops[last].finish if last >= 0 else 0.0
            index = first_candidate(_start, p, s, s, ready, order_BV[b])
            if index == UNSURE:
                index = _first_op(p, s, key_BV[b], ready.candidates, size)
            v = take_candidate(s, ready, index, size)
            size -= 1
            d = _first_device(p, s, v, seeds_B[b], step * num_devices)
            num_released = schedule(p, s, v, d, False, b, step, decisions)


@compiled
def _start(p, s, q, v, d):
    return earliest(p, s, v, d, False)[0]


@compiled
def _first_op(p, s, key_V, candidates, size):
    """The index of the candidate that can start earliest on any device."""
    best, time, wait = 0, np.inf, np.inf
    for i in range(size):
        v = candidates[i]
        for d in range(len(s.devices)):
            if not may_run(p, s, v, d):
                continue
            start = _start(p, s, s, v, d)
            if start > time + s.tie_s:
                continue
            come = _incoming_seconds(p, s, v, d)
            as_near = come <= wait + s.tie_s and key_V[v] < key_V[candidates[best]]
            if start < time - s.tie_s or come < wait - s.tie_s or as_near:
                best, time, wait = i, start, come
    return best


@compiled
def _first_device(p, s, v, seed, draw):
    """The device that overflows least, and on which op v starts earliest, ties at random."""
    best, tied, least, time, wait = 0, 0, np.inf, np.inf, np.inf
    for d in range(len(s.devices)):
        if not may_run(p, s, v, d):
            continue
        start = _start(p, s, s, v, d)
        if least == 0.0 and start > time + s.tie_s:
            continue
        over, come = lacking_bytes(p, s, v, d), _incoming_seconds(p, s, v, d)
        together, as_near = start <= time + s.tie_s, come <= wait + s.tie_s
        sooner = start < time - s.tie_s or (together and come < wait - s.tie_s)
        if over < least or (over == least and sooner):
            best, tied, least, time, wait = d, 1, over, start, come
        elif over == least and together and as_near:
            tied += 1
            if uniform(seed, draw + d) * tied < 1.0:
                best = d
    return best


@compiled
def _incoming_seconds(p, s, v, d):
    """Seconds of the transfers that op v on device d causes; 0 where they break no ties."""
    total = 0.0
    if s.near:
        for i in range(p.read_ptr[v], p.read_ptr[v + 1]):
            r = p.reads[i]
            if not s.room.has_region[r, d]:
                source = s.ops[p.region_src[r]].device
                total += move_seconds(p, r, source, d)
    return total
