"""Compiled: a batch of placements in one simulated engine.

Dimensions: B placements, R repeats, V ops, D devices. Indices: b placement, r repeat, d device.
"""

from doppler.support.compiled import compiled


@compiled
def measure_batch(
    engine, problem, rules, device_BV, priority_BV, seeds_R, state, seconds_BR, peak_BD
):
    """Simulate placements, each once per seed.

    Args:
        engine: compiled, see session.SimulatorSession.
        problem: ProblemArrays.
        rules: of the simulated system, see state.Rules.
        device_BV: device of each op.
        priority_BV: priority of each op, small first.
        seeds_R: of the repeats.
        state: buffers of the engine.
        seconds_BR: makespans, filled in.
        peak_BD: zeros; filled in with the largest peaks of memory over the repeats, in bytes.
    """
    for b in range(len(device_BV)):
        for r in range(len(seeds_R)):
            seconds_BR[b, r] = engine(
                problem, rules, device_BV[b], priority_BV[b], seeds_R[r], state
            )
            for d in range(len(state.devices)):
                peak_BD[b, d] = max(peak_BD[b, d], state.devices[d].peak)
