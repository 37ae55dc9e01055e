"""GraphML of networkx and yEd: every op and edge of the file is in the graph, or named."""

import io
import random
import re

import networkx as nx
import pytest

from doppler.extensions.formats.graphml_format import parse_graphml
from doppler.graph import load_graph
from doppler.support.errors import InputError

YED = """<?xml version="1.0" encoding="UTF-8" standalone="no"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns" xmlns:y="http://www.yworks.com/xml/graphml">
<!--Created by yEd 3.23-->
<key attr.name="Description" attr.type="string" for="graph" id="d0"/>
<key for="port" id="d1" yfiles.type="portgraphics"/>
<key attr.name="weight" attr.type="double" for="node" id="d4"><default>1.5</default></key>
<key attr.name="url" attr.type="string" for="node" id="d5"/>
<key for="node" id="d6" yfiles.type="nodegraphics"/>
<key for="graphml" id="d7" yfiles.type="resources"/>
<key attr.name="weight" attr.type="double" for="edge" id="d9"/>
<key for="edge" id="d10" yfiles.type="edgegraphics"/>
<graph edgedefault="directed" id="G">
<data key="d0" xml:space="preserve"/>
NODES
</graph>
<data key="d7"><y:Resources/></data>
</graphml>
"""
SHAPE = '<data key="d6"><y:ShapeNode><y:NodeLabel>node</y:NodeLabel></y:ShapeNode></data>'
FRAME = '<data key="d5"/><data key="d6"><y:ProxyAutoBoundsNode/></data>'
LINE = '<data key="d10"><y:PolyLineEdge/></data><data key="d9">2</data>'


def node(name: str, inner: str = SHAPE) -> str:
    return f'<node id="{name}">{inner}</node>'


def edge(source: str, target: str, more: str = "", inner: str = LINE) -> str:
    return f'<edge id="e0" source="{source}" target="{target}"{more}>{inner}</edge>'


def group(name: str, *inside: str) -> str:
    graph = f'<graph edgedefault="directed" id="{name}:">{"".join(inside)}</graph>'
    return f'<node id="{name}" yfiles.foldertype="group">{FRAME}{graph}</node>'


def plain(nodes: str, head: str = "<graphml>", keys: str = "") -> str:
    weight = '<key id="w" for="all" attr.name="weight"><default>3</default></key>'
    return f'{head}{keys or weight}<graph edgedefault="directed">{nodes}</graph></graphml>'


AB = '<node id="a"/><node id="b"/>'
# A file, its nodes, its edges, and what is named.
FILES = {
    "yed": (YED.replace("NODES", node("n0") + node("n1") + edge("n0", "n1")), 2, 1, []),
    "edges first": (YED.replace("NODES", edge("n0", "n1") + node("n0") + node("n1")), 2, 1, []),
    "group": (
        YED.replace(
            "NODES", group("n0", node("n0::n0"), node("n0::n1")) + edge("n0::n0", "n0::n1")
        ),
        *(2, 1, ["groups 'n0', whose nodes are kept"]),
    ),
    "groups": (
        YED.replace(
            "NODES",
            group("g", node("a"), group("h", node("b"), edge("a", "b")), edge("b", "c"))
            + node("c")
            + edge("a", "c"),
        ),
        *(3, 3, ["groups 'g', 'h', whose nodes are kept"]),
    ),
    "group with a weight": (
        YED.replace("NODES", f'<node id="g"><data key="d4">7</data><graph>{AB}</graph></node>'),
        *(3, 0, []),
    ),
    "group with an edge": (
        YED.replace("NODES", group("g", node("a")) + node("b") + edge("g", "b")),
        *(3, 1, []),
    ),
    "parallel edges of one id": (
        YED.replace("NODES", AB + edge("a", "b") + edge("a", "b") + edge("a", "b")),
        *(2, 3, []),
    ),
    "ports": (
        YED.replace("NODES", node("a", '<port name="x"/><port name="y"/>') + node("b")),
        *(2, 0, ["2 ports"]),
    ),
    "no namespace": (plain(AB + '<edge source="a" target="b"/>'), 2, 1, []),
    "a prefix": (
        re.sub(r"<(/?)(?=[a-z])", r"<\1g:", plain(AB)).replace(
            "<g:graphml", '<g:graphml xmlns:g="u"'
        ),
        *(2, 0, []),
    ),
    "another encoding is declared": (
        '<?xml version="1.0" encoding="ISO-8859-1"?>' + plain('<node id="é"/>'),
        *(1, 0, []),
    ),
    "entities and sections": (
        plain('<node id="&lt;a&gt;&#233;"><!-- x --><data key="w"><![CDATA[4]]></data></node>'),
        *(1, 0, []),
    ),
    "a description": (plain("<desc>x</desc>" + AB), 2, 0, []),
    "directed by itself": (
        plain(AB + '<edge source="a" target="b" directed="true"/>').replace(
            'edgedefault="directed"', 'edgedefault="undirected"'
        ),
        *(2, 1, []),
    ),
    "a second graph": (
        plain(AB).replace("</graphml>", f"<graph>{AB}{edge('a', 'b', '', '')}</graph></graphml>"),
        *(2, 0, ["a further graph of 2 nodes and 1 edges"]),
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_every_op_and_edge_is_there_or_named(name, tmp_path):
    text, nodes, edges, named = FILES[name]
    graph, left_out = parse_graphml(text, tmp_path / "x.graphml")
    assert (len(graph), graph.number_of_edges(), left_out) == (nodes, edges, named)
    path = tmp_path / "x.graphml"
    path.write_text(text, encoding="utf-8")
    notes = " ".join(load_graph(path).notes) if "with an edge" not in name else " ".join(named)
    assert all(each in notes for each in named)


def test_weights_and_defaults_are_those_of_the_file(tmp_path):
    text = plain(
        '<node id="a"><data key="w">7</data></node><node id="b"/>' + edge("a", "b", "", "")
    )
    path = tmp_path / "x.graphml"
    path.write_text(text)
    graph = load_graph(path)
    assert graph.given_costs is not None and graph.given_costs.op_seconds.tolist() == [7, 3]
    assert graph.given_costs.transfer_seconds.tolist() == [3], "a default of all"
    assert not graph.notes


@pytest.mark.parametrize("seed", range(8))
def test_what_networkx_writes_is_read_as_networkx_reads_it(seed, tmp_path):
    rng = random.Random(seed)
    kind = nx.MultiDiGraph if seed % 2 else nx.DiGraph
    graph = kind(origin="here", number=seed)
    names = [rng.choice(["n", "a b", "<&>", "é"]) + str(i) for i in range(12)]
    for name in names:
        graph.add_node(name, weight=rng.choice([1.0, 2.5, 1e-9]), on=rng.random() < 0.5, kind="x y")
    for _ in range(30):
        u, v = sorted(rng.sample(range(12), 2))
        graph.add_edge(names[u], names[v], weight=rng.random(), label=rng.choice(["", "l"]))
    text = io.BytesIO()
    options = {"named_key_ids": seed % 3 == 0, "infer_numeric_types": seed % 4 == 0}
    nx.write_graphml(graph, text, prettyprint=seed % 5 > 0, **options)
    found, left_out = parse_graphml(text.getvalue().decode(), tmp_path / "x.graphml")
    like = nx.parse_graphml(text.getvalue(), force_multigraph=True)
    assert not left_out

    def said(data) -> dict[str, str]:
        texts = {key: str(value) for key, value in data.items() if value != "" and key != "id"}
        return {**texts, "weight": float(data["weight"])}

    def told(edges) -> list[tuple[str, str, dict]]:
        return sorted(((u, v, said(data)) for u, v, data in edges), key=repr)

    assert {n: said(d) for n, d in found.nodes(data=True)} == {
        n: said(d) for n, d in like.nodes(data=True)
    }
    assert told(found.edges(data=True)) == told(like.edges(data=True))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (plain(AB + "<hyperedge/>"), "a hyperedge"),
        (plain(AB + '<edge source="a" target="b" directed="false"/>'), "is undirected"),
        (plain(AB + '<edge source="a"/>'), "edge 'a' -> None: no node None"),
        (
            plain('<node id="a"/><node id="b"><graph><node id="a"/></graph></node>'),
            "is defined twice",
        ),
        (plain("<node/>"), "a node without an id"),
        (plain('<node id="a"><data key="q">1</data></node>'), "no key 'q' of a node"),
        (
            plain('<node id="a"><data key="w">1</data><data key="w">2</data></node>'),
            "node 'a': weight is given twice",
        ),
        (plain(201 * '<node id="a"><graph>'), "not GraphML"),
        ("<graphml/>", "it has no graph"),
        ("<x/>", "its root is 'x'"),
        (plain(AB).replace("edgedefault", "edgedefault='x' y"), "edgedefault: expected"),
        (plain(f"<graph>{AB}</graph>"), "2 nodes are outside of any graph"),
    ],
)
def test_what_cannot_be_read_is_refused_and_nothing_is_lost(text, said, tmp_path):
    with pytest.raises(InputError, match=re.escape(said)):
        parse_graphml(text, tmp_path / "x.graphml")


def test_graphs_are_not_nested_without_end(tmp_path):
    text = "".join(f'<node id="{i}"><graph>' for i in range(500)) + 500 * "</graph></node>"
    with pytest.raises(InputError, match="nested too deeply"):
        parse_graphml(plain(text), tmp_path / "x.graphml")
