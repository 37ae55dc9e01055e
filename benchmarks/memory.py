"""Memory plans: safe, fast, free at run time, right on cores.

    python -m benchmarks.memory random       random graphs, limits and orders: proof and runs
    python -m benchmarks.memory curve        makespan against memory, and against other planners
    python -m benchmarks.memory search       placements judged by their plans, or refused
    python -m benchmarks.memory jitter       who is ready, or a fixed order, under random copies
    python -m benchmarks.memory executed     on cores of this machine, in the least memory
    python -m benchmarks.memory leak         one plan a thousand times

Each prints its table; --num says how many, --out where the curve's picture goes.
"""

import argparse
import gc
import resource
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from doppler.baselines import Annealing, Clustering, lower_bound
from doppler.cluster import Cluster, host, preset
from doppler.einsum import FewestElements, load_program, load_workload, lower
from doppler.executor import Threads, random_inputs, run_graph
from doppler.extensions.memory import Offload, SystemWithPlans, plan
from doppler.extensions.memory.arenas import aligned
from doppler.extensions.memory.arrays import EVICT, LOAD, NOWHERE, op_need_bytes
from doppler.extensions.memory.checks import violations
from doppler.extensions.memory.running_kernels import link_waits, run_plan
from doppler.graph import DataflowGraph
from doppler.problem import Placement, Problem, build
from doppler.simulator import WorkConserving
from doppler.support.errors import InputError
from doppler.trace import violations as trace_violations

PLAIN = WorkConserving()
WORKLOADS = ("chainmm", "ffnn", "llama_block", "llama_layer")
TRAINED = ("ffnn", "llama_block", "llama_layer")
TOLD = (1.0, 0.7, 0.5, 0.3, 0.0)
SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
OTHERS = {
    "ours": Offload(),
    "one try": Offload(tries=1),
    "least recent": Offload(victim="least_recent", tries=1),
    "cheapest": Offload(victim="cheapest", tries=1),
    "balanced": Offload(victim="balanced", tries=1),
    "or recompute": Offload(recompute=True),
}


def main() -> None:
    """Run one of the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    tables = {
        "random": random_plans,
        "curve": curve,
        "search": search,
        "jitter": jitter,
        "executed": executed,
        "leak": leak,
    }
    parser.add_argument("table", choices=tables)
    parser.add_argument("--num", type=int, default=None)
    parser.add_argument("--out", type=Path, default=Path("outputs/memory"))
    arguments = parser.parse_args()
    begin = time.perf_counter()
    for line in tables[arguments.table](arguments):
        print(line, flush=True)
    print(f"{time.perf_counter() - begin:.0f} s")


def graph_of(name: str, devices: int, *, training: bool) -> DataflowGraph:
    """A workload as the paper has it, or with its gradients and the update."""
    return load_workload(
        name=name,
        program=f"workloads/{name}.einsum",
        parts=devices if name.startswith("llama") else 16,
        decomposition=FewestElements(),
        preset="paper",
        training=training,
    )


def placed(problem: Problem) -> Placement:
    """By clusterings, without regard of memory."""
    with PLAIN.open(without_limits(problem)) as session:
        found = Clustering(evaluations=200).place(session, np.random.default_rng(0))
    return found.placement


def without_limits(problem: Problem) -> Problem:
    """The problem on devices of endless memory."""
    return with_limits(problem, np.full(problem.num_devices, np.inf))


def with_limits(problem: Problem, limit_D: np.ndarray) -> Problem:
    """The problem on devices of other memory."""
    return replace(problem, arrays=problem.arrays._replace(memory_bytes=limit_D))


def needs(problem: Problem, placement: Placement) -> tuple[float, np.ndarray, np.ndarray]:
    """Seconds without limits, what is held on each device then, and the least that would do."""
    with PLAIN.open(without_limits(problem)) as session:
        measured = session.measure(placement.device[None], placement.priority[None])
    need_V = op_need_bytes(problem.arrays)
    least_D = np.zeros(problem.num_devices)
    np.maximum.at(least_D, placement.device, need_V)
    return float(measured.seconds[0, 0]), measured.peak_bytes[0], least_D


def makespan_s(problem: Problem, placement: Placement, memory: Offload) -> float:
    """Of the plan."""
    with memory.applied(PLAIN).open(problem) as session:
        measured = session.measure(placement.device[None], placement.priority[None])
    return float(measured.seconds[0, 0])


def random_plans(arguments: argparse.Namespace) -> Iterator[str]:
    """Show 1, simulated."""
    from tests.extensions.memory.plans import (
        limited,
        run_in_any_order,
        some_offload,
        some_placement,
        some_problem,
    )

    rng, num = np.random.default_rng(30), arguments.num or 2000
    broken = evictions = loads = over = 0
    for _ in range(num):
        problem = some_problem(rng)
        placement = some_placement(problem, rng)
        problem = limited(problem, placement, float(rng.choice([0.0, 0.1, 0.3, 0.6, 1.0])))
        placement = Placement.make(problem, placement.device, placement.priority)
        with some_offload(rng).applied(PLAIN).open(problem, num_threads=1) as session:
            made, trace = session.plan(placement), session.trace(placement)
        broken += bool(violations(made)) + bool(trace_violations(trace))
        evictions, loads = evictions + made.count(EVICT), loads + made.count(LOAD)
        limit_D = problem.arrays.memory_bytes * (1 + 1e-9)
        over += sum(bool((run_in_any_order(made, rng) > limit_D).any()) for _ in range(5))
    yield f"{num} plans, {evictions} evictions, {loads} loads: {broken} broken"
    yield f"{5 * num} runs in random order: {over} above a limit"


def curve(arguments: argparse.Namespace) -> Iterator[str]:
    """Show 2: the table and the picture."""
    yield "| problem | memory | " + " | ".join(OTHERS) + " | bound | loaded |"
    yield "| --- | ---: |" + " ---: |" * (len(OTHERS) + 2)
    curves, rises = {}, []
    for cluster in (preset(name="p100x4"), preset(name="v100x8")):
        for name in WORKLOADS[: arguments.num]:
            for training in (False, True)[: 1 + (name in TRAINED)]:
                label = f"{name}{' training' if training else ''}, {cluster.name}"
                rows = list(_curve_of(name, cluster, training))
                for share, ratios, bound, loaded in rows:
                    if share in TOLD:
                        what = f"{share:.0%}" if share else "least"
                        told = " | ".join(f"{one:.3f}" for one in ratios)
                        yield f"| {label} | {what} | {told} | {bound:.2f} | {loaded / 1e9:.3g} GB |"
                curves[label] = [(row[0], row[1][0], row[2]) for row in rows]
                ours = [row[1][0] for row in rows]
                rises += [more / less - 1 for more, less in pairwise(ours)]
    yield (
        f"of {len(rises)} pairs of neighbouring limits {sum(x > 0.02 for x in rises)} take over 2% "
        f"longer with more memory, the worst {max(rises):.1%}"
    )
    draw(curves, arguments.out)
    yield f"{arguments.out}.png"


def _curve_of(
    name: str, cluster: Cluster, training: bool
) -> Iterator[tuple[float, list[float], float, float]]:
    """Share, times of all planners and the bound, over those without limits; bytes loaded."""
    graph = graph_of(name, cluster.num_devices, training=training)
    problem = without_limits(build(graph, _roomy(cluster)))
    placement = placed(problem)
    seconds, held_D, least_D = needs(problem, placement)
    for share in (*SHARES, 0.0):
        if share > 0 and (share * held_D < least_D).all():
            continue
        tight = with_limits(problem, np.maximum(least_D, share * held_D))
        again = _again(tight, placement)
        ratios = [makespan_s(tight, again, one) / seconds for one in OTHERS.values()]
        made = plan(tight, again)
        yield share, ratios, plan_bound_s(tight, placement) / seconds, made.loaded_bytes


def search(arguments: argparse.Namespace) -> Iterator[str]:
    """Show 6, of baselines: what does not fit is refused, or judged by the makespan of its plan."""
    num = arguments.num or 1000
    yield "| problem | memory | method | refused | offloaded | seconds, each |"
    yield "| --- | ---: | --- | ---: | ---: | ---: |"
    methods = {
        "clustering": Clustering(evaluations=num),
        "annealing": Annealing(evaluations=num, order=True, hot=0.02, cold=1e-4),
    }
    systems = {"refused": PLAIN, "offloaded": Offload().applied(PLAIN)}
    for name in ("chainmm", "llama_layer"):
        graph = graph_of(name, 4, training=False)
        for memory_bytes in (1.6e9, 1.2e9, 0.8e9):
            try:
                problem = build(graph, preset(name="p100x4").with_memory(memory_bytes))
            except InputError:  # one op alone needs more
                continue
            for method, one in methods.items():
                cells, seconds = [], []
                for system in systems.values():
                    cell, used_s = _searched(problem, one, system)
                    cells.append(cell)
                    seconds.append(f"{used_s:.1f}")
                told = " | ".join([*cells, ", ".join(seconds)])
                yield f"| {name} | {memory_bytes / 1e9:g} GB | {method} | {told} |"


def _searched(problem: Problem, method: Any, system: Any) -> tuple[str, float]:
    """Mean and spread of three seeds in ms, and the seconds that one took."""
    found, begin = [], time.process_time()
    for seed in range(3):
        with system.open(problem) as session:
            best = method.place(session, np.random.default_rng(seed))
            fits = session.measure(best.placement.device[None], best.placement.priority[None])
        if fits.feasible[0]:
            found.append(1e3 * best.makespan_s)
    used_s = (time.process_time() - begin) / 3
    if not found:
        return "none fits", used_s
    few = "" if len(found) == 3 else f", {len(found)} of 3"
    return f"{np.mean(found):.1f} ± {np.std(found):.1f} ms{few}", used_s


def plan_bound_s(problem: Problem, placement: Placement) -> float:
    """Seconds that no plan of a placement undercuts.

    Each device runs all its ops, and no chain of ops takes less than its ops and transfers do;
    inputs that do not fit are loaded, results that do not fit are evicted.
    """
    p, limit_D = problem.arrays, problem.arrays.memory_bytes
    device_V, ops = placement.device, np.arange(problem.num_ops)
    load_D, inputs_D, results_D = np.zeros((3, problem.num_devices))
    np.add.at(load_D, device_V, p.op_seconds[ops, device_V])
    input_of = np.repeat(np.arange(len(p.input_bytes)), np.diff(p.input_ptr))
    pairs = np.unique(np.stack([input_of, device_V[p.input_consumers]]), axis=1)
    np.add.at(inputs_D, pairs[1], p.input_bytes[pairs[0]])
    is_result = np.diff(p.region_ptr) == 0
    np.add.at(results_D, device_V[is_result], p.sink_bytes[is_result])
    over_D = np.maximum(inputs_D, results_D) - limit_D
    copies_s = np.maximum(over_D, 0.0).max() / problem.cluster.host_bytes_per_s
    return max(lower_bound(problem).seconds, float(load_D.max()), float(copies_s))


def draw(curves: dict[str, list[tuple[float, float, float]]], out: Path) -> None:
    """Makespan against memory, with what no plan undercuts."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    clusters = sorted({label.split(", ")[1] for label in curves})
    figure, axes = pyplot.subplots(
        1, len(clusters), figsize=(5 * len(clusters), 4), sharey=True, squeeze=False
    )
    for axis, cluster in zip(axes[0], clusters, strict=True):
        for label, points in curves.items():
            if not label.endswith(cluster):
                continue
            known = [point for point in points if point[0] > 0]
            x = [100 * point[0] for point in known]
            lines = axis.plot(x, [point[1] for point in known], marker=".", label=label[:-8])
            axis.plot(x, [point[2] for point in known], ls=":", lw=0.8, color=lines[0].get_color())
        axis.set(title=cluster, xlabel="memory, % of the need", yscale="log")
    axes[0][0].set_ylabel("makespan over that without limits; dotted: bound")
    axes[0][-1].legend(fontsize=7)
    figure.tight_layout()
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out.with_suffix(".png"), dpi=110)


def _roomy(cluster: Cluster) -> Cluster:
    return cluster.with_memory(1e15)


def _again(problem: Problem, placement: Placement) -> Placement:
    return Placement.make(problem, placement.device, placement.priority)


def jitter(arguments: argparse.Namespace) -> Iterator[str]:
    """Show 3: copies and transfers of 30% jitter, ops of none."""
    num = arguments.num or 1000
    yield "| problem | memory | ready first: mean, p95 | fixed order: mean, p95 | ratio of means |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for name in WORKLOADS:
        problem = build(graph_of(name, 4, training=False), _roomy(preset(name="p100x4")))
        placement = placed(problem)
        _, held_D, least_D = needs(problem, placement)
        for share in (0.8, 0.6):
            tight = with_limits(problem, np.maximum(least_D, share * held_D))
            free_R, fixed_R = _runs(tight, _again(tight, placement), num)
            told = [
                f"{x.mean() * 1e3:.1f}, {np.quantile(x, 0.95) * 1e3:.1f} ms"
                for x in (free_R, fixed_R)
            ]
            ratio = fixed_R.mean() / free_R.mean()
            yield f"| {name} | {share:.0%} | {told[0]} | {told[1]} | {ratio:.3f} |"


def _runs(problem: Problem, placement: Placement, num: int) -> tuple[np.ndarray, np.ndarray]:
    """Makespans of a plan under draws of jitter: whoever is ready first, and in fixed order."""
    system = Offload().applied(PLAIN)
    assert isinstance(system, SystemWithPlans)
    with system.open(problem, num_threads=1) as session:
        session.trace(placement)
        m, rules = session._states[0], session.rules._replace(transfer_noise=0.3)
        device_V, arrays = placement.device.astype(np.int64), problem.arrays
        runs = []
        for is_fixed in (False, True):
            if is_fixed:
                run_plan(arrays, rules._replace(transfer_noise=0.0), device_V, 0, m)
                fix_order(m)
            runs.append(
                np.array([run_plan(arrays, rules, device_V, seed, m) for seed in range(num)])
            )
    return runs[0], runs[1]


def fix_order(m) -> None:
    """Each resource takes its tasks in the order of the last run: one waits for the one before."""
    num, counts = int(m.counts[0]["tasks"]), m.counts
    tasks = m.run.tasks[:num]
    order = np.lexsort((tasks["finish"], tasks["start"], tasks["resource"]))
    order = order[tasks["resource"][order] != NOWHERE]
    same = np.diff(tasks["resource"][order].astype(np.int64)) == 0
    pairs = np.stack([order[:-1][same], order[1:][same]], axis=1)
    begin = int(counts[0]["waits"])
    m.waits[begin : begin + len(pairs)] = pairs
    counts[0]["waits"] = begin + len(pairs)
    link_waits(m)


def executed(arguments: argparse.Namespace) -> Iterator[str]:
    """Shows 1 and 5 on cores."""
    names = ("chainmm", "cholesky", "dataproc", "ffnn", "llama_block", "llama_layer")
    num, same, runs, over = arguments.num or 300, 0, 0, 0
    largest, rng = 0.0, np.random.default_rng(5)
    while runs < num:
        name = names[runs % len(names)]
        program = load_program(f"workloads/{name}.einsum", preset="small")
        graph = lower(program, program.given_splits)
        problem = aligned(build(graph, host(num_devices=2)))
        device_V = rng.integers(2, size=graph.num_ops)
        _, held_D, least_D = needs(problem, Placement.make(problem, device_V))
        limit_D = least_D + float(rng.choice([0.0, 0.2, 0.5])) * np.maximum(0.0, held_D - least_D)
        tight = with_limits(problem, np.ceil(limit_D))
        placement = Placement.make(tight, device_V)
        inputs = random_inputs(graph, rng)
        expected = run_graph(graph, inputs)
        memory = Offload(recompute=bool(rng.random() < 0.5))
        with memory.applied(Threads(verify=True)).open(tight, inputs=inputs) as session:
            trace, results = session.trace(placement), session.results(placement)
        same += all(torch.equal(results[key], value) for key, value in expected.items())
        over += bool((trace.peak_bytes > limit_D * (1 + 1e-9)).any())
        largest = max(largest, float(held_D.sum() / limit_D.sum()))
        runs += 1
    yield f"{runs} plans executed twice: {over} above a limit, {same} equal plain torch bit for bit"
    yield f"the others to the tolerance of verify; need over arenas: up to {largest:.2f}"


def leak(arguments: argparse.Namespace) -> Iterator[str]:
    """Show 5: memory of the process over a thousand runs."""
    num = arguments.num or 1000
    program = load_program("workloads/chainmm.einsum", preset="small")
    graph = lower(program, program.given_splits)
    problem = aligned(build(graph, host(num_devices=2)))
    device_V = np.random.default_rng(0).integers(2, size=graph.num_ops)
    _, _, least_D = needs(problem, Placement.make(problem, device_V))
    tight = with_limits(problem, least_D)
    with Offload().applied(Threads()).open(tight) as session:
        for i in range(num):
            session.trace(Placement.make(tight, device_V))
            if i in (num // 10, num // 2, num - 1):
                gc.collect()
                used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                yield f"after {i + 1} runs: {used / 1024:.0f} MiB at most"


if __name__ == "__main__":
    main()
