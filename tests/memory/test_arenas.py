"""Plans on cores: right results within small arenas, failures in one line, nothing left behind."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.executions import graph, problem

from doppler.errors import InputError
from doppler.executor import Threads, random_inputs, run_graph
from doppler.memory import Offload
from doppler.memory.arenas import Arenas, aligned
from doppler.memory.arrays import op_need_bytes
from doppler.problem import Placement, Problem
from doppler.trace import violations

# Hand-over on a busy machine, in seconds.
TOLERANCE_S = 0.05


def least(name: str, seed: int) -> tuple[Problem, Placement]:
    """A program on two devices with the least memory that would do for a random placement."""
    whole = problem(name)
    device_V = np.random.default_rng(seed).integers(2, size=whole.num_ops)
    need_V = op_need_bytes(aligned(whole).arrays)
    limit_D = np.array([need_V[device_V == d].max(initial=0.0) for d in range(2)])
    limited = replace(whole, arrays=whole.arrays._replace(memory_bytes=limit_D))
    return limited, Placement.make(limited, device_V)


@pytest.mark.parametrize("name", ["chainmm", "cholesky", "dataproc"])
def test_results_are_right_in_the_least_memory(name):
    inputs = random_inputs(graph(name), np.random.default_rng(0))
    expected = run_graph(graph(name), inputs)
    tight, placement = least(name, 0)
    system = Offload(recompute=True).applied(Threads(verify=True))
    with system.open(tight, inputs=inputs) as session:
        trace, results = session.trace(placement), session.results(placement)
        measured = session.measure(placement.device[None])
    for key, value in expected.items():
        assert torch.equal(results[key], value), key
    assert trace.memory is not None
    assert trace.memory.offloaded_bytes > 0
    assert (trace.peak_bytes <= tight.arrays.memory_bytes).all()
    assert measured.feasible.tolist() == [True]
    assert [line for line in violations(trace, tolerance_s=TOLERANCE_S) if "holds" in line] == []


def test_an_arena_that_is_too_small_is_refused_in_one_line():
    tight, placement = least("chainmm", 0)
    less = replace(tight, arrays=tight.arrays._replace(memory_bytes=tight.arrays.memory_bytes - 64))
    placement = Placement.make(less, placement.device)
    with (
        Offload().applied(Threads()).open(less) as session,
        pytest.raises(InputError, match=r"^memory: op .* the least that would do is \d+$"),
    ):
        session.trace(placement)


def test_a_copy_that_fails_ends_in_one_line(monkeypatch):
    tight, placement = least("chainmm", 0)

    def fail() -> None:
        raise RuntimeError("no such page\nof memory")

    def broken(self: Arenas, k: int):
        return fail if self._plan.kind[k] == 3 else (lambda: None)

    monkeypatch.setattr(Arenas, "_action", broken)
    with (
        Offload().applied(Threads()).open(tight) as session,
        pytest.raises(InputError, match=r"^copy of .* from the host to device cpu:\d: RuntimeErr"),
    ):
        session.trace(placement)


@pytest.mark.parametrize("more_bytes", [0, 17])
def test_arenas_are_no_larger_than_the_limits(more_bytes):
    """Nor do tensors lie at odd addresses where limits are odd."""
    tight, placement = least("dataproc", 1)
    limit_D = tight.arrays.memory_bytes + more_bytes
    tight = replace(tight, arrays=tight.arrays._replace(memory_bytes=limit_D))
    placement = Placement.make(tight, placement.device)
    with Offload().applied(Threads()).open(tight) as session:
        made = session.plan(placement)
    sizes = Arenas(made, random_inputs(graph("dataproc"), np.random.default_rng(0))).sizes
    assert (np.array(sizes) <= tight.arrays.memory_bytes).all()
    assert (made.copies.address % 64 == 0).all()
