"""Which copies give their room away.

Vocabulary and shape suffixes as in arrays.py.

Source: farthest next use is Belady, "A study of replacement algorithms for a virtual-storage
computer", IBM Systems Journal 1966.
"""

import numpy as np

from doppler.extensions.memory.arrays import NOTHING
from doppler.simulator.state_kernels import output_bytes
from doppler.support.compiled import compiled_apart

FARTHEST, LEAST_RECENT, CHEAPEST, BALANCED = 0, 1, 2, 3
VICTIMS = {
    "farthest": FARTHEST,
    "least_recent": LEAST_RECENT,
    "cheapest": CHEAPEST,
    "balanced": BALANCED,
}


@compiled_apart
def host_seconds(m, d, size):
    """What a copy between device d and the memory of its host takes."""
    return m.machine.to_host_s[d, 0] + size * m.machine.to_host_s[d, 1]


@compiled_apart
def next_use(m, n):
    """Position of the next task that uses datum n; past the last one if there is none."""
    if m.data[n].use < m.data[n].end:
        return m.uses[m.data[n].use]
    return len(m.order)


@compiled_apart
def eviction_seconds(m, p, n):
    """What it takes to have datum n away and back: copies, or computing it again."""
    size, d = m.data[n].bytes, m.data[n].on
    back = host_seconds(m, d, size) if m.data[n].use < m.data[n].end else 0.0
    if m.data[n].evicted != NOTHING:
        return back
    if can_recompute(m, p, n):
        return p.op_seconds[m.data[n].maker, d]
    return back + host_seconds(m, d, size)


@compiled_apart
def victim_score(m, p, c, lack, now, victim):
    """How good it is to evict copy c, large first, and the seconds that it takes.

    lack: bytes that are needed. now: when the task starts that needs them, as far as is known.
    """
    n = m.copies[c].datum
    seconds, position = eviction_seconds(m, p, n), next_use(m, n)
    cost = seconds / min(m.copies[c].bytes, lack)
    if victim == LEAST_RECENT:
        return -m.copies[c].until, seconds
    if victim == CHEAPEST:
        return -cost, seconds
    if victim == BALANCED:
        away = 1e3 * seconds
        if position < len(m.order):
            away = max(m.start[m.order[position]] - now, 0.0)
        return -cost / (away + seconds + 1e-12), seconds
    return np.float64(position), seconds


@compiled_apart
def can_recompute(m, p, n):
    """Whether computing datum n again is sure to be possible, and takes less than its transfers.

    What its op reads has to be on the device: inputs, which the host has, and data that others
    read when n is read next, or later; none of them dropped itself. And that op has to fit beside
    the one that reads n.
    """
    v, d = m.data[n].maker, m.data[n].on
    if m.counts[0].recomputes == 0 or v == NOTHING or v >= len(p.op_seconds):
        return False
    if m.data[n].feeds > 0 or m.data[n].stays != 0 or m.data[n].use >= m.data[n].end:
        return False
    if p.op_seconds[v, d] >= 2.0 * host_seconds(m, d, m.data[n].bytes):
        return False
    position = m.uses[m.data[n].use]
    reader = m.order[position]
    need = m.machine.need[v] - output_bytes(p, v)
    if reader < len(p.op_seconds):
        need += m.machine.need[reader]
    else:
        need += m.data[n].bytes
    if need > m.machine.limit[d]:
        return False
    for i in range(p.read_ptr[v], p.read_ptr[v + 1]):
        read = m.free.copies[i]
        if m.data[read].dropped != 0 or m.data[read].use >= m.data[read].end:
            return False
        if m.uses[m.data[read].end - 1] < position:
            return False
    return True
