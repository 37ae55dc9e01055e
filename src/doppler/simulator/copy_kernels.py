"""Compiled: the copies of regions in a placement, where they move, and the memory that they take.

A region is on its producer's device, and one transfer brings it to each other device that reads it.
So a copy is either that of region r on its producer's device (number r) or that of transfer t
(number R + t). It takes memory until the last task that reads it has finished: an op on its device
or, on the producer's device, a transfer.

Vocabulary and dimensions as in state.py. Indices: v op, r region, e edge, d device, k task of a
transfer, i input or position among the reads of an op.
"""

import numpy as np

from doppler.support.compiled import compiled


@compiled
def list_transfers(problem, r, state):
    """Add the transfers of region r to the tasks, and count the uses of all its copies.

    Transfers come in the order of their first readers, and have the smallest key of all their
    readers. ``devices.last``, 0 at first, is the last transfer listed to a device.
    """
    tasks, devices, uses = state.tasks, state.devices, state.uses
    num_ops, num_devices = problem.op_seconds.shape
    num_regions = len(problem.size)
    begin = num_ops + state.num_transfers[0]
    end = begin
    src = tasks[np.uint32(problem.region_src[r])].resource
    uses[r] = 0
    for e in range(problem.consumer_ptr[r], problem.consumer_ptr[r + 1]):
        v = np.uint32(problem.consumers[e])
        dst = tasks[v].resource
        copy = r
        if dst != src:
            k = devices[dst].last
            copy = num_regions + k - num_ops
            if k < begin:
                k = np.uint32(end)
                end += 1
                copy = num_regions + k - num_ops
                devices[dst].last = k
                tasks[k].number = r
                tasks[k].key = tasks[v].key
                tasks[k].resource = num_devices + src * num_devices + dst
                tasks[k].source = src
                tasks[k].destination = dst
                uses[copy] = 0
                uses[r] += 1
            tasks[k].key = min(tasks[k].key, tasks[v].key)
        uses[copy] += 1
        state.copies[state.read_of_edge[e]] = copy
    state.num_transfers[0] = end - num_ops


@compiled
def list_all_transfers(problem, state):
    """List the transfers of a placement by region; return their number."""
    state.num_transfers[0] = 0
    for d in range(len(state.devices)):
        state.devices[d].last = 0
    for r in range(len(problem.size)):
        list_transfers(problem, r, state)
    return state.num_transfers[0]


@compiled
def load_inputs(problem, device_V, devices):
    """Take memory at time 0: every device holds each input that its ops read once."""
    for d in range(len(devices)):
        devices[d].memory = 0.0
        devices[d].last = 0
    for i in range(len(problem.input_bytes)):
        for j in range(problem.input_ptr[i], problem.input_ptr[i + 1]):
            d = np.uint32(device_V[problem.input_consumers[j]])
            if devices[d].last <= i:
                devices[d].last = i + 1
                devices[d].memory += problem.input_bytes[i]
    for d in range(len(devices)):
        devices[d].peak = devices[d].memory
        devices[d].last = 0


@compiled
def allocate(devices, d, num_bytes):
    """Take memory on device d.

    Args:
        devices: State.devices.
        d: device.
        num_bytes: bytes to take.
    """
    devices[d].memory += num_bytes
    if devices[d].memory > devices[d].peak:
        devices[d].peak = devices[d].memory


@compiled
def free_reads(problem, state, v):
    """Free the copies that op v, which has finished, was the last to use on its device."""
    d = state.tasks[v].resource
    for i in range(problem.read_ptr[v], problem.read_ptr[v + 1]):
        copy = state.copies[i]
        state.uses[copy] -= 1
        if state.uses[copy] == 0:
            state.devices[d].memory -= problem.region_bytes[problem.reads[i]]
