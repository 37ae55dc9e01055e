"""SimPy models of the published semantics, of the same with link contention, and of cores.

They are what a SimPy user would write: a process per op, a process per transfer, a Resource per
device and, with contention, one per ordered pair of devices, or a desk that lets transfers go who
need several things at once. Costs are whole numbers (1e-10 s).

Source: the semantics are those of the released simulator of DOPPLER (Yao et al., ICLR 2026).
"""

from collections.abc import Callable, Hashable, Sequence
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
    hosts: list[int]  # of each device
    nics: int  # interfaces of a host
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
            hosts=list(problem.cluster.hosts or [0] * problem.num_devices),
            nics=problem.cluster.nics,
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


class Desk:
    """Hands out channels and interfaces: first come, first served of those who find all free."""

    def __init__(self, env: simpy.Environment, graph: Graph) -> None:
        self.env, self.hosts = env, graph.hosts
        self.free = {("out", host): graph.nics for host in set(graph.hosts)}
        self.free |= {("in", host): graph.nics for host in set(graph.hosts)}
        self.waiting: list[tuple[list[tuple], simpy.Event]] = []

    def enter(self, here: int, there: int) -> tuple[list[tuple], simpy.Event]:
        needs: list[tuple] = [("channel", here, there)]
        if self.hosts[here] != self.hosts[there]:
            needs += [("out", self.hosts[here]), ("in", self.hosts[there])]
        ticket = (needs, self.env.event())
        self.waiting.append(ticket)
        self._serve()
        return ticket

    def leave(self, needs: list[tuple]) -> None:
        for need in needs:
            self.free[need] += 1
        self._serve()

    def _serve(self) -> None:
        for ticket in list(self.waiting):
            needs, goes = ticket
            if all(self.free.setdefault(need, 1) > 0 for need in needs):
                for need in needs:
                    self.free[need] -= 1
                self.waiting.remove(ticket)
                goes.succeed()


def with_contention(graph: Graph, device: Sequence[int]) -> Times:
    """Run one placement; a region moves once per destination, one at a time on each channel.

    Between hosts it holds an outgoing and an incoming interface too. Devices, channels and
    interfaces serve first come, first served; nothing is kept free for who waits for more.
    """
    env = simpy.Environment()
    num_ops = len(graph.op_cost)
    times = Times([0] * num_ops, [0] * num_ops)
    finished = [env.event() for _ in range(num_ops)]
    inputs: list[list[simpy.Event]] = [[] for _ in range(num_ops)]
    devices = [simpy.Resource(env) for _ in range(graph.num_devices)]
    desk = Desk(env, graph)

    def move(src, here, there, cost):
        yield finished[src]
        needs, goes = desk.enter(here, there)
        yield goes
        yield env.timeout(cost)
        desk.leave(needs)

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
        # What one op sends at once goes in the order of regions and destinations.
        transfers = {
            there: env.process(move(src, here, there, cost[here][there]))
            for there in sorted({device[v] for v in consumers} - {here})
        }
        for v in consumers:
            inputs[v].append(transfers.get(device[v], finished[src]))
    for v in range(num_ops):
        env.process(compute(v))
    env.run()
    return times


class Pool:
    """Work that is done at rates that change whenever some begins or ends.

    rates: of the names of what is being done, how fast each is, 1 being its speed alone.
    """

    def __init__(self, env: simpy.Environment, rates: Callable[[list], dict]) -> None:
        self.env, self._rates = env, rates
        self._left: dict = {}
        self._speed: dict = {}
        self._done: dict = {}
        self._since, self._changes = 0.0, 0

    def work(self, name: Hashable, seconds: float) -> simpy.Event:
        """An event that follows once as much is done as takes so many seconds alone."""
        self._advance()
        self._left[name], self._done[name] = seconds, self.env.event()
        self._change()
        return self._done[name]

    def _advance(self) -> None:
        for name in self._left:
            self._left[name] -= (self.env.now - self._since) * self._speed[name]
        self._since = self.env.now

    def _change(self) -> None:
        self._changes += 1
        self._speed = self._rates(list(self._left))
        if self._left:
            self.env.process(self._wait(self._changes))

    def _wait(self, number: int):
        first = min(self._left, key=lambda name: self._left[name] / self._speed[name])
        yield self.env.timeout(max(0.0, self._left[first] / self._speed[first]))  # or rounding
        if number == self._changes:  # nothing has begun or ended meanwhile
            self._advance()
            del self._left[first]
            self._done.pop(first).succeed()
            self._change()


def with_sharing(
    graph: Graph,
    device: Sequence[int],
    latency_cost: Sequence[Sequence[float]],
    rates: Callable[[list], dict],
) -> Times:
    """As `with_contention` on one host, where ops and transfers slow each other down.

    latency_cost: [sender][receiver], the part of a transfer that nothing slows down. rates: of ops
    ``("op", v)`` and transfers ``("transfer", region, device)`` that run at one time.
    """
    env = simpy.Environment()
    num_ops = len(graph.op_cost)
    times = Times([0] * num_ops, [0] * num_ops)
    finished = [env.event() for _ in range(num_ops)]
    inputs: list[list[simpy.Event]] = [[] for _ in range(num_ops)]
    devices = [simpy.Resource(env) for _ in range(graph.num_devices)]
    channels: dict[tuple[int, int], simpy.Resource] = {}
    pool = Pool(env, rates)

    def move(r, src, here, there, cost):
        yield finished[src]
        channel = channels.setdefault((here, there), simpy.Resource(env))
        with channel.request() as request:
            yield request
            quiet = latency_cost[here][there]
            yield env.timeout(quiet)
            yield pool.work(("transfer", r, there), cost - quiet)

    def compute(v):
        yield env.all_of(inputs[v])
        with devices[device[v]].request() as request:
            yield request
            times.start[v] = env.now
            yield pool.work(("op", v), graph.op_cost[v][device[v]])
            times.finish[v] = env.now
        finished[v].succeed()

    for r, ((src, consumers), cost) in enumerate(
        zip(graph.regions, graph.transfer_cost, strict=True)
    ):
        here = device[src]
        transfers = {
            there: env.process(move(r, src, here, there, cost[here][there]))
            for there in sorted({device[v] for v in consumers} - {here})
        }
        for v in consumers:
            inputs[v].append(transfers.get(device[v], finished[src]))
    for v in range(num_ops):
        env.process(compute(v))
    env.run()
    return times


def with_senders(graph: Graph, device: Sequence[int]) -> Times:
    """Run one placement; who has made a region brings it to others before it does anything else.

    Devices serve first come, first served.
    """
    env = simpy.Environment()
    num_ops = len(graph.op_cost)
    times = Times([0] * num_ops, [0] * num_ops)
    devices = [simpy.Resource(env) for _ in range(graph.num_devices)]
    made = [env.event() for _ in range(num_ops)]
    inputs: list[list[simpy.Event]] = [[] for _ in range(num_ops)]
    sends: list[list[tuple[int, simpy.Event]]] = [[] for _ in range(num_ops)]
    for (src, consumers), cost in zip(graph.regions, graph.transfer_cost, strict=True):
        arrivals = {device[src]: made[src]}
        for v in consumers:
            if device[v] not in arrivals:
                arrivals[device[v]] = env.event()
                sends[src].append((cost[device[src]][device[v]], arrivals[device[v]]))
            inputs[v].append(arrivals[device[v]])

    def work(v):
        yield env.all_of(inputs[v])
        with devices[device[v]].request() as request:
            yield request
            times.start[v] = env.now
            yield env.timeout(graph.op_cost[v][device[v]])
            times.finish[v] = env.now
            made[v].succeed()
            for cost, arrival in sends[v]:
                yield env.timeout(cost)
                arrival.succeed()

    for v in range(num_ops):
        env.process(work(v))
    env.run()
    return times
