"""Streams under load: inputs arrive, wait for devices and run, which adds latency to accuracy.

All inputs together are one dataflow graph for the work-conserving engine. A clock, which is a
device of its own, executes the intervals between arrivals one after another, and each input waits
for its tick. Shape suffixes: N inputs, D devices.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from doppler.cluster import preset
from doppler.extensions.programs.streams.router import LARGE, SMALL, Router, Routing
from doppler.extensions.programs.streams.stream import Played, Stream
from doppler.graph import DataflowGraph, Edges, GivenCosts, Inputs, Ops
from doppler.problem import Placement, build
from doppler.simulator import WorkConserving
from doppler.support.options import Amount, Count, Positive, checked

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@checked
@dataclass(frozen=True, kw_only=True)
class Servers:
    """Devices that run the small model, and devices that run the large one.

    Attributes:
        small: number of devices with the small model.
        large: number of devices with the large model.
        small_s: seconds per input of the small model.
        large_s: seconds per input of the large model.
    """

    small: Count = 2
    large: Count = 1
    small_s: Positive = 1.0
    large_s: Positive = 2.0

    @property
    def backend(self) -> IntArray:
        """Model of each device [D], SMALL or LARGE."""
        return np.repeat([SMALL, LARGE], [self.small, self.large])

    @property
    def seconds(self) -> FloatArray:
        """Seconds per input on each device [D]."""
        return np.repeat([self.small_s, self.large_s], [self.small, self.large])

    @property
    def capacity_per_s(self) -> float:
        """Inputs per second when no device is ever idle."""
        return float((1.0 / self.seconds).sum())

    @property
    def share(self) -> float:
        """Share of the inputs that go to large devices when no device is ever idle."""
        return self.large / self.large_s / self.capacity_per_s


@dataclass(frozen=True, eq=False, kw_only=True)
class Served:
    """Result of a stream under load.

    Attributes:
        played: choices and outcomes.
        latency_s: [N] seconds from arrival to answer.
    """

    played: Played
    latency_s: FloatArray


def arrivals(num: int, per_s: float, rng: np.random.Generator) -> FloatArray:
    """Return the seconds [N] at which inputs arrive in a Poisson process.

    Args:
        num: number of inputs, N.
        per_s: mean number of arrivals per second.
        rng: the only source of randomness.
    """
    return rng.exponential(1.0 / per_s, size=num).cumsum()


@checked
@dataclass(frozen=True, kw_only=True)
class UnderLoad:
    """A router whose models run on devices with queues.

    Each input goes to the shortest queue of its model.

    Attributes:
        servers: the devices.
        sees_queues: whether the extra waiting time of the large model counts against it. If not,
            the router keeps the share that makes all devices equally busy.
        wait: accuracy that a second of waiting is worth.
    """

    servers: Servers
    sees_queues: bool
    wait: Amount = 0.1

    def serve(
        self, stream: Stream, order_N: IntArray, arrival_N: FloatArray, rng: np.random.Generator
    ) -> Served:
        """Route the inputs as they arrive, and simulate their latency.

        The router learns the outcome of an input before the next one arrives, even if the answer is
        not ready yet.

        Args:
            stream: that is played.
            order_N: order of its inputs.
            arrival_N: seconds, rising.
            rng: of the router.
        """
        servers, session = self.servers, stream.session(order_N)
        share = None if self.sees_queues else servers.share
        router = Router(price=0.0) if share is None else Router(share=share)
        state = Routing(router, session, rng)
        free_D, device_N = np.zeros(len(servers.backend)), np.empty(len(order_N), np.int64)
        of_model = [np.flatnonzero(servers.backend == k) for k in (SMALL, LARGE)]
        for one in session:
            now = arrival_N[one.number]
            end_D = np.maximum(free_D, now) + servers.seconds
            shortest = [int(each[end_D[each].argmin()]) for each in of_model]
            longer_s = float(end_D[shortest[LARGE]] - end_D[shortest[SMALL]])
            choice = state.choose(one, self.wait * longer_s if self.sees_queues else 0.0)
            state.learn(choice, session.run(choice))
            device = shortest[choice]
            device_N[one.number], free_D[device] = device, end_D[device]
        latency_s = simulated_latency(arrival_N, device_N, servers.seconds)
        return Served(played=session.played(), latency_s=latency_s)


def simulated_latency(
    arrival_N: FloatArray, device_N: IntArray, seconds_D: FloatArray
) -> FloatArray:
    """Simulate the seconds [N] from arrival to end, first come first served on each device.

    Args:
        arrival_N: seconds, rising.
        device_N: of each input.
        seconds_D: seconds per input on each device.
    """
    num, clock = len(arrival_N), len(seconds_D)
    seconds = np.full((2 * num, clock + 1), np.inf)
    seconds[:num, clock] = np.diff(arrival_N, prepend=0.0)
    seconds[num:, :clock] = seconds_D
    tick_N, input_N = np.arange(num), np.arange(num, 2 * num)
    src, dst = np.append(tick_N[:-1], tick_N), np.append(tick_N[1:], input_N)
    graph = DataflowGraph(
        name="load",
        ops=Ops.make(flops=np.ones(2 * num)),
        edges=Edges.make(src=src, dst=dst, bytes=np.zeros(len(src))),
        inputs=Inputs.make(),
        given_costs=GivenCosts.make(op_seconds=seconds, transfer_seconds=np.zeros(len(src))),
    )
    problem = build(graph, preset(name="identical", num_devices=clock + 1))
    device_V = np.concatenate([np.full(num, clock), device_N])
    with WorkConserving(contention="none").open(problem) as session:
        trace = session.trace(Placement.make(problem, device_V))
    return trace.op_finish_s[num:] - arrival_N
