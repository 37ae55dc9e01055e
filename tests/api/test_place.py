"""doppler.place and doppler.execute, as a user calls them."""

import json
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
import yaml
from problems import REPOSITORY, cluster_of, graph_of

import doppler
from doppler.api import placing
from doppler.baselines import HEFT, Clustering, RoundRobin
from doppler.cluster import host, preset
from doppler.cluster.machine import on_hosts
from doppler.einsum import load_workload
from doppler.env import OP_FEATURES, make_view
from doppler.executor import Threads
from doppler.graph import DataflowGraph, load_graph, synthetic
from doppler.policies import OnePassPolicy
from doppler.policies.weights import load_policy_weights
from doppler.problem import Placement, build
from doppler.search import (
    AnnealFromBest,
    AnnealOnEstimates,
    Budget,
    Episodes,
    GreedyEpisode,
    InParts,
    KeepToHosts,
    PlaceAgain,
    PlaceOnce,
    load_policy,
    methods,
    policy_steps,
    search_settings,
    steps_of,
)
from doppler.simulator import BulkSynchronous, Published, WorkConserving
from doppler.support.errors import InputError


@pytest.fixture(scope="module")
def graph() -> DataflowGraph:
    return load_workload(program=str(REPOSITORY / "workloads/chainmm.einsum"))


@pytest.fixture(scope="module")
def placed(graph) -> doppler.Placed:
    return doppler.place(graph, cluster="p100x4", seconds=0.3)


def test_the_figures_belong_to_the_placement(placed):
    assert placed.lower_bound_s <= placed.makespan_s * (1 + 1e-9)
    assert placed.speed_up == pytest.approx(placed.single_device_s / placed.makespan_s)
    with placed.system.open(placed.problem) as session:
        rows = placed.placement.device[None], placed.placement.priority[None]
        measured = session.measure(*rows)
    assert measured.seconds[0, 0] == placed.makespan_s
    assert list(placed.memory_bytes) == ["p100:0", "p100:1", "p100:2", "p100:3"]
    assert list(placed.memory_bytes.values()) == measured.peak_bytes[0].tolist()


def test_what_takes_no_time_is_placed_and_shown(tmp_path):
    nothing = doppler.place(graph_of([0, 0], [(0, 1, 0)]), cluster=cluster_of([1, 1]), seconds=0.1)
    assert nothing.makespan_s == 0.0 and nothing.speed_up == 1.0
    assert "1.00 times faster" in repr(nothing)
    assert repr(doppler.Placed.load(nothing.save(tmp_path))) == repr(nothing)


def test_it_shows_and_explains_itself(placed):
    text = repr(placed)
    assert text.startswith("chainmm on p100x4 (4 devices)\n  ops ")
    for word in ("makespan", "lower bound", "one device", "memory", "found by     auto: "):
        assert f"\n  {word}" in text
    html = placed._repr_html_()
    assert "<td style='text-align:left'>auto: " in html and "data:image/png;base64,iVBOR" in html
    assert "devices busy" in placed.explain()


def test_what_is_saved_can_be_read_back(placed, tmp_path):
    directory = placed.save(tmp_path / "mine")
    names = ("placement.json", "graph.json", "trace.json", "schedule.png", "explanation.txt")
    assert all((directory / name).stat().st_size > 100 for name in names)
    problem = build(load_graph(directory / "graph.json"), placed.problem.cluster)
    loaded = Placement.load(directory / "placement.json", problem)
    assert np.array_equal(loaded.device, placed.placement.device)
    assert json.loads((directory / "placed.json").read_text())["memory"].count(",") == 3


# Those that take long, or need what is not installed everywhere.
SLOW = ("cp_sat", "enumerative")


@pytest.mark.parametrize("method", ["policy", *(m for m in methods() if m not in SLOW)])
def test_every_method_places_a_graph(placed, method):
    graph, cluster = placed.problem.graph, placed.problem.cluster
    found = doppler.place(graph, cluster=cluster, seconds=0.1, method=method)
    assert found.method == method
    assert found.evaluations >= 1
    assert found.lower_bound_s <= found.makespan_s * (1 + 1e-9) < np.inf
    assert found.single_device_s == placed.single_device_s


def test_more_time_is_more_search(placed):
    graph = placed.problem.graph
    times = [
        doppler.place(graph, cluster="h100x8", seconds=s, method="annealing") for s in (0.1, 1)
    ]
    assert times[1].evaluations > 2 * times[0].evaluations


@pytest.mark.parametrize("method", ["auto", "policy", "annealing", "heft"])
def test_equal_seeds_and_evaluations_place_equally(placed, method):
    graph = placed.problem.graph
    pair = [
        doppler.place(graph, cluster="h100x8", method=method, evaluations=90, seed=3)
        for _ in range(2)
    ]
    assert np.array_equal(pair[0].placement.device, pair[1].placement.device)
    assert np.array_equal(pair[0].placement.priority, pair[1].placement.priority)
    assert pair[0].evaluations == pair[1].evaluations == 90


def test_steps_of_ones_own(placed):
    steps = [PlaceAgain(make=Clustering, share=0.5), AnnealFromBest(hot=0.1, cold=0.001)]
    found = doppler.place(placed.problem.graph, cluster="p100x4", method=steps, evaluations=40)
    assert found.method == "PlaceAgain, AnnealFromBest"
    assert found.evaluations == 40


def test_steps_of_a_policy_are_for_the_problem_that_they_have_seen(placed):
    view, policy = make_view(placed.problem), load_policy()
    greedy = GreedyEpisode(policy=policy, views=[view])
    estimates = AnnealOnEstimates(drafts=[Episodes(policy=policy, view=view)])
    for step in (greedy, estimates):
        options = {"method": [InParts(steps=[step])], "evaluations": 2}
        found = doppler.place(placed.problem.graph, cluster="p100x4", **options)
        assert found.evaluations >= 1
        with pytest.raises(
            InputError, match=r"^view: of another problem, \d+ ops on 4 devices, not"
        ):
            doppler.place(
                placed.problem.graph, cluster=preset(name="p100x4", num_devices=2), **options
            )


def test_where_executions_differ_several_tell_what_a_placement_counts(placed):
    graph, noisy = placed.problem.graph, WorkConserving(noise=0.2)
    found = doppler.place(graph, cluster="p100x4", system=noisy, evaluations=60)
    assert found.evaluations <= 60
    rows = found.placement.device[None], found.placement.priority[None]
    with noisy.open(found.problem) as session:
        draws_s = session.measure(*rows, repeats=1000, rng=np.random.default_rng(0)).seconds
    assert draws_s.min() < found.makespan_s < draws_s.max()
    assert abs(found.makespan_s - draws_s.mean()) < 3 * draws_s.std() / 4**0.5


@pytest.mark.parametrize("method", ["auto", "policy", "annealing"])
@pytest.mark.parametrize("evaluations", [1, 3])
def test_where_executions_differ_and_are_few_none_is_wasted(placed, method, evaluations):
    graph, noisy = placed.problem.graph, WorkConserving(noise=0.2)
    found = doppler.place(
        graph, cluster="p100x4", system=noisy, method=method, evaluations=evaluations
    )
    assert 1 <= found.evaluations <= evaluations and found.makespan_s < found.single_device_s


@dataclass(frozen=True, kw_only=True)
class Asking:
    """A baseline of a user's own: it asks another one."""

    uses_order: ClassVar[bool] = False
    needs_order: ClassVar[bool] = False

    def place(self, session, rng):
        return RoundRobin().place(session, rng)


def test_a_graph_stays_on_one_device_where_nothing_faster_is_found(tmp_path):
    graph = synthetic(family="layered", num_ops=40, transfer_ratio=10.0, seed=1)
    searched = doppler.place(graph, cluster="h100x8", method="heft", evaluations=1)
    assert searched.makespan_s > searched.single_device_s and searched.beaten_s is None
    placed = doppler.place(graph, cluster="h100x8", evaluations=1)
    assert placed.makespan_s == placed.single_device_s == searched.single_device_s
    assert placed.beaten_s > placed.makespan_s and set(placed.placement.device.tolist()) == {0}
    assert repr(doppler.Placed.load(placed.save(tmp_path))) == repr(placed)


@pytest.mark.parametrize("seed", range(3))
def test_where_executions_differ_one_device_is_executed_as_often_as_the_best(placed, seed):
    graph, noisy = placed.problem.graph, WorkConserving(noise=0.02)
    options = {"cluster": "p100x4", "method": "single_device", "system": noisy, "seed": seed}
    found = doppler.place(graph, **options)
    assert found.single_device_s == found.makespan_s


class Slow(Threads):
    """Executions of half a second, which no limit interrupts."""

    def open(self, problem):
        time.sleep(0.5)
        return super().open(problem)


def test_it_says_when_it_took_much_longer_than_asked(tmp_path):
    graph = load_workload(program=str(REPOSITORY / "workloads/chainmm.einsum"), preset="small")
    options = {"cluster": "host", "system": Slow(), "method": "single_device"}
    placed = doppler.place(graph, seconds=0.4, **options)
    assert placed.limit_s == 0.4
    assert " s (asked for: 0.4 s)\n" in repr(placed)
    loaded = doppler.Placed.load(placed.save(tmp_path))
    assert " s (asked for: 0.4 s)\n" in repr(loaded)
    assert "asked for" not in repr(replace(placed, seconds=0.43, phases={}))
    compiled = replace(placed, seconds=9.3, phases={"compile": 9.0, "search": 0.3})
    assert "asked for" not in repr(compiled)
    assert doppler.place(graph, evaluations=1, **options).limit_s is None


def test_a_number_of_devices(graph, tmp_path):
    def named(cluster, **options) -> tuple[str, int]:
        placed = doppler.place(graph, cluster=cluster, method="heft", evaluations=1, **options)
        return placed.problem.cluster.name, placed.problem.num_devices

    assert named("h100x8", num_devices=2) == ("h100x8", 2)
    assert named("host", num_devices=3) == ("host", 3)
    path = tmp_path / "mine.yaml"
    path.write_text("_target_: doppler.cluster.preset\nname: p100x4\nnum_devices: 3\n")
    assert named(path) == ("p100x4", 3)
    assert named(path, num_devices=2) == ("p100x4", 2)
    machine = preset(name="p100x4")
    assert named(machine, num_devices=4) == ("p100x4", 4)
    with pytest.raises(InputError, match=r"^num_devices: 2, but the cluster has 4 devices: "):
        named(machine, num_devices=2)


class PerOp(OnePassPolicy):
    """A policy of a user's own."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(len(OP_FEATURES), 4)

    def scores(self, view):
        return self.net(torch.from_numpy(view.op_features))


def test_a_policy_of_ones_own_places_with_its_weights_and_not_from_a_path(placed, tmp_path):
    policy, path = PerOp(), tmp_path / "mine.ckpt"
    weights = {f"policy.{name}": torch.zeros_like(one) for name, one in policy.state_dict().items()}
    torch.save({"state_dict": weights}, path)
    options = {"cluster": "p100x4", "method": "policy", "evaluations": 3}
    with pytest.raises(InputError) as error:
        doppler.place(placed.problem.graph, policy=path, **options)
    told = f"{path}: weights of another policy: a path is for policy=doppler as conf/policy has it."
    assert str(error.value).startswith(told) and "load_policy_weights" in str(error.value)
    load_policy_weights(policy, path)
    assert not any(one.any() for one in policy.parameters())
    found = doppler.place(placed.problem.graph, policy=policy, **options)
    assert found.makespan_s < found.single_device_s


def test_a_baseline_and_a_simulator_of_ones_own(placed):
    graph = placed.problem.graph
    own = doppler.place(graph, cluster="p100x4", method=Asking(), system=BulkSynchronous())
    same = doppler.place(graph, cluster="p100x4", method="round_robin", system=BulkSynchronous())
    assert own.method == "Asking"
    assert own.makespan_s == same.makespan_s
    assert own.system.name == "bulk_synchronous"


def test_a_cluster_from_a_file(placed, tmp_path):
    path = tmp_path / "mine.yaml"
    device = {
        **{"flop_per_s": {"f32": 1e12}, "memory_bytes_per_s": 1e11, "launch_overhead_s": 1e-6},
        "memory_bytes": 1e10,
    }
    cluster = {
        **{"_target_": "doppler.cluster.custom", "name": "mine", "devices": [device] * 3},
        **{"bytes_per_s": 1e10, "latency_s": 1e-6},
    }
    path.write_text(yaml.safe_dump(cluster))
    graph, heft = placed.problem.graph, {"method": "heft", "evaluations": 1}
    found = doppler.place(graph, cluster=path, **heft)
    assert (found.problem.cluster.name, found.problem.num_devices) == ("mine", 3)
    path.write_text(yaml.safe_dump({**cluster, "devices": [device], "num_devices": 5}))
    assert doppler.place(graph, cluster=path, **heft).problem.num_devices == 5
    path.write_text(yaml.safe_dump({**cluster, "num_devices": 5}))
    with pytest.raises(InputError, match="'mine': num_devices is 5, but it has 3"):
        doppler.place(graph, cluster=path, **heft)
    path.write_text(yaml.safe_dump({**cluster, "bytes_per_s": -1}))
    with pytest.raises(InputError, match=r"mine.yaml: .*no link reaches device 0"):
        doppler.place(graph, cluster=path, **heft)
    path.write_text("[]")
    with pytest.raises(InputError, match=r"mine.yaml: does not describe a cluster"):
        doppler.place(graph, cluster=path, **heft)
    with pytest.raises(InputError, match=r"none.yaml: "):
        doppler.place(graph, cluster="none.yaml", **heft)


def test_cores_make_transfers_themselves_unless_a_system_is_told(tmp_path):
    graph = synthetic(family="layered", num_ops=40, transfer_ratio=1.0, seed=3)

    def contention(cluster="host", **options) -> str:
        placed = doppler.place(graph, cluster=cluster, evaluations=4, **options)
        return placed.system.contention

    assert contention() == Threads.contention == "sender"
    assert contention(system=WorkConserving()) == "fifo"
    assert contention(system=WorkConserving(contention="engines")) == "engines"
    cores = host(num_devices=4)
    assert contention(cores) == "sender"
    apart = on_hosts(cores, hosts=2, nic_bytes_per_s=1e9)
    assert contention(apart) == "fifo"
    assert contention("p100x4") == "fifo"
    path = tmp_path / "cores.yaml"
    path.write_text("_target_: doppler.cluster.host\nnum_devices: 3\n")
    assert contention(path) == "sender"
    with pytest.raises(InputError, match="has 2 hosts, and cores of one host send by themselves"):
        contention(apart, system=WorkConserving(contention="sender"))


def test_what_was_placed_on_cores_is_read_back_as_such(tmp_path):
    graph = synthetic(family="layered", num_ops=40, transfer_ratio=1.0, seed=3)
    placed = doppler.place(graph, cluster="host", evaluations=20)
    loaded = doppler.Placed.load(placed.save(tmp_path / "cores"))
    assert loaded.problem.cluster.cores
    assert loaded.system.contention == "sender" and loaded.trace.makespan_s == placed.makespan_s
    links = doppler.place(graph, cluster="p100x4", evaluations=20).save(tmp_path / "links")
    assert "cores" not in (links / "cluster.json").read_text()


@pytest.mark.parametrize(
    "system",
    [
        WorkConserving(),  # on cores not what is chosen where none is told
        WorkConserving(queue="fifo", contention="engines", streams=2),
        BulkSynchronous(),
        Published(queue="priority"),
    ],
)
def test_what_was_placed_for_a_told_simulator_is_read_back_as_such(system, tmp_path):
    graph = synthetic(family="layered", num_ops=40, transfer_ratio=1.0, seed=3)
    placed = doppler.place(graph, cluster="host", evaluations=20, system=system)
    loaded = doppler.Placed.load(placed.save(tmp_path))
    assert vars(loaded.system) == vars(placed.system)
    assert loaded.trace.makespan_s == placed.makespan_s
    assert repr(loaded) == repr(placed) and loaded.explain() == placed.explain()
    found = json.loads((tmp_path / "found.json").read_text())
    found["system"]["noise"] = "loud"
    (tmp_path / "found.json").write_text(json.dumps(found))
    with pytest.raises(InputError, match=r"found.json: .*noise.*loud"):
        doppler.Placed.load(tmp_path)


def test_seconds_that_were_measured_are_said_to_be_when_they_are_read_back(tmp_path):
    graph = load_workload(program=str(REPOSITORY / "workloads/chainmm.einsum"), preset="small")
    placed = doppler.place(
        graph, cluster="host", evaluations=2, system=Threads(), method="round_robin"
    )
    loaded = doppler.Placed.load(placed.save(tmp_path))
    assert loaded.makespan_s == placed.makespan_s
    assert "measured by threads when it was placed" in repr(loaded)
    assert loaded.system.kind == "simulated"
    again = doppler.Placed.load(loaded.save(tmp_path / "again"))
    assert "measured by threads when it was placed" in repr(again)


def test_a_method_that_is_named_is_not_left_out_of_large_graphs(monkeypatch):
    monkeypatch.setattr(HEFT, "most_ops", 100)
    graph = synthetic(family="layered", num_ops=150, transfer_ratio=1.0, seed=3)
    placed = doppler.place(graph, cluster="dgx_h100x16", method="heft", evaluations=20)
    assert placed.evaluations == 20


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"cluster": "cray"}, "cluster 'cray': unknown, choose from p100x4, v100x8, a100x8"),
        ({"method": "magic"}, "method: 'magic' is not one of policy, auto, annealing, "),
        ({"method": "policy", "policy": "no.ckpt"}, "no.ckpt: No such file or directory"),
        ({"method": []}, "method: not a list of steps (doppler.search): []"),
        (
            {"method": [3]},
            "place.method: must be a text or a Baseline or a list, each a SearchStep, got [3]",
        ),
        ({"method": [KeepToHosts()]}, "chainmm: no step of the method executed a placement"),
        ({"policy": "no.ckpt"}, 'policy: is for method="policy" alone'),
        ({"num_devices": 0}, "place.num_devices: must be a whole number of at least 1"),
        ({"seconds": 0}, "place.seconds: must be a number above 0, at most 1e9 or null, got 0"),
        ({"evaluations": 5}, "evaluations, seconds: give exactly one of them, got 5 and 0.1"),
        (
            {"evaluations": 0, "seconds": None},
            "place.evaluations: must be a whole number of at least 1",
        ),
        (
            {"decomposition": "fine"},
            "place.decomposition: must be one of auto, published or a Decomposition, got 'fine'",
        ),
        ({"system": torch.zeros(2)}, "place.system: must be a System or null, got tensor("),
    ],
)
def test_mistakes_end_in_one_line(graph, options, line):
    with pytest.raises(InputError) as error:
        doppler.place(graph, **{"cluster": "p100x4", "seconds": 0.1, **options})
    assert str(error.value).startswith(line)


def test_importing_the_package_is_cheap():
    code = "import doppler, sys; assert 'torch' not in sys.modules and 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_with_evaluations_the_policy_searches_first_within_seconds_what_learns_nothing(placed):
    problem, counted, timed = placed.problem, Budget(evaluations=9), Budget(seconds=1.0)
    first = policy_steps(search_settings(), load_policy(), make_view(problem))[:-1]
    found = placing._automatic(steps_of("auto"), problem, counted)
    after = placing._automatic(steps_of("auto"), problem, timed)
    assert [type(step) for step in after] == [InParts, AnnealFromBest]
    assert [type(step) for step in found] == [type(step) for step in (*first, *after)]
    auto, policy = (
        doppler.place(problem.graph, cluster="h100x8", method=method, evaluations=1)
        for method in ("auto", "policy")
    )
    assert np.array_equal(auto.placement.device, policy.placement.device)
    assert auto.makespan_s == policy.makespan_s


class Interrupt:
    """A step during which a person presses Ctrl-C."""

    share = None
    repeats = False

    def search(self, best, evaluations, rng, *, walks=1):
        raise KeyboardInterrupt


def test_an_interrupted_search_returns_the_best_so_far():
    graph = synthetic(family="layered", num_ops=30, transfer_ratio=1.0, seed=0)
    steps = [PlaceOnce(baseline=HEFT(evaluations=1)), Interrupt()]
    placed = doppler.place(graph, cluster="p100x4", method=steps, evaluations=10)
    assert placed.is_interrupted and placed.evaluations == 1
    assert "interrupted" in repr(placed)
    with pytest.raises(KeyboardInterrupt):
        doppler.place(graph, cluster="p100x4", method=[Interrupt()], evaluations=10)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"example_inputs": "p100x4"}, "example_inputs: .*; cluster='p100x4' chooses the machine"),
        ({"example_kwargs": {}}, "example_kwargs: is for torch modules, and a graph was given"),
        ({"training": True}, "training: is for torch modules"),
        (
            {"decomposition": "published"},
            "decomposition: is for torch modules, and a graph was given$",
        ),
    ],
)
def test_what_means_nothing_for_a_graph_is_refused(given, said):
    with pytest.raises(InputError, match=said):
        doppler.place(graph_of([1.0]), cluster="p100x4", evaluations=1, **given)


def test_a_makespan_far_above_that_of_one_device_is_told(tmp_path):
    placed = doppler.place(graph_of([1.0]), cluster="p100x4", evaluations=1)
    assert "inf times slower" in str(replace(placed, makespan_s=1e12, single_device_s=1e-9))
