"""What the compiled engines share: the rules as data, the state of one run, heaps, jitter.

A *task* is an op or a transfer: task v < V is op v, task V + t is transfer t of this placement.
A *resource* runs tasks: resource d < D is device d, resource D + s * D + d is the channel from
device s to device d. Shape suffixes: V ops, E edges, R regions, D devices, T transfers at most,
K = V + T tasks, C = D + D * D resources.

The state is a handful of structured arrays: a task's fields lie together in memory, and few
arguments pass from one compiled function to the next.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.compilation import compiled
from doppler.problem import ProblemArrays

QUEUE_FIFO, QUEUE_PRIORITY, QUEUE_RANDOM, QUEUE_STRICT = 0, 1, 2, 3
CONTENTION_NONE, CONTENTION_FIFO, CONTENTION_ENGINES = 0, 1, 2
UNLIMITED = 1 << 30

TASK = np.dtype(
    [
        ("start", np.float64),
        ("finish", np.float64),
        ("key", np.float64),  # place in the queue of its resource, small first, ties by task
        ("resource", np.int32),
        ("stream", np.int32),
        ("pending", np.int32),  # of an op: regions that it still waits for
        ("next", np.int32),  # of an op: the one after it on its device under strict order
        ("region", np.int32),  # of a transfer
        ("destination", np.int32),  # of a transfer: the device that it goes to
        ("uses", np.int32),  # of a transfer: consumers at the destination still to run
    ]
)
REGION = np.dtype(
    [
        ("transfers", np.int32),  # its transfers, by destination, are transfers:transfers_end
        ("transfers_end", np.int32),
        ("uses", np.int32),  # consumers here and transfers still to run
    ]
)
RESOURCE = np.dtype(
    [
        ("queue", np.int32),  # where its heap of ready tasks begins
        ("size", np.int32),  # tasks in it
        ("free", np.int32),  # tasks that it can still take
        ("touched", np.int32),  # its queue or capacity changed at this instant
    ]
)
DEVICE = np.dtype(
    [
        ("memory", np.float64),
        ("peak", np.float64),
        ("busy", np.int64),  # one bit per stream
        ("sending", np.int32),
        ("receiving", np.int32),
        ("count", np.int32),  # scratch, 0 between uses
        ("first", np.float64),  # scratch
    ]
)
ENTRY = np.dtype([("key", np.float64), ("task", np.int64)])


class Rules(NamedTuple):
    """How a simulated system decides, as numbers for compiled code."""

    queue: int
    contention: int
    streams: int
    op_noise: float  # standard deviation of the logarithm of the factor on op seconds
    transfer_noise: float


class State(NamedTuple):
    """Buffers of one run, reused by the next; after a run ``tasks`` holds its schedule."""

    tasks: NDArray[np.void]  # TASK [K]
    regions: NDArray[np.void]  # REGION [R]
    resources: NDArray[np.void]  # RESOURCE [C]
    devices: NDArray[np.void]  # DEVICE [D]
    queues: NDArray[np.void]  # ENTRY [K], the heaps of all resources back to back
    events: NDArray[np.void]  # ENTRY [K + E], heap of running tasks by finish time
    touched: NDArray[np.int64]  # [C] stack of touched resources
    order: NDArray[np.int64]  # [V] ops by priority (strict order)
    hops: NDArray[np.int64]  # events of one instant (published semantics)
    arrival: NDArray[np.float64]  # [E] (published semantics)


def make_state(arrays: ProblemArrays) -> State:
    """Buffers large enough for any placement of the problem."""
    num_ops, num_devices = arrays.op_seconds.shape
    num_regions, num_edges = len(arrays.size), len(arrays.consumers)
    fan_out_R = np.diff(arrays.consumer_ptr)
    num_tasks = num_ops + int(np.minimum(fan_out_R, num_devices - 1).sum())
    num_resources = num_devices + num_devices**2
    return State(
        tasks=np.zeros(num_tasks, TASK),
        regions=np.zeros(num_regions, REGION),
        resources=np.zeros(num_resources, RESOURCE),
        devices=np.zeros(num_devices, DEVICE),
        queues=np.zeros(num_tasks, ENTRY),
        events=np.zeros(num_tasks + num_edges, ENTRY),
        touched=np.zeros(num_resources, np.int64),
        order=np.zeros(num_ops, np.int64),
        hops=np.zeros(6 * num_ops + num_edges, np.int64),  # every event of a run at one instant
        arrival=np.zeros(num_edges),
    )


@compiled
def heap_push(heap, base, size, key, task):
    """Add (key, task) to the heap of ``size`` entries that begins at ``base``."""
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
    """Remove and return the task with the smallest (key, task) of a heap of ``size`` entries."""
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


@compiled
def uniform(seed, counter):
    """A number in (0, 1) that depends on nothing but seed and counter.

    So a task draws the same number wherever it is placed and whenever it runs: placements are
    compared under equal draws. Source: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
    """
    z = np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15) * np.uint64(counter + 1)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return (np.float64(z >> np.uint64(11)) + 0.5) * (1.0 / 9007199254740992.0)


@compiled
def jitter(seed, counter, noise):
    """A lognormal factor of mean 1 whose logarithm has standard deviation ``noise``."""
    radius = np.sqrt(-2.0 * np.log(uniform(seed, 2 * counter)))
    normal = radius * np.cos(2.0 * np.pi * uniform(seed, 2 * counter + 1))
    return np.exp(noise * normal - 0.5 * noise * noise)


@compiled
def plan_tasks(p, device_V, priority_V, s):
    """Lay out the tasks of a placement: its ops, and a transfer per region and foreign reader.

    Fills resources, keys by priority (a transfer has that of its earliest consumer), use counts
    and the places of the queues; returns the number of transfers.
    """
    tasks, regions, resources, devices = s.tasks, s.regions, s.resources, s.devices
    num_ops, num_devices = p.op_seconds.shape
    for c in range(len(resources)):
        resources[c].queue = 0
        resources[c].size = 0
        resources[c].touched = 0
    for v in range(num_ops):
        tasks[v].resource = device_V[v]
        tasks[v].key = priority_V[v]
        tasks[v].pending = p.read_ptr[v + 1] - p.read_ptr[v]
        resources[device_V[v]].queue += 1
    k = num_ops
    for r in range(len(regions)):
        regions[r].transfers = k
        src = device_V[p.region_src[r]]
        here, unlisted, d = 0, 0, num_devices
        for i in range(p.consumer_ptr[r], p.consumer_ptr[r + 1]):
            v = p.consumers[i]
            dst = device_V[v]
            if dst == src:
                here += 1
                continue
            if devices[dst].count == 0:
                devices[dst].first = priority_V[v]
                unlisted += 1
                d = min(d, dst)
            devices[dst].first = min(devices[dst].first, priority_V[v])
            devices[dst].count += 1
        while unlisted > 0:
            if devices[d].count > 0:
                tasks[k].resource = num_devices + src * num_devices + d
                tasks[k].key = devices[d].first
                tasks[k].region = r
                tasks[k].destination = d
                tasks[k].uses = devices[d].count
                resources[tasks[k].resource].queue += 1
                devices[d].count = 0
                unlisted -= 1
                here += 1
                k += 1
            d += 1
        regions[r].transfers_end = k
        regions[r].uses = here
    place = 0
    for c in range(len(resources)):
        place, resources[c].queue = place + resources[c].queue, place
    return k - num_ops


@compiled
def load_inputs(p, device_V, devices):
    """Memory at time 0: every device holds, once, the inputs that its ops read."""
    for d in range(len(devices)):
        devices[d].memory = 0.0
    for i in range(len(p.input_bytes)):
        for j in range(p.input_ptr[i], p.input_ptr[i + 1]):
            devices[device_V[p.input_consumers[j]]].count = 1
        for d in range(len(devices)):
            if devices[d].count > 0:
                devices[d].memory += p.input_bytes[i]
                devices[d].count = 0
    for d in range(len(devices)):
        devices[d].peak = devices[d].memory


@compiled
def allocate(devices, d, num_bytes):
    """Take room on device d."""
    devices[d].memory += num_bytes
    if devices[d].memory > devices[d].peak:
        devices[d].peak = devices[d].memory


@compiled
def take_stream(devices, d):
    """The first idle stream of device d, from now on busy."""
    stream = 0
    while (devices[d].busy >> stream) & 1:
        stream += 1
    devices[d].busy |= 1 << stream
    return stream


@compiled
def output_bytes(p, v):
    """Room that the output of op v takes: its regions, or what no op reads."""
    total = p.sink_bytes[v]
    for r in range(p.region_ptr[v], p.region_ptr[v + 1]):
        total += p.region_bytes[r]
    return total


@compiled
def transfer_to(tasks, regions, r, d):
    """The task that moves region r to device d."""
    k = regions[r].transfers
    while tasks[k].destination != d:
        k += 1
    return k


@compiled
def free_reads(p, tasks, regions, devices, v):
    """Op v has finished: free the regions that it was the last to use on its device."""
    d = tasks[v].resource
    for i in range(p.read_ptr[v], p.read_ptr[v + 1]):
        r = p.reads[i]
        if tasks[p.region_src[r]].resource == d:
            regions[r].uses -= 1
            left = regions[r].uses
        else:
            k = transfer_to(tasks, regions, r, d)
            tasks[k].uses -= 1
            left = tasks[k].uses
        if left == 0:
            devices[d].memory -= p.region_bytes[r]
