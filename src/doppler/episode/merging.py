"""Merging ops along heavy edges: a view whose episodes place whole clusters."""

from dataclasses import replace

import numpy as np

from doppler.episode.view import View

# Loads up to which clusters are merged at random, as shares of total work / devices.
_LOAD_CAPS = (0.1, 1.0)


def merged(view: View, *, least_weight_s: float, cap_s: float) -> View:
    """The same problem, but ops that heavy edges join go where the first of them goes.

    Edges join the clusters of their ends in the order of falling weight, the mean seconds of their
    transfer. least_weight_s: lighter edges join nothing. cap_s: seconds that no cluster may exceed
    on the device that runs it fastest.

    Source: edge zeroing, Sarkar, "Partitioning and Scheduling Parallel Programs for
    Multiprocessors", 1989, with a cap on loads in place of his estimate of the makespan.
    """
    problem = view.problem
    edges, load_VD = problem.graph.edges, problem.arrays.op_seconds.copy()
    weight_E = problem.mean_transfer_seconds[problem.graph.regions.of_edge]
    cluster_V = np.arange(problem.num_ops)
    for e in np.argsort(-weight_E, kind="stable"):
        if weight_E[e] < least_weight_s:
            break
        a, b = cluster_V[edges.src[e]], cluster_V[edges.dst[e]]
        together_D = load_VD[a] + load_VD[b]
        if a != b and together_D.min() <= cap_s:
            load_VD[a] = together_D
            cluster_V[cluster_V == b] = a
    able_VD = np.isfinite(load_VD)[cluster_V]
    return replace(view, arrays=view.arrays._replace(cluster=cluster_V, able=able_VD))


def merged_at_random(view: View, rng: np.random.Generator) -> View:
    """Merged along the edges from a random weight on, up to a random load."""
    problem = view.problem
    weights = np.append(problem.mean_transfer_seconds, np.inf)
    share = np.exp(rng.uniform(*np.log(_LOAD_CAPS)))
    return merged(
        view,
        least_weight_s=float(rng.choice(np.unique(weights))),
        cap_s=float(share * problem.mean_op_seconds.sum() / problem.num_devices),
    )
