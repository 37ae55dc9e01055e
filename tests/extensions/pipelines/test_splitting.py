"""A torch module divided into stages, timed, and made a schedule of."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from doppler.extensions.pipelines import TrainingPipeline, check_orders, find
from doppler.extensions.pipelines.profiles import save_profile
from doppler.extensions.pipelines.splitting import balanced, profile_module, split, timed
from doppler.support.errors import InputError


class Wide(nn.Module):
    """A residual block: its output is no view, which torch could not let go of after I."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(8, width, bias=False)
        self.outer = nn.Linear(width, 8, bias=False)

    def forward(self, x):
        return x + self.outer(torch.tanh(self.inner(x)))


def blocks():
    return nn.Sequential(*(Wide(width) for width in (16, 16, 64))), torch.randn(4, 8)


def square(output):
    return output.square().mean()


def test_the_slowest_stage_is_as_fast_as_any_division_makes_it():
    assert balanced([1, 1, 1, 3], 2) == [3]
    assert balanced([3, 1, 1, 1], 3) == [1, 2] or balanced([3, 1, 1, 1], 3) == [1, 3]
    assert balanced([1, 1], 2) == [1]
    with pytest.raises(InputError, match="2 blocks make at most 2 stages"):
        balanced([1, 1], 3)


def test_what_is_kept_between_f_i_and_w_is_counted():
    """Of x (4 x 8) and tanh (4 x width); I leaves these and gradients of both products."""
    torch.manual_seed(0)
    module, example = blocks()
    found = timed(split(module, [1]), example, square, repeats=2)
    assert all(one.forward_s > 0 and one.weight_grad_s > 0 for one in found)
    first, last = found
    assert first.input_grad_s == 0.0, "nobody asks for the gradient of the first input"
    assert first.weight_grad_bytes == first.activation_bytes
    own = 4 * 4 * (8 + 16 + 8)  # x, tanh, the output that is sent
    assert first.activation_bytes == own
    assert last.input_grad_s > 0.0
    assert last.weight_grad_bytes >= 4 * 4 * (2 * 8 + 16 + 64)
    for parameter in module.parameters():
        assert parameter.grad is None, "it is as it was"


def test_boundaries_that_divide_nothing_are_refused():
    module, _ = blocks()
    assert [len(stage) for stage in split(module, [1, 2])] == [1, 1, 1]
    for bad in ([0], [3], [2, 1]):
        with pytest.raises(InputError, match="rising numbers from 1 to 2 would fit"):
            split(module, bad)


def test_a_module_becomes_a_profile_and_a_schedule(tmp_path):
    (tmp_path / "own.py").write_text(
        "from torch import nn\nimport torch\n"
        "def made():\n"
        "    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4))), "
        "torch.randn(2, 8)\n"
        "def wrong():\n    return nn.Linear(8, 8), torch.randn(2, 8)\n"
    )
    profiles = profile_module(f"{tmp_path}/own.py:made", 2, None)
    save_profile(profiles, tmp_path / "stages.json")
    assert len(json.loads((tmp_path / "stages.json").read_text())["stages"]) == 2
    with pytest.raises(InputError, match="returned Linear; an"):
        profile_module(f"{tmp_path}/own.py:wrong", 2, None)


def test_a_schedule_from_python(tmp_path):
    seconds = np.array([1.0, 2.0])
    pipeline = TrainingPipeline(
        forward_s=seconds,
        input_grad_s=seconds,
        weight_grad_s=seconds,
        transfer_s=np.zeros(1),
        activation_bytes=np.ones(2),
        weight_grad_bytes=np.zeros(2),
        microbatches=3,
        arrangement="loop",
        speed=np.ones(2),
    )
    found = find(pipeline, 2.0, evaluations=20)
    check_orders(found.orders, 3)
    assert found.seconds == found.lower_bound_s == 1 + 3 * 6
    assert found.peak_bytes.max() <= 2.0
    found.save(tmp_path / "schedule.csv")
    found.save_picture(tmp_path / "pipeline.png", "two stages")
    assert (tmp_path / "pipeline.png").stat().st_size > 5_000
    with pytest.raises(InputError, match="too small for any schedule"):
        find(pipeline, 0.5)
