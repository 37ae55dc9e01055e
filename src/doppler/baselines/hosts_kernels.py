"""Compiled: cuts a problem into stages by its inputs, see hosts.py.

Dimensions: V ops, I inputs. Indices: v op, i position in a list.
"""

from doppler.support.compiled import compiled


@compiled
def fill_stages_by_inputs(
    problem, order_V, rank_V, ptr, inputs, bytes_I, num_stages, stage_I, stage_V
):
    """Fill in the stage of each op, with an equal part of the inputs in each stage.

    An op that reads no new input goes to the stage of its largest input. One that reads no input at
    all goes to the stage of its last producer.

    Args:
        problem: ProblemArrays.
        order_V: ops, producers first.
        rank_V: place of each op there.
        ptr: [V + 1] op v reads ``inputs[ptr[v]:ptr[v + 1]]``.
        inputs: numbers of inputs.
        bytes_I: bytes of each input, 0 if it belongs to no host.
        num_stages: number of stages.
        stage_I: -1 everywhere; filled in.
        stage_V: filled in.
    """
    seen_bytes, total_bytes = 0.0, bytes_I.sum()
    for v in order_V:
        stage, largest_bytes, new_bytes = -1, 0.0, 0.0
        for i in range(ptr[v], ptr[v + 1]):
            num_bytes = bytes_I[inputs[i]]
            if stage_I[inputs[i]] < 0:
                new_bytes += num_bytes
            elif num_bytes > largest_bytes:
                stage, largest_bytes = stage_I[inputs[i]], num_bytes
        if stage < 0 and new_bytes > 0.0:
            stage = min(
                int(num_stages * (seen_bytes + new_bytes / 2) / total_bytes), num_stages - 1
            )
        if stage < 0:
            last = -1
            for i in range(problem.read_ptr[v], problem.read_ptr[v + 1]):
                last = max(last, rank_V[problem.region_src[problem.reads[i]]])
            stage = stage_V[order_V[last]] if last >= 0 else 0
        for i in range(ptr[v], ptr[v + 1]):
            if stage_I[inputs[i]] < 0:
                stage_I[inputs[i]] = stage
        seen_bytes += new_bytes
        stage_V[v] = stage
