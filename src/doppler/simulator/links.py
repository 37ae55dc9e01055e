"""Estimated starts where transfers of one link wait for each other.

Each region goes once to each device that reads it, over the link of the two devices, after all that
went there for ops placed before: queues in the order of placing. Between hosts it also waits for an
outgoing and an incoming network interface, of each host the one that is free first. Where devices
make transfers themselves a region is sent after its op and what that has sent before; what its
device does next is that much later, but for ops that were placed there already. Shape suffixes: V
ops, R regions, D devices, H hosts, N interfaces.

Source: list scheduling with contention, Sinnen and Sousa, "Communication Contention in Task
Scheduling", IEEE TPDS 2005; regions that are sent once are ours.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.problem.arrays import ProblemArrays, crosses_hosts, move_seconds
from doppler.support.compiled import compiled
from doppler.trace import Contention

FloatArray = NDArray[np.float64]


class Queues(NamedTuple):
    """What is known of links and devices; of what has been tried."""

    device: NDArray[np.int64]  # [V] of placed ops
    finish: FloatArray  # [V] of placed ops
    device_free: FloatArray  # [D]
    link_free: FloatArray  # [D, D] when all that was sent from s to d is there
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


def make_queues(p: ProblemArrays, contention: Contention = "fifo") -> Queues:
    """Buffers for one problem; with engines transfers wait as with fifo."""
    num_ops, num_devices = p.op_seconds.shape
    interfaces = (len(p.nics), int(p.nics.max(initial=0)))
    return Queues(
        device=np.zeros(num_ops, np.int64),
        finish=np.zeros(num_ops),
        device_free=np.zeros(num_devices),
        link_free=np.zeros((num_devices, num_devices)),
        arrival=np.zeros((len(p.size), num_devices)),
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
def empty_queues(q):
    """Nothing is placed, nothing has been sent."""
    q.device_free[:] = 0.0
    q.link_free[:, :] = 0.0
    q.arrival[:, :] = -1.0
    q.sent[:] = 0.0
    q.changed[:] = 0
    q.num_placed[0] = 0
    q.out_free[:, :] = 0.0
    q.in_free[:, :] = 0.0


@compiled
def try_start(p, q, v, d):
    """When v would start on d."""
    for s in range(len(q.into)):
        q.into[s] = q.link_free[s, d]
    if len(p.host) > 0:
        _copy(q.out_free, q.out_then)
        _copy(q.in_free, q.in_then)
    return _start(p, q, v, d, q.into, q.out_then, q.in_then, False)


@compiled
def _start(p, q, v, d, link_S, out_HN, in_HN, commit):
    """When v starts on d; links and interfaces are as free as that leaves them.

    link_S: of the links into d. commit: what v reads is sent there.
    """
    ready = q.device_free[d]
    for i in range(p.read_ptr[v], p.read_ptr[v + 1]):
        r = p.reads[i]
        src = p.region_src[r]
        s = q.device[src]
        there = q.finish[src]
        if s != d:
            if q.arrival[r, d] >= 0.0:
                there = q.arrival[r, d]
            elif q.sender:
                there = _send(p, q, r, s, d, commit)
            else:
                if q.waits:
                    there = max(there, link_S[s])
                if q.waits and crosses_hosts(p, s, d):
                    there = _through_interfaces(p, out_HN, in_HN, r, s, d, there)
                else:
                    there += move_seconds(p, r, s, d)
                link_S[s] = there
                if commit:
                    q.arrival[r, d] = there
        ready = max(ready, there)
    return ready


@compiled
def _send(p, q, r, s, d, commit):
    """When device s, which made region r, has brought it to d."""
    src, seconds = p.region_src[r], move_seconds(p, r, s, d)
    there = max(q.finish[src], q.sent[src]) + seconds
    if commit:
        q.arrival[r, d] = there
        q.sent[src] = there
        q.device_free[s] += seconds
        q.changed[s] = q.num_placed[0] + 1
    return there


@compiled
def _through_interfaces(p, out_HN, in_HN, r, s, d, ready):
    """When region r, which could go from s to another host's d at ``ready``, is there."""
    out_N, into_N = out_HN[p.host[s]], in_HN[p.host[d]]
    out, into = _first_free(out_N, p.nics[p.host[s]]), _first_free(into_N, p.nics[p.host[d]])
    there = max(ready, out_N[out], into_N[into]) + move_seconds(p, r, s, d)
    out_N[out] = there
    into_N[into] = there
    return there


@compiled
def _copy(free_HN, to_HN):
    for host in range(len(free_HN)):
        for i in range(free_HN.shape[1]):
            to_HN[host, i] = free_HN[host, i]


@compiled
def _first_free(free_N, num):
    """The first of the interfaces that are free first."""
    first = 0
    for i in range(1, num):
        if free_N[i] < free_N[first]:
            first = i
    return first


@compiled
def place_in_queues(p, q, v, d):
    """Place v on d, after all that was placed before; returns when it starts."""
    start = _start(p, q, v, d, q.link_free[:, d], q.out_free, q.in_free, True)
    q.device[v] = d
    q.finish[v] = start + p.op_seconds[v, d]
    q.device_free[d] = q.finish[v]
    q.num_placed[0] += 1
    q.changed[d] = q.num_placed[0]  # what goes elsewhere uses other links,
    if len(p.host) > 0:  # but maybe the same interfaces
        q.changed[:] = q.num_placed[0]
    return start
