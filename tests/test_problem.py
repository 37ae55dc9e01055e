"""Problem: seconds by hand, what is refused, and placements on disk."""

import dataclasses
import json

import numpy as np
import pytest
from problems import cluster_of, graph_of, random_problem

from doppler.cluster import Cluster, Device, Link, connected
from doppler.graph import DataflowGraph
from doppler.graph.dataflow import Edges, GivenCosts, Inputs, Ops
from doppler.problem import Placement, Problem, build
from doppler.problem.pricing import op_cost_s
from doppler.problem.transfer_kernels import move_seconds
from doppler.support.errors import InputError

DEVICE = Device(
    name="box",
    flop_per_s={"f16": 200.0, "f32": 100.0},
    memory_bytes_per_s=10.0,
    launch_overhead_s=0.5,
    memory_bytes=1000.0,
)


def cost_of(flops: float, moved_bytes: float, dtype: str = "f32", device: Device = DEVICE) -> float:
    (seconds,) = op_cost_s(
        flops=np.array([flops]),
        moved_bytes=np.array([moved_bytes]),
        dtypes=(dtype,),
        device=device,
    )
    return float(seconds)


# --- Seconds per op -----------------------------------------------------------------------------


def test_an_op_bound_by_its_arithmetic_takes_launch_plus_flops_over_rate():
    assert cost_of(flops=400, moved_bytes=39) == 0.5 + 4.0


def test_an_op_bound_by_its_bytes_takes_launch_plus_bytes_over_bandwidth():
    assert cost_of(flops=400, moved_bytes=50) == 0.5 + 5.0


def test_an_op_that_does_nothing_takes_the_launch():
    assert cost_of(flops=0, moved_bytes=0) == 0.5


def test_the_rate_is_that_of_the_dtype():
    assert cost_of(flops=400, moved_bytes=0, dtype="f16") == 0.5 + 2.0


def test_c64_runs_at_the_rate_of_f32_unless_it_has_its_own():
    assert cost_of(flops=400, moved_bytes=0, dtype="c64") == 0.5 + 4.0
    own = dataclasses.replace(DEVICE, flop_per_s={"f32": 100.0, "c64": 50.0})
    assert cost_of(flops=400, moved_bytes=0, dtype="c64", device=own) == 0.5 + 8.0


def test_a_dtype_without_a_rate_names_device_and_dtype():
    with pytest.raises(InputError) as error:
        cost_of(flops=1, moved_bytes=0, dtype="f64")
    assert str(error.value) == ("device 'box': no flop_per_s for dtype 'f64', only f16, f32")


def test_bytes_read_and_written_count_and_every_device_has_its_own_seconds():
    graph = DataflowGraph(
        name="one",
        ops=Ops.make(flops=[100], read_bytes=[15], output_bytes=[5]),
        edges=Edges.make(src=[], dst=[], bytes=[]),
        inputs=Inputs.make(),
    )
    quick = dataclasses.replace(DEVICE, name="quick", memory_bytes_per_s=1e9, launch_overhead_s=0.0)
    cluster = connected(
        name="two",
        devices=(DEVICE, quick),
        link=lambda s, d: Link(bytes_per_s=1.0, latency_s=0.0),
    )
    assert build(graph, cluster).arrays.op_seconds.tolist() == [[0.5 + 2.0, 1.0]]


# --- Transfers ----------------------------------------------------------------------------------


def unequal_cluster() -> Cluster:
    return cluster_of(
        [1.0, 2.0],
        latency_s=np.array([[0.0, 0.25], [0.5, 0.0]]),
        bytes_per_s=np.array([[1.0, 4.0], [8.0, 1.0]]),
    )


def test_a_transfer_takes_latency_plus_bytes_over_bandwidth_of_its_direction():
    p = build(graph_of([1, 1], [(0, 1, 16)]), unequal_cluster()).arrays
    seconds = p.latency_s + p.size[0] * p.seconds_per_size
    assert seconds[0, 1] == 0.25 + 4.0
    assert seconds[1, 0] == 0.5 + 2.0
    assert (seconds.diagonal() == 0).all()


def test_means_are_over_able_devices_and_over_ordered_pairs():
    cluster = cluster_of([1.0, 2.0, 4.0], unsupported_kinds=[[], ["a"], []])
    problem = build(graph_of([8, 8], [(0, 1, 16)], kinds=["a", "b"]), cluster)
    assert problem.mean_op_seconds.tolist() == [(8 + 2) / 2, (8 + 4 + 2) / 3]
    problem = build(graph_of([1, 1], [(0, 1, 16)]), unequal_cluster())
    assert problem.mean_transfer_seconds.tolist() == [(4.25 + 2.5) / 2]
    alone = build(graph_of([1, 1], [(0, 1, 16)]), cluster_of([1.0]))
    assert alone.mean_transfer_seconds.tolist() == [0.0]


@pytest.mark.parametrize(
    ("graph", "scale_s"),
    [
        (graph_of([4, 4, 4, 4]), 8.0),  # work spread over two devices
        (graph_of([4, 4, 4, 0], [(0, 1, 9), (1, 2, 9)]), 12.0),  # the path, without transfers
        (graph_of([0, 0]), 1.0),  # nothing to do: any scale will do
    ],
)
def test_the_time_scale_is_the_larger_of_spread_work_and_longest_path(graph, scale_s):
    assert build(graph, cluster_of([1.0, 1.0])).scale_s == scale_s


# --- Given costs --------------------------------------------------------------------------------


def timed_graph() -> DataflowGraph:
    """Op 0 sends region 0 to ops 1 and 2, region 1 to op 2."""
    return dataclasses.replace(
        graph_of([1, 1, 1], [(0, 2, 8, 1), (0, 1, 4, 0), (0, 2, 4, 0)], output_bytes=[0, 1, 1]),
        given_costs=GivenCosts.make(op_seconds=[3, 0.5, 7], transfer_seconds=[2, 5, 5]),
    )


def test_given_costs_are_the_same_on_every_device_and_link_of_any_cluster():
    slow = cluster_of([1e-9] * 3, latency_s=100.0, bytes_per_s=1e-9, memory_bytes=0.0)
    for cluster in (slow, cluster_of([1.0, 5.0, 7.0])):
        problem = build(timed_graph(), cluster)
        p = problem.arrays
        assert problem.has_given_costs
        assert p.op_seconds.tolist() == [[3] * 3, [0.5] * 3, [7] * 3]
        assert p.size.tolist() == [5, 2]
        for r, seconds in enumerate((5, 2)):
            moved = p.latency_s + p.size[r] * p.seconds_per_size
            assert (moved[~np.eye(3, dtype=bool)] == seconds).all()
        assert np.isinf(p.memory_bytes).all()


def test_given_costs_do_not_make_a_device_run_what_it_cannot():
    graph = dataclasses.replace(
        timed_graph(), ops=dataclasses.replace(timed_graph().ops, kinds=("a", "b", "b"))
    )
    problem = build(graph, cluster_of([1.0, 1.0], unsupported_kinds=[["a"], []]))
    assert problem.arrays.op_seconds.tolist() == [[np.inf, 3], [0.5, 0.5], [7, 7]]


# --- The arrays of the graph --------------------------------------------------------------------


def test_arrays_hold_regions_reads_and_inputs():
    graph = graph_of(
        [1, 1, 1],
        [(0, 2, 8, 1), (0, 1, 8, 1), (1, 2, 2), (0, 2, 4, 0)],
        output_bytes=[50, 60, 70],
        inputs=[(16, [0, 2]), (32, []), (64, [1])],
    )
    p = build(graph, cluster_of([1.0])).arrays
    # Regions: 0 = (op 0, label 0), 1 = (op 0, label 1), 2 = (op 1, label 0).
    assert p.region_src.tolist() == [0, 0, 1]
    assert p.region_bytes.tolist() == [4, 8, 2]
    assert p.size.tolist() == [4, 8, 2]
    assert p.region_ptr.tolist() == [0, 2, 3, 3]
    assert p.consumer_ptr.tolist() == [0, 1, 3, 4]
    assert p.consumers.tolist() == [2, 1, 2, 2]
    assert p.read_ptr.tolist() == [0, 0, 1, 4]
    assert p.reads.tolist() == [1, 0, 1, 2]
    assert p.sink_bytes.tolist() == [0, 0, 70]
    assert p.input_ptr.tolist() == [0, 2, 2, 3]
    assert p.input_consumers.tolist() == [0, 2, 1]
    assert p.input_bytes.tolist() == [16, 32, 64]


# --- What cannot run ----------------------------------------------------------------------------


def test_an_op_kind_that_a_device_cannot_run_takes_forever_there():
    cluster = cluster_of([1.0, 2.0], unsupported_kinds=[["a"], ["b", "c"]])
    problem = build(graph_of([4, 4, 4], kinds=["a", "b", "d"]), cluster)
    assert problem.arrays.op_seconds.tolist() == [[np.inf, 2], [4, np.inf], [4, 2]]


def test_an_op_that_no_device_runs_is_named():
    cluster = cluster_of([1.0, 1.0], unsupported_kinds=[["b", "c"], ["b"]])
    with pytest.raises(InputError) as error:
        build(graph_of([4, 4], kinds=["a", "b"]), cluster)
    assert str(error.value) == "cluster 'test': no device runs op 1 ('op1') of kind 'b'"


def hungry_graph() -> DataflowGraph:
    """Op 1 holds its input (100), what it reads (8 + 4) and what it writes (30) at one time."""
    return graph_of(
        [1, 1, 1, 1],
        [(0, 1, 8, 0), (0, 1, 4, 1), (1, 2, 30), (1, 3, 30)],
        output_bytes=[0, 0, 1, 1],
        inputs=[(100, [1]), (5, [0, 2])],
    )


def test_an_op_whose_data_fits_on_no_device_is_named():
    build(hungry_graph(), cluster_of([1.0, 1.0], memory_bytes=[142.0, 1.0]))
    with pytest.raises(InputError) as error:
        build(hungry_graph(), cluster_of([1.0, 1.0], memory_bytes=[1.0, 141.0]))
    assert str(error.value) == (
        "graph 'test': op 1 ('op1') needs 142 bytes at once, "
        "the largest device that runs it has 141; the least memory that would do for all ops is 142"
    )


def test_memory_of_a_device_that_cannot_run_the_op_does_not_count():
    graph = graph_of([1], kinds="a", output_bytes=[50])
    cluster = cluster_of([1.0, 1.0], memory_bytes=[100.0, 10.0], unsupported_kinds=[["a"], []])
    with pytest.raises(InputError, match=r"needs 50 bytes at once, the largest .* has 10"):
        build(graph, cluster)


# --- Hash ---------------------------------------------------------------------------------------


def small_problem(**changes) -> Problem:
    good = {"flops": [1, 2], "edges": [(0, 1, 3)], "inputs": [(1, [0])], "output_bytes": [0, 1]}
    return build(graph_of(**{**good, **changes}), unequal_cluster())


def test_equal_problems_have_equal_hashes_and_names_do_not_matter():
    one = small_problem()
    assert one.hash == small_problem().hash
    renamed = build(dataclasses.replace(one.graph, name="other"), one.cluster)
    assert renamed.hash == one.hash


@pytest.mark.parametrize(
    "other",
    [
        small_problem(flops=[1, 2.5]),
        small_problem(edges=[(0, 1, 4)]),
        small_problem(edges=[(1, 0, 3)]),
        small_problem(edges=[]),
        small_problem(inputs=[(2, [0])]),
        small_problem(inputs=[(1, [1])]),
        small_problem(output_bytes=[0, 2]),
        build(small_problem().graph, cluster_of([1.0, 2.0])),
        build(small_problem().graph, cluster_of([1.0, 2.0, 2.0])),
    ],
)
def test_another_number_anywhere_is_another_hash(other):
    assert other.hash != small_problem().hash


# --- Placements ---------------------------------------------------------------------------------


@pytest.fixture
def problem() -> Problem:
    """Ops 2 -> 0 -> 1, op 1 of a kind that device 0 cannot run."""
    return build(
        graph_of([1, 1, 1], [(2, 0, 1), (0, 1, 1)], kinds=["a", "b", "a"]),
        cluster_of([1.0, 1.0], unsupported_kinds=[["b"], []]),
    )


def test_without_priorities_ops_rank_in_topological_order(problem):
    assert Placement.make(problem, np.array([0, 1, 0])).priority.tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    ("device", "priority", "message"),
    [
        ([0, 1], None, "placement: 2 devices and 3 priorities for 3 ops"),
        ([0, 1, 0], [0, 1], "placement: 3 devices and 2 priorities for 3 ops"),
        ([0, 1, 2], None, "placement: op 2 is on device 2, but the devices are 0 to 1"),
        ([-1, 1, 0], None, "placement: op 0 is on device -1, but the devices are 0 to 1"),
        ([0, 1, 0], [0, 1, 1], "placement: priorities are not a ranking 0 to 2"),
        ([0, 1, 0], [1, 2, 3], "placement: priorities are not a ranking 0 to 2"),
        (
            [0, 0, 0],
            None,
            "placement: op 1 ('op1') is on device 0, which cannot run its kind",
        ),
    ],
)
def test_an_impossible_placement_is_named(problem, device, priority, message):
    with pytest.raises(InputError) as error:
        Placement.make(problem, device, priority)
    assert str(error.value) == message


@pytest.mark.parametrize("seed", range(5))
def test_a_placement_saved_and_loaded_is_the_same(tmp_path, seed):
    problem = random_problem(seed)
    rng = np.random.default_rng(seed)
    device = np.where(np.isfinite(problem.arrays.op_seconds), 0, np.inf).argmin(axis=1)
    saved = Placement.make(problem, device, rng.permutation(problem.num_ops))
    path = tmp_path / "new" / "placement.json"
    saved.save(path, {"makespan_s": 1.5})
    loaded = Placement.load(path, problem)
    assert loaded.device.tolist() == saved.device.tolist()
    assert loaded.priority.tolist() == saved.priority.tolist()
    assert loaded.problem_hash == problem.hash
    assert json.loads(path.read_text())["makespan_s"] == 1.5


def test_a_placement_for_another_problem_is_refused_with_both_hashes(tmp_path, problem):
    path, other = tmp_path / "placement.json", random_problem(0, num_ops=3, num_devices=2)
    Placement.make(problem, np.array([0, 1, 0])).save(path)
    with pytest.raises(InputError) as error:
        Placement.load(path, other)
    assert str(error.value) == (f"{path}: made for problem {problem.hash!r}, not {other.hash!r}")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"device": [0, 1, 0]}',
        '{"problem_hash": HASH, "device": "no", "priority": [0, 1, 2]}',
        '{"problem_hash": HASH, "device": 5, "priority": [0, 1, 2]}',
        '{"problem_hash": HASH, "device": [0, [1], 0], "priority": [0, 1, 2]}',
        '{"problem_hash": HASH, "device": [0, null, 0], "priority": [0, 1, 2]}',
        '{"problem_hash": HASH, "device": [0, 2, 0], "priority": [0, 1, 2]}',
    ],
)
def test_a_file_that_is_no_placement_ends_in_one_line_that_names_it(tmp_path, problem, content):
    path = tmp_path / "placement.json"
    path.write_text(content.replace("0603027b1d426596", json.dumps(problem.hash)))
    with pytest.raises(InputError) as error:
        Placement.load(path, problem)
    assert str(error.value).startswith(f"{path}:")
    assert "\n" not in str(error.value)


def test_a_missing_placement_file_is_named(tmp_path, problem):
    with pytest.raises(InputError, match=r"gone\.json: No such file"):
        Placement.load(tmp_path / "gone.json", problem)


# --- Groups, pins, and seconds by device and link -------------------------------------------------


def restricted(*, group=(-1, -1, -1), pinned=(-1, -1, -1), op_kinds="op", **given) -> DataflowGraph:
    """Three ops in a row, the first two of which send 4 bytes."""
    graph = graph_of([1, 2, 3], [(0, 1, 4), (1, 2, 4)])
    ops = Ops.make(
        flops=[1, 2, 3], kinds=op_kinds, group=group, pinned=pinned, output_bytes=[4, 4, 1]
    )
    costs = None
    if given:
        costs = GivenCosts.make(**{"op_seconds": None, "transfer_seconds": None, **given})
    return dataclasses.replace(graph, ops=ops, given_costs=costs)


def named(*names: str, **changes) -> Cluster:
    cluster = cluster_of([1.0] * len(names), **changes)
    devices = [
        dataclasses.replace(device, name=name)
        for name, device in zip(names, cluster.devices, strict=True)
    ]
    return dataclasses.replace(cluster, devices=tuple(devices))


def test_an_op_runs_where_it_is_pinned_and_takes_its_group_along():
    problem = build(restricted(group=(7, -1, 7), pinned=(-1, -1, 1)), cluster_of([1.0, 2.0]))
    inf = np.inf
    assert problem.arrays.op_seconds.tolist() == [[inf, 0.5], [2, 1], [inf, 1.5]]
    assert problem.arrays.group.tolist() == [0, 1, 0]
    assert problem.group_seconds.tolist() == [[inf, 2], [2, 1], [inf, 2]]
    assert problem.allows(np.array([[1, 0, 1], [0, 0, 0], [1, 1, 0]])).tolist() == [1, 0, 0]


def test_a_problem_without_groups_has_the_name_that_it_had_before_there_were_any():
    names = [
        build(restricted(group=group), cluster_of([1.0, 2.0])).hash
        for group in ((-1, -1, -1), (0, 1, 2), (0, 0, 2), (2, 0, 0))
    ]
    assert names[0] == names[1] == "0603027b1d426596"
    assert len(set(names[1:])) == 3


@pytest.mark.parametrize(
    ("graph", "device", "message"),
    [
        ({"group": (5, -1, 5)}, [0, 0, 1], "ops 0 and 2 of group 5 are on devices 0 and 1"),
        ({"pinned": (1, -1, -1)}, [0, 0, 1], "op 0 ('op0') is on device 0, but pinned to 1"),
        (
            {"group": (5, 5, -1), "pinned": (1, -1, -1)},
            [1, 0, 1],
            "op 1 ('op1') is on device 0, which cannot run it or its group",
        ),
    ],
)
def test_a_placement_that_breaks_a_rule_says_which(graph, device, message):
    with pytest.raises(InputError) as error:
        Placement.make(build(restricted(**graph), cluster_of([1.0, 2.0])), device)
    assert str(error.value) == f"placement: {message}"


BY_KINDS = np.array([[[1, 2], [3, np.nan]], [[5, 6], [7, np.nan]]])


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (
            {"pinned": (-1, 2, -1)},
            "op 1 ('op1') is pinned to device 2, but the devices of 'test' are 0 to 1",
        ),
        (
            {"pinned": (-1, 1, -1), "op_kinds": "odd"},
            "op 1 ('op1') is pinned to device 1 of 'test', which cannot run it",
        ),
        (
            {"group": (3, 3, -1), "pinned": (0, 1, -1)},
            "group 3 has no device: op 0 ('op0') runs on device 0 alone, "
            "op 1 ('op1') runs on device 1 alone",
        ),
        (
            {"op_seconds": [[1, np.inf, 1]] * 3},
            "given seconds for 3 devices, cluster 'test' has 2",
        ),
        (
            {"transfer_seconds": BY_KINDS, "kinds": ("cpu", "gpu")},
            "given seconds of edges are for cpu, gpu, cluster 'test' has 'device0' "
            "(the kind of a device is its name up to the last colon)",
        ),
        ({"group": (-2, 0, 0)}, "op 0 ('op0') has group -2: must be at least 0, or -1 for none"),
    ],
)
def test_what_can_be_placed_nowhere_is_told_in_one_line(graph, message):
    with pytest.raises(InputError) as error:
        build(restricted(**graph), cluster_of([1.0, 1.0], unsupported_kinds=[[], ["odd"]]))
    assert str(error.value) == f"graph 'test': {message}"


def test_three_ops_that_share_a_device_two_by_two_but_not_all():
    inf = np.inf
    graph = restricted(group=(0, 0, 0), op_seconds=[[1, 1, inf], [inf, 1, 1], [1, inf, 1]])
    with pytest.raises(InputError, match="group 0: no device of 'test' runs all of its 3 ops"):
        build(graph, cluster_of([1.0] * 3))


def test_seconds_by_kind_of_device_are_those_of_the_link():
    graph = restricted(transfer_seconds=BY_KINDS, kinds=("cpu", "gpu"))
    problem = build(graph, named("gpu:3", "cpu:0", "cpu:1", latency_s=9.0))
    p = problem.arrays
    assert p.op_seconds.tolist() == [[1] * 3, [2] * 3, [3] * 3], "these are not given"
    moves = [[[move_seconds(p, r, s, d) for d in range(3)] for s in range(3)] for r in range(2)]
    between = ~np.eye(3, dtype=bool)
    assert np.array(moves)[:, between].tolist() == [[3, 3, 2, 1, 2, 1], [7, 7, 6, 5, 6, 5]]
    assert problem.mean_transfer_seconds.tolist() == [2, 6]
    with pytest.raises(InputError) as error:  # two of them, and nothing is known of that
        build(graph, named("gpu:0", "gpu:1"))
    assert str(error.value) == (
        "graph 'test': edge 0 (0 -> 1) has no given seconds from 'gpu' to 'gpu'"
    )


def test_links_and_memory_count_with_given_seconds_of_ops():
    graph = restricted(op_seconds=[3, 1, 2], counts_memory=True)
    p = build(graph, cluster_of([1.0, 4.0], latency_s=1.0, bytes_per_s=2.0, memory_bytes=64)).arrays
    assert p.op_seconds.tolist() == [[3, 3], [1, 1], [2, 2]]
    assert move_seconds(p, 0, 0, 1) == 1 + 4 / 2
    assert p.memory_bytes.tolist() == [64, 64]
    with pytest.raises(InputError, match=r"op 1 .* needs 8 bytes at once"):
        build(graph, cluster_of([1.0], memory_bytes=7))


def test_the_inputs_of_a_group_have_to_fit_on_one_device():
    graph = dataclasses.replace(
        graph_of([1, 1, 1], inputs=[(6, [0, 1]), (5, [2])]),
        ops=Ops.make(flops=[1] * 3, group=[4] * 3),
    )
    build(graph, cluster_of([1.0, 1.0], memory_bytes=[11, 2]))
    with pytest.raises(InputError) as error:
        build(graph, cluster_of([1.0, 1.0], memory_bytes=[10, 2]))
    assert str(error.value) == (
        "graph 'test': the inputs of group 4 take 11 bytes, the largest device that runs it has 10"
    )


def test_an_op_that_reads_an_input_twice_holds_it_once():
    graph = graph_of([1.0], inputs=[(6.0, [0, 0])])
    assert build(graph, cluster_of([1.0], memory_bytes=10.0)).num_ops == 1


def test_rates_may_be_whole_numbers_of_any_size():
    fast = dataclasses.replace(DEVICE, flop_per_s={"f32": 10**30})
    assert cost_of(100.0, 0.0, device=fast) == pytest.approx(DEVICE.launch_overhead_s)
