"""Compiled: the features that both heads see of an episode.

Dimensions: D devices, F features. Indices: v op, r region, d device, i position in a list, k
diffusion kernel.

Source: as features.py.
"""

import numpy as np

from doppler.baselines.free_memory_kernels import overflow_bytes
from doppler.env.episode import LAST_DEVICE, LAST_OP, NUM_CANDIDATES, NUM_KERNELS, STEP
from doppler.env.episode_kernels import earliest_start, queued_start
from doppler.env.features import (
    DEVICE,
    DEVICE_GROUP,
    FIRST_PUBLISHED,
    NUM_DEVICE_FEATURES,
    NUM_SEL_FEATURES,
    SEL,
    SEL_GROUP,
)
from doppler.support.compiled import compiled

# Largest delay of a finish, in units of the scale, which devices get that cannot run the op.
_MAX_LATENESS = 1e3


@compiled
def _ratio(part, whole, limit):
    if whole <= 0.0:
        return 0.0
    return min(part / whole, limit)


@compiled
def sel_features(problem, view, episode, v, out):
    """Fill in what SEL sees of candidate v.

    Args:
        problem: ProblemArrays.
        view: ViewArrays.
        episode: its state, episode.Episode.
        v: op.
        out: [SEL_FEATURES], of merged views [SEL_FEATURES + SEL_GROUP_FEATURES].
    """
    num_ops, num_devices = problem.op_seconds.shape
    last, last_device = episode.status[LAST_OP], episode.status[LAST_DEVICE]
    start, available = np.inf, np.inf
    for d in range(num_devices):
        if problem.op_seconds[v, d] < np.inf:
            start = min(start, earliest_start(episode, v, d))
        available = min(available, episode.devices[d].available)
    siblings, consumer_of_last = 0.0, 0.0
    for r in range(problem.region_ptr[v], problem.region_ptr[v + 1]):
        for i in range(problem.consumer_ptr[r], problem.consumer_ptr[r + 1]):
            siblings += view.transfer[r] * episode.ops[problem.consumers[i]].placed_in
    if last >= 0:
        for i in range(problem.read_ptr[v], problem.read_ptr[v + 1]):
            if problem.region_src[problem.reads[i]] == last:
                consumer_of_last = 1.0
    out[SEL.age] = min((episode.status[STEP] - episode.ops[v].born) / (4.0 * num_devices), 2.0)
    out[SEL.consumer_of_last] = consumer_of_last
    out[SEL.diffusion_to_last_device] = episode.affinity[v, last_device, 0] if last >= 0 else 0.0
    out[SEL.start_slack] = min((start - available) / view.scale_s, 2.0)
    out[SEL.siblings_placed] = _ratio(siblings, view.siblings[v], 2.0)
    out[SEL.start] = min(start / view.scale_s, 4.0)
    out[SEL.progress] = episode.status[STEP] / num_ops
    out[SEL.candidates] = np.log1p(float(episode.status[NUM_CANDIDATES])) * 0.25
    if len(out) > NUM_SEL_FEATURES:
        is_placed = episode.home[view.group[v]] >= 0 and view.group_rest[v] > 0.0
        rest = min(view.group_rest[v] / view.scale_s, 2.0)
        out[SEL_GROUP.group_rest] = 0.0 if is_placed else rest
        out[SEL_GROUP.group_placed] = 1.0 if is_placed else 0.0


@compiled
def device_features(problem, view, episode, v, out, mask):
    """Fill in what PLC sees of each device for op v, and which devices are open.

    Args:
        problem: ProblemArrays.
        view: ViewArrays.
        episode: its state, episode.Episode.
        v: op.
        out: [D, DEVICE_FEATURES], for merged views [D, DEVICE_FEATURES + DEVICE_GROUP_FEATURES].
        mask: [D] set to 1 where v may go: on devices that can run it, of equal empty devices only
            the first. If its group is already on a device, only there.
    """
    open_devices(problem, view, episode, v, mask)
    _compared_features(problem, view, episode, v, out)
    for d in range(len(episode.devices)):
        _own_features(problem, view, episode, v, d, out[d])
    for k in range(NUM_KERNELS):
        placed = 0.0
        for d in range(len(episode.devices)):
            placed += episode.affinity[v, d, k]
        for d in range(len(episode.devices)):
            out[d, DEVICE.diffusion_near_share + k] = _ratio(episode.affinity[v, d, k], placed, 1.0)
    _queued_features(problem, view, episode, v, out)
    if out.shape[1] > NUM_DEVICE_FEATURES:
        _group_features(view, episode, v, out)


@compiled
def possible_devices(problem, view, episode, v, mask):
    """Mark in ``mask`` [D] where v may go: on devices that can run it, or only where its group is.

    If the view limits the memory that episodes fill, only devices with room count, or else those
    that lack least. An op leaves a group that exists only in the view if the group's device has no
    room.
    """
    home = episode.home[view.group[v]]
    for d in range(len(episode.devices)):
        mask[d] = 1 if (view.able[v, d] if home < 0 else d == home) else 0
    if not episode.memory.limited:
        return
    if home >= 0:
        if len(problem.members) > 0 or overflow_bytes(problem, episode.memory, v, home, 0.0) == 0.0:
            return
        for d in range(len(episode.devices)):
            mask[d] = 1 if view.able[v, d] else 0
    _close_full(problem, episode, v, mask)


@compiled
def _close_full(problem, episode, v, mask):
    """Leave only those devices open that lack least memory."""
    overflow_D, least = episode.memory.overflow, np.inf
    for d in range(len(mask)):
        if mask[d] != 0:
            overflow_D[d] = overflow_bytes(problem, episode.memory, v, d, 0.0)
            least = min(least, overflow_D[d])
    for d in range(len(mask)):
        if mask[d] != 0 and overflow_D[d] > least:
            mask[d] = 0


@compiled
def open_devices(problem, view, episode, v, mask):
    """Fill in the mask of `device_features`.

    Args:
        problem: ProblemArrays.
        view: ViewArrays.
        episode: its state, episode.Episode.
        v: op.
        mask: [D], filled in.
    """
    possible_devices(problem, view, episode, v, mask)
    home = episode.home[view.group[v]]
    if home >= 0 and mask[home] != 0:
        return
    for d in range(len(episode.devices)):
        if episode.devices[d].num_ops == 0:
            for other in range(d):
                if (
                    view.device_class[other] == view.device_class[d]
                    and episode.devices[other].num_ops == 0
                ):
                    mask[d] = 0


@compiled
def _compared_features(problem, view, episode, v, out):
    """Features that compare each device with the best one."""
    best_start, best_finish, available, load, fastest = np.inf, np.inf, np.inf, np.inf, np.inf
    for d in range(len(episode.devices)):
        seconds, start = problem.op_seconds[v, d], earliest_start(episode, v, d)
        if seconds < np.inf:
            best_start = min(best_start, start)
        best_finish = min(best_finish, start + seconds)
        fastest = min(fastest, seconds)
        available = min(available, episode.devices[d].available)
        load = min(load, episode.devices[d].load)
    for d in range(len(episode.devices)):
        device = episode.devices[d]
        seconds = problem.op_seconds[v, d]
        start = earliest_start(episode, v, d)
        slower = _ratio(seconds - fastest, fastest, 2.0) if seconds < np.inf else 2.0
        out[d, DEVICE.start_over_min] = min((start - best_start) / view.scale_s, 2.0)
        out[d, DEVICE.available_over_min] = min((device.available - available) / view.scale_s, 2.0)
        out[d, DEVICE.load_over_min] = min((device.load - load) / view.scale_s, 2.0)
        out[d, DEVICE.attains_min_start] = 1.0 if start <= best_start else 0.0
        out[d, DEVICE.slower_than_best] = min(slower, 2.0)
        out[d, DEVICE.finish_over_min] = min((start + seconds - best_finish) / view.scale_s, 2.0)


@compiled
def _own_features(problem, view, episode, v, d, out):
    """Features of one device by itself."""
    op_on_device, device, level = episode.on_device[v, d], episode.devices[d], view.depth[v]
    siblings = 0.0
    for r in range(problem.region_ptr[v], problem.region_ptr[v + 1]):
        for i in range(problem.consumer_ptr[r], problem.consumer_ptr[r + 1]):
            siblings += view.transfer[r] * episode.on_device[problem.consumers[i], d].incoming
    out[DEVICE.producers] = _ratio(op_on_device.incoming, view.incoming[v], 1.0)
    out[DEVICE.siblings] = _ratio(siblings, view.siblings[v], 1.0)
    for k in range(NUM_KERNELS):
        out[DEVICE.diffusion_near + k] = episode.affinity[v, d, k]
    out[DEVICE.concurrent_work] = _ratio(episode.level_load[level, d], view.level_work[level], 1.0)
    out[DEVICE.to_move] = min(
        (view.incoming[v] - op_on_device.incoming) / view.transfer_scale_s, 4.0
    )
    out[DEVICE.largest_producer] = 1.0 if episode.ops[v].largest_device == d else 0.0
    out[DEVICE.empty] = 1.0 if device.num_ops == 0 else 0.0
    out[DEVICE.last_device] = 1.0 if episode.status[LAST_DEVICE] == d else 0.0
    out[DEVICE.progress] = episode.status[STEP] / len(episode.ops)
    published_features(view, episode, v, d, out[FIRST_PUBLISHED:])


@compiled
def published_features(view, episode, v, d, out):
    """Fill in what the paper's PLC sees of a device for op v.

    Args:
        view: ViewArrays.
        episode: its state, episode.Episode.
        v: op.
        d: device.
        out: [5] columns load to start.
    """
    op_on_device = episode.on_device[v, d]
    out[DEVICE.load - FIRST_PUBLISHED] = min(episode.devices[d].load / view.scale_s, 4.0)
    out[DEVICE.producer_compute - FIRST_PUBLISHED] = min(op_on_device.compute / view.scale_s, 2.0)
    out[DEVICE.producers_start - FIRST_PUBLISHED] = min(
        op_on_device.first_start / view.scale_s, 4.0
    )
    out[DEVICE.producers_end - FIRST_PUBLISHED] = min(
        max(op_on_device.last_end, 0.0) / view.scale_s, 4.0
    )
    out[DEVICE.start - FIRST_PUBLISHED] = min(earliest_start(episode, v, d) / view.scale_s, 4.0)


@compiled
def _queued_features(problem, view, episode, v, out):
    """The same comparison with queues of transfers.

    These are logarithms: if much is moved, waits are many times the scale and must still be
    distinguishable.
    """
    queues = episode.queues
    best_start, best_finish, first_free = np.inf, np.inf, np.inf
    for d in range(len(queues.start)):
        start = queued_start(problem, episode, v, d)
        queues.start[d] = start
        first_free = min(first_free, queues.device_free[d])
        if problem.op_seconds[v, d] < np.inf:
            best_start = min(best_start, start)
            best_finish = min(best_finish, start + problem.op_seconds[v, d])
    for d in range(len(queues.start)):
        start, free = queues.start[d], queues.device_free[d]
        late = min((start + problem.op_seconds[v, d] - best_finish) / view.scale_s, _MAX_LATENESS)
        # A device that cannot run v may have the earliest start.
        over = max(start - best_start, 0.0)
        out[d, DEVICE.queued_start_over_min] = np.log1p(over / view.scale_s)
        out[d, DEVICE.queued_finish_over_min] = np.log1p(late)
        out[d, DEVICE.attains_min_queued_finish] = 1.0 if late <= 0.0 else 0.0
        out[d, DEVICE.queued_wait] = np.log1p((start - free) / view.scale_s)
        out[d, DEVICE.queued_available_over_min] = np.log1p((free - first_free) / view.scale_s)


@compiled
def _group_features(view, episode, v, out):
    """Features of v's group; 0 for ops without a group."""
    out[:, NUM_DEVICE_FEATURES:] = 0.0
    group = view.group[v]
    if episode.home[group] >= 0 or view.group_rest[v] == 0.0:
        return
    first, last = view.member_ptr[group], view.member_ptr[group + 1]
    incoming = 0.0
    for i in range(first, last):
        incoming += view.incoming[view.members[i]]
    for d in range(len(out)):
        from_here = 0.0
        for i in range(first, last):
            from_here += episode.on_device[view.members[i], d].incoming
        out[d, DEVICE_GROUP.group_rest] = min(view.group_rest[v] / view.scale_s, 2.0)
        out[d, DEVICE_GROUP.group_producers] = _ratio(from_here, incoming, 1.0)
        for k in range(NUM_KERNELS):
            affinity = np.float32(0.0)
            for i in range(first, last):
                affinity += episode.affinity[view.members[i], d, k]
            out[d, DEVICE_GROUP.group_diffusion_near + k] = min(affinity, np.float32(4.0))
