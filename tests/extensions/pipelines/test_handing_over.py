"""Schedules in torch's runtime: gradients, refusals, no waiting forever."""

import numpy as np
import pytest
import torch
from extensions.pipelines.pipelines import pipeline_of, random_orders
from torch import nn

from doppler.extensions.pipelines import Action, check_orders
from doppler.extensions.pipelines.handing_over import check_messages
from doppler.extensions.pipelines.orders import renumbered
from doppler.extensions.pipelines.processes import Processes, gradients, run_empty
from doppler.support.errors import InputError

A = Action


def in_order(orders):
    return [renumbered(order) for order in orders]


def test_gradients_are_torchs_and_random_schedules_end():
    """Two processes: F, I and W apart, B among them, two stages of one rank side by side."""
    torch.manual_seed(0)
    modules = [nn.Sequential(nn.Linear(5, 5), nn.Tanh()) for _ in range(4)]
    x, target = torch.randn(6, 5), torch.randn(6, 5)
    loss = nn.functional.mse_loss
    rng = np.random.default_rng(0)
    free = pipeline_of([1, 1, 1, 1], 3, devices=2, arrangement="free")
    with Processes(2) as processes:
        for device in ([0, 1, 0, 1], [0, 1, 1, 0], [0, 0, 0, 1]):
            orders = in_order(random_orders(free, np.array(device), rng))
            check_orders(orders, 3)
            told = processes.call(gradients, orders, modules, x, target, 3, loss)
            found = {i: grads for one in told for i, grads in one.items()}
            whole = nn.Sequential(*modules)
            whole.zero_grad()
            loss(whole(x), target).backward()
            for i, module in enumerate(modules):
                for grad, parameter in zip(found[i], module.parameters(), strict=True):
                    torch.testing.assert_close(grad, parameter.grad, rtol=1e-5, atol=1e-7)
        for seed in range(20):
            orders = in_order(random_orders(free, np.array([0, 1, seed % 2, 1]), rng))
            assert processes.call(run_empty, orders, 4, 3) == [True, True]


GOOD = [[A(0, "F", 0), A(0, "B", 0)], [A(1, "F", 0), A(1, "I", 0), A(1, "W", 0)]]


@pytest.mark.parametrize(
    ("orders", "said"),
    [
        ([GOOD[0], []], "rank 1 has no stage"),
        ([GOOD[0][:1], GOOD[1]], "stage 0, microbatch 0: does F, not"),
        ([], "schedule: is empty"),
        ([GOOD[0], GOOD[1][:2]], "stage 1, microbatch 0: does FI, not"),
        ([[*GOOD[0], A(1, "F", 0)], GOOD[1]], "stage 1 is on ranks 0 and 1"),
        ([GOOD[0][::-1], GOOD[1]], "waits for itself: rank 0 stops before 0B0"),
        ([[*GOOD[0], GOOD[0][0]], GOOD[1]], "0F0 is there twice"),
        ([[A(0, *a) for a in (("F", 1), ("F", 0), ("B", 0), ("B", 1))]], "not in the order of"),
    ],
)
def test_what_would_not_finish_is_refused(orders, said):
    check_orders(GOOD)
    with pytest.raises(InputError, match=said):
        check_orders(orders)


def test_another_number_of_microbatches_is_refused():
    with pytest.raises(InputError, match="microbatch 1: does nothing"):
        check_orders(GOOD, 2)


def test_messages_that_wait_for_each_other_are_refused():
    check_messages([["0F0", "0SEND_F0", "0RECV_B0"], ["1RECV_F0", "1F0", "1SEND_B0"]])
    with pytest.raises(InputError, match="rank 0 at 0SEND_F0, rank 1 at 1SEND_B1"):
        check_messages([["0SEND_F0", "0RECV_B1"], ["1SEND_B1", "1RECV_F0"]])
