"""Torch's own schedules, read from torch: whoever changes their names is noticed here."""

import numpy as np
import pytest
from extensions.pipelines.pipelines import pipeline_of, plain_account, problem_of

from doppler.extensions.pipelines import check_orders, judged_schedules
from doppler.extensions.pipelines.stages import with_stages_divided
from doppler.extensions.pipelines.torch_schedules import SCHEDULES, lowered, orders_of_schedule
from doppler.simulator import WorkConserving
from doppler.support.errors import InputError

STRICT = WorkConserving(queue="strict")


@pytest.mark.parametrize("size", [(2, 4), (4, 8), (4, 16)])
def test_every_schedule_is_complete_and_takes_what_a_plain_account_says(size):
    devices, microbatches = size
    seen = set()
    for parts, arrangement in ((1, "loop"), (2, "loop"), (2, "v")):
        pipeline = pipeline_of(np.arange(1, devices + 1) / 2, microbatches)
        if parts > 1:
            pipeline = with_stages_divided(pipeline, parts, arrangement)
        for name, one in judged_schedules(problem_of(pipeline), STRICT).items():
            check_orders(one.orders, microbatches)
            seconds, peaks = plain_account(pipeline, one.orders)
            assert one.seconds == pytest.approx(seconds)
            np.testing.assert_allclose(one.peak_bytes, peaks)
            seen.add(name)
    assert seen == set(SCHEDULES)


def test_equal_stages_take_what_the_papers_say():
    """1F1B: (M + S - 1) (F + B). ZB-H1 in as much memory: 3 M + S - 1. ZBV: half a warm-up."""
    for stages, microbatches in ((4, 8), (8, 16)):
        equal = pipeline_of(np.ones(stages), microbatches)
        found = judged_schedules(problem_of(equal, float(stages)), STRICT)
        assert found["1F1B"].seconds == 3 * (microbatches + stages - 1)
        assert found["1F1B"].peak_bytes.tolist() == [*range(stages, 0, -1)]
        assert found["InterleavedZeroBubble"].seconds == 3 * microbatches + stages - 1
        assert found["InterleavedZeroBubble"].fits and not found["GPipe"].fits
        halves = with_stages_divided(equal, 2, "v")
        zbv = judged_schedules(problem_of(halves), STRICT)["ZBVZeroBubble"]
        assert zbv.seconds == 3 * microbatches + (stages - 1) / 2


def test_whole_backwards_stay_whole():
    pipeline = pipeline_of(np.ones(4), 8, fused=True)
    found = judged_schedules(problem_of(pipeline), STRICT)
    assert found["1F1B"].seconds == 33
    assert {action.kind for order in found["1F1B"].orders for action in order} == {"F", "B"}


def test_sends_and_receives_are_torchs():
    rows = lowered(orders_of_schedule("1F1B", 2, 2, 2))
    assert rows[0][:3] == ["0F0", "0SEND_F0", "0F1"]
    assert rows[1][:2] == ["1RECV_F0", "1F0"]


def test_what_torch_does_not_have_is_refused():
    with pytest.raises(InputError, match="must be one of GPipe, 1F1B"):
        orders_of_schedule("2F2B", 2, 2, 2)
    with pytest.raises(InputError, match="DualPipeV"):
        orders_of_schedule("DualPipeV", 4, 2, 2)
