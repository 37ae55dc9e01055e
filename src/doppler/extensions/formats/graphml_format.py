"""GraphML, read by networkx."""

import re
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

import networkx as nx

from doppler.support.errors import InputError


def parse_graphml(text: str, path: Path) -> nx.MultiDiGraph:
    """Read the content of a file; edges are keyed by their number.

    Raises:
        InputError: names the file. Document types are refused: entities may refer to each other
            without end.
    """
    if re.search(r"<!(DOCTYPE|ENTITY)", text, re.IGNORECASE):
        raise InputError(f"{path}: a document type is not read")
    try:
        # As bytes: a text may not say its encoding.
        found = nx.parse_graphml(text.encode("utf-8"), force_multigraph=True)
    except (ParseError, nx.NetworkXError) as error:
        raise InputError(f"{path}: not GraphML: {' '.join(str(error).split())[:200]}") from None
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
        # What its reader does not expect, for example a number that is none.
        raise InputError(f"{path}: not GraphML: {' '.join(repr(error).split())[:200]}") from None
    if not found.is_directed():
        raise InputError(f"{path}: edges without directions: a dataflow graph has them")
    graph = nx.MultiDiGraph()
    of_node, of_edge = (found.graph.pop(f"{one}_default", {}) for one in ("node", "edge"))
    graph.graph.update(found.graph)
    graph.add_nodes_from((node, {**of_node, **data}) for node, data in found.nodes(data=True))
    listed: Any = enumerate(found.edges(data=True))
    edges: Any = ((u, v, e, {**of_edge, **data}) for e, (u, v, data) in listed)
    graph.add_edges_from(edges)
    return graph
