"""Compiled: estimated starts of ops if transfers on one link wait for each other.

Each region goes once to each device that reads it, over the link between the two devices, after
everything that went there for ops placed before: queues are in the order of placing. Between hosts
it also waits for an outgoing and an incoming network interface, on each host the one that is free
first. If devices make transfers themselves, a region is sent after its op and after earlier
transfers of that op, and the next op of the sending device starts that much later, unless it is
placed already.

Dimensions: V ops, R regions, D devices, H hosts, N interfaces. Indices: v op, d its device, r
region, src the device that a region comes from, i position among the reads of an op.

Source: list scheduling with contention, Sinnen and Sousa, "Communication Contention in Task
Scheduling", IEEE TPDS 2005; sending regions once is ours.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.problem.arrays import ProblemArrays
from doppler.problem.transfer_kernels import crosses_hosts, move_seconds
from doppler.support.compiled import compiled
from doppler.trace import Contention

FloatArray = NDArray[np.float64]


class Queues(NamedTuple):
    """State of links and devices after the ops placed so far, and scratch of the last try."""

    device: NDArray[np.int64]  # [V] of placed ops
    finish: FloatArray  # [V] of placed ops
    device_free: FloatArray  # [D]
    link_free: FloatArray  # [D, D] when all that was sent from the first to the second is there
    arrival: FloatArray  # [R, D] of regions that were sent, -1 elsewhere
    into: FloatArray  # [D] link_free of the links into one device, if an op were placed there
    start: FloatArray  # [D] of one op on each device
    changed: NDArray[np.int64]  # [D] how many were placed when starts there last changed
    num_placed: NDArray[np.int64]  # [1]
    out_free: FloatArray  # [H, N] when all that was sent through an interface is there; or [0, 0]
    in_free: FloatArray  # [H, N] the same of what is received
    out_then: FloatArray  # [H, N] both, if an op were placed somewhere
    in_then: FloatArray  # [H, N]
    sent: FloatArray  # [V] when a device has sent what it was to send of each op, or [0]
    waits: bool  # whether transfers of a link wait for each other at all
    sender: bool  # whether devices make transfers themselves


def make_queues(arrays: ProblemArrays, contention: Contention = "fifo") -> Queues:
    """Allocate buffers for one problem; with ``engines``, transfers wait as with ``fifo``."""
    num_ops, num_devices = arrays.op_seconds.shape
    interfaces = (len(arrays.nics), int(arrays.nics.max(initial=0)))
    return Queues(
        device=np.zeros(num_ops, np.int64),
        finish=np.zeros(num_ops),
        device_free=np.zeros(num_devices),
        link_free=np.zeros((num_devices, num_devices)),
        arrival=np.zeros((len(arrays.size), num_devices)),
        into=np.zeros(num_devices),
        start=np.zeros(num_devices),
        changed=np.zeros(num_devices, np.int64),
        num_placed=np.zeros(1, np.int64),
        out_free=np.zeros(interfaces),
        in_free=np.zeros(interfaces),
        out_then=np.zeros(interfaces),
        in_then=np.zeros(interfaces),
        sent=np.zeros(num_ops if contention == "sender" else 0),
        waits=contention != "none",
        sender=contention == "sender",
    )


@compiled
def empty_queues(queues):
    """Start anew: nothing is placed, nothing has been sent.

    Args:
        queues: Queues, changed.
    """
    queues.device_free[:] = 0.0
    queues.link_free[:, :] = 0.0
    queues.arrival[:, :] = -1.0
    queues.sent[:] = 0.0
    queues.changed[:] = 0
    queues.num_placed[0] = 0
    queues.out_free[:, :] = 0.0
    queues.in_free[:, :] = 0.0


@compiled
def try_start(problem, queues, v, d):
    """Return when op v would start on device d, in seconds, without placing it.

    Args:
        problem: ProblemArrays.
        queues: Queues; only its scratch changes.
        v: an op whose producers are placed.
        d: device.
    """
    for src in range(len(queues.into)):
        queues.into[src] = queues.link_free[src, d]
    if len(problem.host) > 0:
        _copy(queues.out_free, queues.out_then)
        _copy(queues.in_free, queues.in_then)
    return _start(problem, queues, v, d, queues.into, queues.out_then, queues.in_then, False)


@compiled
def _start(problem, queues, v, d, link_D, out_HN, in_HN, commit):
    """When v starts on d, given when links and interfaces are free.

    link_D, when the links into d are free, is changed. ``commit``: whether to send the regions that
    v reads.
    """
    ready = queues.device_free[d]
    for i in range(problem.read_ptr[v], problem.read_ptr[v + 1]):
        r = problem.reads[i]
        producer = problem.region_src[r]
        src = queues.device[producer]
        arrival = queues.finish[producer]
        if src != d:
            if queues.arrival[r, d] >= 0.0:
                arrival = queues.arrival[r, d]
            elif queues.sender:
                arrival = _send(problem, queues, r, src, d, commit)
            else:
                if queues.waits:
                    arrival = max(arrival, link_D[src])
                if queues.waits and crosses_hosts(problem, src, d):
                    arrival = _through_interfaces(problem, out_HN, in_HN, r, src, d, arrival)
                else:
                    arrival += move_seconds(problem, r, src, d)
                link_D[src] = arrival
                if commit:
                    queues.arrival[r, d] = arrival
        ready = max(ready, arrival)
    return ready


@compiled
def _send(problem, queues, r, src, d, commit):
    """When device src, which made region r, has sent it to d."""
    producer, seconds = problem.region_src[r], move_seconds(problem, r, src, d)
    arrival = max(queues.finish[producer], queues.sent[producer]) + seconds
    if commit:
        queues.arrival[r, d] = arrival
        queues.sent[producer] = arrival
        queues.device_free[src] += seconds
        queues.changed[src] = queues.num_placed[0] + 1
    return arrival


@compiled
def _through_interfaces(problem, out_HN, in_HN, r, src, d, ready):
    """When region r arrives on another host's device d if it could leave src at ``ready``."""
    out_N, in_N = out_HN[problem.host[src]], in_HN[problem.host[d]]
    outgoing = _first_free(out_N, problem.nics[problem.host[src]])
    incoming = _first_free(in_N, problem.nics[problem.host[d]])
    arrival = max(ready, out_N[outgoing], in_N[incoming]) + move_seconds(problem, r, src, d)
    out_N[outgoing] = arrival
    in_N[incoming] = arrival
    return arrival


@compiled
def _copy(free_HN, to_HN):
    for host in range(len(free_HN)):
        for i in range(free_HN.shape[1]):
            to_HN[host, i] = free_HN[host, i]


@compiled
def _first_free(free_N, num):
    """The first of the interfaces that are free earliest."""
    first = 0
    for i in range(1, num):
        if free_N[i] < free_N[first]:
            first = i
    return first


@compiled
def place_in_queues(problem, queues, v, d):
    """Place op v on device d, after all that was placed before.

    Args:
        problem: ProblemArrays.
        queues: Queues, changed.
        v: an op whose producers are placed.
        d: device.

    Returns:
        When the op starts, in seconds.
    """
    start = _start(
        problem, queues, v, d, queues.link_free[:, d], queues.out_free, queues.in_free, True
    )
    queues.device[v] = d
    queues.finish[v] = start + problem.op_seconds[v, d]
    queues.device_free[d] = queues.finish[v]
    queues.num_placed[0] += 1
    queues.changed[d] = queues.num_placed[0]  # what goes elsewhere uses other links,
    if len(problem.host) > 0:  # but maybe the same interfaces
        queues.changed[:] = queues.num_placed[0]
    return start
