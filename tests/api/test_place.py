"""doppler.place and doppler.execute, as a user calls them."""

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
import yaml
from benchmarks.torch_modules import ConvNet, Transformer, llama_7b_block
from problems import cluster_of, graph_of
from torch import nn

import doppler
from doppler.api import placing
from doppler.baselines import ETF, HEFT, Clustering, RoundRobin
from doppler.cluster import host, preset
from doppler.cluster.machine import on_hosts
from doppler.env import make_view, mergings
from doppler.executor import Threads
from doppler.extensions.large import AtOnce
from doppler.graph import load_graph, synthetic
from doppler.problem import Placement, build
from doppler.search import (
    AnnealFromBest,
    AnnealOnEstimates,
    Budget,
    Episodes,
    Evaluator,
    GreedyEpisode,
    InParts,
    KeepToHosts,
    PlaceAgain,
    load_policy,
    methods,
    policy_steps,
    search_settings,
    steps_of,
)
from doppler.simulator import BulkSynchronous, WorkConserving
from doppler.support.errors import InputError

X = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def module() -> nn.Module:
    torch.manual_seed(0)
    return Transformer(16, 4, 24, 6)


@pytest.fixture(scope="module")
def placed(module) -> doppler.Placed:
    return doppler.place(module, X, "p100x4", 0.3, decomposition="published")


def test_what_is_placed_runs_and_returns_what_the_module_does(module, placed):
    with torch.no_grad():
        torch.testing.assert_close(doppler.execute(placed, X), module(X), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(doppler.execute(placed, (2 * X,)), module(2 * X))


class Words(nn.Module):
    """Whole numbers in and out, and calls of torch's operators between."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.rnn = nn.Conv1d(6, 6, 3)

    def forward(self, numbers):
        mixed = self.rnn(self.words(numbers)).cumsum(1)
        return {"best": mixed.argmax(-1), "sorted": mixed.sort(1).values, "near": mixed > 0}


@pytest.mark.parametrize(
    ("module", "x"),
    [
        (nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 4)), torch.randn(6, 8)),
        (ConvNet(4, 5).eval(), torch.randn(3, 3, 16, 16)),
        (Words(), torch.arange(12).reshape(2, 6)),
        (nn.Sequential(nn.Linear(8, 8), nn.GELU()).bfloat16(), torch.randn(4, 8).bfloat16()),
    ],
)
def test_other_modules_run_on_this_machine_as_they_are_placed(module, x):
    placed = doppler.place(module, x, "p100x4", 0.05, decomposition="published")
    assert len(set(placed.placement.device.tolist())) > 1
    with torch.no_grad():
        expected = module(x)
    tolerance = 2e-2 if x.dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(doppler.execute(placed, x), expected, rtol=tolerance, atol=tolerance)


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


def test_a_small_model_is_not_split(module, placed):
    alone = doppler.place(module, X, "p100x4", 0.3)
    assert alone.problem.num_ops < placed.problem.num_ops
    assert alone.makespan_s <= min(placed.makespan_s, alone.single_device_s)
    assert alone.single_device_s == placed.single_device_s


def test_it_shows_and_explains_itself(placed):
    text = repr(placed)
    assert text.startswith("Transformer on p100x4 (4 devices)\n  ops ")
    for word in ("makespan", "lower bound", "one device", "memory", "found by     auto: "):
        assert f"\n  {word}" in text
    html = placed._repr_html_()
    assert "<td style='text-align:left'>auto: " in html and "data:image/png;base64,iVBOR" in html
    assert "devices busy" in placed.explain()


def test_it_says_what_is_not_split():
    flipped = nn.Sequential(nn.Linear(8, 8), nn.PixelShuffle(2))
    placed = doppler.place(flipped, torch.randn(1, 4, 8, 8), "p100x4", 0.1, method="heft")
    assert "not split" not in placed.explain()

    class Flip(nn.Module):
        def forward(self, x):
            return (x @ x).flip(0, 1)

    placed = doppler.place(Flip(), torch.randn(8, 8), "p100x4", 0.1, method="heft")
    assert "not split: op aten.flip in Flip: no rule says how to split it" in placed.explain()


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
    assert found.single_device_s >= placed.single_device_s, "of what is split, and all launches"


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
        "memory_bytes": 1e9,
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
    with pytest.raises(InputError, match=r"mine.yaml: describes no cluster"):
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
    assert contention(memory="offload") == "fifo"
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
    ("system", "memory"),
    [
        (WorkConserving(), "refuse"),  # on cores not what is chosen where none is told
        (WorkConserving(queue="fifo", contention="engines", streams=2), "refuse"),
        (WorkConserving(contention="engines"), "offload"),
    ],
)
def test_what_was_placed_for_a_told_simulator_is_read_back_as_such(system, memory, tmp_path):
    graph = synthetic(family="layered", num_ops=40, transfer_ratio=1.0, seed=3)
    placed = doppler.place(graph, "host", evaluations=20, system=system, memory=memory)
    loaded = doppler.Placed.load(placed.save(tmp_path))
    assert vars(loaded.system) == vars(placed.system)
    assert loaded.trace.makespan_s == placed.makespan_s
    found = json.loads((tmp_path / "found.json").read_text())
    found["system"]["contention"] = "loud"
    (tmp_path / "found.json").write_text(json.dumps(found))
    with pytest.raises(InputError, match=r"found.json: .*contention.*loud"):
        doppler.Placed.load(tmp_path)


def test_a_method_that_is_named_is_not_left_out_of_large_graphs(monkeypatch):
    monkeypatch.setattr(HEFT, "most_ops", 100)
    graph = synthetic(family="layered", num_ops=150, transfer_ratio=1.0, seed=3)
    placed = doppler.place(graph, cluster="dgx_h100x16", method="heft", evaluations=20)
    assert placed.evaluations == 20


def test_of_a_graph_too_large_for_the_seconds_one_list_scheduler_is_executed(monkeypatch):
    monkeypatch.setattr(placing, "_LARGE", 100)
    monkeypatch.setattr(HEFT, "most_ops", 100)
    graph = synthetic(family="layered", num_ops=150, transfer_ratio=1.0, seed=3)
    placed = doppler.place(graph, cluster="p100x4", seconds=1e-9)
    with WorkConserving().open(placed.problem) as session:
        once = ETF(evaluations=1).place(session, np.random.default_rng(0))
    assert placed.evaluations == 1 and placed.makespan_s == once.makespan_s


def test_a_machine_of_hosts_is_placed_on_and_what_is_placed_runs_here(module):
    on_hosts = doppler.place(module, X, "ethernet_4x1", evaluations=20)
    assert on_hosts.problem.cluster.num_hosts == 4
    with torch.no_grad():
        torch.testing.assert_close(doppler.execute(on_hosts, X), module(X), rtol=1e-4, atol=1e-4)
    with pytest.raises(InputError, match="'ethernet_4x1': has 4 hosts, and executors run on this"):
        Threads().open(on_hosts.problem)


def test_a_training_step_runs_too():
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x, y):
            return nn.functional.mse_loss(self.layer(x), y)

    module, inputs = Loss(), (torch.randn(6, 4), torch.randn(6, 2))
    placed = doppler.place(
        module, inputs, "p100x4", 0.1, method="heft", training=True, learning_rate=0.1
    )
    loss, parameters = doppler.execute(placed, inputs)
    expected = module(*inputs)
    expected.backward()
    torch.testing.assert_close(loss, expected.detach())
    for name, parameter in module.named_parameters():
        step = parameter.detach() - parameters[name]
        torch.testing.assert_close(step, 0.1 * parameter.grad, rtol=1e-4, atol=1e-6)


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
        ({"method": [KeepToHosts()]}, "Transformer: no step of the method executed a placement"),
        ({"policy": "no.ckpt"}, 'policy: is for method="policy" alone'),
        ({"seconds": 0}, "place.seconds: must be a number above 0, at most 1e9 or null, got 0"),
        ({"evaluations": 5}, "evaluations, seconds: a search has one of them, got 5 and 0.1"),
        (
            {"evaluations": 0, "seconds": None},
            "place.evaluations: must be a whole number of at least 1",
        ),
        (
            {"decomposition": "fine"},
            "place.decomposition: must be one of auto, published or a Decomposition, got 'fine'",
        ),
        ({"example_inputs": None}, "place: a module needs example_inputs"),
        ({"system": torch.zeros(2)}, "place.system: must be a System or null, got tensor("),
    ],
)
def test_mistakes_end_in_one_line(module, options, line):
    with pytest.raises(InputError) as error:
        doppler.place(
            module, **{"example_inputs": X, "cluster": "p100x4", "seconds": 0.1, **options}
        )
    assert str(error.value).startswith(line)


def test_a_module_that_is_too_large_for_the_machine():
    with torch.device("meta"):
        module, inputs = llama_7b_block()
        layers = nn.Sequential(*(nn.Linear(60_000, 60_000, bias=False) for _ in range(5)))
        example = torch.zeros(1, 60_000)
    with pytest.raises(InputError) as error:
        doppler.place(layers, example, "p100x4", 0.1)
    assert str(error.value) == (
        "Sequential: its parameters and inputs hold 72 GB, the 4 devices of 'p100x4' 64 GB: use "
        "more devices (cluster.num_devices=N), half precision, or place a part of the module"
    )
    machine = preset(name="p100x4")
    small = tuple(replace(device, memory_bytes=1e9) for device in machine.devices)
    machine = replace(machine, name="small", devices=small)
    placed = doppler.place(module, inputs, machine, 1.0)
    assert placed.single_device_s == np.inf
    assert max(placed.memory_bytes.values()) <= 1e9
    assert "one device   has too little memory" in repr(placed)
    with pytest.raises(InputError, match="is on the meta device: there are no values to run with"):
        doppler.execute(placed, inputs)


def test_importing_the_package_is_cheap():
    code = "import doppler, sys; assert 'torch' not in sys.modules and 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_of_many_ops_a_policy_places_once_all_that_its_search_runs_is_compiled(monkeypatch):
    monkeypatch.setattr("doppler.search.configured.MANY_OPS", 100)
    graph = synthetic(family="layered", num_ops=101, transfer_ratio=0.1, seed=3)
    placed = doppler.place(graph, cluster="p100x4", method="policy", evaluations=1)
    assert placed.evaluations == 1 and placed.speed_up > 1.0


def test_large_graphs_begin_with_what_the_policy_places_at_once(monkeypatch):
    monkeypatch.setattr(placing, "_LARGE_COUNTED", 100)
    graph = synthetic(family="layered", num_ops=150, transfer_ratio=1.0, seed=3)
    problem = build(graph, preset(name="p100x4"))
    with WorkConserving().open(problem) as session:
        best = Evaluator(session=session, confirmations=0, seed=0)
        step = GreedyEpisode(policy=load_policy(), views=mergings(make_view(problem)))
        step.search(best, 1, np.random.default_rng(0))
    placed = doppler.place(graph, cluster="p100x4", evaluations=1)
    assert placed.makespan_s == best.seconds
    assert placed.evaluations == 1
    assert doppler.place(graph, cluster="p100x4", evaluations=40).makespan_s <= best.seconds


def test_views_are_made_of_what_is_executed_alone(monkeypatch):
    monkeypatch.setattr(placing, "_LARGE_COUNTED", 100)
    graph, made = synthetic(family="layered", num_ops=150, transfer_ratio=1.0, seed=3), []
    monkeypatch.setattr(
        "doppler.search.greedy.make_view", lambda *a: made.append(a) or make_view(*a)
    )
    for evaluations in (1, 2):
        made.clear()
        doppler.place(graph, cluster="dgx_h100x16", evaluations=evaluations)
        assert len(made) == evaluations


def test_with_evaluations_the_policy_searches_first_within_seconds_what_learns_nothing(placed):
    problem, counted, timed = placed.problem, Budget(evaluations=9), Budget(seconds=1.0)
    first = policy_steps(search_settings(), load_policy(), make_view(problem))[:-1]
    found = placing._automatic(steps_of("auto", counted), problem, counted)
    after = placing._automatic(steps_of("auto", timed), problem, timed)
    assert [type(step) for step in after] == [InParts, AnnealFromBest]
    assert [type(step) for step in found] == [type(step) for step in (*first, *after)]
    auto, policy = (
        doppler.place(problem.graph, cluster="h100x8", method=method, evaluations=1)
        for method in ("auto", "policy")
    )
    assert np.array_equal(auto.placement.device, policy.placement.device)
    assert auto.makespan_s == policy.makespan_s


def test_within_seconds_a_large_graph_begins_with_list_schedulers(monkeypatch):
    for most in ("_LARGE", "_LARGE_COUNTED"):
        monkeypatch.setattr(placing, most, 100)
    graph = synthetic(family="layered", num_ops=150, transfer_ratio=1.0, seed=3)
    problem = build(graph, preset(name="dgx_h100x16"))
    steps = steps_of("auto", Budget(seconds=1.0))
    kinds = [type(step) for step in placing._automatic(steps, problem, Budget(seconds=1.0))]
    assert kinds == [KeepToHosts, InParts, *[AtOnce] * 3, AnnealFromBest]
    counted = placing._automatic(steps, problem, Budget(evaluations=9))
    assert [type(step) for step in counted[:4]] == [*[AtOnce] * 3, KeepToHosts]
    assert counted[0].way == 0, "free first, as one execution may be all there is"
