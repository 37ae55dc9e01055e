"""Runs of a placement that differs little from one whose schedule is known: from there on alone.

Up to the first instant at which the two may differ a run is as it was: what was running and what
waited then is found from the times of the known schedule, and the engine goes on. It stops once it
is certain to end behind a limit. What it tells is what `work_conserving.simulate` tells, to the
bit; so are peaks of memory, where bytes are whole numbers. Vocabulary and shape suffixes as in
state.py.

Source: walks of a local search that evaluate a move from where it changes something on, as Nowicki
and Smutnicki, "A fast taboo search algorithm for the job shop problem", Management Science 1996,
do for makespans of one critical path; runs with transfers, and what is restored, are ours.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.problem.arrays import ProblemArrays, crosses_hosts, move_seconds
from doppler.simulator.copies import load_inputs
from doppler.simulator.queues import insert
from doppler.simulator.state import (
    BEFORE_OPS,
    CONTENTION_NONE,
    CONTENTION_SENDER,
    NONE,
    QUEUE_FIFO,
    TASK,
    State,
    by_key,
    memory_can_lack,
)
from doppler.simulator.watching import (
    Notes,
    Watch,
    copy_notes,
    make_notes,
    make_watch,
    num_noted_before,
)
from doppler.simulator.work_conserving import ends_before, open_resources, run, simulate
from doppler.support.compiled import compiled

# Of what is compared with a limit: sums of the same seconds differ by their order.
_ROUNDING = 1e-9


class Known(NamedTuple):
    """The schedule of one placement, and what the next run needs."""

    tasks: NDArray[np.void]  # TASK [K]
    copies: NDArray[np.uint32]  # [E] as State.copies
    notes: Notes
    peak: NDArray[np.float64]  # [D] bytes
    seconds: NDArray[np.float64]  # [1] its makespan
    begin: NDArray[np.int64]  # [1] tasks that had ended before the last run went on
    watch: Watch  # of the last run
    has_instants: bool  # there may be tasks that take no time
    in_use: bool  # else a search is to simulate every placement whole


def make_known(p: ProblemArrays, state: State, *, in_use: bool) -> Known:
    """Buffers for one search; nothing is known yet."""
    num_tasks, memory = len(state.tasks), memory_can_lack(p)
    return Known(
        tasks=np.zeros(num_tasks, TASK),
        copies=np.zeros(len(state.copies), np.uint32),
        notes=make_notes(p, num_tasks, memory=memory),
        peak=np.zeros(len(p.memory_bytes)),
        seconds=np.zeros(1),
        begin=np.zeros(1, np.int64),
        watch=make_watch(p, num_tasks, len(state.uses), memory=memory),
        has_instants=_has_instants(p),
        in_use=in_use,
    )


def _has_instants(p: ProblemArrays) -> bool:
    """Whether some op or transfer may take no time; what is not sure counts."""
    if len(p.kind_seconds):
        return bool((p.op_seconds == 0.0).any() or (p.kind_seconds == 0.0).any())
    least = float(p.size.min()) if len(p.size) else 1.0
    least_DD = p.latency_s + least * p.seconds_per_size
    foreign_DD = ~np.eye(len(least_DD), dtype=bool)
    return bool((p.op_seconds == 0.0).any() or (least_DD[foreign_DD] == 0.0).any())


@compiled
def resume(p, rules, device_V, priority_V, change_s, limit_s, known, s):
    """Run a placement; returns the makespan, or inf where it is behind the limit.

    p, rules, device_V, priority_V: as of `work_conserving.simulate`; the queue is first in, first
    out or by priority, and nothing is random. change_s: up to here, exclusively, all is as in
    ``known``. limit_s: above the makespan that is known. The schedule is left in ``s`` from there
    on, see `accept`.
    """
    notes, watch, begin = known.notes, known.watch, _num_ended_before(known, change_s)
    if 0 < begin == notes.num_ended[0]:
        for d in range(len(known.peak)):
            s.devices[d].peak = known.peak[d]
        _begin_watching(rules, begin, np.inf, known)
        return known.seconds[0]
    if len(notes.noted) > 0:  # goes on from where memory was noted
        num_noted = num_noted_before(notes, begin)
        begin = notes.noted[num_noted - 1] if num_noted > 0 else 0
        change_s = known.tasks[notes.ended[begin]].finish
    if begin == 0:
        _begin_watching(rules, 0, np.inf, known)
        load_inputs(p, device_V, s.devices)
        _note_inputs(watch.notes, s)
        return simulate(p, rules, device_V, priority_V, 0, s, watch)
    _begin_watching(rules, begin, limit_s * (1.0 + _ROUNDING), known)
    open_resources(p, rules, s)
    if len(notes.noted) > 0:
        _restore_memory(p, device_V, known, s)
    running, num_left = _restore(p, rules, device_V, priority_V, change_s, known, s)
    now = known.tasks[notes.ended[begin - 1]].finish
    return run(p, rules, 0, s, running, 0, len(device_V) - num_left, now, watch)


@compiled
def _begin_watching(rules, begin, limit_s, known):
    """A run that goes on once so many tasks have ended; what was noted till then holds."""
    watch = known.watch
    known.begin[0] = begin
    watch.limit_s[0] = limit_s
    watch.streams[0] = rules.streams
    watch.left_s[:] = 0.0
    watch.notes.num_ended[0] = begin
    watch.notes.num_noted[0] = num_noted_before(known.notes, begin) if begin > 0 else 0


@compiled
def _note_inputs(notes, s):
    for d in range(len(notes.inputs)):
        notes.inputs[d] = s.devices[d].memory


@compiled
def _num_ended_before(known, change_s):
    """The number of tasks that ended before an instant."""
    low, high = 0, known.notes.num_ended[0]
    while low < high:
        middle = (low + high) // 2
        if known.tasks[known.notes.ended[middle]].finish < change_s:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _restore_memory(p, device_V, known, s):
    """What devices held; who has yet to use what they held is counted with the tasks."""
    notes = known.notes
    num_noted = known.watch.notes.num_noted[0]
    load_inputs(p, device_V, s.devices)
    _note_inputs(known.watch.notes, s)
    for d in range(len(s.devices)):
        other = s.devices[d].memory - notes.inputs[d]
        s.devices[d].memory = notes.memory[num_noted - 1, d] + other
        s.devices[d].peak = notes.peak[num_noted - 1, d] + other
    known.watch.run[0] += 1  # no copy has been used in this one


@compiled
def _restore(p, rules, device_V, priority_V, change_s, known, s):
    """What ran and what waited just before; returns what runs, and how many ops have not ended."""
    num_ops, notes, running, num_left = len(device_V), known.notes, NONE, 0
    num_listed = notes.listed[known.begin[0] - 1]
    s.num_transfers[0] = num_listed
    for v in range(num_ops):  # of ops that have ended, too: what arrives elsewhere is not for them
        s.tasks[v].resource = device_V[v]
    for i in range(notes.num_ended[0] - 1, known.begin[0] - 1, -1):  # readers before what they read
        task = notes.ended[i]
        has_started = known.tasks[task].start < change_s
        if task < num_ops:
            num_left += 1
            _restore_op(p, rules, device_V, priority_V, change_s, known, s, task)
            if has_started:
                running = insert(s.tasks, running, task, NONE, ends_before)
        elif task - num_ops < num_listed:
            s.tasks[task] = known.tasks[task]
            if len(notes.noted) > 0:
                _count_use(s, known.watch, known.tasks[task].number)
            if has_started:
                _hold_channel(p, rules, s, task)
                running = insert(s.tasks, running, task, NONE, ends_before)
            else:
                _wait_for_channel(p, rules, priority_V, s, task)
    return running, num_left


@compiled
def _restore_op(p, rules, device_V, priority_V, change_s, known, s, v):
    """Op v runs, waits for its device, or for what it reads; what is behind it is known."""
    tasks, watch, d = s.tasks, known.watch, s.tasks[v].resource
    tasks[v].number = v
    # First in, first out, keys are instants: what is not ready yet is given one when it is.
    tasks[v].key = known.tasks[v].key if rules.queue == QUEUE_FIFO else priority_V[v]
    tasks[v].pending = _num_missing(p, v, d, change_s, known, s)
    if known.tasks[v].start < change_s:
        tasks[v].start = known.tasks[v].start
        tasks[v].finish = known.tasks[v].finish
        tasks[v].stream = known.tasks[v].stream
        s.devices[d].busy |= 1 << tasks[v].stream
        s.resources[d].free -= 1
        return
    tasks[v].finish = p.op_seconds[v, d]
    watch.tail_s[v] = _tail_s(p, device_V, v, watch)
    watch.left_s[d] += p.op_seconds[v, d] / rules.streams
    if tasks[v].pending == 0:
        s.resources[d].queue = insert(tasks, s.resources[d].queue, v, NONE, by_key)


@compiled
def _num_missing(p, v, d, change_s, known, s):
    """What op v reads and has not on device d before ``change_s``; it will use what was made."""
    num, num_regions, num_ops = 0, len(p.size), len(p.op_seconds)
    for i in range(p.read_ptr[v], p.read_ptr[v + 1]):
        src = p.region_src[p.reads[i]]
        is_there = known.tasks[src].finish < change_s
        if is_there:
            copy = known.copies[i]
            if len(known.notes.noted) > 0:
                s.copies[i] = copy
                _count_use(s, known.watch, copy)
            if known.tasks[src].resource != d:
                is_there = known.tasks[num_ops + copy - num_regions].finish < change_s
        if not is_there:
            num += 1
    return num


@compiled
def _count_use(s, watch, copy):
    """One more task has yet to use a copy."""
    if watch.used[copy] != watch.run[0]:
        watch.used[copy] = watch.run[0]
        s.uses[copy] = 0
    s.uses[copy] += 1


@compiled
def _tail_s(p, device_V, v, watch):
    """From the start of op v to the end of all that needs it, if it never waited for a resource."""
    d, behind = device_V[v], 0.0
    for r in range(p.region_ptr[v], p.region_ptr[v + 1]):
        for e in range(p.consumer_ptr[r], p.consumer_ptr[r + 1]):
            u = p.consumers[e]
            tail = watch.tail_s[u]
            if device_V[u] != d:
                tail += move_seconds(p, r, d, device_V[u])
            behind = max(behind, tail)
    return p.op_seconds[v, d] + behind


@compiled
def _hold_channel(p, rules, s, task):
    """A transfer was running."""
    src, dst = s.tasks[task].source, s.tasks[task].destination
    s.resources[s.tasks[task].resource].free -= 1
    s.devices[src].sending += 1
    s.devices[dst].receiving += 1
    if rules.contention != CONTENTION_NONE and crosses_hosts(p, src, dst):
        s.hosts[p.host[src]].sending |= 1 << s.tasks[task].stream
        s.hosts[p.host[dst]].receiving |= 1 << s.tasks[task].inlet


@compiled
def _wait_for_channel(p, rules, priority_V, s, task):
    """A transfer was ready, and waited."""
    c, r, dst = s.tasks[task].resource, s.tasks[task].number, s.tasks[task].destination
    if rules.queue != QUEUE_FIFO:
        key = np.inf
        for e in range(p.consumer_ptr[r], p.consumer_ptr[r + 1]):
            if s.tasks[p.consumers[e]].resource == dst:
                key = min(key, priority_V[p.consumers[e]])
        s.tasks[task].key = key if rules.contention != CONTENTION_SENDER else key - BEFORE_OPS
    s.resources[c].queue = insert(s.tasks, s.resources[c].queue, task, NONE, by_key)
    if s.resources[c].coupled != 0 and s.resources[c].touched == 0:
        s.resources[c].touched = 1
        s.coupled[s.num_coupled[0]] = c
        s.num_coupled[0] += 1
        s.num_coupled[1] = 1


@compiled
def accept(p, seconds, known, s):
    """The last run, which took ``seconds`` to its end, is what is known from now on."""
    notes, num_ops = known.watch.notes, len(p.op_seconds)
    if 0 < known.begin[0] == known.notes.num_ended[0]:
        return
    for i in range(known.begin[0], notes.num_ended[0]):
        task = notes.ended[i]
        known.tasks[task] = s.tasks[task]
        if task < num_ops:
            for r in range(p.region_ptr[task], p.region_ptr[task + 1]):
                for e in range(p.consumer_ptr[r], p.consumer_ptr[r + 1]):
                    read = s.read_of_edge[e]
                    known.copies[read] = s.copies[read]
    copy_notes(notes, known.notes, known.begin[0])
    for d in range(len(known.peak)):
        known.peak[d] = s.devices[d].peak
    known.seconds[0] = seconds
