"""Graphs in formats of others: what is read, what is dropped and named, and what is refused."""

import json
from pathlib import Path

import networkx as nx
import pytest
from extensions.formats.foreign_files import PROFILED, WORKFLOW
from problems import cluster_of, problem_set
from right_files import message

from doppler.cluster import custom
from doppler.extensions.formats.dot_format import parse_dot
from doppler.extensions.formats.profiled_format import machine_of
from doppler.graph import DataflowGraph, load_graph
from doppler.problem import build
from doppler.support.errors import InputError


def read(folder: Path, name: str, text: str) -> DataflowGraph:
    (folder / name).write_text(text)
    return load_graph(folder / name)


def refused(folder: Path, name: str, text: str) -> str:
    with pytest.raises(InputError) as error:
        read(folder, name, text)
    said = str(error.value)
    assert said.startswith(str(folder / name)) and "\n" not in said
    return said[len(str(folder / name)) :]


def edges_of(graph: DataflowGraph) -> list[tuple[str, str, float]]:
    assert graph.given_costs is not None
    ends = zip(graph.edges.src, graph.edges.dst, graph.given_costs.transfer_seconds, strict=True)
    return [(graph.ops.names[u], graph.ops.names[v], float(s)) for u, v, s in ends]


def moved_by(graph: DataflowGraph) -> list[tuple[str, str, float]]:
    assert graph.given_costs is not None and graph.given_costs.transfer_seconds is None
    ends = zip(graph.edges.src, graph.edges.dst, graph.edges.bytes, strict=True)
    return sorted((graph.ops.names[u], graph.ops.names[v], float(size)) for u, v, size in ends)


def seconds_of(graph: DataflowGraph) -> dict[str, float]:
    assert graph.given_costs is not None
    return dict(zip(graph.ops.names, graph.given_costs.op_seconds.tolist(), strict=True))


# --- DOT ------------------------------------------------------------------------------------------

DOT = r"""# made by a program
digraph "four \"ops\"" {  // a comment
  graph ["Number of processors"=2, Modes="a \
b"];
  rankdir = LR
  edge [Weight=3]
  node [shape=box]; 1 [Weight=4, "Start time"=0];
  2 [Weight=0.5]
  1 -> 2 [Weight="7"];
  subgraph cluster_0 { node [Weight=1] a; "b c":port:n /* ports
  say nothing */ }
  2 -> { a "b c" } -> last -> last2
  last, last2 [Weight="2e0"]; last2 [kind=mul]  # done
}
"""


def test_dot_is_read_with_defaults_subgraphs_and_chains(tmp_path):
    graph = read(tmp_path, "four.dot", DOT)
    assert graph.name == 'four "ops"'
    assert seconds_of(graph) == {"1": 4, "2": 0.5, "a": 1, "b c": 1, "last": 2, "last2": 2}
    assert edges_of(graph) == [
        *[("1", "2", 7), ("2", "a", 3), ("2", "b c", 3)],
        *[("a", "last", 3), ("b c", "last", 3), ("last", "last2", 3)],
    ]
    assert graph.ops.kinds[-1] == "mul" and graph.ops.kinds[0] == "op"
    assert graph.notes == (
        "four.dot: dropped: graph attributes 'Modes', 'Number of processors', 'rankdir'; "
        "node attributes 'Start time', 'shape'",
    )


def test_every_edge_of_dot_is_a_transfer_of_its_own(tmp_path):
    text = "digraph { a [Weight=1] b [Weight=1] a -> b [Weight=2]; a -> b [Weight=5] }"
    graph = read(tmp_path, "two.gv", text)
    assert edges_of(graph) == [("a", "b", 2), ("a", "b", 5)] and len(graph.regions) == 2
    strict = read(tmp_path, "one.gv", f"STRICT {text}")
    assert edges_of(strict) == [("a", "b", 5)]


def test_edges_without_weights_take_no_time_and_that_is_said(tmp_path):
    graph = read(tmp_path, "x.dot", "digraph{a[Weight=1];b[Weight=2];a->b}")
    assert edges_of(graph) == [("a", "b", 0.0)]
    assert graph.notes == (
        "x.dot: its edges have neither seconds nor bytes: transfers take no time",
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ": not DOT: it ends early"),
        ("digraph {a [Weight=1]", ": not DOT: it ends early"),
        ("digraph {\na [Weight=1]\n]}", ":3: not DOT, from ']}' on"),
        ("digraph {\n\n$}", ":3: not DOT, from '$}' on"),
        ("graph { a [Weight=1] }", ": an undirected graph"),
        ("digraph { a }", ": no node has a weight"),
        ("digraph { a [Weight=1] b }", ": node 'b': no weight"),
        ("digraph { a [Weight=1] a -> a }", ": graph 'x': edge 0 (0 -> 0) makes an op feed itself"),
        ("digraph { a [Weight=1] b [Weight=1] a -> b -> a }", "cycle"),
        ("digraph { a [Weight=-1] }", "op 0 ('a')"),
        ("digraph { a [Weight=nan] }", ": node 'a': Weight: expected a finite number"),
        ("digraph { a [Weight=heavy] }", ": node 'a': Weight: expected a number, found 'heavy'"),
        ('digraph { a [Weight="1_0"] }', ": node 'a': Weight: expected a number, found '1_0'"),
        ("digraph { a [Weight=1 weight=2] }", ": node 'a': given_seconds is given twice"),
        (
            "digraph { a [Weight=1] b [Weight=1] c [Weight=1] a -> b [Weight=1] b -> c }",
            ": edge 'b' -> 'c': no weight",
        ),
        (
            "digraph {" + " -> ".join(2 * ["{" + " ".join(map(str, range(1001))) + "}"]) + "}",
            ": a statement of more than 1,000,000 edges",
        ),
        ("digraph {" + 201 * "{" + "a" + 201 * "}" + "}", ": subgraphs are nested too deeply"),
        ("digraph {" + 30_000 * "{" + 30_000 * "}" + "}", ": subgraphs are nested too deeply"),
    ],
)
def test_what_is_no_dot_is_refused_in_one_line(tmp_path, text, said):
    assert said in refused(tmp_path, "x.dot", text)


def test_all_attributes_of_dot_are_there_for_who_asks(tmp_path):
    graph, _ = parse_dot(DOT, tmp_path / "x.dot")
    assert graph.nodes["1"] == {"shape": "box", "Weight": "4", "Start time": "0"}
    assert graph.graph["Number of processors"] == "2" and graph.graph["Modes"] == "a b"


# --- STG ------------------------------------------------------------------------------------------

STG = """  3 processors
0 0 0
1 5 1 0
2 3 2 0 1
3 4 1 1
4 0 2 2 3
# Standard Task Graph
"""


def test_stg_is_read_without_its_dummies(tmp_path):
    assert ":1: expected whole numbers" in refused(tmp_path, "x.stg", STG)
    graph = read(tmp_path, "x.stg", STG.replace(" processors", ""))
    assert seconds_of(graph) == {"1": 5, "2": 3, "3": 4}
    assert edges_of(graph) == [("1", "2", 0), ("1", "3", 0)]
    assert graph.notes == ("x.stg: dropped: task 0 and task 4, which take no time, with 4 edges",)


def test_an_entry_that_takes_time_is_a_task(tmp_path):
    graph = read(tmp_path, "x.stg", "1\n0 2 0\n1 5 1 0\n2 0 1 1\n")
    assert seconds_of(graph) == {"0": 2, "1": 5} and edges_of(graph) == [("0", "1", 0)]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("  3 processors", "", ":1: a Standard Task Graph begins with the number"),
        ("  3 processors", "4", ": 5 lines for 4 tasks"),
        ("3 processors\n0 0 0", "3\n0 0", ":2: expected task 0"),
        ("3 processors\n0 0 0\n1 5 1 0", "3\n0 0 0\n1 5 1 9", ":3: no task 9, tasks are 0 to 4"),
        ("3 processors\n0 0 0\n1 5 1 0", "3\n0 0 0\n1 5 1 2", "cycle"),
        ("3 processors\n0 0 0\n1 5", "3\n0 0 0\n1 -5", "op 0 ('1')"),
        ("  3 processors\n0 0 0\n1 5 1 0", "3\n0 0 0\n1 5 1 0.0", ":3: expected whole numbers"),
    ],
)
def test_what_is_no_stg_is_refused_in_one_line(tmp_path, old, new, said):
    assert said in refused(tmp_path, "x.stg", STG.replace(old, new))


# --- WfCommons ------------------------------------------------------------------------------------


def test_a_workflow_is_read_with_its_files_as_regions(tmp_path):
    graph = read(tmp_path, "x.json", json.dumps(WORKFLOW))
    assert graph.name == "blast"
    assert seconds_of(graph) == {"split": 2.5, "left": 3, "right": 1}
    assert moved_by(graph) == [
        *[("left", "right", 0.0), ("split", "left", 5e9), ("split", "right", 5e9)]
    ]
    assert len(graph.regions) == 2, "both read one file, which moves once to a device"
    assert graph.inputs.names == ("raw",) and graph.inputs.consumers == ((0, 1),)
    assert graph.inputs.bytes.tolist() == [100]
    assert graph.notes == (
        "x.json: dropped: keys 'author', 'makespanInSeconds', 'machines', 'coreCount'",
    )
    problem = build(graph, cluster_of([1.0, 2.0], bytes_per_s=1e9))
    assert problem.arrays.op_seconds.tolist() == [[2.5, 2.5], [3, 3], [1, 1]]
    assert problem.mean_transfer_seconds.max() == 5.0, "files move over the links of the cluster"


def test_older_workflows_have_their_files_in_their_tasks(tmp_path):
    files = [{"link": "output", "name": "half", "sizeInBytes": 5e9}]
    read_again = [{"link": "input", "name": "half", "sizeInBytes": 5e9}]
    tasks = [
        {"name": "split", "runtimeInSeconds": 2.5, "files": files, "children": ["left"]},
        {
            "name": "left",
            "runtime": 3,
            "files": read_again,
            "parents": ["split"],
            "type": "compute",
        },
    ]
    text = json.dumps({"name": "old", "schemaVersion": "1.3", "workflow": {"tasks": tasks}})
    graph = read(tmp_path, "x.json", text)
    assert moved_by(graph) == [("split", "left", 5e9)] and "'type'" in graph.notes[0]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"parents": ["t0"]', '"parents": ["t9"]', ": task 't1': no task 't9'"),
        ('"parents": ["t0"]', '"parents": "t0"', ": tasks[1].parents: expected a list"),
        ('"parents": ["t0"]', '"parents": ["t2"]', "cycle"),
        ('"runtimeInSeconds": 3', '"runtimeInSeconds": "3"', "runtimeInSeconds: expected a number"),
        ('"runtimeInSeconds": 3', '"runtimeInSeconds": -3', "op 1 ('left')"),
        ('"runtimeInSeconds": 3', '"coreCount": 3', ": tasks[1]: 'runtimeInSeconds' is missing"),
        ('"sizeInBytes": 100', '"sizeInBytes": null', ": files[0].sizeInBytes: expected a number"),
        ('"id": "raw"', '"id": "rw"', ": tasks[0].inputFiles: no file 'raw'"),
        ('"outputFiles": []', '"outputFiles": ["half"]', ": task 't1': 't0' also writes 'half'"),
        (
            '"name": "left", "id": "t1"',
            '"name": "left", "id": "t0"',
            ": task 't0' is defined twice",
        ),
        ('"workflow": {', '"workflow": [], "more": {', ": workflow: expected an object"),
    ],
)
def test_what_is_no_workflow_is_refused_in_one_line(tmp_path, old, new, said):
    text = json.dumps(WORKFLOW)
    assert old in text
    assert said in refused(tmp_path, "x.json", text.replace(old, new))


# --- Profiled networks ----------------------------------------------------------------------------


def machine(path: Path):
    return custom(name="profiled", devices=machine_of(path), bytes_per_s=1e9, latency_s=0.0)


def test_a_profiled_network_belongs_on_its_own_machine(tmp_path):
    graph = read(tmp_path, "net.json", json.dumps(PROFILED))
    assert graph.name == "net" and graph.ops.names == ("conv", "relu", "loss")
    problem = build(graph, machine(tmp_path / "net.json"))
    inf, p = float("inf"), problem.arrays
    assert p.op_seconds.tolist() == [
        *[[0.002, 0.002, 0.02], [0.001, 0.001, 0.01], [inf, inf, 0.004]]
    ]
    # Through the memory of the CPUs: in, out, or both.
    assert problem.mean_transfer_seconds.tolist() == pytest.approx([(2 * 10 + 4 * 5) / 6e3, 0.0])
    assert graph.ops.group.tolist() == [1, 1, -1]
    assert p.input_bytes.tolist() == [600, 300, 5000] and p.memory_bytes.tolist() == [
        1e3,
        1e3,
        1e15,
    ]
    with pytest.raises(InputError, match="given seconds for 3 devices, cluster 'test' has 2"):
        build(graph, cluster_of([1.0, 1.0]))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"maxFPGAs": 2', '"maxFPGAs": 2000', ": maxFPGAs, maxCPUs: from 1 to 1024 devices"),
        ('"maxFPGAs": 2', '"maxFPGAs": -1', ": maxFPGAs, maxCPUs: from 1 to 1024 devices"),
        ('"id": 7', '"id": 0', ": nodes: an id is given twice"),
        ('"destId": 9', '"destId": 8', ": edges[1]: no node 8"),
        ('"cost": 5', '"cost": "5"', ": edges[0].cost: expected a number"),
        ('"supportedOnFpga": 1', '"supportedOnFpga": null', "supportedOnFpga: expected an integer"),
        ('"cpuLatency": 20', '"cpuLatency": -20', "op 0 ('conv')"),
        ('"cpuLatency"', '"cpu_latency"', ": nodes[0].cpu_latency: no such key, did you mean"),
    ],
)
def test_what_is_no_profiled_network_is_refused_in_one_line(tmp_path, old, new, said):
    text = json.dumps(PROFILED)
    assert old in text
    assert said in refused(tmp_path, "x.json", text.replace(old, new, 1))


def test_the_published_networks_are_read():
    folders = sorted(problem_set("profiled").glob("*Graphs"))
    paths = [path for folder in folders for path in sorted(folder.glob("*.json"))]
    assert len(paths) == 8
    for path in paths:
        data, problem = json.loads(path.read_text()), build(load_graph(path), machine(path))
        assert problem.num_ops == len(data["nodes"])
        assert problem.num_devices == data["maxFPGAs"] + data["maxCPUs"]
        assert problem.arrays.input_bytes.sum() == sum(one["size"] for one in data["nodes"])


# --- GraphML --------------------------------------------------------------------------------------


def graphml(**edge: float) -> str:
    graph = nx.DiGraph(origin="here")
    graph.add_node("a", weight=2.0, colour="red", kind="conv")
    graph.add_node("b", weight=3, colour="red", kind="conv")
    graph.add_edge("a", "b", **edge)
    return "\n".join(nx.generate_graphml(graph))


def test_graphml_of_networkx_is_read(tmp_path):
    graph = read(tmp_path, "x.graphml", graphml(weight=4.5, label=1))
    assert seconds_of(graph) == {"a": 2, "b": 3} and edges_of(graph) == [("a", "b", 4.5)]
    assert graph.ops.kinds == ("conv", "conv")
    assert graph.notes == (
        "x.graphml: dropped: graph attributes 'origin'; node attributes 'colour'; "
        "edge attributes 'label'",
    )


def test_graphml_may_have_costs_of_the_machine_instead_of_seconds(tmp_path):
    text = graphml(bytes=8.0).replace('"weight"', '"flops"')
    graph = read(tmp_path, "x.graphml", text)
    assert graph.given_costs is None
    assert graph.ops.flops.tolist() == [2, 3] and graph.edges.bytes.tolist() == [8]


def test_defaults_of_graphml_are_of_all_that_say_nothing(tmp_path):
    text = (
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
        '<key id="w" for="node" attr.name="weight" attr.type="double"><default>2</default></key>'
        '<graph edgedefault="directed"><node id="a"/><node id="b"><data key="w">5</data></node>'
        '<edge source="a" target="b"/><edge source="a" target="b"/></graph></graphml>'
    )
    graph = read(tmp_path, "x.graphml", text)
    assert seconds_of(graph) == {"a": 2, "b": 5} and graph.num_edges == 2


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "<graphml",
            "<!DOCTYPE x [<!ENTITY a 'b'>]><graphml",
            ": document types are not supported",
        ),
        ("</graphml>", "", ": not GraphML: no element found"),
        ('"directed"', '"undirected"', " is undirected"),
        (">2.0<", ">two<", ": node 'a': weight: expected a number, found 'two'"),
        (">2.0<", ">-2<", "op 0 ('a')"),
        (">2.0<", ">1e999<", ": node 'a': weight: expected a finite number"),
        ("graph edgedefault", "grph edgedefault", "GraphML"),
        ('target="b"', 'target="c"', ": edge 'a' -> 'c': no node 'c'"),
        ('node id="b"', 'node id="a"', ": node 'a' is defined twice"),
        ("<edge ", "<hyperedge/><edge ", ": a hyperedge"),
        ("</graphml>", '<node id="c"/></graphml>', ": 1 nodes are outside of any graph"),
        ('attr.name="kind" attr.type="string"', 'attr.name="kind" attr.type="x"', ": not GraphML"),
    ],
)
def test_what_is_no_graphml_is_refused_in_one_line(tmp_path, old, new, said):
    text = graphml(weight=4.5)
    assert old in text
    assert said in refused(tmp_path, "x.graphml", text.replace(old, new))


# --- All of them ----------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"\0", bytes(range(256)), "ü".encode("latin-1"), b"[]"])
@pytest.mark.parametrize("name", ["x.dot", "x.stg", "x.graphml"])
def test_what_is_none_of_them_is_refused_in_one_line(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    message(load_graph, tmp_path / name)
