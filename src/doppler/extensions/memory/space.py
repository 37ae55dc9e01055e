"""Who is on a device, who leaves it for another, and who waits for whom.

While the walk goes on, a copy has room but no address; addresses come last (addresses.py).
Vocabulary and shape suffixes as in arrays.py.
"""

import numpy as np

from doppler.extensions.memory.arrays import FREE, NOTHING
from doppler.extensions.memory.victims import victim_score
from doppler.support.compiled import compiled_apart


@compiled_apart
def open_space(m):
    """Nobody is on any device."""
    for d in range(len(m.first)):
        m.first[d] = NOTHING
        m.held[d] = 0.0


@compiled_apart
def come(m, c):
    """Copy c is on its device from now on."""
    copy = m.copies[c]
    d, first = copy.on, m.first[copy.on]
    copy.born = m.counts[0].steps
    copy.position = m.counts[0].position
    copy.died = NOTHING
    m.counts[0].steps += 1
    if copy.bytes == 0.0:
        return
    m.held[d] += copy.bytes
    copy.before = NOTHING
    copy.after = first
    if first != NOTHING:
        m.copies[first].before = c
    m.first[d] = c


@compiled_apart
def leave(m, c):
    """Copy c has no room any more."""
    copy = m.copies[c]
    copy.gone = 1
    m.data[copy.datum].at = NOTHING
    copy.died = m.counts[0].steps
    m.counts[0].steps += 1
    if copy.creator == NOTHING and copy.num_uses == 0:
        copy.died = copy.born  # it was never there
    if copy.bytes == 0.0:
        return
    m.held[copy.on] -= copy.bytes
    if copy.before == NOTHING:
        m.first[copy.on] = copy.after
    else:
        m.copies[copy.before].after = copy.after
    if copy.after != NOTHING:
        m.copies[copy.after].before = copy.before


@compiled_apart
def choose_victims(m, p, d, lack, now, victim):
    """Who leaves device d so that so many bytes are free: best first, but none that need not.

    Returns how many, in `stack`, and the seconds that it takes; or none.
    """
    num, total = 0, 0.0
    while total < lack:
        best, best_score, best_cost, c = NOTHING, -np.inf, np.inf, m.first[d]
        while c != NOTHING:
            if m.copies[c].pins == 0 and m.copies[c].chosen == 0:
                score, cost = victim_score(m, p, c, lack - total, now, victim)
                if score > best_score or (score == best_score and cost < best_cost):
                    best, best_score, best_cost = c, score, cost
            c = m.copies[c].after
        if best == NOTHING:
            break
        m.copies[best].chosen = 1
        m.stack[num] = best
        total += m.copies[best].bytes
        num += 1
    for i in range(num):
        m.copies[m.stack[i]].chosen = 0
    if total < lack:
        return 0, np.inf
    kept, seconds = 0, 0.0
    for j in range(num):  # those chosen last are the best to stay where they can
        i = num - 1 - j
        size = m.copies[m.stack[i]].bytes
        if total - size >= lack:
            total -= size
            m.stack[i] = NOTHING
    for i in range(num):
        if m.stack[i] != NOTHING:
            m.stack[kept] = m.stack[i]
            kept += 1
            _, cost = victim_score(m, p, m.stack[i], lack, now, victim)
            seconds += cost
    return kept, seconds


@compiled_apart
def freed_by(m, c):
    """The FREE task of a copy, which all that use it precede; made when it is first asked for."""
    if m.copies[c].freed == NOTHING:
        task = m.counts[0].tasks
        m.counts[0].tasks += 1
        m.planned[task].kind = FREE
        m.planned[task].made = c
        m.planned[task].num_copies = 0
        m.planned[task].uses = NOTHING
        m.planned[task].seconds = 0.0
        m.copies[c].freed = task
        link = m.copies[c].uses
        if link == NOTHING:
            add_wait(m, m.copies[c].creator, task)
        while link != NOTHING:
            add_wait(m, m.links[link].task, task)
            link = m.links[link].of_copy
    return m.copies[c].freed


@compiled_apart
def add_wait(m, task, other):
    """``other`` starts after ``task`` has finished."""
    n = m.counts[0].waits
    if n < len(m.waits):
        m.waits[n, 0] = task
        m.waits[n, 1] = other
        m.counts[0].waits = n + 1
    else:
        m.counts[0].failed = 1
