"""Compiled: blocks are dealt to devices one by one, see dealing.py.

Dimensions: V ops, N nodes, R regions, I inputs, D devices. Indices: v op, r region, d device, i
position in a list.
"""

import numpy as np

from doppler.problem.transfer_kernels import move_seconds
from doppler.support.compiled import compiled

_MEMORY_SHARE = 0.9  # of memory, for inputs; the rest is for what ops make


@compiled
def deal_ops(problem, dealt, order_V, node_V, size_N, block_V, tie_s):
    """Give every op its device, see dealing.Dealing.

    Args:
        problem: ProblemArrays.
        dealt: dealing._Dealt, its device -1 everywhere; filled in.
        order_V: ops, producers first.
        node_V: node of each op.
        size_N: blocks of each node.
        block_V: number of each op's block in its node.
        tie_s: seconds; incoming transfers that differ by less are tied.
    """
    seen_bytes, total_bytes = 0.0, max(1.0, problem.input_bytes.sum())
    for v in order_V:
        for i in range(dealt.input_ptr[v], dealt.input_ptr[v + 1]):
            if not dealt.has_input[dealt.inputs[i]].any():
                seen_bytes += problem.input_bytes[dealt.inputs[i]]
        d = dealt.device[problem.group[v]]
        if d < 0:
            node = node_V[v]
            d = _nearest(
                problem,
                dealt,
                v,
                dealt.num[node],
                size_N[node],
                block_V[v],
                seen_bytes / total_bytes,
                tie_s,
            )
        dealt.device[problem.group[v]] = d
        dealt.device[v] = d
        dealt.num[node_V[v], d] += 1
        dealt.booked[d] += problem.op_seconds[v, d]
        dealt.bytes[d] += _missing_input_bytes(problem, dealt, v, d)
        for i in range(dealt.input_ptr[v], dealt.input_ptr[v + 1]):
            dealt.has_input[dealt.inputs[i], d] = True
        for r in range(problem.region_ptr[v], problem.region_ptr[v + 1]):
            dealt.has_region[r, d] = True
        for i in range(problem.read_ptr[v], problem.read_ptr[v + 1]):
            dealt.has_region[problem.reads[i], d] = True


@compiled
def _nearest(problem, dealt, v, num_D, num_blocks, block, input_share, tie_s):
    """The device that overflows least, has not had its share of blocks, and is nearest.

    Ties go to the device with the block's number, or to the one with the least booked work.

    Args:
        problem: ProblemArrays.
        dealt: dealing._Dealt.
        v: op.
        num_D: blocks of the node on each device.
        num_blocks: of the node.
        block: number of the op's block.
        input_share: share of all inputs seen so far; a device should not have filled more of its
            memory with inputs.
        tie_s: seconds.
    """
    num_able, fewest = 0, num_blocks
    for d in range(len(num_D)):
        if problem.op_seconds[v, d] < np.inf:
            num_able += 1
            fewest = min(fewest, num_D[d])
    max_blocks = max(fewest + 1, (num_blocks + num_able - 1) // num_able)
    wanted = block * num_able // num_blocks if num_blocks >= num_able else -1
    best = -1
    least_overflow = np.inf
    best_is_full = True
    least_incoming = np.inf
    least_load = np.inf
    rank = -1
    for d in range(len(num_D)):
        if problem.op_seconds[v, d] == np.inf:
            continue
        rank += 1
        overflow, missing_bytes = 0.0, _missing_input_bytes(problem, dealt, v, d)
        if missing_bytes > 0.0:
            overflow = max(
                0.0,
                dealt.bytes[d]
                + missing_bytes
                - input_share * _MEMORY_SHARE * problem.memory_bytes[d],
            )
        is_full, load = num_D[d] >= max_blocks, 0.0 if rank == wanted else 1.0
        if overflow > least_overflow or (
            overflow == least_overflow and is_full and not best_is_full
        ):
            continue
        if wanted < 0:
            load = dealt.booked[d]
        incoming = 0.0
        for i in range(problem.read_ptr[v], problem.read_ptr[v + 1]):
            r = problem.reads[i]
            if not dealt.has_region[r, d]:
                incoming += move_seconds(problem, r, dealt.device[problem.region_src[r]], d)
        better = (
            overflow < least_overflow
            or (best_is_full and not is_full)
            or incoming < least_incoming - tie_s
        )
        if better or (incoming <= least_incoming + tie_s and load < least_load):
            best = d
            least_overflow = overflow
            best_is_full = is_full
            least_incoming = incoming
            least_load = load
    return best


@compiled
def _missing_input_bytes(problem, dealt, v, d):
    """Bytes of the inputs that op v would bring to device d."""
    total = 0.0
    for i in range(dealt.input_ptr[v], dealt.input_ptr[v + 1]):
        if not dealt.has_input[dealt.inputs[i], d]:
            total += problem.input_bytes[dealt.inputs[i]]
    return total
