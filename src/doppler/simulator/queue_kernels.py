"""Compiled: queues of the engines, as heaps that are linked through the records of their members.

They need no memory of their own, so there can be one per device and per channel at no cost. Members
are indices (uint32) of records with the fields ``child`` and ``sibling``, which a queue uses while
they are in it. A queue is identified by its first member; ``none`` is the index that means no
member. The compiled function ``before(records, i, j)`` says whether i comes before j. Indices: i
and j members.

Source: Fredman, Sedgewick, Sleator, Tarjan, "The pairing heap", Algorithmica 1986.
"""

from doppler.support.compiled import compiled


@compiled
def insert(records, first, i, none, before):
    """Add i to the queue; return its first member."""
    records[i].child = none
    return i if first == none else _join(records, first, i, before)


@compiled
def remove(records, first, none, before):
    """Remove the first member of the queue; return the new first member."""
    pairs, i = none, records[first].child
    while i != none:  # its children are joined two by two,
        pair, other = i, records[i].sibling
        if other == none:
            i = none
        else:
            i = records[other].sibling
            pair = _join(records, pair, other, before)
        records[pair].sibling = pairs
        pairs = pair
    if pairs == none:
        return none
    first, i = pairs, records[pairs].sibling
    while i != none:  # then the pairs, the last first
        pair, i = i, records[i].sibling
        first = _join(records, first, pair, before)
    return first


@compiled
def _join(records, i, j, before):
    if before(records, j, i):
        i, j = j, i
    records[j].sibling = records[i].child
    records[i].child = j
    return i
