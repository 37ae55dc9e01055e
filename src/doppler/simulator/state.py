"""What the compiled engines share: the rules as data, and the state of one execution.

A *task* is an op or a transfer: task v < V is op v, task V + t is transfer t of this placement.
A *resource* runs tasks: resource d < D is device d, resource D + s * D + d is the channel from
device s to device d. A *coupled* channel waits for more than itself: for the engines of its devices
where transfers have these, for interfaces where it leads to another host. Shape suffixes: V ops, E
edges, R regions, D devices, H hosts, T transfers at most, K = V + T tasks, C = D + D * D resources.

The state is a handful of structured arrays: a task's fields lie together in memory, and few
arguments pass from one compiled function to the next. Indices are unsigned: compiled code need not
ask whether they count from the end.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.problem.arrays import ProblemArrays
from doppler.support.compiled.heap import ENTRY

NONE = np.uint32(2**32 - 1)  # stands for no task
QUEUE_FIFO, QUEUE_PRIORITY, QUEUE_RANDOM, QUEUE_STRICT = 0, 1, 2, 3
CONTENTION_NONE, CONTENTION_FIFO, CONTENTION_ENGINES, CONTENTION_SENDER = 0, 1, 2, 3
BEFORE_OPS = 2.0**32  # keys of transfers that a device makes itself are that much smaller
UNLIMITED = 1 << 30
TASK = np.dtype(
    [
        ("start", np.float64),
        ("finish", np.float64),
        ("key", np.float64),  # place in the queue that it is in, small first
        ("number", np.uint32),  # breaks ties: of an op itself, of a transfer its region
        ("child", np.uint32),  # links of that queue
        ("sibling", np.uint32),
        ("resource", np.uint32),
        ("stream", np.uint32),  # of a transfer between hosts: the outgoing interface
        ("pending", np.uint32),  # of an op: inputs that it still waits for
        ("next", np.uint32),  # of an op: the one after it on its device under strict order
        ("source", np.uint32),  # of a transfer: device that it comes from
        ("destination", np.uint32),  # of a transfer: device that it goes to
        ("inlet", np.uint32),  # of a transfer between hosts: the incoming interface
    ],
    align=True,
)
RESOURCE = np.dtype(
    [
        ("queue", np.uint32),  # its ready tasks
        ("free", np.uint32),  # tasks that it can still take
        ("touched", np.uint32),  # whether it may start a task at this instant, or is listed
        ("coupled", np.uint32),  # whether it is a coupled channel
    ]
)
HOST = np.dtype([("sending", np.int64), ("receiving", np.int64)])  # one bit per interface
DEVICE = np.dtype(
    [
        ("memory", np.float64),
        ("peak", np.float64),
        ("busy", np.int64),  # one bit per stream
        ("sending", np.uint32),
        ("receiving", np.uint32),
        ("last", np.uint32),  # scratch: the last task or input listed for it
        ("first", np.float64),  # scratch
    ],
    align=True,
)
START = np.dtype(
    [
        ("at", np.float64),  # when the device starts its next op, as far as is known
        ("free", np.float64),  # when it can
        ("coming", np.uint32),  # queue of ops by the arrival of their last input
        ("waiting", np.uint32),  # queue of those that have waited, by priority
        ("running", np.uint32),  # queue of its streams' last ops by their end
        ("streams", np.uint32),  # streams in use
    ],
    align=True,
)
ARRIVAL = np.dtype(
    [
        ("at", np.float64),  # when the last known input of an op arrives
        ("sent", np.float64),  # when that was sent
        ("order", np.int64),  # among what was sent then
        ("child", np.uint32),
        ("sibling", np.uint32),
    ],
    align=True,
)


class Rules(NamedTuple):
    """The rules of a simulated system, as numbers for compiled code."""

    queue: int
    contention: int
    streams: int
    op_noise: float  # standard deviation of the logarithm of the factor on op seconds
    transfer_noise: float


class State(NamedTuple):
    """Buffers of one run, reused by the next; after a run ``tasks`` holds its schedule."""

    tasks: NDArray[np.void]  # TASK [K]
    num_transfers: NDArray[np.int64]  # [1] of this placement, so far
    uses: NDArray[np.int32]  # [R + T] tasks still to read each copy, see copy_kernels.py
    copies: NDArray[np.uint32]  # [E] the copy that each of ``reads`` is of
    read_of_edge: NDArray[np.uint32]  # [E] where the edges of ``consumers`` are in ``reads``
    resources: NDArray[np.void]  # RESOURCE [C]
    devices: NDArray[np.void]  # DEVICE [D]
    hosts: NDArray[np.void]  # HOST [H], or [0]
    touched: NDArray[np.uint32]  # [C] stack of touched resources
    coupled: NDArray[np.uint32]  # [C] list of coupled channels for which something is ready
    num_coupled: NDArray[np.int64]  # [2] of them, and whether any of these may start
    order: NDArray[np.int64]  # [V] ops by priority or level
    starts: NDArray[np.void]  # START [D] (published semantics)
    arrivals: NDArray[np.void]  # ARRIVAL [V + 1] (published semantics)
    events: NDArray[np.void]  # ENTRY [V + E], heap of events by time (published semantics)
    hops: NDArray[np.int64]  # events of one instant (published semantics), moves of one level


def make_state(arrays: ProblemArrays) -> State:
    """Allocate buffers for any placement of a problem."""
    num_ops, num_devices = arrays.op_seconds.shape
    num_regions, num_edges = len(arrays.size), len(arrays.consumers)
    fan_out_R = np.diff(arrays.consumer_ptr)
    num_transfers = int(np.minimum(fan_out_R, num_devices - 1).sum())
    num_tasks = num_ops + num_transfers
    num_resources = num_devices + num_devices**2
    region_E = np.repeat(np.arange(num_regions), fan_out_R)
    read_of_edge = np.empty(num_edges, np.uint32)
    read_of_edge[np.lexsort((region_E, arrays.consumers))] = np.arange(num_edges)
    return State(
        tasks=np.zeros(num_tasks, TASK),
        num_transfers=np.zeros(1, np.int64),
        uses=np.zeros(num_regions + num_transfers, np.int32),
        copies=np.zeros(num_edges, np.uint32),
        read_of_edge=read_of_edge,
        resources=np.zeros(num_resources, RESOURCE),
        devices=np.zeros(num_devices, DEVICE),
        hosts=np.zeros(len(arrays.nics), HOST),
        touched=np.zeros(num_resources, np.uint32),
        coupled=np.zeros(num_resources, np.uint32),
        num_coupled=np.zeros(2, np.int64),
        order=np.zeros(num_ops, np.int64),
        starts=np.zeros(num_devices, START),
        arrivals=np.zeros(num_ops + 1, ARRIVAL),
        events=np.zeros(num_ops + num_edges, ENTRY),
        hops=np.zeros(4 * num_ops + 2 * num_edges, np.int64),  # all events of a run at one instant
    )


def memory_can_lack(arrays: ProblemArrays) -> bool:
    """Whether some device could not hold everything at once."""
    everything = arrays.region_bytes.sum() + arrays.sink_bytes.sum() + arrays.input_bytes.sum()
    return bool(everything > arrays.memory_bytes.min())
