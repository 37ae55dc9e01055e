"""Perfetto and Gantt output: what a viewer relies on."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import cluster_of, graph_of, layered_edges, random_placement, random_problem

from doppler.cluster import preset
from doppler.graph import DataflowGraph
from doppler.graph.dataflow import Edges, Inputs, Ops
from doppler.problem import Placement, build
from doppler.simulator import WorkConserving
from doppler.trace import Trace, explain, gantt, save_gantt, save_perfetto
from doppler.trace.perfetto import CHAIN, DEVICES, INTERFACES, LINKS, assign_lanes

CONTENTIONS = st.sampled_from(["fifo", "none", "engines", "sender"])


def layered_trace(num_ops: int, cluster: str, *, num_nodes: int = 6, **rules) -> Trace:
    rng = np.random.default_rng(0)
    src, dst = layered_edges(num_ops, rng, width=16, fan_in=3)
    bytes_V = rng.uniform(1e6, 2e7, num_ops)
    graph = DataflowGraph(
        name="layered",
        ops=Ops.make(
            flops=rng.uniform(1e9, 1e10, num_ops), node=np.arange(num_ops) * num_nodes // num_ops
        ),
        edges=Edges.make(src=src, dst=dst, bytes=bytes_V[src]),
        inputs=Inputs.make(),
    )
    problem = build(graph, preset(name=cluster))
    device_V = rng.integers(0, problem.num_devices, num_ops)
    return WorkConserving(**rules).open(problem).trace(Placement.make(problem, device_V))


def random_trace(seed: int, contention, streams: int) -> Trace:
    streams = 1 if contention == "sender" else streams
    problem = random_problem(seed, given_costs=False)  # given costs are too short for a viewer
    placement = Placement.make(problem, random_placement(problem, seed).device)
    return WorkConserving(contention=contention, streams=streams).open(problem).trace(placement)


def saved_events(trace: Trace, folder: Path) -> dict[str, list[dict]]:
    """The events of the file, by phase."""
    save_perfetto(trace, folder / "trace.json")
    by_phase = defaultdict(list)
    for event in json.loads((folder / "trace.json").read_text())["traceEvents"]:
        by_phase[event["ph"]].append(event)
    return by_phase


def nanoseconds(event: dict) -> tuple[int, int]:
    """Begin and end as a viewer reads them."""
    begin = round(event["ts"] * 1e3)
    return begin, begin + round(event.get("dur", 0) * 1e3)


def test_perfetto_by_hand(tmp_path):
    graph = graph_of([2, 4], [(0, 1, 3.0)])
    problem = build(graph, cluster_of([1.0, 1.0]))
    trace = WorkConserving().open(problem).trace(Placement.make(problem, [0, 1]))
    events = saved_events(trace, tmp_path)
    slices = [(e["pid"], e["name"], e["ts"], e["dur"]) for e in events["X"] if e["pid"] != CHAIN]
    assert slices == [
        (DEVICES, "op0", 0.0, 2e6),
        (DEVICES, "op1", 5e6, 4e6),
        (LINKS, "op0", 2e6, 3e6),
    ]
    args = [e["args"] for e in events["X"] if e["pid"] == DEVICES]
    assert [(a["op"], a["kind"], a["node"], a["bytes"]) for a in args] == [
        (0, "op", -1, 0.0),
        (1, "op", -1, 0.0),
    ]
    (moved,) = (e["args"] for e in events["X"] if e["pid"] == LINKS)
    assert (moved["transfer"], moved["producer"], moved["bytes"]) == (0, 0, 3.0)
    names = {e["args"]["name"] for e in events["M"] if e["name"] == "thread_name"}
    assert names == {"critical chain", "device 0: device0", "device 1: device1", "0 -> 1"}
    document = json.loads((tmp_path / "trace.json").read_text())
    assert document["otherData"]["system_kind"] == "simulated"
    assert document["otherData"]["makespan_s"] == 9.0


@given(st.integers(0, 10**6), CONTENTIONS, st.integers(1, 3))
def test_perfetto_tracks_and_flows(tmp_path_factory, seed, contention, streams):
    trace = random_trace(seed, contention, streams)
    events = saved_events(trace, tmp_path_factory.mktemp("perfetto"))
    tracks = defaultdict(list)
    for event in events["X"]:
        tracks[event["pid"], event["tid"]].append(event)
    for slices in tracks.values():
        spans = sorted(nanoseconds(event) for event in slices)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    counts = [sum(len(t) for (p, _), t in tracks.items() if p == pid) for pid in (1, 2, 3)]
    assert counts == [len(explain(trace).chain), trace.problem.num_ops, trace.num_transfers]
    assert len({tid for _, tid in tracks}) == len(tracks)
    assert _arrows(events, tracks) == _expected_arrows(trace)


def _slice_at(tracks, event: dict) -> tuple[str, int]:
    """The task whose slice a viewer binds an end of an arrow to."""
    at, _ = nanoseconds(event)
    for candidate in tracks[event["pid"], event["tid"]]:
        begin, end = nanoseconds(candidate)
        if begin <= at < end:
            kind = "op" if "op" in candidate["args"] else "transfer"
            return kind, candidate["args"][kind]
    raise AssertionError(f"no slice at {event}")


def _arrows(events, tracks) -> list:
    ends = {event["id"]: event for event in events["f"]}
    assert len(ends) == len(events["f"]) == len(events["s"])
    assert all(event["bp"] == "e" for event in events["f"])
    for event in events["s"]:
        assert event["ts"] <= ends[event["id"]]["ts"]
    return sorted((_slice_at(tracks, e), _slice_at(tracks, ends[e["id"]])) for e in events["s"])


def _expected_arrows(trace: Trace) -> list:
    """Of all tasks that take time: from each producer to its transfers, on to their readers."""
    regions, found = trace.problem.graph.regions, []
    runs_V = trace.op_finish_s > trace.op_start_s
    for t in np.flatnonzero(trace.transfer_finish_s > trace.transfer_start_s).tolist():
        r = int(trace.transfer_region[t])
        producer = int(regions.src[r])
        if runs_V[producer]:
            found.append((("op", producer), ("transfer", t)))
        readers = regions.consumers[regions.consumer_ptr[r] : regions.consumer_ptr[r + 1]]
        found += [
            (("transfer", t), ("op", v))
            for v in readers.tolist()
            if runs_V[v] and trace.placement.device[v] == trace.transfer_dst[t]
        ]
    return sorted(found)


def test_lanes_never_overlap_and_are_few():
    lanes, num = assign_lanes(np.array([0, 2, 1, 3, 4]), np.array([3, 4, 1, 3, 5]))
    assert (lanes.tolist(), num) == ([0, 1, 1, 0, 0], 2)
    assert assign_lanes(np.array([0, 2]), np.array([3, 3]))[1] == 2  # by one nanosecond


def test_perfetto_without_contention_uses_more_tracks(tmp_path):
    # Three regions that leave at once on one link.
    graph = graph_of([1, 1, 1, 1], [(0, v, 2.0 + v, v) for v in (1, 2, 3)])
    problem = build(graph, cluster_of([1.0, 1.0]))
    system = WorkConserving(contention="none")
    trace = system.open(problem).trace(Placement.make(problem, [0, 1, 1, 1]))
    events = saved_events(trace, tmp_path)
    names = [e["args"]["name"] for e in events["M"] if e["name"] == "thread_name"]
    assert names[-3:] == ["0 -> 1", "0 -> 1 (2)", "0 -> 1 (3)"]


@pytest.mark.parametrize(
    ("cluster", "rules"),
    [
        ("p100x4", {}),
        ("p100x4", {"contention": "none", "streams": 2}),
        ("v100x8", {"contention": "engines"}),
    ],
)
def test_gantt_is_a_picture(tmp_path, cluster, rules):
    trace = layered_trace(200, cluster, **rules)
    path = tmp_path / "new" / "schedule.png"
    save_gantt(trace, path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert [p.name for p in path.parent.iterdir()] == ["schedule.png"]
    pixels = (matplotlib.image.imread(path)[..., :3] * 255).round().astype(np.int64)
    shown = {f"#{color:06x}" for color in np.unique(pixels @ [1 << 16, 1 << 8, 1]).tolist()}
    nodes = 6
    assert set(gantt.PALETTE[:nodes]) <= shown
    assert not set(gantt.PALETTE[nodes:]) & shown
    assert gantt.CHAIN in shown


def test_gantt_caps_the_links_and_says_so():
    trace = layered_trace(400, "v100x8")
    explanation = explain(trace)
    assert len(explanation.links) == 56
    figure = gantt._draw(trace, "the title")
    texts = [text.get_text() for text in figure.texts]
    assert texts[0] == "the title"
    assert "the 24 busiest of 56 links are shown" in texts[1]
    (axes,) = figure.axes
    labels = [text.get_text() for text in axes.texts]
    links = {label for label in labels if "→" in label}
    assert links == {f"{use.src} → {use.dst}" for use in explanation.links[:24]}
    assert "v100:7" in labels
    assert f"{explanation.device_utilisation[0]:.0%}" in labels


def test_gantt_boxes_stand_where_and_when_tasks_run():
    graph = graph_of([2, 4], [(0, 1, 3.0)])
    problem = build(graph, cluster_of([1.0, 1.0]))
    trace = WorkConserving().open(problem).trace(Placement.make(problem, [0, 1]))
    (axes,) = gantt._draw(trace, None).axes
    transfers, ops, chain, _ = axes.collections
    spans = [
        [(box.vertices[:, 0].min(), box.vertices[:, 0].max()) for box in layer.get_paths()]
        for layer in (transfers, ops, chain)
    ]
    assert spans == [[(2, 5)], [(0, 2), (5, 9)], [(0, 2), (2, 5), (5, 9)]]
    rows = [box.vertices[:, 1].mean() for box in (*ops.get_paths(), *transfers.get_paths())]
    assert rows == sorted(rows)
    assert axes.get_xlim() == (0, 9)
    assert axes.get_xlabel() == "time (s)"


@pytest.mark.parametrize("flops", [[0.0], [3.0, 0.0]])
def test_gantt_of_next_to_nothing(tmp_path, flops):
    problem = build(graph_of(flops), cluster_of([1.0]))
    trace = WorkConserving().open(problem).trace(Placement.make(problem, [0] * len(flops)))
    save_gantt(trace, tmp_path / "schedule.png")
    save_perfetto(trace, tmp_path / "trace.json")
    assert (tmp_path / "schedule.png").stat().st_size > 0


def test_gantt_colours_by_kind_where_nodes_are_unknown(tmp_path):
    problem = build(graph_of([2, 3, 4], kinds=["matmul", "add", "matmul"]), cluster_of([1.0, 1.0]))
    trace = WorkConserving().open(problem).trace(Placement.make(problem, [0, 1, 1]))
    (legend,) = gantt._draw(trace, None).legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == ["matmul", "add", "transfer", "critical chain"]


def test_gantt_names_the_ops_of_the_program_those_that_take_most_time():
    names = ["AB[0,0]", "AB[0,1]", "AB.formation[0,0]", "Y[0]"]
    kinds = ["matmul", "matmul", "formation", "exp"]
    assert gantt.op_groups(names, kinds, [3, 3, 4, 5]) == [
        *("AB (matmul)", "AB (matmul)", "AB.formation", "Y (exp)")
    ]
    assert gantt.op_groups(["op1", "op2"], ["op", "op"], [3, 3]) == ["op (node 3)"] * 2
    trace = layered_trace(200, "p100x4", num_nodes=40)
    (legend,) = gantt._draw(trace, None).legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert len(labels) == 15 and labels[12] == "28 smaller ones"
    ops = trace.problem.graph.ops
    seconds = np.bincount(ops.node, trace.op_finish_s - trace.op_start_s)
    shown = {int(label.removeprefix("op (node ").rstrip(")")) for label in labels[:12]}
    assert shown == set(np.argsort(-seconds)[:12].tolist())


def hosted_trace(nics: int) -> Trace:
    graph = graph_of([1, 2, 1, 1], [(0, 2, 2.0), (1, 3, 3.0)])
    problem = build(graph, cluster_of([1.0] * 4, hosts=(0, 0, 1, 1), nics=nics))
    return WorkConserving().open(problem).trace(Placement.make(problem, [0, 1, 2, 3]))


def test_gantt_has_rows_of_interfaces():
    figure = gantt._draw(hosted_trace(1), None)
    (axes,) = figure.axes
    labels = [text.get_text() for text in axes.texts]
    assert {"host 0 out", "host 1 in"} <= set(labels)
    transfers = axes.collections[0]
    spans = [(box.vertices[:, 0].min(), box.vertices[:, 0].max()) for box in transfers.get_paths()]
    assert spans == [(1, 3), (3, 6)] * 3  # on links, out of host 0, into host 1
    rows = [float(box.vertices[:, 1].mean()) for box in transfers.get_paths()]
    assert len(set(rows)) == 4 and max(rows[:2]) < rows[2] == rows[3] < rows[4] == rows[5]
    (axes,) = gantt._draw(hosted_trace(2), None).axes
    labels = [text.get_text() for text in axes.texts]
    assert {"host 0 nic 0 out", "host 0 nic 1 out", "host 1 nic 1 in"} <= set(labels)


def test_perfetto_has_tracks_of_interfaces(tmp_path):
    events = saved_events(hosted_trace(1), tmp_path)
    names = {e["tid"]: e["args"]["name"] for e in events["M"] if e["name"] == "thread_name"}
    shown = [(names[e["tid"]], e["name"], e["ts"]) for e in events["X"] if e["pid"] == INTERFACES]
    assert shown == [
        ("host 0 nic 0 out", "op0 (0 -> 2)", 1e6),
        ("host 0 nic 0 out", "op1 (1 -> 3)", 3e6),
        ("host 1 nic 0 in", "op0 (0 -> 2)", 1e6),
        ("host 1 nic 0 in", "op1 (1 -> 3)", 3e6),
    ]
