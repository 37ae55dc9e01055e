"""Record what SimGrid says about random graphs, for test_simgrid.py.

Run with a Python that has SimGrid (Debian: apt-get install python3-simgrid, version 3.32)::

    /usr/bin/python3 record.py recorded.json

It needs nothing of this project. Devices are hosts with one worker actor per stream, which takes
ready ops from the device's list; a channel is a link with one actor that moves ready regions one
at a time or, without contention, a link that all transfers have to themselves (FATPIPE). SimGrid
says how long what takes. Between hosts a region goes over the links of two interfaces too, and a
desk lets it go once channel and interfaces are free: a device has a port, which is another host to
SimGrid, for each interface. Where tasks share, switches are links on the routes of several pairs,
and all ops read and write a memory, which is a link that leads to a host of its own: an op is what
it moves, at most as fast as its device does. How what runs at one time divides links and memory is
SimGrid's own doing (its default policy, SHARED); as flows with a longer way get less of a link
there, all links have one latency. SimGrid's default network model scales bandwidth and latency;
CM02 with TCP-gamma, weight-S and crosstraffic 0 is latency + bytes / bandwidth.

Costs are large and random, so that only ops with a common cause become ready at once; such ties go
by op id.
"""

import json
import random
import subprocess
import sys

NUM_GRAPHS = NUM_HOSTED = NUM_SHARED = 12
# contention, queue, streams
MODES = [("none", "fifo", 1), ("fifo", "fifo", 1), ("fifo", "priority", 1), ("fifo", "fifo", 2)]
HOSTED_MODES = [("fifo", "fifo", 1), ("fifo", "priority", 1)]
SHARED_MODES = [("shared", "fifo", 1), ("shared", "priority", 1)]
CONFIGURATION = [
    "network/model:CM02",
    "network/TCP-gamma:0",
    "network/weight-S:0",
    "network/crosstraffic:0",
    "maxmin/precision:1e-9",
]


def make_graph(seed):
    """A random graph, cluster, placement and ranking as plain data."""
    rng = random.Random(seed)
    num_ops, num_devices = rng.randint(8, 40), rng.randint(2, 5)
    edges = []
    for v in range(1, num_ops):
        first = 0 if seed % 2 else max(0, v - 8)  # far-reaching edges, or layers
        for u in rng.sample(range(first, v), min(v - first, rng.randint(0, 3))):
            edges.append((u, v, rng.randint(0, 1)))  # producer, consumer, region
    size = {(u, r): rng.randint(1, 1_000_000) for u, _, r in edges}
    rank, waiting = [0] * num_ops, list(range(num_ops))
    for place in range(num_ops):
        placed = set(range(num_ops)) - set(waiting)
        ready = [v for v in waiting if all(u in placed for u, w, _ in edges if w == v)]
        v = rng.choice(ready)
        waiting.remove(v)
        rank[v] = place
    pairs = range(num_devices)
    return {
        "flops": [rng.randint(1, 1_000_000) for _ in range(num_ops)],
        "edges": [(u, v, size[u, r], r) for u, v, r in edges],
        "speed": [rng.choice([0.5, 1.0, 2.0]) for _ in pairs],
        "latency_s": [[rng.choice([0.0, 1000.0, 5000.0]) for _ in pairs] for _ in pairs],
        "bytes_per_s": [[rng.choice([0.5, 1.0, 2.0, 4.0]) for _ in pairs] for _ in pairs],
        "device": [rng.randrange(num_devices) for _ in range(num_ops)],
        "rank": rank,
    }


def on_hosts(graph, seed):
    """The same on two or three hosts, with one or two interfaces each."""
    rng = random.Random(1000 + seed)
    num = len(graph["speed"])
    hosts = list(range(min(num, 2 + seed % 2)))
    hosts += [rng.randrange(len(hosts)) for _ in range(num - len(hosts))]
    return {
        **graph,
        "hosts": rng.sample(hosts, num),
        "nics": 1 + seed // 2 % 2,
        "nic_bytes_per_s": rng.choice([0.25, 0.5, 1.0]),
        "nic_latency_s": rng.choice([0.0, 2000.0]),
    }


def with_sharing(graph, seed):
    """The same with two switches, each on the way of several pairs, and one memory of all ops."""
    rng = random.Random(2000 + seed)
    devices = range(len(graph["speed"]))
    pairs = [(s, d) for s in devices for d in devices if s != d]
    switches = [
        {
            "bytes_per_s": rng.choice([0.5, 1.0, 2.0]),
            "links": rng.sample(pairs, rng.randint((len(pairs) + 1) // 2, len(pairs))),
        }
        for _ in range(2)
    ]
    # Bytes that a device moves for each flop, and so what its ops move in all.
    per_flop = [rng.randint(1, 4) for _ in devices]
    moved = [per_flop[d] * flops for d, flops in zip(graph["device"], graph["flops"], strict=True)]
    rates = [speed * per for speed, per in zip(graph["speed"], per_flop, strict=True)]
    memory = max(*rates, sum(rates) * rng.choice([0.3, 0.5, 0.8]))
    latency_s = rng.choice([0.0, 1000.0])
    return {
        **graph,
        "latency_s": [[latency_s for _ in devices] for _ in devices],
        "switches": switches,
        "per_flop": per_flop,
        "moved": moved,
        "memory_bytes_per_s": memory,
    }


class Simulation:
    """One graph in one mode; SimGrid allows one engine a process."""

    def __init__(self, graph, contention, queue, streams):
        import simgrid

        self.sg, self.graph, self.by_rank = simgrid, graph, queue == "priority"
        self.contention = contention
        self.engine = simgrid.Engine(["record", *(f"--cfg={entry}" for entry in CONFIGURATION)])
        devices = range(len(graph["speed"]))
        zone = simgrid.NetZone.create_full_zone("cluster")
        self.memory, self.switches = None, []
        if "switches" in graph:
            self.memory = zone.create_host("memory", 1.0)
            self.memory.seal()
            bus = zone.create_link("bus", graph["memory_bytes_per_s"])
            bus.set_latency(0.0)
            bus.seal()
            for i, switch in enumerate(graph["switches"]):
                link = zone.create_link(f"switch{i}", switch["bytes_per_s"])
                link.set_latency(0.0)
                link.seal()
                self.switches.append((link, [tuple(pair) for pair in switch["links"]]))
        self.hosts = [zone.create_host(f"device{d}", graph["speed"][d]) for d in devices]
        for d, host in enumerate(self.hosts):
            host.core_count = streams
            host.seal()
            if self.memory is not None:
                own = zone.create_link(f"bus{d}", graph["speed"][d] * graph["per_flop"][d])
                own.set_latency(0.0)
                own.seal()
                route = [simgrid.LinkInRoute(own), simgrid.LinkInRoute(bus)]
                ends = (host.netpoint, self.memory.netpoint)
                zone.add_route(*ends, None, None, route, False)
        # For the desk of transfers between hosts: what waits, channels and interfaces in use.
        self.desk, self.used = [], set()
        self.interfaces, self.ports = {}, {}
        if "hosts" in graph:
            self.make_interfaces(zone)
        for s in devices:
            for d in devices:
                if s != d:
                    self.connect(zone, s, d)
        zone.seal()
        self.readers = {}  # (producer, region) -> consumers
        self.bytes = {}
        self.pending = [0] * len(graph["flops"])
        for u, v, num_bytes, r in graph["edges"]:
            self.readers.setdefault((u, r), []).append(v)
            self.bytes[u, r] = num_bytes
            self.pending[v] += 1
        self.start, self.finish = [0.0] * len(self.pending), [0.0] * len(self.pending)
        # What waits for a resource, and how many that are: a device d, a channel (s, d).
        self.waiting, self.count, self.asked = {}, {}, []
        for d in devices:
            for stream in range(streams):
                self.serve(d, self.hosts[d], f"worker{d}.{stream}", self.run_op)
        if contention in ("fifo", "shared") and not self.interfaces:
            for s in devices:
                for d in devices:
                    if s != d:
                        self.serve((s, d), self.hosts[s], f"channel{s}-{d}", self.move)

    def connect(self, zone, s, d):
        link = zone.create_link(f"link{s}-{d}", self.graph["bytes_per_s"][s][d])
        link.set_latency(self.graph["latency_s"][s][d])
        if self.contention == "none":
            link.set_sharing_policy(self.sg.Link.SharingPolicy.FATPIPE, None)
        link.seal()
        through = [switch for switch, pairs in self.switches if (s, d) in pairs]
        route = [self.sg.LinkInRoute(one) for one in (link, *through)]
        zone.add_route(self.hosts[s].netpoint, self.hosts[d].netpoint, None, None, route, False)
        if not self.leaves(s, d):
            return
        hosts, nics = self.graph["hosts"], range(self.graph["nics"])
        for i in nics:
            for j in nics:
                through = [self.interfaces["out", hosts[s], i], self.interfaces["in", hosts[d], j]]
                ends = (self.ports[s, i].netpoint, self.ports[d, j].netpoint)
                links = [*route, *map(self.sg.LinkInRoute, through)]
                zone.add_route(*ends, None, None, links, False)

    def make_interfaces(self, zone):
        """A link for each interface of each host and direction, and a port of each device there."""
        graph = self.graph
        for i in range(graph["nics"]):
            for host in sorted(set(graph["hosts"])):
                for way in ("out", "in"):
                    link = zone.create_link(f"{way}{host}.{i}", graph["nic_bytes_per_s"])
                    link.set_latency(graph["nic_latency_s"] if way == "out" else 0.0)
                    link.seal()
                    self.interfaces[way, host, i] = link
            for d in range(len(graph["speed"])):
                self.ports[d, i] = zone.create_host(f"port{d}.{i}", 1.0)
                self.ports[d, i].seal()

    def leaves(self, s, d):
        """Whether a transfer goes to another host."""
        hosts = self.graph.get("hosts")
        return bool(hosts) and hosts[s] != hosts[d]

    def needs(self, s, d):
        """What a transfer takes: its channel and two free interfaces; None if it has to wait."""
        if ("channel", s, d) in self.used:
            return None
        if not self.leaves(s, d):
            return [("channel", s, d)]
        hosts, nics = self.graph["hosts"], range(self.graph["nics"])
        out = [("out", hosts[s], i) for i in nics if ("out", hosts[s], i) not in self.used]
        into = [("in", hosts[d], i) for i in nics if ("in", hosts[d], i) not in self.used]
        return [("channel", s, d), out[0], into[0]] if out and into else None

    def serve_desk(self):
        """Let all transfers go that find free what they need, the first ones first."""
        for task in sorted(self.desk) if self.by_rank else list(self.desk):
            _, u, r, d = task
            s = self.graph["device"][u]
            needs = self.needs(s, d)
            if needs:
                self.used.update(needs)
                self.desk.remove(task)

                def go(u=u, r=r, d=d, needs=needs):
                    self.move(u, r, d, needs)

                self.sg.Actor.create(f"move{u}.{r}-{d}", self.hosts[s], go)

    def serve(self, resource, host, name, work):
        """An actor that does, one at a time, what waits for a resource."""
        waiting = self.waiting.setdefault(resource, [])
        count = self.count.setdefault(resource, self.sg.Semaphore(0))

        def actor():
            while True:
                count.acquire()
                task = min(waiting) if self.by_rank else waiting[0]
                waiting.remove(task)
                work(*task[1:])

        self.sg.Actor.create(name, host, actor).daemonize()

    def ask(self, resource, rank, *task):
        """A task is ready; `wake` follows once everything is listed that is ready with it."""
        self.waiting[resource].append((rank, *task))
        self.asked.append(resource)

    def wake(self):
        asked, self.asked = self.asked, []
        for resource in asked:
            self.count[resource].release()
        self.serve_desk()

    def arrive(self, v):
        """One more of the regions that op v reads is on its device."""
        self.pending[v] -= 1
        if self.pending[v] == 0:
            self.ask(self.graph["device"][v], self.graph["rank"][v], v)

    def run_op(self, v):
        device = self.graph["device"]
        self.start[v] = self.sg.Engine.clock
        self.execute(v)
        self.finish[v] = self.sg.Engine.clock
        local = []
        for u, r in sorted(key for key in self.readers if key[0] == v):
            readers = self.readers[u, r]
            for d in sorted({device[w] for w in readers}):
                there = [w for w in readers if device[w] == d]
                if d == device[v]:
                    local += there
                elif self.contention != "none":
                    rank = min(self.graph["rank"][w] for w in there)
                    if self.interfaces:
                        self.desk.append((rank, u, r, d))
                    else:
                        self.ask((device[v], d), rank, u, r, d)
                else:
                    actor = lambda r=r, d=d: self.move(v, r, d)  # noqa: E731
                    self.sg.Actor.create(f"move{v}.{r}-{d}", self.hosts[device[v]], actor)
        for w in sorted(local):  # these are ready at one instant: by id, as everywhere
            self.arrive(w)
        self.wake()

    def execute(self, v):
        """Take the time of op v, longer where others take from the memory too."""
        graph = self.graph
        if self.memory is None:
            self.sg.this_actor.execute(graph["flops"][v])
            return
        self.sg.Comm.sendto(self.hosts[graph["device"][v]], self.memory, graph["moved"][v])

    def move(self, u, r, d, needs=()):
        device = self.graph["device"]
        ends = (self.hosts[device[u]], self.hosts[d])
        if len(needs) > 1:
            ends = (self.ports[device[u], needs[1][2]], self.ports[d, needs[2][2]])
        self.sg.Comm.sendto(*ends, self.bytes[u, r])
        self.used.difference_update(needs)
        for w in self.readers[u, r]:
            if device[w] == d:
                self.arrive(w)
        self.wake()

    def main(self):
        # The actor that starts it all must outlive the daemons' work: it waits for the last op.
        def starter():
            for v, pending in enumerate(list(self.pending)):
                if pending == 0:
                    self.ask(self.graph["device"][v], self.graph["rank"][v], v)
            self.wake()
            while not all(finish > 0 for finish in self.finish):
                self.sg.this_actor.sleep_for(1e6)

        self.sg.Actor.create("starter", self.hosts[0], starter)
        self.engine.run()
        return {"start": self.start, "finish": self.finish}


def main():
    if sys.argv[1] == "--one":
        graph, mode = json.load(sys.stdin)
        json.dump(Simulation(graph, *mode).main(), sys.stdout)
        return
    cases = [simulated(make_graph(seed), MODES) for seed in range(NUM_GRAPHS)]
    hosted = [
        simulated(on_hosts(make_graph(seed), seed), HOSTED_MODES) for seed in range(NUM_HOSTED)
    ]
    shared = [
        simulated(with_sharing(make_graph(seed), seed), SHARED_MODES) for seed in range(NUM_SHARED)
    ]
    parts = [",\n".join(json.dumps(case) for case in part) for part in (cases, hosted, shared)]
    with open(sys.argv[1], "w") as file:
        file.write('{"simulator": "SimGrid 3.32", "cases": [\n')
        file.write(f'{parts[0]}\n],\n"hosted": [\n{parts[1]}\n],\n"shared": [\n{parts[2]}\n]}}\n')


def simulated(graph, modes):
    """The graph and what came of it in each mode."""
    results = []
    for mode in modes:
        done = subprocess.run(
            [sys.executable, __file__, "--one"],
            input=json.dumps([graph, mode]),
            capture_output=True,
            text=True,
            check=True,
        )
        contention, queue, streams = mode
        rules = {"contention": contention, "queue": queue, "streams": streams}
        results.append({**rules, **json.loads(done.stdout)})
    return {"graph": graph, "results": results}


if __name__ == "__main__":
    main()
