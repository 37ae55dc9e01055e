"""Dealing blocks and staging by inputs in plain Python, from their rules: slow and readable."""

from collections import Counter, defaultdict

import numpy as np

from doppler.problem import Problem, topological_priority
from doppler.problem.transfer_kernels import move_seconds

MEMORY_SHARE = 0.9


def deal(problem: Problem) -> list[int]:
    """Each op, producers first, to the best device by: overflow, share, transfers, number."""
    arrays, ops = problem.arrays, problem.graph.ops
    inputs = problem.graph.inputs
    input_ops = [set(np.asarray(consumers).tolist()) for consumers in inputs.consumers]
    size, able_VD = Counter(ops.node.tolist()), np.isfinite(arrays.op_seconds)
    device: dict[int, int] = {}
    home: dict[int, int] = {}
    blocks, booked = defaultdict(Counter), [0.0] * problem.num_devices
    regions = [set() for _ in range(problem.num_devices)]
    held = [set() for _ in range(problem.num_devices)]
    total = max(1.0, float(inputs.bytes.sum()))
    for v in np.argsort(topological_priority(problem)).tolist():
        node, needed = int(ops.node[v]), {i for i, c in enumerate(input_ops) if v in c}
        reads = set(arrays.reads[arrays.read_ptr[v] : arrays.read_ptr[v + 1]].tolist())
        seen = sum(float(inputs.bytes[i]) for i in set().union(*held) | needed)
        able = np.flatnonzero(able_VD[v]).tolist()
        num_blocks, fewest = size[node], min([size[node], *(blocks[node][d] for d in able)])
        most = max(fewest + 1, -(-num_blocks // len(able)))

        def rank(
            d: int,
            v=v,
            node=node,
            needed=needed,
            reads=reads,
            seen=seen,
            able=able,
            num_blocks=num_blocks,
            most=most,
        ) -> tuple:
            missing = sum(float(inputs.bytes[i]) for i in needed - held[d])
            there = sum(float(inputs.bytes[i]) for i in held[d])
            limit = seen / total * MEMORY_SHARE * float(arrays.memory_bytes[d])
            overflow = max(0.0, there + missing - limit) if missing > 0 else 0.0
            come = sum(
                move_seconds(arrays, r, device[int(arrays.region_src[r])], d)
                for r in sorted(reads - regions[d])
            )
            if num_blocks >= len(able):
                wanted = able[int(ops.block[v]) * len(able) // num_blocks]
                last = 0.0 if d == wanted else 1.0
            else:
                last = booked[d]
            return overflow, blocks[node][d] >= most, come, last

        root = int(arrays.group[v])
        d = home.setdefault(root, home[root] if root in home else min(able, key=rank))
        device[v] = d
        blocks[node][d] += 1
        booked[d] += float(arrays.op_seconds[v, d])
        held[d] |= needed
        regions[d] |= reads | set(range(arrays.region_ptr[v], arrays.region_ptr[v + 1]))
    return [device[v] for v in range(problem.num_ops)]


def stages_by_inputs(problem: Problem, bytes_I: list[float], num_stages: int) -> list[int]:
    """Each op, producers first: where its largest input is, by new inputs, or by its producer."""
    rank_V, edges = topological_priority(problem), problem.graph.edges
    inputs_of = [set() for _ in range(problem.num_ops)]
    for i, consumers in enumerate(problem.graph.inputs.consumers):
        for v in consumers:
            inputs_of[v].add(i)
    stage_of_input: dict[int, int] = {}
    stage: dict[int, int] = {}
    seen, total = 0.0, sum(bytes_I)
    for v in np.argsort(rank_V).tolist():
        old = [i for i in sorted(inputs_of[v]) if i in stage_of_input and bytes_I[i] > 0]
        new = sum(bytes_I[i] for i in inputs_of[v] if i not in stage_of_input)
        producers = edges.src[edges.dst == v].tolist()
        if old:
            stage[v] = stage_of_input[max(old, key=lambda i: bytes_I[i])]
        elif new > 0:
            stage[v] = min(int(num_stages * (seen + new / 2) / total), num_stages - 1)
        elif producers:
            stage[v] = stage[max(producers, key=rank_V.tolist().__getitem__)]
        else:
            stage[v] = 0
        for i in inputs_of[v]:
            stage_of_input.setdefault(i, stage[v])
        seen += new
    return [stage[v] for v in range(problem.num_ops)]
