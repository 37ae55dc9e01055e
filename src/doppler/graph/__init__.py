"""The dataflow graph that is placed, its levels, and its file formats."""

from doppler.graph.alternatives import Alternative
from doppler.graph.dataflow import DataflowGraph, Edges, GivenCosts, Inputs, Ops, Regions
from doppler.graph.formats import load_graph, save_json, save_text
from doppler.graph.kernel import Box, KernelSpec, Read, Tensor
from doppler.graph.levels import depth, topological_order
from doppler.graph.synthetic import synthetic

__all__ = [
    "Alternative",
    "Box",
    "DataflowGraph",
    "Edges",
    "GivenCosts",
    "Inputs",
    "KernelSpec",
    "Ops",
    "Read",
    "Regions",
    "Tensor",
    "depth",
    "load_graph",
    "save_json",
    "save_text",
    "synthetic",
    "topological_order",
]
