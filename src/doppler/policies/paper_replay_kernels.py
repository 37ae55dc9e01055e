"""Compiled: sums over the ops that are on each device before a step, and their gradient.

Dimensions: B episodes, V ops and steps, D devices, T steps of all episodes in a row, P hidden.
Indices: b episode, t step, v op, d device, j hidden unit.
"""

import numpy as np

from doppler.support.compiled import compiled


@compiled
def sum_placed_before(own_VP, added_VP, op_BV, device_BV, on_DP, out_TDP):
    """For each step and device: the op's own row, plus the sum of what is there before.

    Args:
        own_VP: float32, of an op itself.
        added_VP: float32, what an op adds to its device for all later steps.
        op_BV: op of each step.
        device_BV: its device.
        on_DP: scratch.
        out_TDP: filled in.
    """
    num_ops, (num_devices, width), row = op_BV.shape[1], on_DP.shape, 0
    for b in range(len(op_BV)):
        on_DP[:, :] = np.float32(0.0)
        for t in range(num_ops):
            v, chosen = op_BV[b, t], device_BV[b, t]
            for d in range(num_devices):
                for j in range(width):
                    out_TDP[row, d, j] = own_VP[v, j] + on_DP[d, j]
            row += 1
            for j in range(width):
                on_DP[chosen, j] += added_VP[v, j]


@compiled
def sum_placed_before_backward(gradient_TDP, op_BV, device_BV, later_DP, own_VP, added_VP):
    """Gradient of `sum_placed_before`.

    Args:
        gradient_TDP: of its result.
        op_BV: op of each step.
        device_BV: its device.
        later_DP: scratch.
        own_VP: zeros; the gradient is added.
        added_VP: zeros; the gradient is added.
    """
    num_ops, (num_devices, width) = op_BV.shape[1], later_DP.shape
    for b in range(len(op_BV)):
        later_DP[:, :] = np.float32(0.0)
        for t in range(num_ops - 1, -1, -1):
            v, chosen, row = op_BV[b, t], device_BV[b, t], b * num_ops + t
            for j in range(width):
                added_VP[v, j] += later_DP[chosen, j]
            for d in range(num_devices):
                for j in range(width):
                    own_VP[v, j] += gradient_TDP[row, d, j]
                    later_DP[d, j] += gradient_TDP[row, d, j]
