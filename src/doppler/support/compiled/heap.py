"""A heap in compiled code: entries (key, task) in an array of ENTRY, the smallest first."""

import numpy as np

from doppler.support.compiled.decorator import compiled

ENTRY = np.dtype([("key", np.float64), ("task", np.int64)])


@compiled
def heap_push(heap, base, size, key, task):
    """Add an entry to a heap.

    Args:
        heap: array of ENTRY.
        base: position of the heap's first entry.
        size: number of entries before.
        key: of the new entry.
        task: of the new entry.
    """
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        above = heap[base + parent].key
        if above < key or (above == key and heap[base + parent].task < task):
            break
        heap[base + i].key = above
        heap[base + i].task = heap[base + parent].task
        i = parent
    heap[base + i].key = key
    heap[base + i].task = task


@compiled
def heap_pop(heap, base, size):
    """Remove the smallest entry of a heap, and return its task.

    Args:
        heap: array of ENTRY.
        base: position of the heap's first entry.
        size: number of entries before.
    """
    top = heap[base].task
    last = size - 1
    key, task = heap[base + last].key, heap[base + last].task
    i = 0
    while True:
        child = 2 * i + 1
        if child >= last:
            break
        if child + 1 < last:
            a, b = heap[base + child].key, heap[base + child + 1].key
            if b < a or (b == a and heap[base + child + 1].task < heap[base + child].task):
                child += 1
        below = heap[base + child].key
        if key < below or (key == below and task < heap[base + child].task):
            break
        heap[base + i].key = below
        heap[base + i].task = heap[base + child].task
        i = child
    heap[base + i].key = key
    heap[base + i].task = task
    return top
