"""Lower bounds on the makespan of any placement and any order, work-conserving or not.

They hold for every system without jitter that runs at most ``streams`` ops at a time on a device
and starts no op before what it reads has arrived: deliberate idling, and transfers that contend or
wait for a barrier, only take longer. Memory is not considered. The published simulator rounds times
to whole 1e-10 s, and may end earlier by so much for each task.

Shape suffixes: V ops, D devices, P pairs of ops with an edge.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.baselines.bounds_kernels import fill_heads, jackson_makespan
from doppler.graph.levels import longest_paths, successors, topological_order
from doppler.problem import Problem
from doppler.problem.arrays import ProblemArrays, transposed
from doppler.support.compiled.heap import ENTRY

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
# Number of steps towards the best prices, and size of the first and the last step.
_PRICE_STEPS, _FIRST_STEP, _LAST_STEP = 300, 3.0, 1e-4
# Sums of the same seconds in another order differ in their last digits.
_TIE = 1e-12


@dataclass(frozen=True, kw_only=True)
class LowerBound:
    """A time that no execution can undercut.

    Attributes:
        seconds: the bound.
        name: of the argument that proves it.
    """

    seconds: float
    name: str


def lower_bound(problem: Problem, *, streams: int = 1, shares: bool = False) -> LowerBound:
    """Return the largest of all `lower_bounds`; of equal ones the first.

    Args:
        problem: to place.
        streams: number of ops that a device runs at a time.
        shares: whether tasks on shared resources of the machine slow each other down.
    """
    bounds = lower_bounds(problem, streams=streams)
    if shares and problem.sharing is not None:
        bounds["shared"] = shared_bound(problem)
    largest = max(bounds.values())
    name = next(name for name in bounds if bounds[name] >= largest * (1 - _TIE))
    return LowerBound(seconds=bounds[name], name=name)


def lower_bounds(problem: Problem, *, streams: int = 1) -> dict[str, float]:
    """Return four bounds in seconds by name, the simplest first; five if ops are in groups.

    * load: all work, as if ops could be divided among all streams (`load_shares`).
    * path: the longest path, every op on its fastest device, without transfers.
    * join: the longest path that takes into account that an op with several producers, or several
      consumers, either has them on its own device one after another or waits for a transfer
      (`heads_and_tails`).
    * window: a set of ops as divisible work, after the smallest head among them and before the
      smallest tail (`window_bound`).
    * group: the same for the ops of a group on its best device, and for all ops that only one
      device may run.

    Args:
        problem: to place.
        streams: number of ops that a device runs at a time.
    """
    edges, seconds_VD = problem.graph.edges, problem.arrays.op_seconds
    no_transfers = np.zeros(len(edges))
    path_V, _ = longest_paths(
        problem.num_ops, edges.src, edges.dst, seconds_VD.min(axis=1), no_transfers
    )
    share_V = load_shares(seconds_VD) / streams
    head_VD, tail_VD = heads_and_tails(problem, streams=streams)
    bounds = {
        "load": float(share_V.sum()),
        "path": float(path_V.max()),
        "join": float((head_VD + seconds_VD + tail_VD).min(axis=1).max()),
        "window": window_bound(head_VD.min(axis=1), share_V, tail_VD.min(axis=1)),
    }
    if problem.has_groups:
        bounds["group"] = _group_bound(problem.arrays, streams, head_VD, tail_VD)
    return bounds


def shared_bound(problem: Problem) -> float:
    """Return the seconds that the busiest shared resource of the machine needs for all ops.

    An op that can run without a resource does not count for it. Transfers do not count, because a
    placement may have none.

    Args:
        problem: its machine has shared resources.
    """
    sharing, num = problem.sharing, problem.num_devices
    assert sharing is not None, "the machine shares something"
    seconds_VD = np.where(np.isfinite(problem.arrays.op_seconds), problem.arrays.op_seconds, 0.0)
    able_VD = np.isfinite(problem.arrays.op_seconds)
    largest = 0.0
    for k, room in enumerate(sharing.capacity.tolist()):
        demand_VD = sharing.op_bytes if sharing.moves_bytes[k] else sharing.op_processors
        uses_D = np.array(
            [k in sharing.uses[sharing.use_ptr[d] : sharing.use_ptr[d + 1]] for d in range(num)]
        )
        asked_VD = np.where(able_VD, demand_VD * seconds_VD * uses_D, np.inf)
        largest = max(largest, float(asked_VD.min(axis=1).sum()) / room)
    return largest


def _group_bound(
    arrays: ProblemArrays, streams: int, head_VD: FloatArray, tail_VD: FloatArray
) -> float:
    """The largest `window_bound` of a group, each on the device where it is smallest.

    The streams of that device share the group's ops, which use no other device. Groups that only
    one device may run are one group per device.
    """
    largest, able_VD = 0.0, np.isfinite(arrays.op_seconds)
    is_given_V = able_VD.sum(axis=1) == 1
    roots = np.flatnonzero((np.diff(arrays.member_ptr) > 1) & ~is_given_V)
    sets = [arrays.members[arrays.member_ptr[root] : arrays.member_ptr[root + 1]] for root in roots]
    sets += [np.flatnonzero(is_given_V & able_VD[:, d]) for d in range(able_VD.shape[1])]
    for ops in sets:
        if len(ops) == 0:
            continue
        able_D = able_VD[ops[0]]
        windows = [
            window_bound(head_VD[ops, d], arrays.op_seconds[ops, d] / streams, tail_VD[ops, d])
            for d in np.flatnonzero(able_D)
        ]
        largest = max(largest, min(windows))
    return largest


def load_shares(seconds_VD: FloatArray) -> FloatArray:
    """Seconds [V] that each op takes of the whole machine at least, one op at a time per device.

    Proof: let prices >= 0 of the devices add up to 1. Where ops X run within W seconds, no device
    spends more than W on them, so W = sum_d price_d W >= sum_{v in X} price_{d(v)} seconds_{v d(v)}
    >= sum_{v in X} min_d price_d seconds_{v d}, whose summands are returned. All prices are valid;
    the sum over all ops is largest for the dual prices of the fractional assignment, approached
    here by steps that make dearer who has most to do. The first prices are right for devices that
    differ by a factor.

    Source: Lenstra, Shmoys, Tardos, "Approximation algorithms for scheduling unrelated parallel
    machines", Mathematical Programming 1990 (the assignment); Arora, Hazan, Kale, "The
    multiplicative weights update method", Theory of Computing 2012 (the steps).
    """
    num_ops, num_devices = seconds_VD.shape
    if (seconds_VD == seconds_VD[:, :1]).all():  # equal prices are the best
        return seconds_VD[:, 0] * (1.0 / num_devices)
    able_VD = np.isfinite(seconds_VD)
    finite_VD = np.where(able_VD, seconds_VD, 0.0)
    fastest_V = seconds_VD.min(axis=1, keepdims=True)
    speed_VD = np.divide(fastest_V, finite_VD, out=able_VD.astype(float), where=finite_VD > 0)
    price_D = speed_VD.mean(axis=0)
    best_V = np.zeros(num_ops)
    for step in np.geomspace(_FIRST_STEP, _LAST_STEP, _PRICE_STEPS):
        price_D = price_D / price_D.sum()
        priced_VD = np.where(able_VD, price_D * finite_VD, np.inf)
        device_V = priced_VD.argmin(axis=1)
        share_V = priced_VD.min(axis=1)
        if share_V.sum() > best_V.sum():
            best_V = share_V
        busy_D = np.bincount(
            device_V, weights=finite_VD[np.arange(num_ops), device_V], minlength=num_devices
        )
        price_D = price_D * np.exp(step * busy_D / (busy_D.max() or 1.0))
    return best_V


def heads_and_tails(problem: Problem, *, streams: int = 1) -> tuple[FloatArray, FloatArray]:
    """Seconds [V, D] before an op on a device can start, and from its end to that of the run.

    Both are lower bounds over all placements of the other ops, inf where the device cannot run the
    op. Proof, by induction in topological order: let op v run on d, and let L be its producers on
    d too. They have all ended when v starts, and are run by ``streams`` streams, so for every
    release time r v starts no earlier than r + (sum of seconds of those of L with head >= r) /
    streams. Every other producer u ran on some d' != d and paid a transfer: v starts no earlier
    than min_d' head + seconds + transfer. The head is the least, over all L, of the larger of the
    two. Who arrives last when remote is in L first, so that as many L as producers need a look; a
    producer in the group of v is always in L.
    Tails are heads of the reversed graph.

    Source: the recursion of Papadimitriou and Yannakakis, "Towards an architecture-independent
    analysis of parallel algorithms", SIAM Journal on Computing 1990, for direct producers without
    recomputation, and per device; release times as in Carlier (see `window_bound`).
    """
    src_P, dst_P, forward = pairs(problem)
    order_V = topological_order(problem.num_ops, src_P, dst_P)
    head_VD = _heads(forward, streams, order_V, dst_P, src_P)
    tail_VD = _heads(transposed(forward), streams, order_V[::-1].copy(), src_P, dst_P)
    return head_VD, tail_VD


def pairs(problem: Problem) -> tuple[IntArray, IntArray, ProblemArrays]:
    """Producer and consumer [P] of every pair of ops with an edge, and transfers between them.

    In these arrays the pairs stand in place of regions, for `move_seconds` alone. Of several
    regions between two ops the largest counts: without contention it arrives last.
    """
    edges, regions, arrays = problem.graph.edges, problem.graph.regions, problem.arrays
    pair_P, of_edge = np.unique(edges.src * problem.num_ops + edges.dst, return_inverse=True)
    size_P = np.zeros(len(pair_P))
    np.maximum.at(size_P, of_edge, arrays.size[regions.of_edge])
    by_kind = np.zeros(
        (len(pair_P) if len(arrays.kind_seconds) else 0, *arrays.kind_seconds.shape[1:])
    )
    if len(by_kind):
        np.maximum.at(by_kind, of_edge, arrays.kind_seconds[regions.of_edge])
    moves = arrays._replace(size=size_P, kind_seconds=by_kind)
    return pair_P // problem.num_ops, pair_P % problem.num_ops, moves


class _Scratch(NamedTuple):
    """Of the N ops before one op; all but ``arrival_s`` by their position there."""

    remote_s: FloatArray  # [N] when its output arrives from the best other device
    rank: IntArray  # [N] by falling remote_s
    by_release: IntArray  # [N] positions by falling release time on the device
    heap: NDArray[np.void]  # ENTRY [N]
    arrival_s: FloatArray  # [N] remote_s by rank


def _heads(
    arrays: ProblemArrays,
    streams: int,
    order_V: IntArray,
    op_P: IntArray,
    before_P: IntArray,
) -> FloatArray:
    """Heads [V, D] if op_P waits for before_P, pair by pair; order_V agrees with that.

    ``arrays`` has the transfers of pairs in place of regions (see `pairs`).
    """
    ptr, pair_P = successors(len(order_V), op_P, before_P)
    most = int(np.diff(ptr).max())
    head_VD = np.empty_like(arrays.op_seconds)
    scratch = _Scratch(
        remote_s=np.empty(most),
        rank=np.empty(most, np.int64),
        by_release=np.empty(most, np.int64),
        heap=np.empty(most, ENTRY),
        arrival_s=np.empty(most),
    )
    fill_heads(arrays, float(streams), order_V, ptr, before_P[pair_P], pair_P, scratch, head_VD)
    return head_VD


def window_bound(head_V: FloatArray, share_V: FloatArray, tail_V: FloatArray) -> float:
    """The largest, over all sets of ops, of smallest head + sum of shares + smallest tail.

    Proof: all ops of a set run after its smallest head and, before the run ends, leave time for its
    smallest tail; in between lie at least their shares of the whole machine (`load_shares`). The
    largest such sum is the makespan of one machine that runs the shares, always of the released
    op with the largest tail, preemptively (Jackson's preemptive schedule).

    Source: Carlier, "The one-machine sequencing problem", European Journal of Operational Research
    1982; heads and tails on parallel machines as in Carlier, "Scheduling jobs with release dates
    and tails on identical machines to minimize the makespan", ibid. 1987.
    """
    num_ops = len(head_V)
    order_V = np.argsort(head_V, kind="stable")
    return jackson_makespan(order_V, head_V, share_V.copy(), tail_V, np.empty(num_ops, ENTRY))
