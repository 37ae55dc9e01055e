"""Files of other projects, damaged: each is refused in one line, or read as what it says."""

import json

import networkx as nx
import pytest
from extensions.formats.foreign_files import PROFILED, WORKFLOW
from fuzz.mutations import bytes_of, damaged, finite, text
from fuzz.outcomes import FUZZ, check_given, outcome, read
from hypothesis import given
from hypothesis import strategies as st
from right_files import CONTENTS, message

from doppler.extensions.formats.profiled_format import machine_of
from doppler.graph import load_graph

DOT = b"""digraph "x" {
    graph ["Number of processors"=2]; node [Weight=1]; // all
    1 [Weight=4, Start=0]; 2 [Weight=3]; 1 -> 2 [Weight="7"]; subgraph { 3 "4" }
    2 -> { 3 "4" } [Weight=1]; subgraph s { edge [key=k] 5:p, 6 -> 7 } subgraph s { 8 [l=<<b>>] }
    # the end
}"""
STG = b"3\n0 0 0\n1 5 1 0\n2 3 2 0 1\n3 4 1 1\n4 0 2 2 3\n# made by hand\n"
WORKFLOW_VALUES = {
    "workflow.specification.tasks": lambda value: isinstance(value, list),
    "workflow.specification.tasks.*.name": text,
    "workflow.specification.files.*.sizeInBytes": finite,
    "workflow.execution.tasks.*.runtimeInSeconds": finite,
}
PROFILED_VALUES = {
    "nodes": lambda value: isinstance(value, list),
    "nodes.*.name": text,
    "nodes.*.size": finite,
    "nodes.*.cpuLatency": finite,
    "edges.*.cost": finite,
    "maxSizePerFPGA": finite,
}
GRAPHML = "\n".join(
    nx.generate_graphml(nx.DiGraph([("a", "b", {"weight": 2.0}), ("b", "c", {"weight": 1.0})]))
).replace("<graph ", '<key id="w" for="node" attr.name="weight"><default>3</default></key><graph ')
FOREIGN = {"x.dot": DOT, "x.stg": STG, "x.graphml": GRAPHML.encode()}


@FUZZ
@given(
    st.sampled_from(sorted(FOREIGN)).flatmap(
        lambda name: st.tuples(st.just(name), bytes_of(FOREIGN[name]))
    )
)
def test_graphs_in_formats_of_others(tmp_path, case):
    name, content = case
    check_given(read(f"graph as {name[2:]}", load_graph, tmp_path / name, content))


@FUZZ
@given(damaged([WORKFLOW], WORKFLOW_VALUES))
def test_workflows(tmp_path, case):
    """What they say beside is dropped, not refused."""
    free = case if case.wrong is None or "key" not in case.wrong else case._replace(wrong=None)
    check_given(read("workflow", load_graph, tmp_path / "workflow.json", free))


@FUZZ
@given(damaged([PROFILED], PROFILED_VALUES))
def test_profiled_networks(tmp_path, case):
    path = tmp_path / "profiled.json"
    read("profiled network", load_graph, path, case)
    outcome("machine of a profiled network", lambda: machine_of(path))


@pytest.mark.parametrize("right", [WORKFLOW, PROFILED], ids=["workflow", "profiled"])
def test_a_file_that_is_right_is_read(tmp_path, right):
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(right))
    graph = load_graph(path)
    path.write_text("\ufeff" + json.dumps(right, indent=1).replace("\n", "\r\n"))
    assert load_graph(path).ops.names == graph.ops.names


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS.keys())
@pytest.mark.parametrize("suffix", sorted(FOREIGN))
def test_what_is_no_such_file_ends_in_one_line(tmp_path, suffix, content):
    (tmp_path / suffix).write_bytes(content)
    message(load_graph, tmp_path / suffix)
