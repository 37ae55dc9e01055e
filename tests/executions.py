"""Executions of the programs in workloads/ on any executor, held against plain torch.

No pytest: what runs on machines that have none uses it too (benchmarks/gpu).
"""

from functools import cache
from pathlib import Path

import numpy as np
import torch
from plain_torch import MEANING, TOLERANCE, widened

from doppler.cluster import host
from doppler.einsum import load_program, lower
from doppler.executor import random_inputs
from doppler.graph import DataflowGraph
from doppler.problem import Placement, Problem, build
from doppler.support.errors import InputError
from doppler.system import System
from doppler.trace import check

REPOSITORY = Path(__file__).resolve().parents[1]
WORKLOADS = sorted(path.stem for path in (REPOSITORY / "workloads").glob("*.einsum"))


@cache
def graph(name: str) -> DataflowGraph:
    program = load_program(f"workloads/{name}.einsum", preset="small")
    return lower(program, program.given_splits)


def problem(name: str, num_devices: int = 2) -> Problem:
    return build(graph(name), host(num_devices=num_devices))


def ordered_placement(of: Problem, seed: int) -> Placement:
    """Random devices, and an order that a strict queue can keep: that of the graph."""
    device_V = np.random.default_rng(seed).integers(of.num_devices, size=of.num_ops)
    return Placement.make(of, device_V)


def check_runs(
    name: str,
    num_devices: int,
    system: System,
    seeds: range,
    *,
    factor: float = 1.0,
    tolerance_s: float | None = None,
) -> float:
    """Results equal plain torch's, written independently; traces pass the checks.

    factor: on the tolerance. tolerance_s: of the checks, where devices have clocks of their own.

    Returns the largest error, as a share of what is tolerated.
    """
    plain, make_inputs = MEANING[name]
    rng = np.random.default_rng(0)
    inputs = make_inputs(random_inputs(graph(name), rng), rng)
    expected = plain({key: widened(value) for key, value in inputs.items()})
    of, worst = problem(name, num_devices), 0.0
    with system.open(of, inputs=inputs) as session:
        for seed in seeds:
            placement = ordered_placement(of, seed)
            check(session.trace(placement), tolerance_s=tolerance_s)
            session._memory.wipe()
            results = session.results(placement)
            assert results.keys() == expected.keys()
            for key, value in expected.items():
                error = float((results[key].double() - value).abs().max() / value.abs().max())
                share = error / (factor * TOLERANCE[results[key].dtype])
                assert share <= 1, (
                    f"{name}, placement {seed}: {key} is {share:.3g} times too far off"
                )
                worst = max(worst, share)
    return worst


def check_too_little_memory(system: System) -> None:
    """What does not fit into a GPU is told in a line, be it the inputs or an op.

    This process may take only a little more memory than it has, meanwhile.
    """
    total = torch.cuda.get_device_properties(0).total_memory
    for room in (1 << 22, 1 << 24):
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(0) + room) / total)
        try:
            system.open(problem("chainmm")).close()
        except InputError as error:
            assert "memory" in str(error), error
        else:
            raise AssertionError(f"chainmm ran in {room} bytes")
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
