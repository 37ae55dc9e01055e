"""Every program in workloads/, split in many ways and executed op by op, against plain torch.

What is compared with is written from what the programs are about, in f64, and not from their texts.
"""

import numpy as np
import pytest
from plain_torch import MEANING, TOLERANCE, widened
from problems import REPOSITORY
from programs import random_order, random_splits

from doppler.einsum import load_program, lower
from doppler.executor import random_inputs, run_graph


def test_no_program_is_forgotten():
    assert {path.stem for path in (REPOSITORY / "workloads").glob("*.einsum")} == set(MEANING)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", MEANING)
def test_any_split_in_any_order_computes_what_the_program_is_about(name, seed):
    plain, make_inputs = MEANING[name]
    rng = np.random.default_rng(seed)
    program = load_program(f"workloads/{name}.einsum", preset="small")
    # The program's own splits first, then the whole tensors, then random ones.
    splits = [program.given_splits, {}][seed] if seed < 2 else None
    if splits is None:
        splits = random_splits(program, rng, max_parts=[2, 3, 3, 4][seed - 2])
    graph = lower(program, splits)
    inputs = make_inputs(random_inputs(graph, rng), rng)
    expected = plain({name: widened(tensor) for name, tensor in inputs.items()})
    results = run_graph(graph, inputs, order=random_order(graph, rng))
    assert results.keys() == expected.keys()
    for key, value in expected.items():
        error = (results[key].double() - value).abs().max() / value.abs().max()
        assert error <= TOLERANCE[results[key].dtype], key
