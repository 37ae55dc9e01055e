"""doppler.place and doppler.run within memory limits."""

import pytest
import torch
from torch import nn

import doppler
from doppler.api.placed import Placed
from doppler.cluster import host
from doppler.errors import InputError


@pytest.fixture(scope="module")
def module() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64) for _ in range(6)]
    return nn.Sequential(*layers)


# A layer has 16.6 kB, 32 rows of its input 8.2 kB: no device holds two layers.
MEMORY_BYTES = 36_000.0


def test_a_module_that_does_not_fit_is_placed_and_run(module, tmp_path):
    x = torch.randn(32, 64)
    cluster = host(num_devices=2)
    with pytest.raises(InputError, match="hold"):
        doppler.place(module, x, cluster, evaluations=20, memory_bytes=MEMORY_BYTES)
    placed = doppler.place(
        module, x, cluster, evaluations=20, memory="offload", memory_bytes=MEMORY_BYTES
    )
    assert max(placed.memory_bytes.values()) <= MEMORY_BYTES
    assert placed.offloaded_bytes > 0
    assert "offloaded" in repr(placed)
    assert "offloaded: " in placed.explain()
    torch.testing.assert_close(doppler.run(placed, x), module(x))
    again = Placed.load(placed.save(tmp_path / "placed"))
    assert again.offloaded_bytes == placed.offloaded_bytes
    assert again.makespan_s == placed.makespan_s


def test_what_no_device_can_hold_at_once_is_refused_in_one_line(module):
    with pytest.raises(InputError, match=r"least memory that would do for all ops is \d+$"):
        doppler.place(
            module,
            torch.randn(32, 64),
            host(num_devices=2),
            evaluations=5,
            memory="offload",
            memory_bytes=1000.0,
            decomposition="published",
        )
