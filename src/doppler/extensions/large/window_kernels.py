"""Compiled: when each device has finished the ops before a window.

Dimensions: V ops, D devices. Index: d device.
"""

from doppler.support.compiled import compiled


@compiled
def fill_last_finish(ranked_V, device_V, finish_V, begin, finish_D):
    """Fill in when each device has finished its ops of lower ranks than ``begin``.

    Args:
        ranked_V: ops by rank; those of a device run one after another.
        device_V: device of each op.
        finish_V: seconds.
        begin: rank.
        finish_D: zeros; seconds, filled in.
    """
    missing = len(finish_D)
    for rank in range(begin - 1, -1, -1):
        d = device_V[ranked_V[rank]]
        if finish_D[d] == 0.0 and finish_V[ranked_V[rank]] > 0.0:
            finish_D[d] = finish_V[ranked_V[rank]]
            missing -= 1
            if missing == 0:
                return
