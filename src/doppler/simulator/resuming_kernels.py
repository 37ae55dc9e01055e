"""Compiled: runs of a placement that differs little from one with a known schedule.

Up to the first instant at which the two may differ, a run is the same. What was running and waiting
then is found from the times of the known schedule, and the engine continues from there. It stops
once it is certain to end after a limit. Results equal those of `work_conserving_kernels.simulate`
bit for bit; so do peaks of memory if bytes are whole numbers.

Vocabulary and dimensions as in state.py. Indices: v and u ops, r region, e edge, d device, c
resource, i position among the reads of an op or in a list of notes.

Source: local search that evaluates a move only from where it changes something, as Nowicki and
Smutnicki, "A fast taboo search algorithm for the job shop problem", Management Science 1996, do for
makespans of one critical path. Runs with transfers, and how the state is restored, are ours.
"""

import numpy as np

from doppler.problem.transfer_kernels import crosses_hosts, move_seconds
from doppler.simulator.copy_kernels import load_inputs
from doppler.simulator.queue_kernels import insert
from doppler.simulator.state import BEFORE_OPS, CONTENTION_NONE, CONTENTION_SENDER, NONE, QUEUE_FIFO
from doppler.simulator.state_kernels import by_key
from doppler.simulator.watching_kernels import copy_notes, num_noted_before
from doppler.simulator.work_conserving_kernels import ends_before, open_resources, run, simulate
from doppler.support.compiled import compiled

# Relative tolerance when comparing with a limit, for rounding errors of sums.
_ROUNDING = 1e-9


@compiled
def resume(problem, rules, device_V, priority_V, change_s, limit_s, known, state):
    """Run a placement from the first instant that may differ from the known schedule.

    Args:
        problem: ProblemArrays.
        rules: the queue is fifo or by priority; nothing is random.
        device_V: device of each op.
        priority_V: priority of each op, small first.
        change_s: before this instant everything is as in ``known``.
        limit_s: larger than the known makespan.
        known: the schedule, resuming.Known.
        state: State; the schedule is left in it from change_s on, see `accept`.

    Returns:
        The makespan in seconds, or inf if it exceeds the limit.
    """
    notes, watch, begin = known.notes, known.watch, _num_ended_before(known, change_s)
    if 0 < begin == notes.num_ended[0]:
        for d in range(len(known.peak)):
            state.devices[d].peak = known.peak[d]
        _begin_watching(rules, begin, np.inf, known)
        return known.seconds[0]
    if len(notes.noted) > 0:  # goes on from where memory was noted
        num_noted = num_noted_before(notes, begin)
        begin = notes.noted[num_noted - 1] if num_noted > 0 else 0
        change_s = known.tasks[notes.ended[begin]].finish
    if begin == 0:
        _begin_watching(rules, 0, np.inf, known)
        load_inputs(problem, device_V, state.devices)
        _note_inputs(watch.notes, state)
        return simulate(problem, rules, device_V, priority_V, 0, state, watch)
    _begin_watching(rules, begin, limit_s * (1.0 + _ROUNDING), known)
    open_resources(problem, rules, state)
    if len(notes.noted) > 0:
        _restore_memory(problem, device_V, known, state)
    running, num_left = _restore(problem, rules, device_V, priority_V, change_s, known, state)
    now = known.tasks[notes.ended[begin - 1]].finish
    return run(problem, rules, 0, state, running, 0, len(device_V) - num_left, now, watch)


@compiled
def _begin_watching(rules, begin, limit_s, known):
    """Begin a run that resumes after some tasks have ended; notes until then stay valid."""
    watch = known.watch
    known.begin[0] = begin
    watch.limit_s[0] = limit_s
    watch.streams[0] = rules.streams
    watch.left_s[:] = 0.0
    watch.notes.num_ended[0] = begin
    watch.notes.num_noted[0] = num_noted_before(known.notes, begin) if begin > 0 else 0


@compiled
def _note_inputs(notes, state):
    for d in range(len(notes.inputs)):
        notes.inputs[d] = state.devices[d].memory


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
def _restore_memory(problem, device_V, known, state):
    """Restore the bytes on devices; tasks that will still read a copy are counted later."""
    notes = known.notes
    num_noted = known.watch.notes.num_noted[0]
    load_inputs(problem, device_V, state.devices)
    _note_inputs(known.watch.notes, state)
    for d in range(len(state.devices)):
        other = state.devices[d].memory - notes.inputs[d]
        state.devices[d].memory = notes.memory[num_noted - 1, d] + other
        state.devices[d].peak = notes.peak[num_noted - 1, d] + other
    known.watch.run[0] += 1  # no copy has been used in this one


@compiled
def _restore(problem, rules, device_V, priority_V, change_s, known, state):
    """Restore what ran and what waited; return what runs, and how many ops have not ended."""
    num_ops, notes, running, num_left = len(device_V), known.notes, NONE, 0
    num_listed = notes.listed[known.begin[0] - 1]
    state.num_transfers[0] = num_listed
    for v in range(num_ops):  # of ops that have ended, too: what arrives elsewhere is not for them
        state.tasks[v].resource = device_V[v]
    for i in range(notes.num_ended[0] - 1, known.begin[0] - 1, -1):  # readers before what they read
        task = notes.ended[i]
        has_started = known.tasks[task].start < change_s
        if task < num_ops:
            num_left += 1
            _restore_op(problem, rules, device_V, priority_V, change_s, known, state, task)
            if has_started:
                running = insert(state.tasks, running, task, NONE, ends_before)
        elif task - num_ops < num_listed:
            state.tasks[task] = known.tasks[task]
            if len(notes.noted) > 0:
                _count_use(state, known.watch, known.tasks[task].number)
            if has_started:
                _hold_channel(problem, rules, state, task)
                running = insert(state.tasks, running, task, NONE, ends_before)
            else:
                _wait_for_channel(problem, rules, priority_V, state, task)
    return running, num_left


@compiled
def _restore_op(problem, rules, device_V, priority_V, change_s, known, state, v):
    """Restore op v: it runs, waits for its device or for data; what came before is known."""
    tasks, watch, d = state.tasks, known.watch, state.tasks[v].resource
    tasks[v].number = v
    # First in, first out, keys are instants: a task that is not ready yet gets its key when it is.
    tasks[v].key = known.tasks[v].key if rules.queue == QUEUE_FIFO else priority_V[v]
    tasks[v].pending = _num_missing(problem, v, d, change_s, known, state)
    if known.tasks[v].start < change_s:
        tasks[v].start = known.tasks[v].start
        tasks[v].finish = known.tasks[v].finish
        tasks[v].stream = known.tasks[v].stream
        state.devices[d].busy |= 1 << tasks[v].stream
        state.resources[d].free -= 1
        return
    tasks[v].finish = problem.op_seconds[v, d]
    watch.tail_s[v] = _tail_s(problem, device_V, v, watch)
    watch.left_s[d] += problem.op_seconds[v, d] / rules.streams
    if tasks[v].pending == 0:
        state.resources[d].queue = insert(tasks, state.resources[d].queue, v, NONE, by_key)


@compiled
def _num_missing(problem, v, d, change_s, known, state):
    """The number of regions that op v reads and that are not on device d before ``change_s``."""
    num, num_regions, num_ops = 0, len(problem.size), len(problem.op_seconds)
    for i in range(problem.read_ptr[v], problem.read_ptr[v + 1]):
        src = problem.region_src[problem.reads[i]]
        is_there = known.tasks[src].finish < change_s
        if is_there:
            copy = known.copies[i]
            if len(known.notes.noted) > 0:
                state.copies[i] = copy
                _count_use(state, known.watch, copy)
            if known.tasks[src].resource != d:
                is_there = known.tasks[num_ops + copy - num_regions].finish < change_s
        if not is_there:
            num += 1
    return num


@compiled
def _count_use(state, watch, copy):
    """Count one more task that will use a copy."""
    if watch.used[copy] != watch.run[0]:
        watch.used[copy] = watch.run[0]
        state.uses[copy] = 0
    state.uses[copy] += 1


@compiled
def _tail_s(problem, device_V, v, watch):
    """Time from the start of op v to the end of all that needs it, if no resource is busy."""
    d, behind = device_V[v], 0.0
    for r in range(problem.region_ptr[v], problem.region_ptr[v + 1]):
        for e in range(problem.consumer_ptr[r], problem.consumer_ptr[r + 1]):
            u = problem.consumers[e]
            tail = watch.tail_s[u]
            if device_V[u] != d:
                tail += move_seconds(problem, r, d, device_V[u])
            behind = max(behind, tail)
    return problem.op_seconds[v, d] + behind


@compiled
def _hold_channel(problem, rules, state, task):
    """Restore a transfer that was running."""
    src, dst = state.tasks[task].source, state.tasks[task].destination
    state.resources[state.tasks[task].resource].free -= 1
    state.devices[src].sending += 1
    state.devices[dst].receiving += 1
    if rules.contention != CONTENTION_NONE and crosses_hosts(problem, src, dst):
        state.hosts[problem.host[src]].sending |= 1 << state.tasks[task].stream
        state.hosts[problem.host[dst]].receiving |= 1 << state.tasks[task].inlet


@compiled
def _wait_for_channel(problem, rules, priority_V, state, task):
    """Restore a transfer that was ready and waited."""
    c, r, dst = state.tasks[task].resource, state.tasks[task].number, state.tasks[task].destination
    if rules.queue != QUEUE_FIFO:
        key = np.inf
        for e in range(problem.consumer_ptr[r], problem.consumer_ptr[r + 1]):
            if state.tasks[problem.consumers[e]].resource == dst:
                key = min(key, priority_V[problem.consumers[e]])
        state.tasks[task].key = key if rules.contention != CONTENTION_SENDER else key - BEFORE_OPS
    state.resources[c].queue = insert(state.tasks, state.resources[c].queue, task, NONE, by_key)
    if state.resources[c].coupled != 0 and state.resources[c].touched == 0:
        state.resources[c].touched = 1
        state.coupled[state.num_coupled[0]] = c
        state.num_coupled[0] += 1
        state.num_coupled[1] = 1


@compiled
def accept(problem, seconds, known, state):
    """Make the last run the known schedule.

    Args:
        problem: ProblemArrays.
        seconds: makespan of that run.
        known: resuming.Known, changed.
        state: State that the run has left.
    """
    notes, num_ops = known.watch.notes, len(problem.op_seconds)
    if 0 < known.begin[0] == known.notes.num_ended[0]:
        return
    for i in range(known.begin[0], notes.num_ended[0]):
        task = notes.ended[i]
        known.tasks[task] = state.tasks[task]
        if task < num_ops:
            for r in range(problem.region_ptr[task], problem.region_ptr[task + 1]):
                for e in range(problem.consumer_ptr[r], problem.consumer_ptr[r + 1]):
                    read = state.read_of_edge[e]
                    known.copies[read] = state.copies[read]
    copy_notes(notes, known.notes, known.begin[0])
    for d in range(len(known.peak)):
        known.peak[d] = state.devices[d].peak
    known.seconds[0] = seconds
