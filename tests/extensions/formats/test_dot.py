"""DOT is read as Graphviz reads it: recorded cases, and Graphviz itself where it is installed.

dot_cases.json has of each text the nodes, edges and attributes that ``dot -Tdot_json`` (Graphviz
2.43) prints; null where it refuses the text.
"""

import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from doppler.extensions.formats import dot_format
from doppler.extensions.formats.dot_format import parse_dot
from doppler.graph import load_graph
from doppler.support.errors import InputError

CASES = json.loads(Path(__file__).with_name("dot_cases.json").read_text(encoding="utf-8"))
DOT = shutil.which("dot")
# What JSON of Graphviz says beside attributes, and what it makes up.
NO_ATTRIBUTES = {"_gvid", "name", "tail", "head", "nodes", "edges", "subgraphs", "label"}
NO_ATTRIBUTES |= {"key", "tailport", "headport"}


def attributes(data: dict[str, Any]) -> dict[str, str]:
    return {key: value for key, value in data.items() if key not in NO_ATTRIBUTES}


def content(nodes: dict[str, dict], edges: list[tuple[str, str, dict]]) -> dict[str, Any]:
    found = [[u, v, attributes(data)] for u, v, data in edges]
    return {
        "nodes": {name: attributes(data) for name, data in nodes.items()},
        "edges": sorted(found, key=lambda edge: json.dumps(edge, sort_keys=True)),
    }


def ours(text: str) -> dict[str, Any] | None:
    try:
        graph, _ = parse_dot(text, Path("x.dot"))
    except InputError:
        return None
    return content(dict(graph.nodes(data=True)), list(graph.edges(data=True)))


def graphvizs(text: str) -> dict[str, Any] | None:
    assert DOT is not None
    done = subprocess.run([DOT, "-Tdot_json"], input=text.encode(), capture_output=True)
    if done.returncode or not done.stdout.strip():
        return None
    data, _ = json.JSONDecoder().raw_decode(done.stdout.decode())
    objects = data.get("objects", [])
    name_of = {each["_gvid"]: each["name"] for each in objects}
    nodes = {each["name"]: each for each in objects[data.get("_subgraph_cnt", 0) :]}
    edges = [(name_of[e["tail"]], name_of[e["head"]], e) for e in data.get("edges", [])]
    return content(nodes, edges)


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_a_graph_has_the_nodes_edges_and_attributes_of_graphviz(case):
    assert ours(case["text"]) == case["graph"]
    if DOT:
        assert graphvizs(case["text"]) == case["graph"]


def random_text(rng: random.Random) -> str:
    """Nested and reopened subgraphs, defaults, keys, lists and chains over a few names."""

    strict = rng.choice(["", "strict "])

    def some_attributes() -> str:
        if rng.random() < 0.5:
            return ""
        values = ("1", "2", '""')
        pairs = [f"{rng.choice('wvk')}={rng.choice(values)}" for _ in range(2)]
        pairs += [f"key={rng.choice('pq')}"] * (not strict and rng.random() < 0.15)
        return f" [{rng.choice([', ', '; ', ' ']).join(pairs)}]"

    def end(depth: int) -> str:
        if rng.random() < 0.25 and depth < 3:
            head = rng.choice(["", "subgraph ", "subgraph s ", "subgraph t "])
            return f"{head}{{ {statements(depth + 1, 2)} }}"
        return ", ".join(rng.choice("abcd") for _ in range(rng.choice([1, 1, 2])))

    def statement(depth: int) -> str:
        kind = rng.random()
        if kind < 0.2:
            return f"{rng.choice(['node', 'edge', 'graph'])} [w={rng.randint(3, 9)}]"
        if kind < 0.25:
            return f"x={rng.randint(1, 9)}"
        num = rng.choice([1, 2, 2, 3])
        return " -> ".join(end(depth) for _ in range(num)) + some_attributes()

    def statements(depth: int, most: int) -> str:
        lines = [statement(depth) for _ in range(rng.randint(1, most))]
        return rng.choice(["; ", "\n"]).join(lines)

    return f"{strict}digraph {{ {statements(0, 7)} }}"


@pytest.mark.skipif(DOT is None, reason="Graphviz is not installed")
@pytest.mark.parametrize("seed", range(25))
def test_random_graphs_are_those_of_graphviz(seed):
    text = random_text(random.Random(seed))
    assert ours(text) == graphvizs(text), text


def test_a_second_graph_is_named(tmp_path):
    path = tmp_path / "x.dot"
    path.write_text("digraph { a [weight=1] } digraph { b } digraph { c }")
    graph = load_graph(path)
    assert graph.ops.names == ("a",)
    assert graph.notes == ("x.dot: dropped: 2 graphs after the first",)


def test_which_edge_of_several_is_meant_is_not_guessed(tmp_path):
    text = (
        "strict digraph { subgraph { a -> b [key=k] } a -> b [key=l]; subgraph { a -> b [key=m] } "
    )
    with pytest.raises(InputError, match="'a' -> 'b': the strict graph has several, with keys"):
        parse_dot(text + "a -> b [w=1] }", tmp_path / "x.dot")


@pytest.mark.parametrize(
    "text",
    [
        "node ["
        + " ".join(f"a{i}=1" for i in range(3000))
        + "] "
        + " ".join(map(str, range(2000))),
        "subgraph s {"
        + " ".join(map(str, range(1000)))
        + "}"
        + 9 * "subgraph s {} -> subgraph s {}",
    ],
    ids=["attributes", "edges"],
)
def test_a_few_lines_cannot_ask_for_any_number(text, monkeypatch, tmp_path):
    monkeypatch.setattr(dot_format, "_MOST_EDGES_IN_ALL", 50_000)
    with pytest.raises(InputError, match="more than 50,000 edges, or default attributes"):
        parse_dot(f"digraph {{ {text} }}", tmp_path / "x.dot")
