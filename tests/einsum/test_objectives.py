"""What the two decompositions minimise, counted block by block; and that they find the least."""

import math
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from problems import cluster_of

from doppler.einsum import FewestElements, parse_program
from doppler.einsum.decomposition.auto import NodeSeconds
from doppler.einsum.decomposition.fewest_elements import ElementsMoved
from doppler.einsum.decomposition.search import CutTensor
from doppler.einsum.partition import even_cuts
from doppler.einsum.program import Einsum, Formation, Input

PRODUCT = """program p
input X[8, 4] f32
input Y[4, 16] f32
A[i, j] = exp(X[i, j])
B[j, k] = exp(Y[j, k])
C[i, k] = sum(j) A[i, j] * B[j, k]
"""
# Each is one tree from the only input on, where the dynamic program is exact.
TREES = {
    "chain": """program p
input X[8, 4] f32
A[i, k] = sum(j) X[i, j] * X[k, j]
B[i, k] = exp(A[i, k])
C[j, l] = sum(i) B[i, j] * B[i, l]
""",
    "two readers": """program p
input X[4, 8] f32
A[i, k] = sum(j) X[i, j] * X[k, j]
B[i, k] = exp(A[i, k])
C[i, l] = sum(k) A[i, k] * A[k, l]
""",
    "complex": """program p
input X[4, 8] f32
Z[i, c] = complex X[i, j]
A[i, c] = Z[i, c] * Z[i, c]
""",
}


def boxes(cuts):
    return list(product(*map(pairwise, cuts)))


def volume(box) -> int:
    return math.prod(max(0, stop - start) for start, stop in box)


def common(box, other):
    return tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, other, strict=True))


def cuts_of(node, parts):
    return [
        even_cuts(size, n, node.grain(k))
        for k, (size, n) in enumerate(zip(node.space, parts, strict=True))
    ]


def reads_of(node, parts, position):
    """The boxes that the blocks of a node read of an operand."""
    return [
        piece.box
        for box in boxes(cuts_of(node, parts))
        for operand in node.kernel_operands(box)
        for piece in operand.pieces
        if piece.operand == position
    ]


def node(program, name):
    return next(one for one in program.nodes if one.name == name)


def elements_of_node(one, parts) -> int:
    """Read by the blocks of a contraction, and its partial results less the result."""
    if not (isinstance(one, Einsum) and one.is_contraction):
        return 0
    read = sum(volume(box) for place in (0, 1) for box in reads_of(one, parts, place))
    partial = sum(volume(box[: len(one.shape)]) for box in boxes(cuts_of(one, parts)))
    return read + partial - math.prod(one.shape)


def elements_between(producer, parts, readers) -> int:
    """Of all pairs of a block of the producer and one of what its readers' cuts have in common."""
    own = cuts_of(producer, parts)[: len(producer.shape)]
    refined = [{0, size} for size in producer.shape]
    for reader, its_parts, place in readers:
        for box in reads_of(reader, its_parts, place):
            for points, ends in zip(refined, box, strict=True):
                points.update(ends)
    refined = [tuple(sorted(points)) for points in refined]
    if refined == [tuple(one) for one in own]:
        return 0
    each = 2 if producer.dtype == "c64" else 1
    return each * sum(
        volume(one) + volume(other)
        for one, other in product(boxes(own), boxes(refined))
        if volume(common(one, other))
    )


def elements(program, splits) -> int:
    """All that FewestElements counts of a program; splits: of inputs, too."""
    of_formation = {n: f.operands[0] for n, f in enumerate(program.nodes) if type(f) is Formation}
    total = 0
    for number, producer in enumerate(program.nodes):
        if number in of_formation:
            continue
        total += elements_of_node(producer, splits[producer.name])
        readers = [
            (reader, splits[reader.name], place)
            for reader in program.nodes
            if type(reader) is not Formation
            for place, operand in enumerate(reader.operands)
            if of_formation.get(operand, operand) == number
        ]
        if readers:
            total += elements_between(producer, splits[producer.name], readers)
    return total


def powers_of_two(one, total):
    """Splits into powers of two; of a contraction into ``total``, else into at most so many."""
    exact = isinstance(one, Einsum) and one.is_contraction
    numbers = [[2**k for k in range(6) if 2**k <= size] for size in one.space]
    found = [parts for parts in product(*numbers) if math.prod(parts) <= total]
    return [parts for parts in found if not exact or math.prod(parts) == total]


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("name", TREES)
def test_no_splits_move_fewer_elements_than_those_that_are_found(name, parts):
    program = parse_program(TREES[name])
    nodes = [one for one in program.nodes if type(one) is not Formation]
    inputs = [one.name for one in nodes if isinstance(one, Input)]
    found = FewestElements().splits(program, parts)
    least, least_so = math.inf, math.inf  # of all splits, and with what was found
    for chosen in product(*(powers_of_two(one, parts) for one in nodes)):
        splits = {one.name: its for one, its in zip(nodes, chosen, strict=True)}
        count = elements(program, splits)
        least = min(least, count)
        if all(splits[name] == found.get(name) for name in splits if name not in inputs):
            least_so = min(least_so, count)
    assert least_so == least


@pytest.mark.parametrize(
    "parts", [(1, 1, 1), (2, 1, 1), (1, 4, 1), (1, 1, 4), (2, 2, 2), (4, 2, 1), (1, 8, 2)]
)
def test_elements_of_a_contraction_are_those_of_its_blocks(parts):
    contraction = node(parse_program(PRODUCT), "C")
    assert ElementsMoved(0).node_cost(contraction, parts) == elements_of_node(contraction, parts)


# ---- seconds ----

BYTES_PER_S, FLOP_PER_S, MEMORY_BYTES_PER_S = 100.0, 4.0, 8.0


def objective(num_devices, total=4, **device):
    """Of a cluster where nothing but flops and links takes time, or ``device`` says so."""
    cluster = cluster_of([FLOP_PER_S] * num_devices, bytes_per_s=BYTES_PER_S)
    cluster = replace(cluster, devices=tuple(replace(one, **device) for one in cluster.devices))
    return NodeSeconds(parse_program(PRODUCT), cluster, total)


def moved_s(num_bytes, num_devices) -> float:
    """All devices send at once."""
    return num_bytes / BYTES_PER_S / num_devices


def bytes_read_elsewhere(one, parts, num_devices) -> int:
    """Every element is where it was made, and is sent to all others that it is read by."""
    total = 0
    for position, shape in enumerate([(8, 4), (4, 16)]):
        times = np.zeros(shape, dtype=int)
        for (top, bottom), (left, right) in reads_of(one, parts, position):
            times[top:bottom, left:right] += 1
        total += 4 * (np.minimum(times, num_devices) - 1).sum()
    return total


@pytest.mark.parametrize("num_devices", [1, 2, 3, 4])
@pytest.mark.parametrize("parts", [(1, 1, 1), (2, 1, 1), (1, 4, 1), (2, 2, 1), (4, 4, 1)])
def test_blocks_are_computed_side_by_side_and_read_what_others_made(parts, num_devices):
    contraction = node(parse_program(PRODUCT), "C")
    num = math.prod(parts)
    flops = 2 * 8 * 4 * 16  # in all
    rounds = math.ceil(num / num_devices)
    expected_s = rounds * flops / num / FLOP_PER_S
    read = bytes_read_elsewhere(contraction, parts, num_devices)
    expected_s += moved_s(read, num_devices) if num_devices > 1 else 0
    assert objective(num_devices).node_cost(contraction, parts) == pytest.approx(expected_s)


@pytest.mark.parametrize("num_devices", [2, 3, 4])
@pytest.mark.parametrize("partials", [2, 4])
def test_partial_results_are_sent_and_added_up(partials, num_devices):
    contraction = node(parse_program(PRODUCT), "C")
    flops, size = 2 * 8 * 4 * 16, 8 * 16
    computed_s = math.ceil(partials / num_devices) * flops / partials / FLOP_PER_S
    added_s = (partials - 1) * size / FLOP_PER_S  # one op adds them all
    # One partial result is where it is added up; a device sends what it has made at once.
    sent = (min(partials, num_devices) - 1) * size * 4
    expected_s = computed_s + added_s + moved_s(sent, num_devices)
    cost_s = objective(num_devices).node_cost(contraction, (1, 1, partials))
    assert cost_s == pytest.approx(expected_s)


@pytest.mark.parametrize("partials", [1, 2, 4])
def test_where_memory_is_slow_bytes_that_are_read_and_written_count(partials):
    contraction = node(parse_program(PRODUCT), "C")
    block = 4 * (8 * 4 // partials + 4 * 16 // partials + 8 * 16)
    added = 4 * 8 * 16 * (partials + 1)  # one alone is read and written, too
    each = objective(1, memory_bytes_per_s=MEMORY_BYTES_PER_S, flop_per_s={"f32": 1e9})
    expected_s = (partials * block + added) / MEMORY_BYTES_PER_S
    assert each.node_cost(contraction, (1, 1, partials)) == pytest.approx(expected_s, rel=1e-6)


@pytest.mark.parametrize(("num", "end_s"), [(1, 1.0), (2, 2.0), (3, 2.0), (4, 3.0), (6, 4.0)])
def test_blocks_go_where_they_end_first(num, end_s):
    cluster = cluster_of([1.0, 0.5])
    node_seconds = NodeSeconds(parse_program(PRODUCT), cluster, 4)
    assert node_seconds.spread_s(1.0, 0.0, "f32", num) == end_s


def test_partial_results_that_are_split_are_added_up_side_by_side():
    contraction = node(parse_program(PRODUCT), "C")
    flops, size = 2 * 8 * 4 * 16, 8 * 16
    read = bytes_read_elsewhere(contraction, (2, 1, 2), 2)
    expected_s = 2 * flops / 4 / FLOP_PER_S + size / 2 / FLOP_PER_S + moved_s(size * 4 + read, 2)
    assert objective(2).node_cost(contraction, (2, 1, 2)) == pytest.approx(expected_s)


@pytest.mark.parametrize("own", [(1, 1), (2, 1), (1, 2), (4, 1), (2, 2)])
@pytest.mark.parametrize("use", [(1, 1), (2, 1), (1, 4), (2, 2)])
def test_a_reader_fetches_what_the_largest_block_does_not_hold(own, use):
    program = parse_program(PRODUCT)
    tensor = CutTensor(node(program, "A"))
    made, read = ([even_cuts(8, n), even_cuts(4, m)] for n, m in (own, use))
    numbers = [np.array(tensor.number(tuple(cuts))) for cuts in (made, read)]
    fetched = sum(
        volume(box) - max(volume(common(box, block)) for block in boxes(made))
        for box in boxes(read)
    )
    for times in (1, 2):
        cost_s = objective(2).edge_cost(tensor, numbers[0], [numbers[1]] * times)
        assert cost_s == pytest.approx(moved_s(times * fetched * 4, 2))


def test_inputs_cost_nothing():
    program = parse_program(PRODUCT)
    tensor = CutTensor(node(program, "X"))
    whole, halves = (np.array(tensor.number(((0, 4, 8)[:: 3 - n], (0, 4)))) for n in (1, 2))
    assert objective(2).node_cost(node(program, "X"), (2, 1)) == 0
    assert objective(2).edge_cost(tensor, whole, [halves]) == 0


def test_a_contraction_has_as_many_blocks_as_it_may_and_other_nodes_at_most_as_many():
    program = parse_program(PRODUCT)
    for total in (1, 4, 6):
        candidates = objective(2, total).candidates(node(program, "C"))
        assert {math.prod(parts) for parts in candidates} == {total}
        assert len(candidates) == len(set(candidates)) == {1: 1, 4: 6, 6: 8}[total]
        divisors = {n for n in range(1, total + 1) if total % n == 0}
        blocks = [math.prod(parts) for parts in objective(2, total).candidates(node(program, "A"))]
        assert set(blocks) == divisors
        assert blocks == sorted(blocks, reverse=True)
