"""SimPy models of the published semantics, and of the same with link contention.

They are what a SimPy user would write: a process per op, a process per transfer, a Resource per
device and, with contention, one per ordered pair of devices. Costs are whole numbers (1e-10 s).

Source: the semantics are those of the released simulator of DOPPLER (Yao et al., ICLR 2026).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import simpy

from doppler.problem import Problem

COSTS_PER_SECOND = 1e10


@dataclass
class Times:
    """When the ops started and finished, in costs."""

    start: list[int]
    finish: list[int]

    @property
    def makespan(self) -> int:
        return max(self.finish)


@dataclass
class Graph:
    """A problem in plain Python: whole costs, and edges by producer, region and consumer."""

    num_devices: int
    op_cost: list[list[int]]  # [op][device]
    regions: list[tuple[int, list[int]]]  # producer and consumers
    transfer_cost: list[list[list[int]]]  # [region][sender][receiver]

    @classmethod
    def of(cls, problem: Problem) -> "Graph":
        arrays, regions = problem.arrays, problem.graph.regions
        seconds_RDD = arrays.latency_s + arrays.size[:, None, None] * arrays.seconds_per_size
        able_VD = np.isfinite(arrays.op_seconds)
        op_VD = np.where(able_VD, arrays.op_seconds, 0.0)  # a placement uses able devices only
        consumers = np.split(regions.consumers, regions.consumer_ptr[1:-1])
        return cls(
            num_devices=problem.num_devices,
            op_cost=np.rint(op_VD * COSTS_PER_SECOND).astype(int).tolist(),
            regions=[
                (int(src), dst.tolist()) for src, dst in zip(regions.src, consumers, strict=False)
            ],
            transfer_cost=np.rint(seconds_RDD * COSTS_PER_SECOND).astype(int).tolist(),
        )


def published(
    graph: Graph,
    device: Sequence[int],
    *,
    priority: Sequence[int] | None = None,
    streams: int = 1,
) -> Times:
    """Run one placement; transfers never wait for each other, every edge moves by itself.

    priority: if given, a device takes the waiting op of the lowest number, not the first to ask.
    """
    env = simpy.Environment()
    num_ops = len(graph.op_cost)
    times = Times([0] * num_ops, [0] * num_ops)
    finished = [env.event() for _ in range(num_ops)]
    inputs: list[list[simpy.Event]] = [[] for _ in range(num_ops)]
    kind = simpy.Resource if priority is None else simpy.PriorityResource
    devices = [kind(env, capacity=streams) for _ in range(graph.num_devices)]

    def move(src, cost):
        yield finished[src]
        yield env.timeout(cost)

    def compute(v):
        yield env.all_of(inputs[v])
        resource = devices[device[v]]
        request = resource.request() if priority is None else resource.request(priority[v])
        with request:
            yield request
            times.start[v] = env.now
            yield env.timeout(graph.op_cost[v][device[v]])
            times.finish[v] = env.now
        finished[v].succeed()

    for (src, consumers), cost in zip(graph.regions, graph.transfer_cost, strict=True):
        for v in consumers:
            here, there = device[src], device[v]
            seconds = 0 if here == there else cost[here][there]
            inputs[v].append(env.process(move(src, seconds)))
    for v in range(num_ops):
        env.process(compute(v))
    env.run()
    return times


def with_contention(graph: Graph, device: Sequence[int]) -> Times:
    """Run one placement; a region moves once per destination, one at a time on each channel.

    Both devices and channels serve first come, first served.
    """
    env = simpy.Environment()
    num_ops = len(graph.op_cost)
    times = Times([0] * num_ops, [0] * num_ops)
    finished = [env.event() for _ in range(num_ops)]
    inputs: list[list[simpy.Event]] = [[] for _ in range(num_ops)]
    devices = [simpy.Resource(env) for _ in range(graph.num_devices)]
    channels = [[simpy.Resource(env) for _ in devices] for _ in devices]

    def move(src, channel, cost):
        yield finished[src]
        with channel.request() as request:
            yield request
            yield env.timeout(cost)

    def compute(v):
        yield env.all_of(inputs[v])
        with devices[device[v]].request() as request:
            yield request
            times.start[v] = env.now
            yield env.timeout(graph.op_cost[v][device[v]])
            times.finish[v] = env.now
        finished[v].succeed()

    for (src, consumers), cost in zip(graph.regions, graph.transfer_cost, strict=True):
        here = device[src]
        transfers: dict[int, simpy.Process] = {}
        for v in consumers:
            there = device[v]
            if there == here:
                inputs[v].append(finished[src])
                continue
            if there not in transfers:
                channel = channels[here][there]
                transfers[there] = env.process(move(src, channel, cost[here][there]))
            inputs[v].append(transfers[there])
    for v in range(num_ops):
        env.process(compute(v))
    env.run()
    return times
