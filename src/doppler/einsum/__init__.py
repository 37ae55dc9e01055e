"""The front end: einsum programs as text, lowered to dataflow graphs."""

from doppler.einsum.lowering import load_workload, lower
from doppler.einsum.program import (
    Apply,
    Einsum,
    Formation,
    Input,
    Node,
    Program,
    Scalar,
    Splits,
    insert_formations,
)
from doppler.einsum.resolver import parse_program

__all__ = [
    "Apply",
    "Einsum",
    "Formation",
    "Input",
    "Node",
    "Program",
    "Scalar",
    "Splits",
    "insert_formations",
    "load_workload",
    "lower",
    "parse_program",
]
