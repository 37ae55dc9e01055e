"""A list scheduler's criteria as terms of the logits of both heads.

Seconds are in units of the mean op, so that they mean the same on graphs of any size, and are
differences to the best, so that the best is 0. The fields of the tuples are the terms in the order
of their columns.

Source: earliest task first (Hwang, Chow, Anger, Lee, 1989) and list scheduling with contention
(Sinnen and Sousa, 2005), see baselines/etf_queued.py; that a policy learns what to add to them is
in the spirit of residual policy learning, Silver et al., 2018.
"""

from typing import NamedTuple


class SelSchedulerTerms(NamedTuple):
    """The list scheduler's terms of a candidate.

    Attributes:
        start: its start on its best device, with queues of transfers.
        b_level: how far it is below the largest, as a logarithm because it only breaks ties.
    """

    start: float
    b_level: float


class PlcSchedulerTerms(NamedTuple):
    """The list scheduler's terms of a device.

    Attributes:
        finish: when the op would end there, with queues of transfers.
        to_move: transfers that another device would not need.
    """

    finish: float
    to_move: float


# Initial weights, with which the policy is a good list scheduler.
SEL_INITIAL_WEIGHTS = SelSchedulerTerms(start=-3.0, b_level=-0.1)
PLC_INITIAL_WEIGHTS = PlcSchedulerTerms(finish=-3.0, to_move=0.0)
NUM_SEL_TERMS, NUM_PLC_TERMS = len(SEL_INITIAL_WEIGHTS), len(PLC_INITIAL_WEIGHTS)
