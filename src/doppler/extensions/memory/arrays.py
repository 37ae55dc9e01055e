"""Data structures of the compiled planner: data, their copies, address space and planned tasks.

A *datum* is anything that takes memory on one device: a region on the device that computes it, a
region on a device that receives it, an output that no op reads, or an input on a device that reads
it. A *copy* is one stay of a datum at one address: a datum that is evicted and loaded again has two
copies. A *segment* is a piece of a device's address space together with the copy that occupied it
last. Each device has its own part of the host's memory, which is modelled as one more device:
device D + d is the part of device d.

Tasks are numbered as in simulator/state.py: first the ops, then the transfers of the placement,
then the tasks that the plan adds. Shape suffixes: V ops, R regions, I inputs, T transfers at most,
D devices, N data, C copies, K tasks, L uses of copies, W waits, S segments.
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
SLACK = 1e-9  # tolerance for rounding, as a share of a device's memory
FROM_THE_START = -2  # value of `evicted` for inputs: the host has them from the start
NOWHERE = np.uint32(2**32 - 1)  # resource of tasks that need none

DATUM = np.dtype(
    [
        ("bytes", np.float64),
        ("on", np.int64),  # its device
        ("at", np.int64),  # its present copy, or NOTHING
        ("evicted", np.int64),  # task that copied it to the host, FROM_THE_START, or NOTHING
        ("maker", np.int64),  # task of the placement that writes it; NOTHING for an input
        ("use", np.int64),  # index of its next use in `uses`
        ("end", np.int64),  # end of its uses in `uses`
        ("stays", np.int64),  # 1: an output of the program, kept after its last use
        ("dropped", np.int64),  # 1: will be recomputed
        ("feeds", np.int64),  # number of dropped data that are recomputed from it
        ("sent", np.int64),  # first transfer of a region, or NOTHING
        ("before", np.int64),  # list of the data on a device, least recently used first
        ("after", np.int64),
    ],
    align=True,
)
COPY = np.dtype(
    [
        ("address", np.float64),
        ("bytes", np.float64),
        ("until", np.float64),  # end of its last use so far, seconds
        ("datum", np.int64),
        ("on", np.int64),  # its device
        ("creator", np.int64),  # task that writes it; NOTHING: it is there from the start
        ("uses", np.int64),  # head of the list of its uses in `links`
        ("num_uses", np.int64),
        ("pins", np.int64),  # number of tasks that need it in place and are not retired
        ("freed", np.int64),  # FREE task that waits for all of its users
        ("gone", np.int64),  # 1: its memory is free again
        ("born", np.int64),  # it occupies memory from this step of the walk
        ("died", np.int64),  # until this one
        ("position", np.int64),  # position in the walk of the task that it was allocated for
        ("before", np.int64),  # list of the copies on its device; by address once they have one
        ("after", np.int64),
        ("chosen", np.int64),  # 1: about to be evicted
        ("tries", np.int64),  # how often no address was found for it
        ("left", np.int64),  # uses still to come while a plan runs
    ],
    align=True,
)
SEGMENT = np.dtype(
    [
        ("address", np.float64),
        ("last", np.int64),  # copy that occupied it last, or NOTHING
        ("after", np.int64),  # next segment
    ],
    align=True,
)
PLANNED = np.dtype(
    [
        ("seconds", np.float64),
        ("kind", np.int64),
        ("made", np.int64),  # copy that it writes, evicts or frees; for an op, the first one
        ("num_copies", np.int64),  # number of copies that it writes
        ("uses", np.int64),  # head of the list of its reads in `links`
        ("key", np.float64),  # priority in the queue of its resource
    ],
    align=True,
)
LINK = np.dtype(
    [
        ("read", np.int64),  # copy
        ("task", np.int64),
        ("of_copy", np.int64),  # next use of the same copy
        ("of_task", np.int64),  # next read of the same task
    ]
)
COUNTS = np.dtype(
    [
        ("tasks", np.int64),
        ("placed", np.int64),  # number of ops and transfers of the placement
        ("copies", np.int64),
        ("links", np.int64),
        ("waits", np.int64),
        ("steps", np.int64),  # steps of the walk so far
        ("position", np.int64),  # present position in the walk
        ("stuck", np.int64),  # copy for which no address was found
        ("inputs", np.int64),
        ("retired", np.int64),
        ("ended", np.int64),  # index in `ends` before which all tasks are retired
        ("failed", np.int64),
        ("recomputes", np.int64),  # 1: data may be recomputed
        ("ahead", np.int64),  # look-ahead of the present try, see offload.TRIES
        ("clears", np.int64),  # largest number of tasks before which a device is emptied
        ("latest", np.float64),  # makespan of the best plan so far, seconds
        ("patience", np.float64),  # seconds worth waiting per second of eviction
        ("is_known", np.int64),  # 1: the state holds the plan of `device` and `priority`
        ("offloaded", np.float64),  # bytes
        ("loaded", np.float64),  # bytes
        ("recomputed", np.float64),  # seconds
    ],
    align=True,
)


class PlanChoices(NamedTuple):
    """How a planner decides, as numbers for compiled code."""

    victim: int  # see victims_kernels.VICTIMS
    recompute: bool
    tries: NDArray[np.float64]  # [., 5] order, share, ahead, patience, recompute


class Machine(NamedTuple):
    """What a planner knows of a problem in addition to its ProblemArrays."""

    to_host_s: NDArray[np.float64]  # [D, 2] latency, and seconds per byte
    limit: NDArray[np.float64]  # [D] bytes
    depth: NDArray[np.int64]  # [V] see graph.levels.depth
    op_input_ptr: NDArray[np.int64]  # [V + 1] range of op_inputs that belongs to each op
    op_inputs: NDArray[np.int64]  # indices into input_consumers of the inputs that ops read
    need: NDArray[np.float64]  # [V] bytes that an op needs at one time
    apart: ProblemArrays  # the problem, with the devices D + d in `host`


class PlanState(NamedTuple):
    """Buffers of a plan and of its run, reused by the next plan; after a run they hold both."""

    tasks: NDArray[np.void]  # TASK, of the placement without memory limits
    devices: NDArray[np.void]  # DEVICE [D], with the peaks of the plan
    free: State  # schedule of the placement without memory limits
    run: State  # schedule of the plan
    machine: Machine
    choices: PlanChoices
    counts: NDArray[np.void]  # COUNTS [1]
    data: NDArray[np.void]  # DATUM [N]
    uses: NDArray[np.int64]  # positions in the walk of the tasks that use each datum
    input_datum: NDArray[np.int64]  # datum of each entry of input_consumers
    copies: NDArray[np.void]  # COPY [C]
    segments: NDArray[np.void]  # SEGMENT [S]
    first: NDArray[np.int64]  # [D] head of the list of copies on each device, newest first
    last: NDArray[np.int64]  # [D] tail of the list
    held: NDArray[np.float64]  # [D] bytes that the copies on each device take
    budget: NDArray[np.float64]  # [D] bytes that they may take
    clears: NDArray[np.int64]  # [V + T] 1: devices are emptied before the task at this position
    planned: NDArray[np.void]  # PLANNED [K]
    links: NDArray[np.void]  # LINK [L]
    waits: NDArray[np.int64]  # [W, 2] a task, and a task that waits for it
    wait_ptr: NDArray[np.int64]  # [K + 1] range of `waiting` that belongs to each task
    waiting: NDArray[np.int64]  # [W] tasks that wait, grouped by what they wait for
    pending: NDArray[np.int64]  # [K] number of tasks that each task still waits for
    stack: NDArray[np.int64]  # [K]
    heap: NDArray[np.void]  # ENTRY
    start: NDArray[np.float64]  # [V + T] schedule that the planner follows, seconds
    finish: NDArray[np.float64]  # [V + T]
    order: NDArray[np.int64]  # [V + T] tasks by start
    ends: NDArray[np.int64]  # [V + T] tasks by finish
    rank: NDArray[np.int64]  # [V] orders ops that start or end at the same time
    retired: NDArray[np.int64]  # [V + T] 1: ended, as far as the walk is concerned
    position: NDArray[np.int64]  # [V + T] of each task in `order`
    sequence: NDArray[np.int64]  # [V] place of each op in an order that saves memory
    ready: NDArray[np.int64]  # [V] ready ops
    device: NDArray[np.int64]  # [V] the placement that is planned
    priority: NDArray[np.int64]  # [V]


def make_machine(problem: Problem, limit_D: NDArray[np.float64] | None = None) -> Machine:
    """Return what the planner needs to know of a problem, whatever the placement.

    Args:
        problem: that placements are planned for.
        limit_D: memory limits in bytes; those of the cluster's devices unless given.
    """
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
    """Return the bytes [V] of each op's inputs, reads and output, which it needs at one time.

    Args:
        p: arrays of the problem.
    """
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
    """Return buffers that are large enough for a plan of any placement of the problem.

    Args:
        p: arrays of the problem.
        machine: what the planner knows of the problem.
        choices: how it decides.
    """
    num_ops, num_devices = p.op_seconds.shape
    free = make_state(p)
    num_base = len(free.tasks)
    num_transfers = num_base - num_ops
    num_slots = len(p.input_consumers)
    num_data = len(p.size) + num_transfers + num_ops + num_slots
    num_uses = len(p.reads) + num_transfers + num_slots
    # Each load serves one use. A recomputation loads at most what its op reads.
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
    """Return buffers for the queues of the simulator, with the host's memory as devices."""
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
