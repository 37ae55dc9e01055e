"""``repeat``: layers behind layers."""

import numpy as np
import pytest
import torch

from doppler.einsum import FewestElements, Input, load_program, lower, parse_program
from doppler.executor import random_inputs, run_graph
from doppler.support.errors import InputError

TEXT = """program stack
param layers: paper=3
input x[4, 6] f64
input shift[6] f64
weight w[6, 6] f64
turned[j] = exp(shift[j])
h[i, k] = sum(j) x[i, j] * w[j, k]    split i=2 j=3
y[i, k] = relu(h[i, k]) + turned[k]
repeat layers: x = y
out[i] = sum(k) y[i, k]
"""


def test_layers_have_their_own_weights_and_share_the_rest():
    program = parse_program(TEXT)
    weights = [node.name for node in program.nodes if isinstance(node, Input) and node.is_weight]
    assert weights == ["w", "w.2", "w.3"]
    names = [node.name for node in program.nodes]
    assert names.count("turned") == 1 and "turned.2" not in names and "x.2" not in names
    assert program.given_splits == {"h": (2, 1, 3), "h.2": (2, 1, 3), "h.3": (2, 1, 3)}


def test_the_layers_compute_one_behind_the_other():
    program = parse_program(TEXT)
    graph = lower(program, program.given_splits)
    inputs = random_inputs(graph, np.random.default_rng(0))
    y = inputs["x"]
    for weight in ("w", "w.2", "w.3"):
        y = torch.relu(y @ inputs[weight]) + torch.exp(inputs["shift"])
    (result,) = run_graph(graph, inputs).values()
    torch.testing.assert_close(result, y.sum(dim=1))


def test_one_layer_is_the_program_without_the_statement():
    plain = "\n".join(line for line in TEXT.split("\n") if not line.startswith("repeat"))
    assert parse_program(TEXT, params={"layers": 1}).nodes == parse_program(plain).nodes


@pytest.mark.parametrize("name", ["llama_block", "llama_layer"])
def test_deep_llamas_grow_by_whole_layers(name):
    sizes = []
    for layers in (2, 3, 4):
        program = load_program(f"workloads/{name}.einsum", params={"layers": layers})
        sizes.append(lower(program, FewestElements().splits(program, 8)).num_ops)
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0] > 250


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("repeat layers: z = y", "10:16: unknown tensor 'z'"),
        ("repeat layers: x = z", "10:20: unknown tensor 'z'"),
        ("repeat layers: w = y", "10:16: 'w' is not an input, so no layer can take it"),
        ("repeat layers: turned = y", "10:16: 'turned' is not an input"),
        (r"repeat layers: x = turned", r"10:20: 'turned' is f64\[6\], but 'x' is f64\[4, 6\]"),
        ("repeat 0: x = y", "10:8: 0 is not a number of elements"),
        ("repeat: x = y", "10:7: found ':'"),
    ],
)
def test_what_cannot_be_repeated(statement, message):
    text = TEXT.replace("repeat layers: x = y", f"# next\n{statement}")
    with pytest.raises(InputError, match=f"^<program>:{message}"):
        parse_program(text)


def test_copies_of_a_second_repetition_have_names_of_their_own():
    twice = TEXT.replace("repeat layers: x = y", "repeat 2: x = y\nrepeat 2: shift = turned")
    names = [node.name for node in parse_program(twice).nodes]
    assert len(names) == len(set(names)) and "turned.2" in names
