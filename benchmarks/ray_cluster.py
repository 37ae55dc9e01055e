"""Agents and jobs on a Ray cluster of three nodes on this machine: what dies, and what is faster.

python -m benchmarks.ray_cluster killed      # an agent killed -9 in mid-run, 20 times
python -m benchmarks.ray_cluster removed     # a node that leaves in mid-run
python -m benchmarks.ray_cluster episodes    # training on many problems, by number of workers
"""

import argparse
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from benchmarks.agents import graph_of, random_placements

from doppler.cluster import host, preset
from doppler.executor import ExecutionError
from doppler.extensions.hosts import Emulated, members
from doppler.extensions.hosts.on_ray import OnRay
from doppler.extensions.hosts.ray_cluster import disconnect
from doppler.extensions.hosts.spread_training import Player, Weights
from doppler.graph.synthetic import synthetic
from doppler.policies import DualPolicy
from doppler.problem import build
from doppler.simulator import WorkConserving
from doppler.support.errors import InputError
from doppler.trace import violations
from doppler.training.options import ReinforcementOptions

AGENTS = 3


def main() -> None:
    """Run the parts that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parts = {"killed": killed, "removed": removed, "episodes": episodes}
    parser.add_argument("part", nargs="+", choices=parts)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with nodes_of_ray() as nodes:
        for part in arguments.part:
            parts[part](nodes, arguments)


@contextmanager
def nodes_of_ray() -> Iterator[Any]:
    """Three nodes of two CPUs; a node that is gone is noticed within two seconds."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    watched = {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 500,
        "health_check_failure_threshold": 3,
    }
    store = {"object_store_memory": 100 << 20, "num_cpus": 2}
    head = {**store, "include_dashboard": False, "_system_config": watched}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    nodes.others = [nodes.add_node(**store) for _ in range(2)]
    os.environ["RAY_ADDRESS"] = nodes.address
    try:
        yield nodes
    finally:
        members.close_all()
        disconnect()
        nodes.shutdown()


def _emulated(restarts: int) -> tuple[Any, Any]:
    """Three emulated hosts of one device, a run of half a second, and a placement for it."""
    problem = build(graph_of("cholesky"), host(num_devices=AGENTS))
    placement = random_placements(problem, 1)[0]
    with WorkConserving().open(problem) as session:
        scale = 0.5 / session.trace(placement).makespan_s
    system = Emulated(
        agents=AGENTS, launcher="ray", restarts=restarts, timeout_s=20.0, time_scale=scale
    )
    return system.open(problem), placement


def killed(nodes: Any, arguments: argparse.Namespace) -> None:
    """Half of the times a restart is allowed, half of them not."""
    rng, went_on, named, seconds = np.random.default_rng(0), 0, 0, []
    session, placement = _emulated(restarts=arguments.times // 2)
    with session:
        for number in range(arguments.times):
            rank = int(rng.integers(AGENTS))
            pid = session._group.members[rank].pid if session._group.members else None
            if pid is None:  # started anew by the run itself
                session.trace(placement)
                pid = session._group.members[rank].pid
            killer = threading.Timer(rng.uniform(0.05, 0.4), os.kill, (pid, signal.SIGKILL))
            killer.start()
            begin_s = time.perf_counter()
            try:
                went_on += not violations(session.trace(placement))
            except ExecutionError as error:
                line = str(error)
                named += line.startswith(f"host {rank} (") and "was ended by SIGKILL at op " in line
            seconds.append(time.perf_counter() - begin_s)
            killer.join()
            print(f"{number + 1}: {seconds[-1]:.2f} s", flush=True)
    print(
        f"{arguments.times} kills: {went_on} went on, {named} named; {np.median(seconds):.2f} s "
        f"in the median, {max(seconds):.2f} at most"
    )


def removed(nodes: Any, arguments: argparse.Namespace) -> None:
    """Once with a restart, once without."""
    session, placement = _emulated(restarts=1)
    with session:
        for _ in range(2):
            node = nodes.others.pop()
            gone = threading.Timer(0.2, nodes.remove_node, (node, False))
            gone.start()
            begin_s, line = time.perf_counter(), "goes on"
            try:
                while not violations(session.trace(placement)):  # until it is noticed
                    if session._restarts:
                        break
            except (ExecutionError, InputError) as error:
                line = str(error)
            print(f"a node removed: {line} ({time.perf_counter() - begin_s:.1f} s)", flush=True)
            gone.join()


def episodes(nodes: Any, arguments: argparse.Namespace) -> None:
    """Episodes a second of workers of one thread each, and whether gradients are the same bits."""
    sizes, cluster = (120, 150, 160, 180, 200, 220, 240, 260), preset(name="v100x8")
    problems = [
        build(synthetic(family="layered", num_ops=num, transfer_ratio=1.0, seed=num), cluster)
        for num in sizes
    ]
    torch.manual_seed(0)
    policy: Any = DualPolicy()
    learning = ReinforcementOptions(
        batch_problems=8, batch_episodes=16, try_every=50, exploration=None, advantage="batch",
        learning_rate=(1e-3, 1e-3), entropy=3e-3, tuned_updates=None, extra_candidates=0,
        network_rate=0.01,
    )  # fmt: skip
    given = policy, WorkConserving(), problems, problems[:1], learning, 10, 0
    values = torch.cat([one.detach().reshape(-1) for one in policy.parameters()]).numpy()
    first = None
    for num in arguments.workers:
        with OnRay(workers=num).pool(Player, *given) as entered:
            pool: Any = entered
            player = Player(*given)
            states = [task.state() for task in player._module.problems]
            jobs = [(i, states[i], [i]) for i in reversed(range(len(problems)))]
            seconds = []
            found = pool.map("play", jobs, Weights(0, values))
            while pool._coming:  # until all workers are there
                found = pool.map("play", jobs, Weights(0, values))
            for _ in range(arguments.rounds + 2):  # the first two are for compiling
                begin_s = time.perf_counter()
                found = pool.map("play", jobs, Weights(0, values))
                seconds.append(time.perf_counter() - begin_s)
        first = first or found
        same = all(
            np.array_equal(one.gradients[0], other.gradients[0])
            for one, other in zip(first, found, strict=True)
        )
        best_s, median_s = min(seconds[2:]), float(np.median(seconds[2:]))
        num_episodes = len(problems) * learning.batch_episodes
        print(
            f"{num} workers: {num_episodes / median_s:.0f} episodes/s in the median, "
            f"{num_episodes / best_s:.0f} at best; gradients "
            f"{'are the same' if same else 'DIFFER'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
