"""Compiled: one step of annealing. Change something, then keep the change or undo it.

The compiled search and the Python loop for other kinds of sessions call the same functions.

Dimensions: V ops, N (op, neighbour) pairs, D devices, R draws of jitter. Indices: v op, r draw, d
device, n pair, i position in a list.
"""

import numpy as np

from doppler.baselines.critical_chain_kernels import trace_back
from doppler.baselines.first_change_kernels import first_change_s
from doppler.baselines.longest_paths_kernels import find_paths, stays_within
from doppler.simulator.resuming_kernels import accept, resume
from doppler.support.compiled import compiled
from doppler.support.compiled.draws import uniform

# Share of the moves of devices that move a group of ops; by measurement.
GROUP_SHARE = 0.9
# Share of moves, of both kinds, whose first op is drawn from the critical chain: a move that does
# not change the chain cannot improve the makespan.
CRITICAL_SHARE = 0.5
# If moves are judged: maximum number of moves in a step, and by how much their mean number rises
# after a kept step and falls after a rejected one, so that about 40% of the steps are kept.
MAX_TOGETHER, MORE_WHEN_KEPT, FEWER_WHEN_TAKEN_BACK = 8, 0.2, 0.15
# A placement that does not fit costs more than any makespan, and more the more memory it lacks.
LACKING_S = 1e30
# Relative tolerance of comparisons, for rounding errors of sums.
ROUNDING = 1e-9


@compiled
def cumulate_shares(ptr, seconds_N):
    """Turn the seconds of each row into cumulated shares, in place; the last one's is 1.

    Args:
        ptr: [rows + 1] row i is ``ptr[i]:ptr[i + 1]``.
        seconds_N: of pairs.
    """
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
    """Draw an index from low to high, with probabilities from the cumulated shares ``share_X``."""
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
    """Draw any op, or one of the critical chain in proportion to its time there."""
    chain = walk.chain
    if _draw(plan, walk.status) < CRITICAL_SHARE:
        return chain.op[_draw_among(plan, chain.share, 0, chain.num[0] - 1, walk.status)]
    return _draw_int(plan, walk.status, len(walk.device))


@compiled
def _draw_neighbour(plan, v, status):
    """Draw a neighbour of op v in proportion to the seconds of transfers between both."""
    near = plan.near
    return near.op[_draw_among(plan, near.share, near.ptr[v], near.ptr[v + 1] - 1, status)]


@compiled
def change(problem, plan, walk):
    """Make a step of the walk, which is executed next: change devices or the order.

    Args:
        problem: ProblemArrays.
        plan: WalkPlan.
        walk: Walk, changed.
    """
    status = walk.status
    status[0].num_moved = 0
    status[0].num_before = 0
    status[0].rank_low, status[0].rank_high = 0, 0
    if plan.order and _draw(plan, status) < plan.order_share:
        _reorder(problem, plan, walk)
    else:
        _move_judged(problem, plan, walk)


@compiled
def _move_judged(problem, plan, walk):
    """Make the first drawn move that makes no path too long, or the last allowed draw.

    Further moves that make no path too long join it: many moves change nothing, and only several at
    once make progress, as in "dynasearch" (Congram, Potts, van de Velde, INFORMS Journal on
    Computing 2002).
    """
    status, limit_s = walk.status, walk.status[0].cost * (1.0 + ROUNDING)
    for num in range(1, plan.most_drawn + 1):
        stamp = _move(problem, plan, walk)
        if not walk.paths.known[0]:
            return
        if num == plan.most_drawn or stays_within(problem, walk, stamp, limit_s):
            break
        _take_back_last(walk)
    num_more = int(status[0].together + _draw(plan, status)) - 1
    for _ in range(num_more):
        if status[0].num_moved > len(walk.device):  # no space for as many again
            return
        status[0].num_before = status[0].num_moved
        if not stays_within(problem, walk, _move(problem, plan, walk), limit_s):
            _take_back_last(walk)


@compiled
def _reorder(problem, plan, walk):
    """Move one op to another rank; distances are drawn log-uniformly."""
    status, num_ops = walk.status, len(walk.ranked)
    rank = walk.priority[_draw_op(plan, walk)]
    distance = int(num_ops ** _draw(plan, status))
    if _draw(plan, status) < 0.5:
        _bring_forward(problem, walk, max(0, rank - distance), rank)
    else:
        _put_back(problem, walk, rank, min(rank + distance, num_ops - 1))


@compiled
def _bring_forward(problem, walk, low, high):
    """Move the op of rank ``high`` to ``low``, behind all ops between that it depends on.

    Those ops come first because it could not run before them.
    """
    _begin_reordering(walk, low, high)
    walk.goes_along[walk.ranked[high]] = True
    for rank in range(high, low - 1, -1):
        v = walk.ranked[rank]
        if walk.goes_along[v]:
            for i in range(problem.read_ptr[v], problem.read_ptr[v + 1]):
                walk.goes_along[problem.region_src[problem.reads[i]]] = True
    _regroup(walk, low, high, True)


@compiled
def _put_back(problem, walk, low, high):
    """Move the op of rank ``low`` to ``high``, before all ops between that depend on it.

    Those ops come last because they could not run before it.
    """
    _begin_reordering(walk, low, high)
    walk.goes_along[walk.ranked[low]] = True
    for rank in range(low + 1, high + 1):
        v = walk.ranked[rank]
        for i in range(problem.read_ptr[v], problem.read_ptr[v + 1]):
            producer = problem.region_src[problem.reads[i]]
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
    """Put the ops of these ranks that go along first or last; all keep their relative order."""
    end = low
    for goes_along in (first, not first):
        for rank in range(low, high + 1):
            v = walk.was_ranked[rank]
            if walk.goes_along[v] == goes_along:
                walk.ranked[end] = v
                walk.priority[v] = end
                end += 1


@compiled
def _move(problem, plan, walk):
    """Move a group of ops to another device, except ops that cannot run there; return its stamp.

    The group is what a random walk over neighbours visits until it meets an op on another device;
    all ops go to that device. So ops that exchange much data move together, and to where their data
    are. Moves of single ops go to any device.
    """
    status, device_V = walk.status, walk.device
    num_ops, num_devices = problem.op_seconds.shape
    v = _draw_op(plan, walk)
    stamp = status[0].num_draws
    here = device_V[v]
    there = (here + 1 + _draw_int(plan, status, num_devices - 1)) % num_devices
    _join(problem, stamp, v, walk)
    if _draw(plan, status) < GROUP_SHARE and plan.near.ptr[v] < plan.near.ptr[v + 1]:
        for _ in range(num_ops):
            v = _draw_neighbour(plan, v, status)
            if device_V[v] != here:
                there = device_V[v]
                break
            _join(problem, stamp, v, walk)
    for i in range(status[0].num_before, status[0].num_moved):
        if problem.op_seconds[walk.moved[i], there] < np.inf:
            device_V[walk.moved[i]] = there
    return stamp


@compiled
def _join(problem, stamp, v, walk):
    """Let op v move, together with its group in the problem."""
    if len(problem.members) == 0:
        _join_alone(stamp, v, walk)
    elif walk.group[v] != stamp:
        for i in range(
            problem.member_ptr[problem.group[v]], problem.member_ptr[problem.group[v] + 1]
        ):
            _join_alone(stamp, problem.members[i], walk)


@compiled
def _join_alone(stamp, v, walk):
    if walk.group[v] != stamp:
        walk.group[v] = stamp
        num = walk.status[0].num_moved
        walk.moved[num] = v
        walk.came_from[num] = walk.device[v]
        walk.status[0].num_moved = num + 1


@compiled
def settle(problem, plan, step, seconds, walk):
    """Keep the change of the last step or undo it.

    Args:
        problem: ProblemArrays.
        plan: WalkPlan.
        step: number of the step, from 0.
        seconds: makespan after the change; its memory is in walk.peak_bytes.
        walk: Walk, changed.

    Returns:
        Whether the change is kept.
    """
    status = walk.status
    lack = 0.0
    for d in range(len(walk.peak_bytes)):
        excess = walk.peak_bytes[d] - problem.memory_bytes[d]
        if excess > 0.0:
            lack += excess / walk.peak_bytes[d]
    cost, current = seconds, status[0].cost
    if lack > 0.0 and seconds < np.inf:
        cost = LACKING_S * lack
    # From a cost of inf any change is accepted, to get away from it.
    if cost > current and cost - current > _tolerated(plan, step, current, _draw(plan, status)):
        _take_back(walk)
        if status[0].num_moved > 0:
            status[0].together = max(1.0, status[0].together - FEWER_WHEN_TAKEN_BACK)
        return False
    if status[0].num_moved > 0:
        status[0].together = min(MAX_TOGETHER, status[0].together + MORE_WHEN_KEPT)
    status[0].cost = cost
    if lack == 0.0 and seconds < status[0].best_s:
        status[0].best_s = seconds
        for v in range(len(walk.device)):
            walk.best_device[v] = walk.device[v]
            walk.best_priority[v] = walk.priority[v]
    return True


@compiled
def _tolerated(plan, step, current, draw):
    """How much the cost after a step may exceed the present one."""
    temperature = plan.hot * (plan.cold / plan.hot) ** (step / plan.num_steps)
    return -temperature * current * np.log(draw)


@compiled
def _take_back_last(walk):
    """Undo the last move of a step while the step is being made."""
    _move_back(walk, walk.status[0].num_before)
    walk.status[0].num_moved = walk.status[0].num_before


@compiled
def _move_back(walk, first):
    """Undo all moves since ``first``, in reverse, because an op may have moved twice."""
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
def look_around(problem, plan, seconds, tasks, walk):
    """Read from the simulated schedule what further moves need: its critical chain and its paths.

    ``seconds`` is the makespan of the schedule. If the cost of the walk is another one, because
    memory is short, the paths are unknown and moves are not judged.
    """
    trace_back(problem, tasks, walk.chain)
    walk.paths.known[0] = plan.most_drawn > 1 and walk.status[0].cost == seconds
    if walk.paths.known[0]:
        find_paths(problem, tasks, seconds, walk.device, walk.paths)


@compiled
def search(
    engine, counts_memory, problem, rules, plan, seeds_R, fresh, begin, end, walk, known, state
):
    """Make steps of a walk on a simulator.

    Args:
        engine: compiled.
        counts_memory: whether it leaves peaks of memory.
        problem: ProblemArrays.
        rules: of the simulated system, see state.Rules.
        plan: WalkPlan.
        seeds_R: of the draws of jitter; a cost is their mean.
        fresh: whether every step has draws of its own.
        begin: number of the first step.
        end: number of the step after the last.
        walk: Walk, changed.
        known: where the walk notes its present schedule, to simulate only what a step changes, and
            not what `settle` would surely take back; None, or not in use: every step is simulated
            whole.
        state: of the engine.
    """
    peak_D, num_draws = walk.peak_bytes, len(seeds_R)
    for step in range(begin, end):
        if step > 0:
            change(problem, plan, walk)
        seconds = 0.0
        for d in range(len(peak_D)):
            peak_D[d] = 0.0
        if known is not None and known.in_use:
            seconds = _resumed(problem, rules, plan, step, walk, known, state)
            if len(known.notes.noted) > 0:  # else memory cannot be short
                for d in range(len(peak_D)):
                    peak_D[d] = state.devices[d].peak
            if settle(problem, plan, step, seconds, walk) and seconds < np.inf:
                accept(problem, seconds, known, state)
                look_around(problem, plan, seconds, known.tasks, walk)
            continue
        for r in range(num_draws):
            seed = seeds_R[r] + (step if fresh else 0)
            seconds += engine(problem, rules, walk.device, walk.priority, seed, state)
            if counts_memory:
                for d in range(len(state.devices)):  # fewer where columns stand for devices
                    peak_D[d] = max(peak_D[d], state.devices[d].peak)
        seconds /= num_draws
        if settle(problem, plan, step, seconds, walk) and seconds < np.inf:
            look_around(problem, plan, seconds, state.tasks, walk)


@compiled
def _resumed(problem, rules, plan, step, walk, known, state):
    """The makespan after step ``step``, or inf where `settle` takes it back all the same."""
    current, change_s = walk.status[0].cost, 0.0
    if known.notes.num_ended[0] == 0:
        return resume(problem, rules, walk.device, walk.priority, change_s, np.inf, known, state)
    change_s = first_change_s(problem, walk, known)
    next_draw = uniform(plan.seed, walk.status[0].num_draws + 1)  # settle's
    limit_s = current + _tolerated(plan, step, current, next_draw)
    return resume(problem, rules, walk.device, walk.priority, change_s, limit_s, known, state)
