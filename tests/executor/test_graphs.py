"""CUDA graphs on made-up GPUs: what streams are given in a capture is done in replays."""

import gc
import itertools
import logging
import signal
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import test_issuing
import torch
from executions import graph, ordered_placement
from test_issuing import Stream, made_up  # noqa: F401

from doppler.cluster import host
from doppler.executor import Cuda, ExecutionError, graphs, issuing
from doppler.executor.gpus import Gpus, Part
from doppler.problem import Placement, build
from doppler.support.stopping import Stopped
from doppler.trace import check

CAN_BE_CAPTURED, ISSUE = graphs._can_be_captured, Part.issue


class Event(test_issuing.Event):
    """In a graph only external ones tell a time, and only others are waited for."""

    def __init__(self, enable_timing: bool = False, external: bool = False) -> None:
        super().__init__(True)
        self.enable_timing, self.external = enable_timing, external
        self.graph: Graph | None = None

    def record(self, stream: Stream) -> None:
        captured = Graph.captured_streams()
        self.graph = Graph.capturing if stream in captured else None
        # torch looks at the current stream, not at this one, to make a node of it.
        assert self.graph is None or not self.external or Graph.current[-1] in captured
        super().record(stream)

    def query(self) -> bool:
        assert Graph.capturing is None, "operation not permitted when stream is capturing"
        return super().query()

    def elapsed_time(self, later: "Event") -> float:
        for one in (self, later):
            if not one.enable_timing or (one.graph is not None and not one.external):
                raise RuntimeError("invalid argument")
            if one.at_ms is None:
                raise RuntimeError("device not ready")
        return super().elapsed_time(later)


class GraphStream(Stream):
    """Is captured once it waits for what is captured."""

    def wait_event(self, event: Event) -> None:
        assert event.graph is None or not event.external
        if event.graph is not None and event.graph is Graph.capturing:
            event.graph.join(self)
        is_isolated = self in Graph.captured_streams() and event.graph is not Graph.capturing
        assert not is_isolated, "dependency created on uncaptured work in another stream"
        super().wait_event(event)

    def synchronize(self) -> None:
        assert Graph.capturing is None, "operation not permitted when stream is capturing"
        super().synchronize()


class Graph:
    """As torch.cuda.CUDAGraph."""

    capturing: "Graph | None" = None
    current: "list[Stream]" = []  # noqa: RUF012
    made: "list[Graph]" = []  # noqa: RUF012
    refuses = None  # an action that cannot be captured
    pools = itertools.count(1)
    underway: "set[tuple]" = set()  # noqa: RUF012  # what torch's allocator believes
    in_use: "list[tuple]" = []  # noqa: RUF012  # the pool of each graph that is not gone

    def __init__(self) -> None:
        self.lists: dict[Stream, list] = {}
        self.num_replays = 0
        Graph.made.append(self)

    @classmethod
    def captured_streams(cls) -> list:
        return [] if cls.capturing is None else list(cls.capturing.lists)

    def join(self, stream: Stream) -> None:
        if stream not in self.lists:
            assert not stream.todo
            self.lists[stream] = stream.todo = []

    def pool(self) -> tuple:
        assert self.has_ended
        return self.own_pool

    def capture_begin(self, pool: tuple, capture_error_mode: str) -> None:
        assert Graph.capturing is None and not Graph.underway
        assert capture_error_mode == "thread_local"
        self.own_pool, self.has_ended = pool, False
        Graph.underway.add(pool)
        Graph.in_use.append(pool)
        Graph.capturing, self.origin = self, Graph.current[-1]
        self.join(self.origin)

    def capture_end(self) -> None:
        if Graph.current[-1] is not self.origin:
            raise RuntimeError("Capture must end on the same stream it began on.")
        if Graph.capturing is not self:
            raise RuntimeError("no capture")
        Graph.capturing = None
        for stream in self.lists:
            stream.todo = []
        awaited = {thing[1] for thing in self.lists[self.origin] if isinstance(thing, tuple)}
        for stream, things in self.lists.items():
            if Graph.refuses in things:
                raise RuntimeError("operation not permitted when stream is capturing\nmore of it")
            if stream is not self.origin and things[-1] not in awaited:
                raise RuntimeError("capture has unjoined work")
        Graph.underway.remove(self.own_pool)  # not if it has failed
        self.has_ended = True

    def __del__(self) -> None:
        if getattr(self, "has_ended", False) and self.own_pool in Graph.in_use:
            Graph.in_use.remove(self.own_pool)

    def replay(self) -> None:
        assert Graph.current[-1] is self.origin
        self.num_replays += 1
        for stream, things in self.lists.items():
            for thing in things:
                if isinstance(thing, Event):
                    thing.at_ms = None if not thing.external else thing.at_ms
            stream.todo += things


@contextmanager
def current(stream: Stream):
    Graph.current.append(stream)
    try:
        yield
    finally:
        Graph.current.pop()


def end_allocation(gpu: int, pool: tuple) -> None:
    if pool not in Graph.underway:
        raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
    Graph.underway.remove(pool)


@pytest.fixture
def with_graphs(made_up, monkeypatch):  # noqa: F811
    """with_graphs(num): from now on torch has so many GPUs, and graphs."""

    def make(num: int) -> None:
        monkeypatch.setattr(test_issuing, "Event", Event)
        made_up(num)
        Graph.capturing, Graph.current, Graph.made, Graph.refuses = None, [], [], None
        Graph.underway, Graph.in_use = set(), []
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, next(Graph.pools)))
        release = Graph.in_use.remove
        for name, call in (
            ("_cuda_endAllocateToPool", end_allocation),
            ("_cuda_releasePool", lambda gpu, pool: release(pool)),
        ):
            monkeypatch.setattr(torch._C, name, call, raising=False)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "Stream", GraphStream)
        monkeypatch.setattr(torch.cuda, "stream", current)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(graphs, "POLL_S", 0.0)
        monkeypatch.setattr(graphs, "_can_be_captured", CAN_BE_CAPTURED)

    yield make
    assert Graph.capturing is None and not Graph.underway, "emptying the cache is an error"


@pytest.fixture
def issued(monkeypatch):
    """How often tasks were issued one by one."""
    calls: list[int] = []

    def counted(*args):
        calls.append(1)
        return issuing.issue_all(*args)

    monkeypatch.setattr(graphs, "issue_all", counted)
    return calls


def strict_problem(name: str = "chainmm", num_devices: int = 4):
    return build(graph(name), host(num_devices=num_devices))


def test_results_and_traces_are_right_in_every_replay(with_graphs, issued):
    with_graphs(1)
    problem = strict_problem()
    with Cuda(queue="strict", graphs=True, verify=True).open(problem) as session:
        placements = [ordered_placement(problem, seed) for seed in range(3)]
        for placement in placements * 3:
            check(session.trace(placement))
    assert len(issued) == 1, "only what loads code"
    assert [one.num_replays for one in Graph.made] == [3, 3, 3, 3]


def test_the_first_execution_too_is_a_replay(with_graphs, issued):
    with_graphs(1)
    problem = strict_problem("ffnn", 2)
    placement = ordered_placement(problem, 0)
    with Cuda(queue="strict", warm_up=0).open(problem) as session:
        session.measure(placement.device[None], placement.priority[None], repeats=3)
    assert len(issued) == 1
    assert [one.num_replays for one in Graph.made] == [3]


def test_code_is_loaded_on_each_gpu_before_a_capture_there(with_graphs, issued):
    with_graphs(2)
    problem = strict_problem("ffnn", 4)
    with Cuda(queue="strict", warm_up=0).open(problem) as session:
        for device in (0, 2, 1, 3):
            placement = Placement.make(problem, np.full(problem.num_ops, device))
            check(session.trace(placement))
    assert len(issued) == 2
    assert [one.num_replays for one in Graph.made] == [1, 1, 1, 1]


def test_events_that_are_nodes_of_a_graph_are_kept_with_it(with_graphs, monkeypatch):
    # The driver crashes when a capture ends that has an event which is gone.
    with_graphs(1)
    all_captured = []

    class Kept(graphs.Captured):
        def __init__(self, *args) -> None:
            super().__init__(*args)
            all_captured.append(self)

    monkeypatch.setattr(graphs, "Captured", Kept)
    problem = strict_problem("ffnn", 2)
    with Cuda(queue="strict", graphs=True, warm_up=1).open(problem) as session:
        session.trace(ordered_placement(problem, 0))
    assert len(all_captured) == 2
    for captured in all_captured:
        marks = [captured._begin, *(mark for pair in captured._issued.values() for mark in pair)]
        nodes = [one for things in captured._graph.lists.values() for one in things]
        told = {id(one) for one in nodes if isinstance(one, Event) and one.external}
        assert told <= {id(mark.time) for mark in marks} and len(told) > problem.num_ops


def test_strict_orders_are_captured_unless_it_is_declined(with_graphs, issued):
    with_graphs(1)
    problem = strict_problem()
    with Cuda(queue="strict", graphs=False).open(problem) as session:
        before = len(issued)
        for _ in range(2):
            session.trace(ordered_placement(problem, 0))
    assert len(issued) == before + 2 and not Graph.made
    with Cuda(queue="strict", warm_up=1).open(problem) as session:
        session.trace(ordered_placement(problem, 0))
    assert Graph.made


def test_runs_with_barriers_are_compared_only_where_nothing_is_replayed(with_graphs):
    with_graphs(1)
    assert Cuda(queue="strict").replays_graphs()
    assert not Cuda(queue="strict", graphs=False).replays_graphs()
    assert not Cuda().replays_graphs()
    with_graphs(2)
    assert not Cuda(queue="strict").replays_graphs()


def test_what_runs_on_several_gpus_is_issued(with_graphs, issued):
    with_graphs(2)
    problem = strict_problem()
    with Cuda(queue="strict", graphs=True, verify=True, warm_up=0).open(problem) as session:
        for _ in range(3):
            check(session.trace(ordered_placement(problem, 0)))
        assert not Graph.made and len(issued) == 3
        # All on one of two GPUs.
        alone = Placement.make(problem, np.full(problem.num_ops, 2))
        check(session.trace(alone))
        assert len(Graph.made) == 1


def test_a_kernel_that_cannot_be_captured_is_told_of_once_and_all_are_issued(
    with_graphs, issued, caplog
):
    with_graphs(1)
    problem = strict_problem("ffnn", 2)
    placement = ordered_placement(problem, 0)
    with Cuda(queue="strict", graphs=True, verify=True).open(problem) as session:
        num_before = len(issued)
        Graph.refuses = session._memory._computations[int(placement.device[5])][5].parts[0].action
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                check(session.trace(placement))
        assert len(issued) == num_before + 3
    assert caplog.messages == [
        "no CUDA graph of this run (operation not permitted when stream is capturing): tasks are "
        "issued one by one; do not compare what follows with earlier executions, which were graphs"
    ]


def test_where_events_of_graphs_tell_no_time_all_are_issued(
    with_graphs, issued, caplog, monkeypatch
):
    with_graphs(1)
    elapsed_time = Event.elapsed_time

    def of_no_graph(self, later):
        if self.graph is not None:
            raise RuntimeError("not supported")
        return elapsed_time(self, later)

    monkeypatch.setattr(Event, "elapsed_time", of_no_graph)
    problem = strict_problem("ffnn", 2)
    with (
        caplog.at_level(logging.WARNING),
        Cuda(queue="strict", graphs=True).open(problem) as session,
    ):
        check(session.trace(ordered_placement(problem, 0)))
    assert len(issued) == 1 + 3 + 1 and len(caplog.messages) == 1
    assert "(not supported)" in caplog.messages[0]


def test_a_graph_that_cannot_be_started_ends_graphs_and_says_what_was_measured_with_them(
    with_graphs, issued, caplog, monkeypatch
):
    with_graphs(1)
    problem = strict_problem("ffnn", 2)
    placement = ordered_placement(problem, 0)

    def without_memory(self) -> None:
        raise RuntimeError("CUDA error: out of memory")

    with Cuda(queue="strict", graphs=True, warm_up=3).open(problem) as session:
        check(session.trace(placement))
        num_before = len(issued)
        monkeypatch.setattr(Graph, "replay", without_memory)
        with caplog.at_level(logging.WARNING):
            check(session.trace(placement))
    assert len(issued) == num_before + 1
    assert caplog.messages == [
        "no CUDA graph of this run (CUDA error: out of memory): tasks are issued one by one; do "
        "not compare what follows with earlier executions, which were graphs"
    ]


@pytest.mark.parametrize("gives_way", [True, False])
def test_a_signal_during_a_capture_ends_the_capture_and_the_run(
    with_graphs, monkeypatch, gives_way
):
    with_graphs(1)
    problem = strict_problem("ffnn", 2)
    with Cuda(queue="strict", graphs=True, warm_up=0).open(problem) as session:
        check(session.trace(ordered_placement(problem, 0)))
        placement = ordered_placement(problem, 1)
        part = session._memory._computations[int(placement.device[5])][5].parts[0]

        def signalled(self) -> None:
            if not gives_way:  # it came before the stream of the task gave way to the capture's
                Graph.current.append(GraphStream("cuda:0"))
            raise Stopped(signal.SIGTERM, "")

        monkeypatch.setattr(type(part), "issue", signalled)
        with pytest.raises(Stopped):
            session.trace(placement)
    assert len(Graph.made) == 2 and Graph.capturing is None


def test_of_the_graphs_the_latest_are_kept(with_graphs, monkeypatch):
    with_graphs(1)
    monkeypatch.setattr(graphs, "MOST_GRAPHS", 2)
    problem = strict_problem("ffnn", 2)
    a, b, c = (ordered_placement(problem, seed) for seed in range(3))
    with Cuda(queue="strict", graphs=True, warm_up=1).open(problem) as session:
        for placement in (a, b, a, c, a, b):
            session.trace(placement)
    assert [one.num_replays for one in Graph.made] == [1, 3, 1, 1, 1], "first, a, b, c, b again"


def test_large_graphs_are_kept_less_often(with_graphs, monkeypatch):
    with_graphs(1)
    problem = strict_problem("ffnn", 2)
    a, b = (ordered_placement(problem, seed) for seed in range(2))
    with Cuda(queue="strict", warm_up=0).open(problem) as session:
        session.trace(a)
        monkeypatch.setattr(graphs, "MOST_TASKS", problem.num_ops)  # and there are transfers
        for placement in (b, b, a):
            session.trace(placement)
    assert [one.num_replays for one in Graph.made] == [1, 2, 1], "a, b, a once more"


def test_equal_devices_in_another_order_are_another_graph(with_graphs):
    with_graphs(1)
    problem = strict_problem("chainmm", 2)
    device_V = np.zeros(problem.num_ops, dtype=np.int64)
    straight = Placement.make(problem, device_V)
    with Cuda(queue="strict", graphs=True, warm_up=1).open(problem) as session:
        first = session.trace(straight)
        free = [
            v
            for v in range(problem.num_ops)
            if v not in problem.graph.edges.dst and v != np.argmin(straight.priority)
        ]
        other = straight.priority.astype(np.int64)
        other[other < other[free[-1]]] += 1
        other[free[-1]] = 0
        second = session.trace(Placement.make(problem, device_V, other))
    assert len(Graph.made) == 3
    assert np.argmin(first.op_start_s) != np.argmin(second.op_start_s) == free[-1]


def test_a_task_that_hangs_or_fails_in_a_replay_is_named(with_graphs, monkeypatch):
    with_graphs(1)
    now_s = itertools.count()  # a second passes whenever somebody asks for the time
    clock = SimpleNamespace(monotonic=lambda: next(now_s), sleep=lambda seconds: None)
    problem = strict_problem("ffnn", 2)
    placement = ordered_placement(problem, 0)
    told = rf"^op 5 \('.*'\) on device {problem.cluster.devices[placement.device[5]].name}: "
    with Cuda(queue="strict", graphs=True, timeout_s=5000).open(problem) as session:
        check(session.trace(placement))
        action = session._memory._computations[int(placement.device[5])][5].parts[0].action
        monkeypatch.setattr(graphs, "time", clock)
        query, hit = Event.query, []

        def failing(self) -> bool:
            if hit:
                raise RuntimeError("CUDA error: it is broken")
            return query(self)

        monkeypatch.setattr(Event, "query", failing)
        Stream.hangs_at = action
        while Stream.advance():
            pass
        with pytest.raises(ExecutionError, match=told + r"still runs after 5000 s$"):
            session.trace(placement)
        session._workers.is_lost = False
        hit.append(1)
        for stream in Stream.all:
            stream.todo.clear()
        with pytest.raises(ExecutionError, match=r"RuntimeError: CUDA error: it is broken$"):
            session.trace(placement)


def test_a_gpu_that_no_longer_works_is_told_in_one_line(with_graphs, monkeypatch):
    with_graphs(1)
    problem = strict_problem("ffnn", 2)
    with Cuda(queue="strict").open(problem) as session:

        def broken(gpu: object) -> None:
            raise RuntimeError("CUDA error: unspecified launch failure\nmore of it")

        monkeypatch.setattr(torch.cuda, "synchronize", broken)
        told = "^a device does not work: RuntimeError: CUDA error: unspecified launch failure$"
        with pytest.raises(ExecutionError, match=told):
            session.trace(ordered_placement(problem, 1))


@pytest.mark.parametrize("is_refused", [False, True])
def test_what_is_repeated_is_started_at_once_where_it_can_be_captured(
    with_graphs, monkeypatch, is_refused
):
    with_graphs(1)
    monkeypatch.setattr(Part, "issue", ISSUE)
    done: list[int] = []

    def work() -> None:
        done.append(1)

    def call() -> None:  # as a call of torch
        started.append(1)
        Graph.current[-1].todo.append(work)

    devices, started = Gpus(2), []
    Graph.refuses = work if is_refused else None
    action = devices.repeating(1, call, 5)
    assert len(done) == 1, "what loads code"
    started.clear()
    for _ in range(3):
        action()
    assert len(done) == 1 + 3 * 5
    assert len(started) == (3 * 5 if is_refused else 0)


def test_graphs_that_are_gone_leave_no_memory_in_use(with_graphs):
    with_graphs(1)
    problem = strict_problem("ffnn", 2)
    with Cuda(queue="strict", warm_up=1).open(problem) as session:
        session.trace(ordered_placement(problem, 0))
        Graph.made.clear()
        assert len(Graph.in_use) == 2 and len(set(Graph.in_use)) == 1, "they share it"
        session._ahead.free()
        gc.collect()  # what is made up refers to itself
        assert not Graph.in_use
