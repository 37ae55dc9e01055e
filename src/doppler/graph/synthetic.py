"""Random graphs of known families, to train on many problems and to test on others.

Shape suffixes: V ops, E edges.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from doppler.graph.dataflow import DataflowGraph, Edges, Inputs, Ops
from doppler.support.options import Seed, checked, within

FamilyName = Literal[
    "layered",
    "random",
    "fork_join",
    "tree",
    "stencil",
    "products",
    "elimination",
    "butterfly",
    "map_reduce",
]
Pairs = list[tuple[int, int]]
# Mean costs: the operations of one millisecond at 10 TFLOP/s, and the bytes that a link of 12 GB/s
# moves in that time.
FLOPS, BYTES = 1e10, 1.2e7


@checked
def synthetic(
    *,
    family: FamilyName,
    num_ops: Annotated[int, within(30, 1_000_000)],
    transfer_ratio: Annotated[float, within(0.0, 1e9)],
    seed: Seed,
    name: str | None = None,
) -> DataflowGraph:
    """Make a random graph of a family, with costs that are similar within each layer.

    Args:
        family: one of FAMILIES.
        num_ops: approximate number of ops; the family decides the exact number.
        transfer_ratio: seconds of an average transfer divided by those of an average op, on devices
            of 10 TFLOP/s (f32) and links of 12 GB/s.
        seed: of structure and costs.
        name: of the graph; family, size and seed by default.

    Raises:
        InputError: an unknown family, fewer than 30 ops, or a negative ratio.

    Source: families as in the literature on list scheduling (Topcuoglu, Hariri, Wu, "HEFT", TPDS
    2002: random layers, Gaussian elimination, fast Fourier transform) and of sharded programs.
    """
    rng = np.random.default_rng([seed, num_ops])
    pairs, layer_of = FAMILIES[family](num_ops, rng)
    src_E, dst_E = np.array(sorted(set(pairs)), dtype=np.int64).T
    layer_V = np.array(layer_of)
    flops_V, bytes_V = (_costs(layer_V, mean, rng) for mean in (FLOPS, BYTES * transfer_ratio))
    return DataflowGraph(
        name=name or f"{family}_{num_ops}_{seed}",
        ops=Ops.make(flops=flops_V, output_bytes=bytes_V, node=layer_V),
        edges=Edges.make(src=src_E, dst=dst_E, bytes=bytes_V[src_E]),
        inputs=Inputs.make(),
    )


def _costs(
    layer_V: NDArray[np.int64], mean: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Draw costs that are similar within a layer, because its ops are blocks of one operation."""
    spread = rng.choice([0.0, 0.5, 1.5])
    within = rng.choice([0.0, 0.0, 0.1, 0.5])
    layers = np.exp(rng.normal(0.0, spread, layer_V.max() + 1))
    cost_V = layers[layer_V] * np.exp(rng.normal(0.0, within, len(layer_V)))
    return mean * cost_V / cost_V.mean()


Family = Callable[[int, np.random.Generator], tuple[Pairs, list[int]]]


def _layered(num_ops: int, rng: np.random.Generator) -> tuple[Pairs, list[int]]:
    """Layers of random width; each op reads some of the layer before."""
    widest, fan_in = int(rng.integers(2, 17)), int(rng.integers(1, 5))
    layers: list[list[int]] = []
    num = 0
    while num < num_ops:
        width = min(int(rng.integers(1, widest + 1)), num_ops - num)
        layers.append(list(range(num, num + width)))
        num += width
    pairs = [
        (int(u), v)
        for before, layer in pairwise(layers)
        for v in layer
        for u in rng.choice(before, size=min(len(before), fan_in), replace=False)
    ]
    return pairs or [(0, 1)], [i for i, layer in enumerate(layers) for _ in layer]


def _random(num_ops: int, rng: np.random.Generator) -> tuple[Pairs, list[int]]:
    """Each op reads a few of the ops shortly before it."""
    reach, fan_in = int(rng.integers(3, 25)), int(rng.integers(1, 4))
    pairs: Pairs = []
    layer_of = [0]
    for v in range(1, num_ops):
        before = np.arange(max(0, v - reach), v)
        chosen = rng.choice(before, size=min(len(before), int(rng.integers(1, fan_in + 1))))
        pairs += [(int(u), v) for u in chosen]
        layer_of.append(1 + max(layer_of[int(u)] for u in chosen))
    return pairs, layer_of


def _fork_join(num_ops: int, rng: np.random.Generator) -> tuple[Pairs, list[int]]:
    """Phases of parallel chains between a fork and a join."""
    width, length = int(rng.integers(3, 13)), int(rng.integers(1, 5))
    pairs: Pairs = []
    layer_of = [0]
    while len(layer_of) < num_ops:
        fork, layer = len(layer_of) - 1, layer_of[-1]
        ends = []
        for _ in range(width):
            last = fork
            for step in range(length):
                pairs.append((last, len(layer_of)))
                last = len(layer_of)
                layer_of.append(layer + 1 + step)
            ends.append(last)
        pairs += [(end, len(layer_of)) for end in ends]
        layer_of.append(layer + length + 1)
    return pairs, layer_of


def _tree(num_ops: int, rng: np.random.Generator) -> tuple[Pairs, list[int]]:
    """Leaves that are reduced to one op, which is then broadcast."""
    arity = int(rng.integers(2, 5))
    depth = max(1, round(np.log(max(2, num_ops / 2)) / np.log(arity)))
    pairs: Pairs = []
    layer_of = [0] * arity**depth
    layer = list(range(len(layer_of)))
    sizes = [arity**i for i in range(depth - 1, -1, -1)] + [arity**i for i in range(1, depth)]
    for number, size in enumerate(sizes):
        new = list(range(len(layer_of), len(layer_of) + size))
        layer_of += [number + 1] * size
        if len(new) < len(layer):
            pairs += [(u, new[i * len(new) // len(layer)]) for i, u in enumerate(layer)]
        else:
            pairs += [(layer[i * len(layer) // len(new)], v) for i, v in enumerate(new)]
        layer = new
    return pairs, layer_of


def _stencil(num_ops: int, rng: np.random.Generator) -> tuple[Pairs, list[int]]:
    """Time steps over cells in a row; each cell reads itself and its neighbours one step before."""
    width = int(rng.integers(4, 17))
    steps = max(2, num_ops // width)
    pairs = [
        ((t - 1) * width + j, t * width + i)
        for t in range(1, steps)
        for i in range(width)
        for j in range(max(0, i - 1), min(width, i + 2))
    ]
    return pairs, [t for t in range(steps) for _ in range(width)]


def _products(num_ops: int, rng: np.random.Generator) -> tuple[Pairs, list[int]]:
    """A chain of products of sharded matrices: blocks, partial sums, elementwise work."""
    rows, inner = (int(i) for i in rng.integers(2, 4, 2))
    elementwise = int(rng.integers(0, 3))
    pairs: Pairs = []
    tiles: dict[tuple[int, int], int] = {}
    layer_of: list[int] = []
    layer = 0

    def add(reads: list[int]) -> int:
        pairs.extend((u, len(layer_of)) for u in reads)
        layer_of.append(layer)
        return len(layer_of) - 1

    while len(layer_of) < num_ops:
        parts = {
            (i, j, k): add([tiles[i, k]] if tiles else [])
            for i in range(rows)
            for j in range(inner)
            for k in range(inner)
        }
        layer += 1
        tiles = {(i, j): parts[i, j, 0] for i in range(rows) for j in range(inner)}
        for k in range(1, inner):  # partial products are added one by one
            tiles = {(i, j): add([tile, parts[i, j, k]]) for (i, j), tile in tiles.items()}
            layer += 1
        for _ in range(elementwise):
            tiles = {key: add([tile]) for key, tile in tiles.items()}
            layer += 1
    return pairs, layer_of


def _elimination(num_ops: int, rng: np.random.Generator) -> tuple[Pairs, list[int]]:
    """LU factorisation of a matrix of tiles, without pivoting."""
    num = 2
    while num * (num + 1) * (2 * num + 1) // 6 < num_ops:
        num += 1
    last: dict[tuple[int, int], int] = {}
    pairs: Pairs = []
    layer_of: list[int] = []

    def add(layer: int, reads: list[int]) -> int:
        pairs.extend((u, len(layer_of)) for u in reads)
        layer_of.append(layer)
        return len(layer_of) - 1

    def before(i: int, j: int) -> list[int]:
        return [last[i, j]] if (i, j) in last else []

    for k in range(num):
        last[k, k] = add(3 * k, before(k, k))
        for i in range(k + 1, num):
            for tile in ((i, k), (k, i)):
                last[tile] = add(3 * k + 1, [*before(*tile), last[k, k]])
        for i in range(k + 1, num):
            for j in range(k + 1, num):
                last[i, j] = add(3 * k + 2, [*before(i, j), last[i, k], last[k, j]])
    return pairs, layer_of


def _butterfly(num_ops: int, rng: np.random.Generator) -> tuple[Pairs, list[int]]:
    """The exchanges of a fast Fourier transform."""
    bits = 2
    while (bits + 1) * 2**bits < num_ops:
        bits += 1
    width = 2**bits
    pairs = [
        (t * width + source, (t + 1) * width + i)
        for t in range(bits)
        for i in range(width)
        for source in (i, i ^ (1 << t))
    ]
    return pairs, [t for t in range(bits + 1) for _ in range(width)]


def _map_reduce(num_ops: int, rng: np.random.Generator) -> tuple[Pairs, list[int]]:
    """Rounds in which every reducer reads every mapper."""
    maps, reduces = int(rng.integers(4, 17)), int(rng.integers(2, 9))
    pairs: Pairs = []
    layer_of: list[int] = []
    before: list[int] = []
    layer = 0
    while len(layer_of) < num_ops:
        mappers = list(range(len(layer_of), len(layer_of) + maps))
        layer_of += [layer] * maps
        if before:
            pairs += [(before[i % len(before)], v) for i, v in enumerate(mappers)]
        before = list(range(len(layer_of), len(layer_of) + reduces))
        layer_of += [layer + 1] * reduces
        pairs += [(u, v) for v in before for u in mappers]
        layer += 2
    return pairs, layer_of


FAMILIES: Mapping[FamilyName, Family] = {
    "layered": _layered,
    "random": _random,
    "fork_join": _fork_join,
    "tree": _tree,
    "stencil": _stencil,
    "products": _products,
    "elimination": _elimination,
    "butterfly": _butterfly,
    "map_reduce": _map_reduce,
}
