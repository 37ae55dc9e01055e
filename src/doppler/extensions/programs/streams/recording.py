"""Makes a dataflow graph of the program of a stream."""

from collections.abc import Sequence

import numpy as np

from doppler.extensions.programs.streams.stream import AnyStream, StreamGraph
from doppler.graph import Edges, Inputs, Ops


def stream_graph(name: str, modules: Sequence[str], stream: AnyStream) -> StreamGraph:
    """Return the program of a stream: a graph whose modules run one after another.

    Args:
        name: of the graph.
        modules: names of the modules.
        stream: of inputs of the program.
    """
    num = len(modules)
    return StreamGraph(
        name=name,
        ops=Ops.make(names=modules, kinds="module", flops=np.ones(num)),
        edges=Edges.make(src=np.arange(num - 1), dst=np.arange(1, num), bytes=np.zeros(num - 1)),
        inputs=Inputs.make(),
        stream=stream,
    )
