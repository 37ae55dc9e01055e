"""The program of a stream as a dataflow graph."""

from collections.abc import Sequence

import numpy as np

from doppler.extensions.programs.streams.stream import AnyStream, StreamGraph
from doppler.graph import Edges, Inputs, Ops


def stream_graph(name: str, modules: Sequence[str], stream: AnyStream) -> StreamGraph:
    """The program of a stream: modules one after another."""
    num = len(modules)
    return StreamGraph(
        name=name,
        ops=Ops.make(names=modules, kinds="module", flops=np.ones(num)),
        edges=Edges.make(src=np.arange(num - 1), dst=np.arange(1, num), bytes=np.zeros(num - 1)),
        inputs=Inputs.make(),
        stream=stream,
    )
