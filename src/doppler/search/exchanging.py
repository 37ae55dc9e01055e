"""Exchanges devices in placements: the ops of one go to another, and back.

Devices that were assumed equal but are not cannot be told apart by moving a few ops.

Shape suffixes: B placements, V ops, D devices.
"""

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from doppler.cluster import Cluster

IntArray = NDArray[np.int64]


def exchanges(cluster: Cluster, most: int, rng: np.random.Generator) -> IntArray:
    """Return for each exchange the new device of each device [B, D]; the first changes nothing.

    All pairs of hosts with equally many devices come first, then all pairs of devices.

    Args:
        cluster: the machine.
        most: maximum number; a random subset if there are more.
        rng: draws the subset.
    """
    num = cluster.num_devices
    host_D = np.array(cluster.hosts if cluster.hosts is not None else [0] * num)
    of_host = [np.flatnonzero(host_D == host) for host in np.unique(host_D)]
    hosts = [(a, b) for a, b in combinations(of_host, 2) if len(a) == len(b)]
    pairs = [*hosts, *(([a], [b]) for a, b in combinations(range(num), 2))]
    if len(pairs) >= most:
        chosen = rng.choice(len(pairs), size=max(0, most - 1), replace=False)
        pairs = [pairs[i] for i in chosen]
    to_BD = np.tile(np.arange(num), (1 + len(pairs), 1))
    for row, (a, b) in enumerate(pairs, start=1):
        to_BD[row, a], to_BD[row, b] = b, a
    return to_BD
