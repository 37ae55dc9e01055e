"""What both heads see of an episode, compiled: features under their names.

The fields of the tuples are the features in the order of their columns; an instance holds the
column of each, which compiled code takes as constants. Shape suffixes: D devices, F features.

Source: DOPPLER (Yao et al., ICLR 2026): five of the device features; the others are ours.
"""

from typing import NamedTuple

import numpy as np

from doppler.baselines.room import overflow_bytes
from doppler.env.process import (
    LAST_DEVICE,
    LAST_OP,
    NUM_CANDIDATES,
    NUM_KERNELS,
    STEP,
    earliest_start,
    queued_start,
)
from doppler.support.compiled import compiled


class SelFeatures(NamedTuple):
    """Columns of what SEL sees of a candidate."""

    age: int
    consumer_of_last: int
    diffusion_to_last_device: int
    start_slack: int
    siblings_placed: int
    start: int
    progress: int
    candidates: int


class SelGroupFeatures(NamedTuple):
    """Further columns, of merged views only: of the group that goes where the candidate goes."""

    group_rest: int
    group_placed: int


class DeviceFeatures(NamedTuple):
    """Columns of what PLC sees of a device for an op."""

    producers: int
    siblings: int
    diffusion_near: int  # here and below: a column for each of view.DIFFUSIONS, in their order
    diffusion_far: int
    diffusion_unweighted: int
    concurrent_work: int
    start_over_min: int
    available_over_min: int
    load_over_min: int
    to_move: int
    largest_producer: int
    empty: int
    last_device: int
    attains_min_start: int
    progress: int
    load: int
    producer_compute: int
    producers_start: int
    producers_end: int
    start: int
    slower_than_best: int
    finish_over_min: int
    diffusion_near_share: int
    diffusion_far_share: int
    diffusion_unweighted_share: int
    queued_start_over_min: int  # queued: where transfers of a link wait for each other, see links
    queued_finish_over_min: int
    attains_min_queued_finish: int
    queued_wait: int
    queued_available_over_min: int


class DeviceGroupFeatures(NamedTuple):
    """Further columns, of merged views only: of the group that goes where the op goes."""

    group_rest: int
    group_producers: int
    group_diffusion_near: int
    group_diffusion_far: int
    group_diffusion_unweighted: int


SEL_FEATURES, SEL_GROUP_FEATURES = SelFeatures._fields, SelGroupFeatures._fields
DEVICE_FEATURES, DEVICE_GROUP_FEATURES = DeviceFeatures._fields, DeviceGroupFeatures._fields
NUM_SEL_FEATURES, NUM_SEL_GROUP_FEATURES = len(SEL_FEATURES), len(SEL_GROUP_FEATURES)
NUM_DEVICE_FEATURES, NUM_DEVICE_GROUP_FEATURES = len(DEVICE_FEATURES), len(DEVICE_GROUP_FEATURES)
# Those of groups come after the others.
SEL = SelFeatures(*range(NUM_SEL_FEATURES))
SEL_GROUP = SelGroupFeatures(*(NUM_SEL_FEATURES + i for i in range(NUM_SEL_GROUP_FEATURES)))
DEVICE = DeviceFeatures(*range(NUM_DEVICE_FEATURES))
DEVICE_GROUP = DeviceGroupFeatures(
    *(NUM_DEVICE_FEATURES + i for i in range(NUM_DEVICE_GROUP_FEATURES))
)
# The paper's device features are DEVICE.load and the four that come after it.
FIRST_PUBLISHED = DEVICE.load
# The most that a finish is late, in units of the scale: on devices that cannot run the op.
_LATEST = 1e3


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
            start = min(start, earliest_start(e, v, d))
        available = min(available, e.devices[d].available)
    siblings, consumer_of_last = 0.0, 0.0
    for r in range(p.region_ptr[v], p.region_ptr[v + 1]):
        for i in range(p.consumer_ptr[r], p.consumer_ptr[r + 1]):
            siblings += w.transfer[r] * e.ops[p.consumers[i]].placed_in
    if last >= 0:
        for i in range(p.read_ptr[v], p.read_ptr[v + 1]):
            if p.region_src[p.reads[i]] == last:
                consumer_of_last = 1.0
    out[SEL.age] = min((e.status[STEP] - e.ops[v].born) / (4.0 * num_devices), 2.0)
    out[SEL.consumer_of_last] = consumer_of_last
    out[SEL.diffusion_to_last_device] = e.affinity[v, last_device, 0] if last >= 0 else 0.0
    out[SEL.start_slack] = min((start - available) / w.scale_s, 2.0)
    out[SEL.siblings_placed] = _ratio(siblings, w.siblings[v], 2.0)
    out[SEL.start] = min(start / w.scale_s, 4.0)
    out[SEL.progress] = e.status[STEP] / num_ops
    out[SEL.candidates] = np.log1p(float(e.status[NUM_CANDIDATES])) * 0.25
    if len(out) > NUM_SEL_FEATURES:
        is_placed = e.home[w.group[v]] >= 0 and w.group_rest[v] > 0.0
        rest = min(w.group_rest[v] / w.scale_s, 2.0)
        out[SEL_GROUP.group_rest] = 0.0 if is_placed else rest
        out[SEL_GROUP.group_placed] = 1.0 if is_placed else 0.0


@compiled
def device_features(p, w, e, v, out, mask):
    """Fill ``out`` [D, DEVICE_FEATURES] with what PLC sees of each device for op v.

    Of merged views [D, DEVICE_FEATURES + DEVICE_GROUP_FEATURES].

    mask [D] becomes 1 where v may go: devices that can run it, and of the empty devices that
    nothing tells apart only the first; where its group is already, only there.
    """
    open_devices(p, w, e, v, mask)
    _compared_features(p, w, e, v, out)
    for d in range(len(e.devices)):
        _own_features(p, w, e, v, d, out[d])
    for k in range(NUM_KERNELS):
        placed = 0.0
        for d in range(len(e.devices)):
            placed += e.affinity[v, d, k]
        for d in range(len(e.devices)):
            out[d, DEVICE.diffusion_near_share + k] = _ratio(e.affinity[v, d, k], placed, 1.0)
    _queued_features(p, w, e, v, out)
    if out.shape[1] > NUM_DEVICE_FEATURES:
        _group_features(w, e, v, out)


@compiled
def possible_devices(p, w, e, v, mask):
    """Mark in ``mask`` [D] where v may go: what can run it; only where its group is already.

    Where the view limits what episodes fill: only what has room for it, or lacks least. An op
    leaves a group that only the view has where there is none.
    """
    home = e.home[w.group[v]]
    for d in range(len(e.devices)):
        mask[d] = 1 if (w.able[v, d] if home < 0 else d == home) else 0
    if not e.room.limited:
        return
    if home >= 0:
        if len(p.members) > 0 or overflow_bytes(p, e.room, v, home, 0.0) == 0.0:
            return
        for d in range(len(e.devices)):
            mask[d] = 1 if w.able[v, d] else 0
    _close_full(p, e, v, mask)


@compiled
def _close_full(p, e, v, mask):
    """Leave those open that lack least memory."""
    lacking, least = e.room.lacking, np.inf
    for d in range(len(mask)):
        if mask[d] != 0:
            lacking[d] = overflow_bytes(p, e.room, v, d, 0.0)
            least = min(least, lacking[d])
    for d in range(len(mask)):
        if mask[d] != 0 and lacking[d] > least:
            mask[d] = 0


@compiled
def open_devices(p, w, e, v, mask):
    """Fill the mask of `device_features`."""
    possible_devices(p, w, e, v, mask)
    home = e.home[w.group[v]]
    if home >= 0 and mask[home] != 0:
        return
    for d in range(len(e.devices)):
        if e.devices[d].num_ops == 0:
            for other in range(d):
                if w.device_class[other] == w.device_class[d] and e.devices[other].num_ops == 0:
                    mask[d] = 0


@compiled
def _compared_features(p, w, e, v, out):
    """What compares the devices with the best of them."""
    best_start, best_finish, available, load, fastest = np.inf, np.inf, np.inf, np.inf, np.inf
    for d in range(len(e.devices)):
        seconds, start = p.op_seconds[v, d], earliest_start(e, v, d)
        if seconds < np.inf:
            best_start = min(best_start, start)
        best_finish = min(best_finish, start + seconds)
        fastest = min(fastest, seconds)
        available = min(available, e.devices[d].available)
        load = min(load, e.devices[d].load)
    for d in range(len(e.devices)):
        device, seconds, start = e.devices[d], p.op_seconds[v, d], earliest_start(e, v, d)
        slower = _ratio(seconds - fastest, fastest, 2.0) if seconds < np.inf else 2.0
        out[d, DEVICE.start_over_min] = min((start - best_start) / w.scale_s, 2.0)
        out[d, DEVICE.available_over_min] = min((device.available - available) / w.scale_s, 2.0)
        out[d, DEVICE.load_over_min] = min((device.load - load) / w.scale_s, 2.0)
        out[d, DEVICE.attains_min_start] = 1.0 if start <= best_start else 0.0
        out[d, DEVICE.slower_than_best] = min(slower, 2.0)
        out[d, DEVICE.finish_over_min] = min((start + seconds - best_finish) / w.scale_s, 2.0)


@compiled
def _own_features(p, w, e, v, d, out):
    """What is said of one device by itself."""
    on, device, level = e.on_device[v, d], e.devices[d], w.depth[v]
    siblings = 0.0
    for r in range(p.region_ptr[v], p.region_ptr[v + 1]):
        for i in range(p.consumer_ptr[r], p.consumer_ptr[r + 1]):
            siblings += w.transfer[r] * e.on_device[p.consumers[i], d].incoming
    out[DEVICE.producers] = _ratio(on.incoming, w.incoming[v], 1.0)
    out[DEVICE.siblings] = _ratio(siblings, w.siblings[v], 1.0)
    for k in range(NUM_KERNELS):
        out[DEVICE.diffusion_near + k] = e.affinity[v, d, k]
    out[DEVICE.concurrent_work] = _ratio(e.level_load[level, d], w.level_work[level], 1.0)
    out[DEVICE.to_move] = min((w.incoming[v] - on.incoming) / w.transfer_scale_s, 4.0)
    out[DEVICE.largest_producer] = 1.0 if e.ops[v].largest_device == d else 0.0
    out[DEVICE.empty] = 1.0 if device.num_ops == 0 else 0.0
    out[DEVICE.last_device] = 1.0 if e.status[LAST_DEVICE] == d else 0.0
    out[DEVICE.progress] = e.status[STEP] / len(e.ops)
    published_features(w, e, v, d, out[FIRST_PUBLISHED:])


@compiled
def published_features(w, e, v, d, out):
    """Fill ``out`` [5] with what the paper's PLC sees of a device for op v: load to start."""
    on = e.on_device[v, d]
    out[DEVICE.load - FIRST_PUBLISHED] = min(e.devices[d].load / w.scale_s, 4.0)
    out[DEVICE.producer_compute - FIRST_PUBLISHED] = min(on.compute / w.scale_s, 2.0)
    out[DEVICE.producers_start - FIRST_PUBLISHED] = min(on.first_start / w.scale_s, 4.0)
    out[DEVICE.producers_end - FIRST_PUBLISHED] = min(max(on.last_end, 0.0) / w.scale_s, 4.0)
    out[DEVICE.start - FIRST_PUBLISHED] = min(earliest_start(e, v, d) / w.scale_s, 4.0)


@compiled
def _queued_features(p, w, e, v, out):
    """The same comparison where transfers of a link wait for each other.

    Logarithms: where much is moved, waits are many times the scale and are still to be told apart.
    """
    q = e.queues
    best_start, best_finish, first_free = np.inf, np.inf, np.inf
    for d in range(len(q.start)):
        start = queued_start(p, e, v, d)
        q.start[d] = start
        first_free = min(first_free, q.device_free[d])
        if p.op_seconds[v, d] < np.inf:
            best_start = min(best_start, start)
            best_finish = min(best_finish, start + p.op_seconds[v, d])
    for d in range(len(q.start)):
        start, free = q.start[d], q.device_free[d]
        late = min((start + p.op_seconds[v, d] - best_finish) / w.scale_s, _LATEST)
        # A device that cannot run v might have started it before all that can.
        over = max(start - best_start, 0.0)
        out[d, DEVICE.queued_start_over_min] = np.log1p(over / w.scale_s)
        out[d, DEVICE.queued_finish_over_min] = np.log1p(late)
        out[d, DEVICE.attains_min_queued_finish] = 1.0 if late <= 0.0 else 0.0
        out[d, DEVICE.queued_wait] = np.log1p((start - free) / w.scale_s)
        out[d, DEVICE.queued_available_over_min] = np.log1p((free - first_free) / w.scale_s)


@compiled
def _group_features(w, e, v, out):
    """What is said of v's group: 0 for ops that decide for themselves alone."""
    out[:, NUM_DEVICE_FEATURES:] = 0.0
    group = w.group[v]
    if e.home[group] >= 0 or w.group_rest[v] == 0.0:
        return
    first, last = w.member_ptr[group], w.member_ptr[group + 1]
    incoming = 0.0
    for i in range(first, last):
        incoming += w.incoming[w.members[i]]
    for d in range(len(out)):
        from_here = 0.0
        for i in range(first, last):
            from_here += e.on_device[w.members[i], d].incoming
        out[d, DEVICE_GROUP.group_rest] = min(w.group_rest[v] / w.scale_s, 2.0)
        out[d, DEVICE_GROUP.group_producers] = _ratio(from_here, incoming, 1.0)
        for k in range(NUM_KERNELS):
            affinity = np.float32(0.0)
            for i in range(first, last):
                affinity += e.affinity[w.members[i], d, k]
            out[d, DEVICE_GROUP.group_diffusion_near + k] = min(affinity, np.float32(4.0))
