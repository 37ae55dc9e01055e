"""The placement process, compiled: candidates, transitions, and what the policies see of them.

An episode places all V ops, one a step. Candidates are the ops whose producers are all placed.
Placing op v on device d fixes its estimated start, the earliest at which d is free and v's inputs
could be there, without contention; links.py has the estimate with it. Shape suffixes: V ops, D
devices, L levels, C candidates.

Source: DOPPLER (Yao et al., ICLR 2026), episode and five of the device features; the others are
ours.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.compiled import compiled
from doppler.episode.links import (
    QUEUE_FEATURES,
    Queues,
    empty_queues,
    make_queues,
    place_in_queues,
    queue_features,
)
from doppler.episode.view import DIFFUSIONS, ViewArrays
from doppler.problem import ProblemArrays

SEL_FEATURES = (
    "age",
    "consumer_of_last",
    "diffusion_to_last_device",
    "start_slack",
    "siblings_placed",
    "start",
    "progress",
    "candidates",
)
DEVICE_FEATURES = (
    "producers",
    "siblings",
    "diffusion_near",
    "diffusion_far",
    "diffusion_unweighted",
    "concurrent_work",
    "start_over_min",
    "available_over_min",
    "load_over_min",
    "to_move",
    "largest_producer",
    "empty",
    "last_device",
    "attains_min_start",
    "progress",
    "load",
    "producer_compute",
    "producers_start",
    "producers_end",
    "start",
    "slower_than_best",
    "finish_over_min",
    "diffusion_near_share",
    "diffusion_far_share",
    "diffusion_unweighted_share",
    *QUEUE_FEATURES,
)
# Further ones, of merged views only: of the group that goes where the op goes.
SEL_GROUP_FEATURES = ("group_rest", "group_placed")
DEVICE_GROUP_FEATURES = (
    "group_rest",
    "group_producers",
    "group_diffusion_near",
    "group_diffusion_far",
    "group_diffusion_unweighted",
)
NUM_SEL_FEATURES, NUM_DEVICE_FEATURES = len(SEL_FEATURES), len(DEVICE_FEATURES)
NUM_SEL_GROUP_FEATURES = len(SEL_GROUP_FEATURES)
NUM_DEVICE_GROUP_FEATURES = len(DEVICE_GROUP_FEATURES)
NUM_KERNELS = len(DIFFUSIONS)

_OP = np.dtype(
    [
        ("device", np.int32),  # -1 until placed
        ("pending", np.int32),  # regions whose producer is not placed
        ("born", np.int32),  # step at which the op became a candidate
        ("largest_device", np.int32),  # device of the producer with the largest transfer
        ("last_producer", np.int32),  # the one placed last; it may send several regions
        ("largest", np.float64),
        ("finish", np.float64),
        ("placed_in", np.float64),  # transfer seconds of the producers placed so far
    ]
)
_OP_ON_DEVICE = np.dtype(
    [
        ("data_ready", np.float64),  # when all placed producers' regions could be there
        ("incoming", np.float64),  # transfer seconds of the producers on the device
        ("compute", np.float64),  # of the producers on the device
        ("first_start", np.float64),
        ("last_end", np.float64),  # -1 until there is a producer
    ]
)
_DEVICE = np.dtype(
    [
        ("available", np.float64),
        ("load", np.float64),
        ("num_ops", np.int64),
    ]
)


class Episode(NamedTuple):
    """Buffers of one episode, reused by the next."""

    ops: NDArray[np.void]  # [V]
    on_device: NDArray[np.void]  # [V, D]
    devices: NDArray[np.void]  # [D]
    queues: Queues
    affinity: NDArray[np.float32]  # [V, D, kernels]
    level_load: NDArray[np.float64]  # [L, D]
    candidates: NDArray[np.int64]  # [V]
    home: NDArray[np.int64]  # [V] device of each group, -1 until one is chosen
    status: NDArray[np.int64]  # number of candidates, step, last op, last device


NUM_CANDIDATES, STEP, LAST_OP, LAST_DEVICE = 0, 1, 2, 3


def make_episode(p: ProblemArrays, view: ViewArrays) -> Episode:
    """Buffers for episodes of one problem."""
    num_ops, num_devices = p.op_seconds.shape
    return Episode(
        ops=np.zeros(num_ops, _OP),
        on_device=np.zeros((num_ops, num_devices), _OP_ON_DEVICE),
        devices=np.zeros(num_devices, _DEVICE),
        queues=make_queues(p),
        affinity=np.zeros((num_ops, num_devices, NUM_KERNELS), np.float32),
        level_load=np.zeros((len(view.level_work), num_devices)),
        candidates=np.zeros(num_ops, np.int64),
        home=np.zeros(num_ops, np.int64),
        status=np.zeros(4, np.int64),
    )


@compiled
def reset(p, e):
    """Begin an episode: nothing is placed, the sources are the candidates."""
    num_ops, num_devices = p.op_seconds.shape
    empty_queues(e.queues)
    count = 0
    for v in range(num_ops):
        op = e.ops[v]
        op.device = -1
        op.pending = p.read_ptr[v + 1] - p.read_ptr[v]
        op.born = 0
        op.largest_device = -1
        op.last_producer = -1
        op.largest = -1.0
        op.finish = 0.0
        op.placed_in = 0.0
        e.home[v] = -1
        if op.pending == 0:
            e.candidates[count] = v
            count += 1
        for d in range(num_devices):
            on = e.on_device[v, d]
            on.data_ready = 0.0
            on.incoming = 0.0
            on.compute = 0.0
            on.first_start = 0.0
            on.last_end = -1.0
            for k in range(NUM_KERNELS):
                e.affinity[v, d, k] = 0.0
    for d in range(num_devices):
        e.devices[d].available = 0.0
        e.devices[d].load = 0.0
        e.devices[d].num_ops = 0
        for level in range(len(e.level_load)):
            e.level_load[level, d] = 0.0
    e.status[NUM_CANDIDATES] = count
    e.status[STEP] = 0
    e.status[LAST_OP] = -1
    e.status[LAST_DEVICE] = -1


@compiled
def place(p, w, e, index, d):
    """Place the candidate at ``index`` of the list on device d; its consumers learn of it."""
    num_devices = len(e.devices)
    v = e.candidates[index]
    e.status[NUM_CANDIDATES] -= 1
    e.candidates[index] = e.candidates[e.status[NUM_CANDIDATES]]
    seconds = p.op_seconds[v, d]
    start = max(e.devices[d].available, e.on_device[v, d].data_ready)
    finish = start + seconds
    e.ops[v].device = d
    e.ops[v].finish = finish
    place_in_queues(p, e.queues, e.ops, v, d)
    e.devices[d].available = finish
    e.devices[d].load += seconds
    e.devices[d].num_ops += 1
    e.home[w.group[v]] = d
    e.level_load[w.depth[v], d] += seconds
    e.status[STEP] += 1
    e.status[LAST_OP] = v
    e.status[LAST_DEVICE] = d
    for r in range(p.region_ptr[v], p.region_ptr[v + 1]):
        weight = w.transfer[r]
        for i in range(p.consumer_ptr[r], p.consumer_ptr[r + 1]):
            c = p.consumers[i]
            for other in range(num_devices):
                arrival = finish
                if other != d:
                    arrival += p.latency_s[d, other] + p.size[r] * p.seconds_per_size[d, other]
                if arrival > e.on_device[c, other].data_ready:
                    e.on_device[c, other].data_ready = arrival
            on = e.on_device[c, d]
            if on.last_end < 0.0 or start < on.first_start:
                on.first_start = start
            on.last_end = max(on.last_end, finish)
            on.incoming += weight
            if e.ops[c].last_producer != v:
                e.ops[c].last_producer = v
                on.compute += seconds
            e.ops[c].placed_in += weight
            if weight > e.ops[c].largest:
                e.ops[c].largest = weight
                e.ops[c].largest_device = d
            e.ops[c].pending -= 1
            if e.ops[c].pending == 0:
                e.ops[c].born = e.status[STEP]
                e.candidates[e.status[NUM_CANDIDATES]] = c
                e.status[NUM_CANDIDATES] += 1
    for i in range(w.kernel_ptr[v], w.kernel_ptr[v + 1]):
        for k in range(NUM_KERNELS):
            e.affinity[w.kernel_col[i], d, k] += w.kernel[i, k]


@compiled
def _ratio(part, whole, limit):
    if whole <= 0.0:
        return 0.0
    return min(part / whole, limit)


@compiled
def sel_features(p, w, e, v, out):
    """Fill ``out`` [SEL_FEATURES, of merged views SEL_GROUP_FEATURES] with what SEL sees of v."""
    num_ops, num_devices = p.op_seconds.shape
    last, last_device = e.status[LAST_OP], e.status[LAST_DEVICE]
    start, available = np.inf, np.inf
    for d in range(num_devices):
        if p.op_seconds[v, d] < np.inf:
            start = min(start, max(e.devices[d].available, e.on_device[v, d].data_ready))
        available = min(available, e.devices[d].available)
    siblings, consumer_of_last = 0.0, 0.0
    for r in range(p.region_ptr[v], p.region_ptr[v + 1]):
        for i in range(p.consumer_ptr[r], p.consumer_ptr[r + 1]):
            siblings += w.transfer[r] * e.ops[p.consumers[i]].placed_in
    if last >= 0:
        for i in range(p.read_ptr[v], p.read_ptr[v + 1]):
            if p.region_src[p.reads[i]] == last:
                consumer_of_last = 1.0
    out[0] = min((e.status[STEP] - e.ops[v].born) / (4.0 * num_devices), 2.0)
    out[1] = consumer_of_last
    out[2] = e.affinity[v, last_device, 0] if last >= 0 else 0.0
    out[3] = min((start - available) / w.scale_s, 2.0)
    out[4] = _ratio(siblings, w.siblings[v], 2.0)
    out[5] = min(start / w.scale_s, 4.0)
    out[6] = e.status[STEP] / num_ops
    out[7] = np.log1p(float(e.status[NUM_CANDIDATES])) * 0.25
    if len(out) > NUM_SEL_FEATURES:
        is_placed = e.home[w.group[v]] >= 0 and w.group_rest[v] > 0.0
        out[8] = 0.0 if is_placed else min(w.group_rest[v] / w.scale_s, 2.0)
        out[9] = 1.0 if is_placed else 0.0


@compiled
def device_features(p, w, e, v, out, mask):
    """Fill ``out`` [D, DEVICE_FEATURES] with what PLC sees of each device for op v.

    Of merged views [D, DEVICE_FEATURES + DEVICE_GROUP_FEATURES].

    mask [D] becomes 1 where v may go: devices that can run it, and of the empty devices that
    nothing tells apart only the first; where its group is already, only there.
    """
    num_ops, num_devices = p.op_seconds.shape
    best_start, best_finish, available, load, fastest = np.inf, np.inf, np.inf, np.inf, np.inf
    for d in range(num_devices):
        seconds = p.op_seconds[v, d]
        start = max(e.devices[d].available, e.on_device[v, d].data_ready)
        if seconds < np.inf:
            best_start = min(best_start, start)
        best_finish = min(best_finish, start + seconds)
        fastest = min(fastest, seconds)
        available = min(available, e.devices[d].available)
        load = min(load, e.devices[d].load)
    level, home = w.depth[v], e.home[w.group[v]]
    for d in range(num_devices):
        on, device, seconds = e.on_device[v, d], e.devices[d], p.op_seconds[v, d]
        mask[d] = 1 if w.able[v, d] else 0
        if device.num_ops == 0:
            for other in range(d):
                if w.device_class[other] == w.device_class[d] and e.devices[other].num_ops == 0:
                    mask[d] = 0
        if home >= 0:
            mask[d] = 1 if d == home else 0
        start = max(device.available, on.data_ready)
        siblings = 0.0
        for r in range(p.region_ptr[v], p.region_ptr[v + 1]):
            for i in range(p.consumer_ptr[r], p.consumer_ptr[r + 1]):
                siblings += w.transfer[r] * e.on_device[p.consumers[i], d].incoming
        out[d, 0] = _ratio(on.incoming, w.incoming[v], 1.0)
        out[d, 1] = _ratio(siblings, w.siblings[v], 1.0)
        for k in range(NUM_KERNELS):
            out[d, 2 + k] = e.affinity[v, d, k]
        out[d, 5] = _ratio(e.level_load[level, d], w.level_work[level], 1.0)
        out[d, 6] = min((start - best_start) / w.scale_s, 2.0)
        out[d, 7] = min((device.available - available) / w.scale_s, 2.0)
        out[d, 8] = min((device.load - load) / w.scale_s, 2.0)
        out[d, 9] = min((w.incoming[v] - on.incoming) / w.transfer_scale_s, 4.0)
        out[d, 10] = 1.0 if e.ops[v].largest_device == d else 0.0
        out[d, 11] = 1.0 if device.num_ops == 0 else 0.0
        out[d, 12] = 1.0 if e.status[LAST_DEVICE] == d else 0.0
        out[d, 13] = 1.0 if start <= best_start else 0.0
        out[d, 14] = e.status[STEP] / num_ops
        out[d, 15] = min(device.load / w.scale_s, 4.0)
        out[d, 16] = min(on.compute / w.scale_s, 2.0)
        out[d, 17] = min(on.first_start / w.scale_s, 4.0)
        out[d, 18] = min(max(on.last_end, 0.0) / w.scale_s, 4.0)
        out[d, 19] = min(start / w.scale_s, 4.0)
        out[d, 20] = min(_ratio(seconds - fastest, fastest, 2.0), 2.0) if seconds < np.inf else 2.0
        out[d, 21] = min((start + seconds - best_finish) / w.scale_s, 2.0)
    for k in range(NUM_KERNELS):
        placed = 0.0
        for d in range(num_devices):
            placed += e.affinity[v, d, k]
        for d in range(num_devices):
            out[d, 22 + k] = _ratio(e.affinity[v, d, k], placed, 1.0)
    queue_features(p, w, e.queues, e.ops, v, out[:, 22 + NUM_KERNELS : NUM_DEVICE_FEATURES])
    if out.shape[1] > NUM_DEVICE_FEATURES:
        _group_features(w, e, v, out[:, NUM_DEVICE_FEATURES:])


@compiled
def _group_features(w, e, v, out):
    """Fill ``out`` [D, DEVICE_GROUP_FEATURES]: 0 for ops that decide for themselves alone."""
    out[:, :] = 0.0
    group = w.group[v]
    if e.home[group] >= 0 or w.group_rest[v] == 0.0:
        return
    first, last = w.member_ptr[group], w.member_ptr[group + 1]
    incoming = 0.0
    for i in range(first, last):
        incoming += w.incoming[w.members[i]]
    for d in range(len(out)):
        out[d, 0] = min(w.group_rest[v] / w.scale_s, 2.0)
        from_here = 0.0
        for i in range(first, last):
            u = w.members[i]
            from_here += e.on_device[u, d].incoming
            for k in range(NUM_KERNELS):
                out[d, 2 + k] += e.affinity[u, d, k]
        out[d, 1] = _ratio(from_here, incoming, 1.0)
        for k in range(NUM_KERNELS):
            out[d, 2 + k] = min(out[d, 2 + k], 4.0)
