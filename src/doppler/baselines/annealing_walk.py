"""The state of an annealing walk: its placement, its best placement, and its last step.

Shape suffixes: V ops, N (op, neighbour) pairs, D devices.
"""

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from doppler.baselines.annealing_kernels import cumulate_shares
from doppler.baselines.critical_chain_kernels import Chain
from doppler.baselines.longest_paths_kernels import LongestPaths
from doppler.problem import Placement, Problem

# Share of moves that change the order, if it is searched; the best of the measured values.
ORDER_SHARE = 0.25
# Maximum number of moves that are drawn for one executed move, the first that longest paths do not
# rule out. Two or four times as many find nothing better in the same time.
MAX_DRAWN = 8
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

    Attributes:
        ptr: [V + 1] where the neighbours of each op begin.
        op: [N] the neighbours.
        share: [N] cumulated share of the transfer seconds between v and its neighbours that each
            one takes; that of the last neighbour is 1.
    """

    ptr: NDArray[np.int64]  # [V + 1]
    op: NDArray[np.int64]  # [N]
    share: NDArray[np.float64]


class WalkPlan(NamedTuple):
    """The parameters of a walk; temperatures are shares of the present makespan."""

    seed: int
    num_steps: int
    order: bool
    hot: float
    cold: float
    near: Neighbours
    order_share: float = ORDER_SHARE  # of the moves, where the order is searched
    most_drawn: int = MAX_DRAWN  # 1: whatever is drawn is executed


class Walk(NamedTuple):
    """The present placement of a walk, its best one, and the changes of its last step."""

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
        """Make a walk that has not executed its start yet."""
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
    """Return the neighbours of each op, in both directions; parallel edges count once."""
    edges, num_ops = problem.graph.edges, problem.num_ops
    transfer_E = problem.mean_transfer_seconds[problem.graph.regions.of_edge]
    ends_E = edges.src * num_ops + edges.dst, edges.dst * num_ops + edges.src
    ends_N, pair_of = np.unique(np.concatenate(ends_E), return_inverse=True)
    seconds_N = np.bincount(pair_of, np.concatenate([transfer_E, transfer_E]), len(ends_N))
    op_N, neighbour_N = ends_N // num_ops, ends_N % num_ops
    total_V = np.bincount(op_N, seconds_N, num_ops)
    seconds_N[total_V[op_N] == 0.0] = 1.0  # if all transfers are free, all neighbours are equal
    ptr = np.searchsorted(op_N, np.arange(num_ops + 1))
    cumulate_shares(ptr, seconds_N)
    return Neighbours(ptr=ptr, op=neighbour_N, share=np.asarray(seconds_N, dtype=np.float64))
