"""Whole Llamas on one to four hosts: splits, placements, and what people use instead.

    python benchmarks/whole_models.py
    python benchmarks/whole_models.py --models 7b --machines h100x8 --seconds 20

The program is workloads/llama_layer.einsum with the sizes of Llama-2 7B, 13B and 70B, every layer
with as many keys as queries, one sequence of 4,096 positions, f16; makespans are simulated,
work-conserving, contention fifo, queue priority, by the data sheets' peaks. *auto*: the time-aware
decomposition, of one layer in the middle and what is around it. *fewest*: the published one, which
knows no machine, of the same layer. *tensor*: what Megatron does with sequence parallelism
(Shoeybi et al., arXiv 1909.08053; Korthikanti et al., arXiv 2205.05198): products split by columns,
then by rows, sums scattered over positions, norms by positions. *tensor parallel* places those
blocks one part on each device; *by hosts* does so within a host, and layers follow each other over
the hosts. *layers* is a pipeline of whole layers. *s* are wall seconds of reading, splitting and
pricing, and of the placement. *dealing*: baselines/dealing.py, in up to three ways to use hosts.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import doppler
from doppler.baselines import ETF, HEFT, Baseline, Clustering, Dealing, Judge
from doppler.baselines.bounds import lower_bound
from doppler.baselines.hosts import num_ways
from doppler.cluster import Cluster, preset
from doppler.einsum import Auto, FewestElements, Program, load_program, lower
from doppler.einsum.decomposition.repeats import shorten
from doppler.einsum.differentiation import training_program
from doppler.einsum.program import Splits
from doppler.env import make_view
from doppler.problem import Placement, Problem, build
from doppler.search import Evaluator, GreedyEpisode, load_policy
from doppler.simulator import WorkConserving
from doppler.support.errors import InputError

MODELS = {
    "7b": {"layers": 32, "heads": 32, "dim": 128, "ffn": 11008},
    "13b": {"layers": 40, "heads": 40, "dim": 128, "ffn": 13824},
    "70b": {"layers": 80, "heads": 64, "dim": 128, "ffn": 28672},
}
# Of weights, and of what changes them: columns, or rows, as their products are split.
WEIGHT_DIMS = {"q": 0, "k": 0, "v": 0, "o": 2, "1": 0, "2": 2, "3": 0}
WIDE = {"q", "k", "v", "inner", "gate", "passes", "gated"}
BEHIND = {"final", "last", "word", "choice", "certainty", "peak", "below", "weights", "surprise"}
BEHIND |= {"loss", "norm3", "vocabulary"}
PROGRAM = Path("workloads/llama_layer.einsum")
BASELINES = {
    "HEFT": HEFT(evaluations=1),
    "ETF": ETF(evaluations=1),
    "32 clusterings": Clustering(evaluations=32),
}
JUDGE = Judge(baseline=Clustering(evaluations=64), system=WorkConserving())
IntArray = NDArray[np.int64]
Placed = Iterator[tuple[str, IntArray]]
MACHINES = ("h100x8", "dgx_h100x16", "dgx_h100x32")
SPLITS = ("whole", "tensor", "tensor in hosts", "fewest", "auto")
COLUMNS = ("model", "machine", "splits", "ops", "s", "method", "s", "ms", "over the bound", "GB")


def tensor_dims(name: str) -> tuple[int, ...]:
    """Dimensions of a node's join that tensor parallelism splits; the last one says the device.

    The batch comes first. Sums over heads or features are split along these, and scattered.
    """
    base, *through = name.removeprefix("d_").split(".")
    if base in ("turns", "last", "word", "loss"):
        return ()
    if base[1:] in WEIGHT_DIMS and base[0] == "w":
        return (WEIGHT_DIMS[base[1:]],)
    if base.startswith("norm"):  # a sum over positions changes it
        return () if "new" in through else (3,)
    if base in ("n", "m") and not WIDE.isdisjoint(through):  # a product's gradient, a partial sum
        return 1, 4
    if base in ("o", "z"):
        return 1, 4
    return (2,) if base[0] in "qk" or base in WIDE else (1,)


def tensor_splits(program: Program, parts: int) -> dict[str, tuple[int, ...]]:
    """Splits by node: Megatron's, with norms by positions."""
    splits = {}
    for node in program.nodes:
        if node.kind not in ("input", "formation", "fill"):
            rank = len(getattr(node, "extents", node.shape))
            dims = tensor_dims(node.name)
            splits[node.name] = tuple(parts if dim in dims else 1 for dim in range(rank))
    return splits


def part_of_ops(problem: Problem, program: Program, splits: Splits) -> IntArray:
    """Which part each op is of [V]; 0 where its node is whole."""
    graph, part_V = problem.graph, np.zeros(problem.num_ops, np.int64)
    rank_of = {node.name: len(node.shape) for node in program.nodes}
    for v in range(problem.num_ops):
        node = graph.tensors[graph.ops.node[v]].name
        name = node.removesuffix(".formation")
        split, dims = splits.get(name, ()), tensor_dims(name)
        if node != name:  # a formation is split as its result
            split = split[: rank_of[name]]
        dims = tuple(dim for dim in dims if dim < len(split))
        if split and dims:
            part_V[v] = np.unravel_index(graph.ops.block[v], split)[dims[-1]]
    return part_V


def layer_of_ops(problem: Problem) -> IntArray:
    """The layer of each op [V], by the number of its node; what is behind: the last."""
    graph, layer_V = problem.graph, np.zeros(problem.num_ops, np.int64)
    is_behind = np.zeros(problem.num_ops, bool)
    for v in range(problem.num_ops):
        words = graph.tensors[graph.ops.node[v]].name.split(".")
        layer_V[v] = next((int(word) for word in words[1:] if word.isdigit()), 1) - 1
        base = words[0].removeprefix("d_")
        is_behind[v] = base.startswith("o_") or base in BEHIND
    layer_V[is_behind] = layer_V.max()
    return layer_V


def by_layers(problem: Problem, num: int) -> IntArray:
    """A number below ``num`` for each op [V]: layers in turn, as many ops' seconds each."""
    layer_V = layer_of_ops(problem)
    seconds = np.bincount(layer_V, problem.mean_op_seconds)
    part = np.minimum((seconds.cumsum() - seconds / 2) / seconds.sum() * num, num - 1)
    return part.astype(np.int64)[layer_V]


def given_placements(problem: Problem, program: Program, name: str, splits: Splits) -> Placed:
    """What people use: devices of each op [V] by the name of the method."""
    num, num_hosts = problem.num_devices, problem.cluster.num_hosts
    if name == "whole":
        yield "layers", by_layers(problem, num)
    elif name == "tensor":
        yield "tensor parallel", part_of_ops(problem, program, splits) % num
    elif name == "tensor in hosts":
        each = num // num_hosts
        part_V = part_of_ops(problem, program, splits)
        yield "tensor parallel by hosts", by_layers(problem, num_hosts) * each + part_V


def searched(
    problem: Problem, seconds: float, skip: Sequence[str]
) -> Iterator[tuple[str, float, float, float]]:
    """Method, wall seconds, makespan, peak bytes of what places the graph itself."""
    ways = num_ways(problem)
    many: dict[str, Baseline] = {"dealing": Dealing(evaluations=min(3, ways)), **BASELINES}
    if ways > 1:
        many[f"HEFT, {ways} ways to use hosts"] = HEFT(evaluations=ways)
    with WorkConserving().open(problem) as session:
        if "policy" not in skip:
            best = Evaluator(session=session, confirmations=0, seed=0)
            step = GreedyEpisode.of(load_policy(), make_view(problem))
            begin_s = time.perf_counter()
            step.search(best, 1, np.random.default_rng(0))
            if best.placement is not None:  # it fits in memory
                yield judged("policy, at once", problem, best.placement, begin_s)
        for name, baseline in many.items():
            if name.split(",")[0] not in skip:
                begin_s = time.perf_counter()
                found = baseline.place(session, np.random.default_rng(0))
                yield judged(name, problem, found.placement, begin_s)
    begin_s = time.perf_counter()
    try:
        placed = doppler.place(problem.graph, cluster=problem.cluster, seconds=seconds)
    except InputError:  # nothing fits
        return
    yield judged(f"doppler.place, {seconds:g} s", problem, placed.placement, begin_s)


def judged(
    method: str, problem: Problem, placement: Placement, begin_s: float
) -> tuple[str, float, float, float]:
    """One line of a method."""
    took_s = time.perf_counter() - begin_s
    with WorkConserving().open(problem) as session:
        measured = session.measure(placement.device[None], placement.priority[None])
    return method, took_s, float(measured.cost_s()[0]), float(measured.peak_bytes.max())


def splits_of(name: str, program: Program, cluster: Cluster, parts: int) -> Splits:
    """Into how many parts each node is split."""
    if name == "fewest":
        short = shorten(program)
        return short.splits_of_all(FewestElements().splits(short.program, parts))
    if name == "auto":
        return Auto(cluster=cluster, judge=JUDGE, grains=[1, 2]).splits(program, parts)
    return {} if name == "whole" else tensor_splits(program, parts)


def rows_of(
    model: str, machine: str, name: str, training: bool, seconds: float, skip: Sequence[str]
) -> Iterator[tuple[str, ...]]:
    """All lines of one model on one machine, split in one way, each as soon as it is known."""
    cluster, kind = preset(name=machine), f"{model}, training" if training else model
    if name == "tensor in hosts" and cluster.num_hosts == 1:
        return
    begin_s = time.perf_counter()
    params = {**MODELS[model], "words": 32000}
    program = load_program(str(PROGRAM), params=params, training=training)
    if training:
        program = training_program(program, learning_rate=1e-3)
    parts = cluster.num_devices // (cluster.num_hosts if name.endswith("hosts") else 1)
    try:
        splits = splits_of(name, program, cluster, parts)
        problem = build(lower(program, splits), cluster)
    except InputError as error:
        yield kind, machine, name, "", "", str(error), "", "", "", ""
        return
    made_s, bound_s = time.perf_counter() - begin_s, lower_bound(problem).seconds
    given = (
        judged(method, problem, Placement.make(problem, device_V), time.perf_counter())
        for method, device_V in given_placements(problem, program, name, splits)
    )
    for method, took_s, makespan_s, peak in chain(
        given, searched(problem, seconds, skip) if name != "whole" else ()
    ):
        over = f"{makespan_s / bound_s:.2f}"
        cells = (f"{problem.num_ops:,}", f"{made_s:.1f}", method, f"{took_s:.1f}")
        yield kind, machine, name, *cells, f"{1e3 * makespan_s:.1f}", over, f"{peak / 1e9:.1f}"


def main() -> None:
    """Print the table, line by line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--machines", nargs="+", default=list(MACHINES))
    parser.add_argument("--kinds", nargs="+", default=["forward", "training"])
    parser.add_argument("--splits", nargs="+", default=list(SPLITS), choices=list(SPLITS))
    parser.add_argument("--seconds", type=float, default=20.0, help="of doppler.place")
    parser.add_argument("--skip", nargs="+", default=[], help="policy, HEFT, ETF, 32 clusterings")
    options = parser.parse_args()
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}")
    for model in options.models:
        for kind in options.kinds:
            for machine in options.machines:
                for name in options.splits:
                    training = kind == "training"
                    cells_of = rows_of(
                        model, machine, name, training, options.seconds, options.skip
                    )
                    for cells in cells_of:
                        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
