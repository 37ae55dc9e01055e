"""Clustering: merge the ends of heavy edges under a load cap, then list-schedule the groups.

Shape suffixes: B candidates, V ops, E edges, D devices.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from doppler.baselines.best_of_runs import BestOfRuns, ListDecisions, make_decisions
from doppler.baselines.clustering_kernels import schedule_clusterings_batch
from doppler.baselines.groups_kernels import make_groups
from doppler.baselines.levels import b_levels
from doppler.baselines.list_scheduling import make_schedule, queue_keys, tie_seconds
from doppler.problem import Problem
from doppler.support.options import checked

# Loads up to which groups are merged, as shares of total work / devices. Measured: caps above 1
# are needed (they let the threshold alone decide), caps below 0.1 bring nothing.
_LOAD_CAPS = (0.1, 4.0)
# Largest standard deviation of the logarithm of random factors on b_levels. Measured: if all
# candidates keep the order of b_level, the best of a thousand is 0.7% longer.
_ORDER_NOISE = 1.0


@checked
@dataclass(frozen=True, kw_only=True)
class Clustering(BestOfRuns):
    """Merge groups of ops along heavy edges, place whole groups, and keep the best of many tries.

    A try is three random numbers: the transfer time below which an edge does not merge its ends,
    the largest load of a merged group, and how far the order of ops deviates from that of b_levels.
    Ops are then list-scheduled. The first op of a group takes the whole group to the device on
    which the group would end first, given the start of this op and the work that is booked. An op
    leaves its group only if it does not fit. Priorities are the order in which ops were taken;
    ``evaluations`` is the number of tries, each executed once.

    Source: edge zeroing is Sarkar, "Partitioning and Scheduling Parallel Programs for
    Multiprocessors", 1989; a cap on loads in place of his estimate of the makespan, the mapping and
    the search are ours.
    """

    name: ClassVar[str] = "clustering"

    def draw(
        self, problem: Problem, num: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return draw_clusterings(problem, num, rng).placements()


def draw_clusterings(problem: Problem, num: int, rng: np.random.Generator) -> ListDecisions:
    """Draw and schedule ``num`` random candidates."""
    weight_E = problem.mean_transfer_seconds[problem.graph.regions.of_edge]
    low, high = np.log(_LOAD_CAPS)
    share_B = np.exp(rng.uniform(low, high, num))
    noise_B1 = rng.uniform(0.0, _ORDER_NOISE, (num, 1))
    normal_BV = rng.standard_normal((num, problem.num_ops))
    return schedule_clusterings(
        problem,
        least_weight_B=rng.choice(np.unique(np.append(weight_E, np.inf)), num),
        cap_B=share_B * problem.mean_op_seconds.sum() / problem.num_devices,
        level_BV=b_levels(problem) * np.exp(noise_B1 * normal_BV),
        rng=rng,
    )


def schedule_clusterings(
    problem: Problem,
    *,
    least_weight_B: NDArray[np.float64],
    cap_B: NDArray[np.float64],
    level_BV: NDArray[np.float64],
    rng: np.random.Generator,
) -> ListDecisions:
    """Merge groups and list-schedule ops; ties of edges and devices are broken at random.

    Args:
        problem: to place.
        least_weight_B: transfer seconds below which an edge merges nothing.
        cap_B: seconds that a merged group may take at most on its fastest device.
        level_BV: ops with a large level are taken first.
        rng: breaks ties.
    """
    num = len(cap_B)
    weight_E = problem.mean_transfer_seconds[problem.graph.regions.of_edge]
    decisions = make_decisions(num, problem)
    schedule_clusterings_batch(
        problem.arrays,
        make_schedule(problem, tie_seconds(level_BV)),
        make_groups(problem),
        _Homes(np.zeros(problem.num_ops, np.int64), np.zeros(problem.num_devices)),
        np.argsort(queue_keys(weight_E, num, rng), axis=1),
        (weight_E >= least_weight_B[:, None]).sum(axis=1),
        cap_B,
        -level_BV,
        rng.integers(0, 2**62, size=num),
        decisions,
    )
    return decisions


class _Homes(NamedTuple):
    """The devices of groups, and the work that devices have booked."""

    device: NDArray[np.int64]  # [V] of roots: device, -1 until one is chosen
    booked: NDArray[np.float64]  # [D] seconds of the groups that live there
