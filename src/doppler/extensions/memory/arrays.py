"""What the compiled planner works on: data, their copies, the address space, the plan's tasks.

A *datum* is what takes room on one device: a region where it is made, a region where a transfer
brings it, output that no op reads, an input on a device that reads it. A *copy* of a datum is one
stay of it at one address: a datum that is evicted and loaded again has two. A *segment* is a piece
of a device's address space, and the copy that had it last. The memory of the host is seen as one
device more for each device: device D + d is what device d has of it.

Tasks are numbered as in simulator/state.py: ops, the transfers of the placement, then what the plan
adds. Shape suffixes: V ops, R regions, I inputs, T transfers at most, D devices, N data, C copies,
K tasks, L uses of copies, W waits, S segments.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.graph.levels import depth
from doppler.problem import Problem
from doppler.problem.arrays import ProblemArrays
from doppler.simulator.state import DEVICE, HOST, RESOURCE, TASK, State, make_state
from doppler.support.compiled.heap import ENTRY

OP, MOVE, EVICT, LOAD, RECOMPUTE, FREE = 0, 1, 2, 3, 4, 5
NOTHING = -1
SLACK = 1e-9  # of the bytes of a device, for rounding
FROM_THE_START = -2  # an input's copy in the memory of the host
NOWHERE = np.uint32(2**32 - 1)  # the resource of what takes none

DATUM = np.dtype(
    [
        ("bytes", np.float64),
        ("on", np.int64),  # its device
        ("at", np.int64),  # copy that it has now, or NOTHING
        ("evicted", np.int64),  # the task that brought it to the host, or as above
        ("maker", np.int64),  # task of the placement that makes it, NOTHING of an input
        ("use", np.int64),  # its next place in `uses`
        ("end", np.int64),  # where its uses end
        ("stays", np.int64),  # output of the program: is kept when nothing reads it any more
        ("dropped", np.int64),  # is to be computed again
        ("feeds", np.int64),  # dropped data that are computed from it
        ("sent", np.int64),  # first transfer of a region, or NOTHING
        ("before", np.int64),  # list of what is on a device, by least recent use
        ("after", np.int64),
    ],
    align=True,
)
COPY = np.dtype(
    [
        ("address", np.float64),
        ("bytes", np.float64),
        ("until", np.float64),  # when its last use ends, as far as is known
        ("datum", np.int64),
        ("on", np.int64),  # its device
        ("creator", np.int64),  # task that writes it, NOTHING: there from the start
        ("uses", np.int64),  # list of those who read it, in `links`
        ("num_uses", np.int64),
        ("pins", np.int64),  # tasks that are not retired and need it where it is
        ("freed", np.int64),  # FREE task that all its users precede
        ("gone", np.int64),  # has given its room back
        ("born", np.int64),  # steps of the walk between which it has room
        ("died", np.int64),
        ("position", np.int64),  # of the task for which it came
        ("before", np.int64),  # list of those that are on its device; by address once they have one
        ("after", np.int64),
        ("chosen", np.int64),  # is about to be evicted
        ("tries", np.int64),  # how often no address was found for it
        ("left", np.int64),  # while a plan runs: uses to come
    ],
    align=True,
)
SEGMENT = np.dtype(
    [
        ("address", np.float64),
        ("last", np.int64),  # copy that had it, or NOTHING
        ("after", np.int64),  # the next one
    ],
    align=True,
)
PLANNED = np.dtype(
    [
        ("seconds", np.float64),
        ("kind", np.int64),
        ("made", np.int64),  # copy that it makes, moves or frees; of an op its first one
        ("num_copies", np.int64),  # that it makes
        ("uses", np.int64),  # list of what it reads, in `links`
        ("key", np.float64),
    ],
    align=True,
)
LINK = np.dtype(
    [
        ("read", np.int64),  # copy
        ("task", np.int64),
        ("of_copy", np.int64),  # the next use of the copy
        ("of_task", np.int64),  # the next that the task uses
    ]
)
COUNTS = np.dtype(
    [
        ("tasks", np.int64),
        ("placed", np.int64),  # ops and transfers of the placement
        ("copies", np.int64),
        ("links", np.int64),
        ("waits", np.int64),
        ("steps", np.int64),  # of the walk
        ("position", np.int64),  # of the walk
        ("stuck", np.int64),  # copy for which no address was found
        ("inputs", np.int64),
        ("retired", np.int64),
        ("ended", np.int64),  # in `ends`, before which all are retired
        ("failed", np.int64),
        ("recomputes", np.int64),  # may compute again
        ("ahead", np.int64),  # of this try
        ("clears", np.int64),  # so often at most everything is evicted
        ("latest", np.float64),  # seconds of a plan that is known already
        ("patience", np.float64),  # seconds to wait rather than evict, for each that this takes
        ("is_known", np.int64),  # there is a plan, for `device` and `priority`
        ("offloaded", np.float64),
        ("loaded", np.float64),
        ("recomputed", np.float64),
    ],
    align=True,
)


class PlanChoices(NamedTuple):
    """How a planner decides, as numbers for compiled code."""

    victim: int
    recompute: bool
    tries: NDArray[np.float64]  # [., 5] order, share, ahead, patience, recompute


class Machine(NamedTuple):
    """What a planner knows beside ProblemArrays."""

    to_host_s: NDArray[np.float64]  # [D, 2] latency, seconds per byte
    limit: NDArray[np.float64]  # [D]
    depth: NDArray[np.int64]  # [V]
    op_input_ptr: NDArray[np.int64]  # [V + 1] op v reads the inputs
    op_inputs: NDArray[np.int64]  # at these places of input_consumers
    need: NDArray[np.float64]  # [V] bytes that an op has to have at once
    apart: ProblemArrays  # the problem, hosts of the memories of hosts included


class PlanState(NamedTuple):
    """Buffers of a plan and its run, reused by the next; after a run they hold both."""

    tasks: NDArray[np.void]  # TASK, of the placement without limits
    devices: NDArray[np.void]  # DEVICE [D], with the peaks of the plan
    free: State  # of the placement without limits
    run: State  # of the plan
    machine: Machine
    choices: PlanChoices
    counts: NDArray[np.void]  # COUNTS [1]
    data: NDArray[np.void]  # DATUM [N]
    uses: NDArray[np.int64]  # positions of the tasks that use each datum
    input_datum: NDArray[np.int64]  # of each of input_consumers
    copies: NDArray[np.void]  # COPY [C]
    segments: NDArray[np.void]  # SEGMENT [S]
    first: NDArray[np.int64]  # [D] copy that came last to each device, of those that are there
    last: NDArray[np.int64]  # [D] the other end of such a list
    held: NDArray[np.float64]  # [D] bytes of these
    budget: NDArray[np.float64]  # [D] bytes that they may have
    clears: NDArray[np.int64]  # [V + T] whether everything is evicted before the task there
    planned: NDArray[np.void]  # PLANNED [K]
    links: NDArray[np.void]  # LINK [L]
    waits: NDArray[np.int64]  # [W, 2] task, and task that waits for it
    wait_ptr: NDArray[np.int64]  # [K + 1]
    waiting: NDArray[np.int64]  # [W] those that wait for each task
    pending: NDArray[np.int64]  # [K]
    stack: NDArray[np.int64]  # [K]
    heap: NDArray[np.void]  # ENTRY
    start: NDArray[np.float64]  # [V + T] that the plan goes by
    finish: NDArray[np.float64]
    order: NDArray[np.int64]  # [V + T] tasks by start
    ends: NDArray[np.int64]  # [V + T] tasks by finish
    rank: NDArray[np.int64]  # [V] rises where one op is before another at one instant
    retired: NDArray[np.int64]  # [V + T]
    position: NDArray[np.int64]  # [V + T] of each in `order`
    sequence: NDArray[np.int64]  # [V] another order of the ops
    ready: NDArray[np.int64]  # [V]
    device: NDArray[np.int64]  # [V] placement that the plan is of
    priority: NDArray[np.int64]


def make_machine(problem: Problem, limit_D: NDArray[np.float64] | None = None) -> Machine:
    """What stays the same for all placements of a problem."""
    p, cluster = problem.arrays, problem.cluster
    num_ops, num_devices = p.op_seconds.shape
    slot_op = p.input_consumers
    input_slot = np.repeat(np.arange(len(p.input_bytes)), np.diff(p.input_ptr))
    _, first = np.unique(np.stack([slot_op, input_slot]), axis=1, return_index=True)
    limit = p.memory_bytes.copy() if limit_D is None else limit_D.astype(np.float64)
    way = (cluster.host_latency_s, 1.0 / cluster.host_bytes_per_s)
    edges = problem.graph.edges
    return Machine(
        to_host_s=np.tile(np.array(way, dtype=np.float64), (num_devices, 1)),
        limit=limit,
        depth=np.ascontiguousarray(depth(num_ops, edges.src, edges.dst), dtype=np.int64),
        op_input_ptr=np.searchsorted(slot_op[first], np.arange(num_ops + 1)).astype(np.int64),
        op_inputs=first.astype(np.int64),
        need=op_need_bytes(p),
        apart=p._replace(host=np.concatenate([p.host, p.host])),
    )


def op_need_bytes(p: ProblemArrays) -> NDArray[np.float64]:
    """Bytes [V] of an op's inputs, reads and output: they have to be there at one time."""
    num_ops = len(p.op_seconds)
    need_V = p.sink_bytes.copy()
    np.add.at(need_V, p.region_src, p.region_bytes)
    reader_E = np.repeat(np.arange(num_ops), np.diff(p.read_ptr))
    np.add.at(need_V, reader_E, p.region_bytes[p.reads])
    input_of = np.repeat(np.arange(len(p.input_bytes)), np.diff(p.input_ptr))
    pairs = np.unique(np.stack([p.input_consumers, input_of]), axis=1)
    np.add.at(need_V, pairs[0], p.input_bytes[pairs[1]])
    return need_V


def make_plan_state(p: ProblemArrays, *, machine: Machine, choices: PlanChoices) -> PlanState:
    """Buffers large enough for a plan of any placement of the problem."""
    num_ops, num_devices = p.op_seconds.shape
    free = make_state(p)
    num_base = len(free.tasks)
    num_transfers = num_base - num_ops
    num_slots = len(p.input_consumers)
    num_data = len(p.size) + num_transfers + num_ops + num_slots
    num_uses = len(p.reads) + num_transfers + num_slots
    # Every load is for one use; what is computed again loads at most what the op reads.
    widest = int(np.diff(p.read_ptr).max(initial=0) + np.diff(machine.op_input_ptr).max(initial=0))
    num_loads = 2 * num_uses + (num_uses * widest if choices.recompute else 0)
    num_copies = num_data + num_loads
    num_tasks = num_base + num_loads + num_data + num_copies
    num_links = 2 * num_uses + num_loads * (1 + widest * choices.recompute) + num_data
    num_waits = 2 * num_links + 5 * num_copies + num_tasks
    return PlanState(
        tasks=free.tasks,
        devices=free.devices,
        free=free,
        run=_run_state(free, num_tasks, num_devices),
        machine=machine,
        choices=choices,
        counts=np.zeros(1, COUNTS),
        data=np.zeros(num_data, DATUM),
        uses=np.zeros(num_uses, np.int64),
        input_datum=np.zeros(num_slots, np.int64),
        copies=np.zeros(num_copies, COPY),
        segments=np.zeros(2 * num_copies + 1, SEGMENT),
        first=np.zeros(num_devices, np.int64),
        last=np.zeros(num_devices, np.int64),
        held=np.zeros(num_devices),
        budget=np.zeros(num_devices),
        clears=np.zeros(num_base, np.int64),
        planned=np.zeros(num_tasks, PLANNED),
        links=np.zeros(num_links, LINK),
        waits=np.zeros((num_waits, 2), np.int64),
        wait_ptr=np.zeros(num_tasks + 1, np.int64),
        waiting=np.zeros(num_waits, np.int64),
        pending=np.zeros(num_tasks, np.int64),
        stack=np.zeros(num_tasks, np.int64),
        heap=np.zeros(max(num_base, num_copies), ENTRY),
        start=np.zeros(num_base),
        finish=np.zeros(num_base),
        order=np.zeros(num_base, np.int64),
        ends=np.zeros(num_base, np.int64),
        rank=np.zeros(num_ops, np.int64),
        retired=np.zeros(num_base, np.int64),
        position=np.zeros(num_base, np.int64),
        sequence=np.zeros(num_ops, np.int64),
        ready=np.zeros(num_ops, np.int64),
        device=np.zeros(num_ops, np.int64),
        priority=np.zeros(num_ops, np.int64),
    )


def _run_state(free: State, num_tasks: int, num_devices: int) -> State:
    """What the queues of the simulator need, each device's memory of the host included."""
    num_resources = 2 * num_devices + 4 * num_devices**2
    return free._replace(
        tasks=np.zeros(num_tasks, TASK),
        resources=np.zeros(num_resources, RESOURCE),
        devices=np.zeros(2 * num_devices, DEVICE),
        hosts=np.zeros(len(free.hosts), HOST),
        touched=np.zeros(num_resources, np.uint32),
        coupled=np.zeros(num_resources, np.uint32),
        num_coupled=np.zeros(2, np.int64),
    )
