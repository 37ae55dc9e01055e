"""One step of annealing, compiled: change something, then keep the change or take it back.

The compiled search and the loop around a session of any other kind call the same functions.
Shape suffixes: V ops, N (op, neighbour) pairs, D devices.
"""

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from doppler.baselines.critical_chain import Chain, trace_back
from doppler.baselines.first_change import first_change_s
from doppler.baselines.longest_paths import LongestPaths, find_paths, stays_within
from doppler.problem import Placement, Problem
from doppler.simulator.resuming import accept, resume
from doppler.support.compiled import compiled
from doppler.support.compiled.draws import uniform

# Shares of the moves, by measurement: those that change the order, where it is searched; and, of
# the others, those that move a group of ops.
ORDER_SHARE = 0.25
GROUP_SHARE = 0.9
# Of the ops that moves of both kinds begin at, those drawn from the critical chain: a move that
# changes nothing of it leads to nothing better.
CRITICAL_SHARE = 0.5
# Moves that are drawn, at most, for one to be executed: the first that no path through what it
# moves speaks against. Twice or four times as many find no more in the same seconds.
MOST_DRAWN = 8
# Moves of one step, at most, where moves are judged; and by how much their mean number rises after
# a step that is kept, and falls after another: so about four steps of ten are kept.
MOST_TOGETHER, KEPT, NOT_KEPT = 8, 0.2, 0.15
# What does not fit is worse than any makespan, and the worse the more memory it lacks.
LACKING_S = 1e30
# Of what is compared: sums of the same seconds differ by their order.
ROUNDING = 1e-9

STATUS = np.dtype(
    [
        ("cost", np.float64),  # of the walk's present place
        ("best_s", np.float64),  # least makespan of all places that fit in memory
        ("num_draws", np.int64),
        ("num_moved", np.int64),
        ("num_before", np.int64),  # of these, by moves of the step before its last one
        ("together", np.float64),  # how many moves a step makes, in the mean
        ("rank_low", np.int64),  # the last step changed the order from here to rank_high
        ("rank_high", np.int64),  # equal: it did not
    ]
)


class Neighbours(NamedTuple):
    """Producers and consumers of op v: ``op[ptr[v]:ptr[v + 1]]``.

    share: [N] of the seconds that all transfers between v and its neighbours take, cumulated over
    the neighbours of v: the last one's is 1.
    """

    ptr: NDArray[np.int64]  # [V + 1]
    op: NDArray[np.int64]  # [N]
    share: NDArray[np.float64]


class WalkPlan(NamedTuple):
    """What a walk is to do; temperatures are shares of the present makespan."""

    seed: int
    num_steps: int
    order: bool
    hot: float
    cold: float
    near: Neighbours
    order_share: float = ORDER_SHARE  # of the moves, where the order is searched
    most_drawn: int = MOST_DRAWN  # 1: whatever is drawn is executed


class Walk(NamedTuple):
    """Where a walk is, where it was best, and what its last step changed."""

    device: NDArray[np.int64]  # [V]
    priority: NDArray[np.int64]  # [V]
    ranked: NDArray[np.int64]  # [V] op by priority
    best_device: NDArray[np.int64]  # [V]
    best_priority: NDArray[np.int64]  # [V]
    moved: NDArray[np.int64]  # [2 * V] ops of the last step's groups, one after the other
    came_from: NDArray[np.int64]  # [2 * V] their devices before
    group: NDArray[np.int64]  # [V] the draws before the group that an op was last in
    # Of a step that changes the order, between rank_low and rank_high alone:
    was_ranked: NDArray[np.int64]  # [V] op by priority before
    goes_along: NDArray[np.bool_]  # [V] whether an op goes with the one that changes its rank
    peak_bytes: NDArray[np.float64]  # [D] of the last execution
    status: NDArray[np.void]  # STATUS [1]
    chain: Chain  # of the present place
    paths: LongestPaths  # of the present place

    @classmethod
    def begin(cls, problem: Problem, start: Placement) -> Self:
        """A walk that has not executed its start yet."""
        num_ops = problem.num_ops
        status = np.zeros(1, STATUS)
        status["cost"] = status["best_s"] = np.inf
        status["together"] = 1.0
        return cls(
            device=start.device.copy(),
            priority=start.priority.copy(),
            ranked=np.argsort(start.priority),
            best_device=start.device.copy(),
            best_priority=start.priority.copy(),
            moved=np.zeros(2 * num_ops, np.int64),
            came_from=np.zeros(2 * num_ops, np.int64),
            group=np.zeros(num_ops, np.int64),
            was_ranked=np.zeros(num_ops, np.int64),
            goes_along=np.zeros(num_ops, np.bool_),
            peak_bytes=np.zeros(problem.num_devices),
            status=status,
            chain=Chain.unknown(problem),
            paths=LongestPaths.unknown(problem),
        )


def make_neighbours(problem: Problem) -> Neighbours:
    """Both directions of every edge; parallel edges are one."""
    edges, num_ops = problem.graph.edges, problem.num_ops
    transfer_E = problem.mean_transfer_seconds[problem.graph.regions.of_edge]
    ends_E = edges.src * num_ops + edges.dst, edges.dst * num_ops + edges.src
    ends_N, pair_of = np.unique(np.concatenate(ends_E), return_inverse=True)
    seconds_N = np.bincount(pair_of, np.concatenate([transfer_E, transfer_E]), len(ends_N))
    op_N, neighbour_N = ends_N // num_ops, ends_N % num_ops
    total_V = np.bincount(op_N, seconds_N, num_ops)
    seconds_N[total_V[op_N] == 0.0] = 1.0  # where all are free, all are alike
    ptr = np.searchsorted(op_N, np.arange(num_ops + 1))
    _cumulate_shares(ptr, seconds_N)
    return Neighbours(ptr=ptr, op=neighbour_N, share=np.asarray(seconds_N, dtype=np.float64))


@compiled
def _cumulate_shares(ptr, seconds_N):
    """Of the seconds of each row, cumulated, in place: the last one's is 1."""
    for row in range(len(ptr) - 1):
        total = 0.0
        for n in range(ptr[row], ptr[row + 1]):
            total += seconds_N[n]
            seconds_N[n] = total
        for n in range(ptr[row], ptr[row + 1]):
            seconds_N[n] /= total


@compiled
def _draw(plan, status):
    """The walk's next random number in (0, 1)."""
    status[0].num_draws += 1
    return uniform(plan.seed, status[0].num_draws)


@compiled
def _draw_int(plan, status, num):
    """One of the integers below ``num``; 0 if there is none."""
    return int(_draw(plan, status) * num)


@compiled
def _draw_among(plan, share_X, low, high, status):
    """One of the indices low to high, in proportion to what each adds to ``share_X``."""
    share = _draw(plan, status)
    while low < high:
        middle = (low + high) // 2
        if share_X[middle] < share:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _draw_op(plan, walk):
    """Any op, or one of the critical chain, in proportion to what it takes there."""
    chain = walk.chain
    if _draw(plan, walk.status) < CRITICAL_SHARE:
        return chain.op[_draw_among(plan, chain.share, 0, chain.num[0] - 1, walk.status)]
    return _draw_int(plan, walk.status, len(walk.device))


@compiled
def _draw_neighbour(plan, v, status):
    """A neighbour of v, who has one, in proportion to the seconds of transfers between both."""
    near = plan.near
    return near.op[_draw_among(plan, near.share, near.ptr[v], near.ptr[v + 1] - 1, status)]


@compiled
def change(p, plan, walk):
    """A step of the walk: changes of devices or one of the order, to be executed next."""
    status = walk.status
    status[0].num_moved = 0
    status[0].num_before = 0
    status[0].rank_low, status[0].rank_high = 0, 0
    if plan.order and _draw(plan, status) < plan.order_share:
        _reorder(p, plan, walk)
    else:
        _move_at_a_glance(p, plan, walk)


@compiled
def _move_at_a_glance(p, plan, walk):
    """The first move drawn that makes no path too long, or the last that may be drawn.

    Others that make none too long go along: many change nothing, and only several at a time lead
    anywhere, as in "dynasearch" (Congram, Potts, van de Velde, INFORMS Journal on Computing 2002).
    """
    status, limit_s = walk.status, walk.status[0].cost * (1.0 + ROUNDING)
    for num in range(1, plan.most_drawn + 1):
        stamp = _move(p, plan, walk)
        if not walk.paths.known[0]:
            return
        if num == plan.most_drawn or stays_within(p, walk, stamp, limit_s):
            break
        _take_back_last(walk)
    num_more = int(status[0].together + _draw(plan, status)) - 1
    for _ in range(num_more):
        if status[0].num_moved > len(walk.device):  # no space for as many again
            return
        status[0].num_before = status[0].num_moved
        if not stays_within(p, walk, _move(p, plan, walk), limit_s):
            _take_back_last(walk)


@compiled
def _reorder(p, plan, walk):
    """One op goes to another rank; near ones are as likely as far ones, by orders of magnitude."""
    status, num_ops = walk.status, len(walk.ranked)
    rank = walk.priority[_draw_op(plan, walk)]
    distance = int(num_ops ** _draw(plan, status))
    if _draw(plan, status) < 0.5:
        _bring_forward(p, walk, max(0, rank - distance), rank)
    else:
        _put_back(p, walk, rank, min(rank + distance, num_ops - 1))


@compiled
def _bring_forward(p, walk, low, high):
    """The op of rank ``high`` goes to ``low``, right behind all that it needs of those between.

    It could not run earlier without them.
    """
    _begin_reordering(walk, low, high)
    walk.goes_along[walk.ranked[high]] = True
    for rank in range(high, low - 1, -1):
        v = walk.ranked[rank]
        if walk.goes_along[v]:
            for i in range(p.read_ptr[v], p.read_ptr[v + 1]):
                walk.goes_along[p.region_src[p.reads[i]]] = True
    _regroup(walk, low, high, True)


@compiled
def _put_back(p, walk, low, high):
    """The op of rank ``low`` goes to ``high``, right before all that need it of those between.

    They could not run before it.
    """
    _begin_reordering(walk, low, high)
    walk.goes_along[walk.ranked[low]] = True
    for rank in range(low + 1, high + 1):
        v = walk.ranked[rank]
        for i in range(p.read_ptr[v], p.read_ptr[v + 1]):
            producer = p.region_src[p.reads[i]]
            if low <= walk.priority[producer] < rank and walk.goes_along[producer]:
                walk.goes_along[v] = True
    _regroup(walk, low, high, False)


@compiled
def _begin_reordering(walk, low, high):
    walk.status[0].rank_low, walk.status[0].rank_high = low, high
    for rank in range(low, high + 1):
        v = walk.ranked[rank]
        walk.was_ranked[rank] = v
        walk.goes_along[v] = False


@compiled
def _regroup(walk, low, high, first):
    """Of the ops of these ranks, those that go along come first, or last; else as they were."""
    end = low
    for goes_along in (first, not first):
        for rank in range(low, high + 1):
            v = walk.was_ranked[rank]
            if walk.goes_along[v] == goes_along:
                walk.ranked[end] = v
                walk.priority[v] = end
                end += 1


@compiled
def _move(p, plan, walk):
    """A group of ops goes to another device; who cannot run there stays. Returns its stamp.

    The group is what a random walk over neighbours visits until it meets one on another device:
    there they all go. So what exchanges much data moves together, and to where its data are.
    Moves of single ops go anywhere.
    """
    status, device_V = walk.status, walk.device
    num_ops, num_devices = p.op_seconds.shape
    v = _draw_op(plan, walk)
    stamp = status[0].num_draws
    here = device_V[v]
    there = (here + 1 + _draw_int(plan, status, num_devices - 1)) % num_devices
    _join(p, stamp, v, walk)
    if _draw(plan, status) < GROUP_SHARE and plan.near.ptr[v] < plan.near.ptr[v + 1]:
        for _ in range(num_ops):
            v = _draw_neighbour(plan, v, status)
            if device_V[v] != here:
                there = device_V[v]
                break
            _join(p, stamp, v, walk)
    for i in range(status[0].num_before, status[0].num_moved):
        if p.op_seconds[walk.moved[i], there] < np.inf:
            device_V[walk.moved[i]] = there
    return stamp


@compiled
def _join(p, stamp, v, walk):
    """Op v is to move, with all of its group in the problem."""
    if len(p.members) == 0:
        _join_alone(stamp, v, walk)
    elif walk.group[v] != stamp:
        for i in range(p.member_ptr[p.group[v]], p.member_ptr[p.group[v] + 1]):
            _join_alone(stamp, p.members[i], walk)


@compiled
def _join_alone(stamp, v, walk):
    if walk.group[v] != stamp:
        walk.group[v] = stamp
        num = walk.status[0].num_moved
        walk.moved[num] = v
        walk.came_from[num] = walk.device[v]
        walk.status[0].num_moved = num + 1


@compiled
def settle(p, plan, step, seconds, walk):
    """Keep the change that took ``seconds`` and walk.peak_bytes to execute, or take it back.

    True: it is kept.
    """
    status = walk.status
    lack = 0.0
    for d in range(len(walk.peak_bytes)):
        excess = walk.peak_bytes[d] - p.memory_bytes[d]
        if excess > 0.0:
            lack += excess / walk.peak_bytes[d]
    cost, current = seconds, status[0].cost
    if lack > 0.0 and seconds < np.inf:
        cost = LACKING_S * lack
    # A walk at inf goes wherever it can: it must get out of there.
    if cost > current and cost - current > _tolerated(plan, step, current, _draw(plan, status)):
        _take_back(walk)
        if status[0].num_moved > 0:
            status[0].together = max(1.0, status[0].together - NOT_KEPT)
        return False
    if status[0].num_moved > 0:
        status[0].together = min(MOST_TOGETHER, status[0].together + KEPT)
    status[0].cost = cost
    if lack == 0.0 and seconds < status[0].best_s:
        status[0].best_s = seconds
        for v in range(len(walk.device)):
            walk.best_device[v] = walk.device[v]
            walk.best_priority[v] = walk.priority[v]
    return True


@compiled
def _tolerated(plan, step, current, draw):
    """By how much the cost after step ``step`` may be above the current one."""
    temperature = plan.hot * (plan.cold / plan.hot) ** (step / plan.num_steps)
    return -temperature * current * np.log(draw)


@compiled
def _take_back_last(walk):
    """The last move of the step, while it is being made."""
    _move_back(walk, walk.status[0].num_before)
    walk.status[0].num_moved = walk.status[0].num_before


@compiled
def _move_back(walk, first):
    """All that has moved since ``first`` had: the last of them first, as an op may move twice."""
    for i in range(walk.status[0].num_moved - 1, first - 1, -1):
        walk.device[walk.moved[i]] = walk.came_from[i]


@compiled
def _take_back(walk):
    status = walk.status
    _move_back(walk, 0)
    low, high = status[0].rank_low, status[0].rank_high
    if low < high:
        for rank in range(low, high + 1):
            v = walk.was_ranked[rank]
            walk.ranked[rank] = v
            walk.priority[v] = rank


@compiled
def look_around(p, plan, seconds, tasks, walk):
    """Note what moves go by, of the schedule of the present place, which a simulator left behind.

    It took ``seconds``; where the walk counts something else, it lacks memory, and any move is one.
    """
    trace_back(p, tasks, walk.chain)
    walk.paths.known[0] = plan.most_drawn > 1 and walk.status[0].cost == seconds
    if walk.paths.known[0]:
        find_paths(p, tasks, seconds, walk.device, walk.paths)


@compiled
def search(engine, counts_memory, p, rules, plan, seeds_R, fresh, begin, end, walk, known, state):
    """Steps ``begin:end`` of a walk on a simulator: its compiled engine, rules and state.

    The cost is the mean over the draws of jitter ``seeds_R``; ``fresh``: other ones at every step.
    known: where the walk notes its present schedule, to simulate only what a step changes, and not
    what `settle` would surely take back; None, or not in use: every step is simulated whole.
    """
    peak_D, num_draws = walk.peak_bytes, len(seeds_R)
    for step in range(begin, end):
        if step > 0:
            change(p, plan, walk)
        seconds = 0.0
        for d in range(len(peak_D)):
            peak_D[d] = 0.0
        if known is not None and known.in_use:
            seconds = _resumed(p, rules, plan, step, walk, known, state)
            if len(known.notes.noted) > 0:  # else memory cannot be short
                for d in range(len(peak_D)):
                    peak_D[d] = state.devices[d].peak
            if settle(p, plan, step, seconds, walk) and seconds < np.inf:
                accept(p, seconds, known, state)
                look_around(p, plan, seconds, known.tasks, walk)
            continue
        for r in range(num_draws):
            seed = seeds_R[r] + (step if fresh else 0)
            seconds += engine(p, rules, walk.device, walk.priority, seed, state)
            if counts_memory:
                for d in range(len(state.devices)):  # fewer where columns stand for devices
                    peak_D[d] = max(peak_D[d], state.devices[d].peak)
        seconds /= num_draws
        if settle(p, plan, step, seconds, walk) and seconds < np.inf:
            look_around(p, plan, seconds, state.tasks, walk)


@compiled
def _resumed(p, rules, plan, step, walk, known, state):
    """The makespan after step ``step``, or inf where `settle` takes it back all the same."""
    current, change_s = walk.status[0].cost, 0.0
    if known.notes.num_ended[0] == 0:
        return resume(p, rules, walk.device, walk.priority, change_s, np.inf, known, state)
    change_s = first_change_s(p, walk, known)
    next_draw = uniform(plan.seed, walk.status[0].num_draws + 1)  # settle's
    limit_s = current + _tolerated(plan, step, current, next_draw)
    return resume(p, rules, walk.device, walk.priority, change_s, limit_s, known, state)
