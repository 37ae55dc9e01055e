"""Compiled: keys summed over the ops on each device, for the replay of episodes, and its gradient.

Dimensions: B episodes, V ops and steps, S recorded steps, D devices, R numbers of a query or a key.
Indices: b episode, t step, slot: where a step is recorded, v op, d device, j number.
"""

from doppler.support.compiled import compiled


@compiled
def pair_logits(query, key, op, device, num_before, placed, out):
    """The part of PLC's logits that queries and keys make, at the recorded steps.

    Args:
        query: [V, R].
        key: [V, R].
        op: [B, V] of each step.
        device: [B, V] of each step.
        num_before: [B, V + 1] recorded steps before each step.
        placed: [D, R] scratch.
        out: [B, S, D] the logits, filled in.
    """
    num_devices, width = placed.shape
    for b in range(len(op)):
        placed[:] = 0.0
        for t in range(op.shape[1]):
            v, slot = op[b, t], num_before[b, t]
            if num_before[b, t + 1] > slot:
                for d in range(num_devices):
                    total = placed.dtype.type(0.0)
                    for j in range(width):
                        total += placed[d, j] * query[v, j]
                    out[b, slot, d] = total
            for j in range(width):
                placed[device[b, t], j] += key[v, j]


@compiled
def pair_gradients(query, key, op, device, num_before, grad, placed, later, grad_query, grad_key):
    """Gradients of queries and keys from those of the logits.

    A query's is the sum of the keys that its step found, weighted; a key's the sum of the queries
    of all later steps, weighted by what they made of the key's device.

    Args:
        query: [V, R].
        key: [V, R].
        op: [B, V] of each step.
        device: [B, V] of each step.
        num_before: [B, V + 1] recorded steps before each step.
        grad: [B, S, D] of the logits.
        placed: [D, R] scratch.
        later: [D, R] scratch.
        grad_query: [V, R] added to.
        grad_key: [V, R] added to.
    """
    num_devices, width = placed.shape
    for b in range(len(op)):
        placed[:] = 0.0
        for t in range(op.shape[1]):
            v, slot = op[b, t], num_before[b, t]
            if num_before[b, t + 1] > slot:
                for d in range(num_devices):
                    for j in range(width):
                        grad_query[v, j] += grad[b, slot, d] * placed[d, j]
            for j in range(width):
                placed[device[b, t], j] += key[v, j]
        later[:] = 0.0
        for t in range(op.shape[1] - 1, -1, -1):
            v, slot = op[b, t], num_before[b, t]
            for j in range(width):
                grad_key[v, j] += later[device[b, t], j]
            if num_before[b, t + 1] > slot:
                for d in range(num_devices):
                    for j in range(width):
                        later[d, j] += grad[b, slot, d] * query[v, j]
