"""Compiled: executes a placement of a graph with alternatives in the work-conserving engine.

Dimensions: V ops, D devices. Indices: v op, d device.
"""

import numpy as np

from doppler.simulator import work_conserving_kernels
from doppler.support.compiled import compiled


@compiled
def simulate(problem, rules, column_V, priority_V, seed, state):
    """Simulate a placement, and add the priced loss of its alternatives (see SimulatorSession).

    Args:
        problem: ProblemArrays whose devices are columns: pairs of alternative and device.
        rules: of the simulated system, see state.Rules.
        column_V: column of each op.
        priority_V: priority of each op, small first.
        seed: of jitter and random queues.
        state: system.ChoiceState, changed.

    Returns:
        The makespan plus the priced loss, in seconds; inf if an op cannot run in its column.
    """
    num_devices, lost = state.arrays.op_seconds.shape[1], 0.0
    state.is_held[:] = False
    for v in range(len(column_V)):
        choice, d = column_V[v] // num_devices, column_V[state.group[v]] % num_devices
        column = choice * num_devices + d
        if not np.isfinite(problem.op_seconds[v, column]):
            return np.inf  # the device of the group does not run this backend
        state.device[v] = d
        state.arrays.op_seconds[v, d] = problem.op_seconds[v, column]
        lost += state.loss[v, column]
        if state.backend[v, choice] >= 0:
            state.is_held[d, state.backend[v, choice]] = True
    seconds = work_conserving_kernels.simulate(
        state.arrays, rules, state.device, priority_V, seed, state.inner
    )
    for d in range(num_devices):
        for backend in range(len(state.backend_bytes)):
            if state.is_held[d, backend]:
                state.devices[d].peak += state.backend_bytes[backend]
    return seconds + lost
