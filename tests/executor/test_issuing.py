"""Static issue, on made-up GPUs whose streams do later what they are given, and interleave."""

import itertools
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from executions import WORKLOADS, check_runs, graph, ordered_placement
from problems import random_placement, random_problem

from doppler.cluster import host
from doppler.executor import Cuda, ExecutionError, gpus, graphs, issuing
from doppler.executor.gpus import Gpus, Part
from doppler.executor.issuing import issue_order
from doppler.executor.tasks import Unroller
from doppler.problem import Placement, build
from doppler.support.errors import InputError
from doppler.trace import check


def unrolled(seed: int):
    problem = random_problem(seed)
    placement = random_placement(problem, seed)
    lists = placement.device.tolist(), placement.priority.tolist()
    tasks = Unroller(problem.graph, problem.num_devices).work_conserving(*lists, queue="strict")
    return problem, placement, tasks


# --- The order of issue ---------------------------------------------------------------------------


def test_tasks_are_issued_after_what_they_wait_for_and_each_resource_in_its_order():
    num_circles = 0
    for seed in range(150):
        problem, placement, tasks = unrolled(seed)
        order = issue_order(tasks)
        rank = {task: i for i, task in enumerate(order)}
        for task in order:
            after = [rank[other] for other in tasks.successors[task] if other in rank]
            assert all(rank[task] < other for other in after)
        num_circles += len(order) < len(tasks.resource)
        for d in range(problem.num_devices):
            ops = [v for v in order if v < tasks.num_ops and tasks.resource[v] == d]
            assert ops == sorted(ops, key=placement.priority.__getitem__)
        by_channel = {}
        for task in order:
            if task >= tasks.num_ops:
                region = tasks.region[task - tasks.num_ops]
                made_at = rank[int(problem.graph.regions.src[region])]
                by_channel.setdefault(tasks.resource[task], []).append(made_at)
        assert all(made == sorted(made) for made in by_channel.values())
    assert 0 < num_circles < 150


# --- Made-up GPUs that are late -------------------------------------------------------------------


class Event:
    """Done once the stream that it was recorded on has come so far."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at_ms: float | None = None

    def record(self, stream: "Stream") -> None:
        self.gpu = stream.device
        stream.todo.append(self)

    def query(self) -> bool:
        Stream.advance()
        return self.at_ms is not None

    def elapsed_time(self, later: "Event") -> float:
        assert self.gpu == later.gpu, "no time between events of two GPUs"
        return later.at_ms - self.at_ms


class Stream:
    """What it is given is done one by one, but only while somebody asks how far it is."""

    all: list["Stream"] = []  # noqa: RUF012
    rng = random.Random(0)
    clock_ms = 0.0
    hangs_at = None  # an action

    def __init__(self, device: str) -> None:
        self.device, self.todo = device, []
        Stream.all.append(self)

    def wait_event(self, event: Event) -> None:
        self.todo.append(("wait", event))

    def synchronize(self) -> None:
        while self.todo:
            assert Stream.advance(), "streams wait for each other"

    def can_go_on(self) -> bool:
        if not self.todo or self.todo[0] is Stream.hangs_at:
            return False
        return not isinstance(self.todo[0], tuple) or self.todo[0][1].at_ms is not None

    @classmethod
    def advance(cls) -> bool:
        """One thing of one stream, whichever; actions take time, so events come first."""
        able = [stream for stream in cls.all if stream.can_go_on()]
        if able:
            quick = [stream for stream in able if isinstance(stream.todo[0], Event | tuple)]
            thing = cls.rng.choice(quick or able).todo.pop(0)
            if isinstance(thing, Event):
                thing.at_ms = cls.clock_ms
            elif not isinstance(thing, tuple):
                cls.clock_ms += 1.0
                thing()
        return bool(able)


def issue_later(part: Part) -> None:
    """As torch does: a copy between two streams comes after what both have to do, for both."""
    *others, stream = part.streams
    for other in others:
        before = Event(True)
        before.record(other)
        stream.wait_event(before)
    stream.todo.append(part.action)
    for other in others:
        after = Event(True)
        after.record(stream)
        other.wait_event(after)


@pytest.fixture
def made_up(monkeypatch):
    """made_up(num): from now on torch has so many GPUs, whose memory is the host's."""

    def run_all(gpu: str) -> None:
        for stream in Stream.all:
            stream.synchronize()

    def make(num: int) -> None:
        Stream.all, Stream.rng, Stream.hangs_at = [], random.Random(num), None
        gpus._stream.cache_clear()
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: num)
        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "synchronize", run_all)
        monkeypatch.setattr(graphs, "_can_be_captured", lambda *run: False)  # test_graphs.py
        monkeypatch.setattr(issuing, "_spin", lambda stream, cycles: stream.todo.append(int))
        monkeypatch.setattr(issuing, "POLL_S", 0.0)
        monkeypatch.setattr(gpus, "TEST_BYTES", 1000)
        monkeypatch.setattr(gpus, "_on_host", torch.empty_like)
        monkeypatch.setattr(Gpus, "place", lambda self, device: "cpu")
        monkeypatch.setattr(Part, "issue", issue_later)
        properties = SimpleNamespace(total_memory=1 << 40)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda place: properties)

    return make


@pytest.mark.parametrize("num_gpus", [1, 2, 4])
@pytest.mark.parametrize("direct", [True, False])
def test_results_and_traces_are_right_however_streams_interleave(
    made_up, monkeypatch, num_gpus, direct
):
    made_up(num_gpus)
    if not direct:  # direct copies fail their test
        monkeypatch.setattr(
            Gpus, "_arrives", lambda self, src, dst: (src, dst) in self._through_host
        )
    problem = build(graph("cholesky"), host(num_devices=4))
    with Cuda(queue="strict", verify=True).open(problem) as session:
        for seed in range(5):
            check(session.trace(ordered_placement(problem, seed)))


def test_nothing_runs_before_all_is_issued(made_up, monkeypatch):
    made_up(2)
    problem = build(graph("ffnn"), host(num_devices=4))
    with Cuda(queue="strict").open(problem) as session:
        seen, wait = [], issuing._wait

        def look(order, issued, timeout_s):
            seen.append((len(order), len(issued)))
            able = [stream for stream in Stream.all if stream.can_go_on()]
            assert [stream.todo[0] for stream in able] == [int], "the one that holds all others"
            wait(order, issued, timeout_s)

        monkeypatch.setattr(issuing, "_wait", look)
        session.trace(ordered_placement(problem, 0))
        ((num_tasks, num_issued),) = seen
        assert num_issued == num_tasks > problem.num_ops


def test_a_strict_order_that_waits_for_itself_is_infeasible(made_up):
    made_up(2)
    problem = build(graph("ffnn"), host(num_devices=2))
    with Cuda(queue="strict").open(problem) as session:
        backwards = np.arange(problem.num_ops)[::-1].copy()
        placement = Placement.make(problem, np.zeros(problem.num_ops, np.int64), backwards)
        measured = session.measure(placement.device[None], placement.priority[None])
        assert not measured.feasible[0]
        with pytest.raises(InputError, match="its strict order waits for itself"):
            session.trace(placement)


def test_a_kernel_that_fails_is_named_whether_at_its_issue_or_later(made_up, monkeypatch):
    made_up(2)
    problem = build(graph("ffnn"), host(num_devices=2))
    placement = ordered_placement(problem, 0)
    told = rf"^op 5 \('.*'\) on device {problem.cluster.devices[placement.device[5]].name}: "
    with Cuda(queue="strict").open(problem) as session:
        computation = session._memory._computations[int(placement.device[5])]
        stream = computation[5].parts[0].streams[-1]

        def fail() -> None:
            raise RuntimeError("CUDA error: it is broken")

        computation[5] = gpus.StreamAction((Part((stream,), fail),))
        with pytest.raises(ExecutionError, match=told + "RuntimeError: CUDA error: it is broken$"):
            session.trace(placement)
        for stream in Stream.all:
            stream.todo.clear()

        def issue_now(part: Part) -> None:
            fail() if part.action is fail else issue_later(part)

        monkeypatch.setattr(Part, "issue", issue_now)
        with pytest.raises(ExecutionError, match=told + "RuntimeError: CUDA error: it is broken$"):
            session.trace(placement)
        assert not any(stream.todo for stream in Stream.all), "what was issued has been waited for"


def test_a_kernel_that_hangs_is_named_and_nothing_runs_after_it(made_up, monkeypatch):
    made_up(2)
    now_s = itertools.count()  # a second passes whenever somebody asks for the time
    clock = SimpleNamespace(monotonic=lambda: next(now_s), sleep=lambda seconds: None)
    monkeypatch.setattr(issuing, "time", clock)
    problem = build(graph("ffnn"), host(num_devices=2))
    placement = ordered_placement(problem, 0)
    with Cuda(queue="strict", timeout_s=5000).open(problem) as session:
        Stream.hangs_at = session._memory._computations[int(placement.device[5])][5].parts[0].action
        with pytest.raises(ExecutionError, match=r"^op 5 \(.*: still runs after 5000 s$"):
            session.trace(placement)
        with pytest.raises(ExecutionError, match="no other can be executed"):
            session.trace(placement)


# --- On real GPUs ---------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("name", WORKLOADS)
def test_results_and_traces_are_right_on_four_virtual_devices(name):
    check_runs(name, 4, Cuda(queue="strict"), range(50), factor=10)  # sums in another order
