"""The front end: reads einsum programs as text, and lowers them to dataflow graphs."""

from doppler.einsum.decomposition.auto import Auto
from doppler.einsum.decomposition.fewest_elements import FewestElements
from doppler.einsum.differentiation import training_program
from doppler.einsum.language.resolver import parse_program
from doppler.einsum.lowering import lower
from doppler.einsum.program import (
    Complexer,
    Einsum,
    Fill,
    Formation,
    Input,
    Node,
    Program,
    Select,
    Splits,
    Squeezer,
    insert_formations,
)
from doppler.einsum.workload import Decomposition, Given, load_program, load_workload

__all__ = [
    "Auto",
    "Complexer",
    "Decomposition",
    "Einsum",
    "FewestElements",
    "Fill",
    "Formation",
    "Given",
    "Input",
    "Node",
    "Program",
    "Select",
    "Splits",
    "Squeezer",
    "insert_formations",
    "load_program",
    "load_workload",
    "lower",
    "parse_program",
    "training_program",
]
