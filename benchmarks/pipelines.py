"""Schedules for pipelines against torch's own: simulated, proven, measured, and run at random.

    python -m benchmarks.pipelines table       every case, size and memory
    python -m benchmarks.pipelines prove       the cells of 4 stages x 8 microbatches by CP-SAT
    python -m benchmarks.pipelines measured    2, 4 and 8 processes, stages that wait
    python -m benchmarks.pipelines random      500 random schedules in processes kept alive
    python -m benchmarks.pipelines large       16 stages x 64 microbatches: patterns, full search

Cells that are done are kept in --out, so that the same command goes on.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from doppler.baselines import CPSAT
from doppler.cluster import preset
from doppler.extensions.pipelines import (
    ListSchedules,
    Patterns,
    TorchSchedules,
    TrainingPipeline,
    check_orders,
    graph_of,
    judged_schedules,
)
from doppler.extensions.pipelines.assigning import assignment_bound_s
from doppler.extensions.pipelines.finding import pipeline_search
from doppler.extensions.pipelines.orders import renumbered
from doppler.extensions.pipelines.processes import Processes, WaitingStages, run_empty, step_seconds
from doppler.extensions.pipelines.proving import prove
from doppler.extensions.pipelines.searching import found_orders
from doppler.extensions.pipelines.stages import Action, Orders, with_stages_divided
from doppler.problem import Problem, build
from doppler.simulator import WorkConserving
from doppler.support.errors import InputError

STRICT = WorkConserving(queue="strict")
SIZES = ((4, 8), (4, 16), (8, 16), (8, 32))
MEMORY = (1.0, 1.5, 2.0)  # times what 1F1B takes
# How the stages of a cell may be divided and arranged.
OPTIONS = ((1, "loop"), (2, "loop"), (2, "v"), (2, "free"))
ACTIVATION, LEFT = 1.0, 0.4


def cases(num: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Seconds of F, of I and of W of each stage, and speeds of the devices."""
    even = np.ones(num)
    heavy, ends = even.copy(), even.copy()
    heavy[-1] = 1.5
    ends[0], ends[-1] = 1.25, 1.625
    spread = np.round(np.random.default_rng(29).uniform(0.7, 1.3, num) * 16) / 16
    speed = np.where(np.arange(num) < num // 2, 2.0, 1.0)
    return {
        "equal": (even, even),
        "heavy last": (heavy, even),
        "embedding and head": (ends, even),
        "two speeds": (even, speed),
        "spread 30%": (spread, even),
    }


def pipeline_of(
    case: str, num: int, microbatches: int, parts: int, arrangement
) -> TrainingPipeline:
    """A cell's stages, each divided into equal parts."""
    seconds, speed = cases(num)[case]
    whole = TrainingPipeline(
        forward_s=seconds,
        input_grad_s=seconds,
        weight_grad_s=seconds,
        transfer_s=np.zeros(num - 1),
        activation_bytes=np.full(num, ACTIVATION),
        weight_grad_bytes=np.full(num, LEFT),
        microbatches=microbatches,
        arrangement="loop",
        speed=speed,
    )
    return whole if parts == 1 else with_stages_divided(whole, parts, arrangement)


def problem_of(pipeline: TrainingPipeline, memory_bytes: float | None) -> Problem:
    """On as many devices as it has speeds."""
    cluster = preset(name="identical", num_devices=pipeline.num_devices, memory_bytes=memory_bytes)
    return build(graph_of(pipeline), cluster)


def free_bound_s(pipeline: TrainingPipeline) -> float:
    """What no devices and no order undercut: CP-SAT divides the work, after each device's head."""
    from ortools.sat.python import cp_model

    model, tick = cp_model.CpModel(), 2.0**-12
    num, devices = pipeline.num_stages, pipeline.num_devices
    work_S = pipeline.microbatches * (pipeline.forward_s + pipeline.backward_s)
    fastest = pipeline.speed.max()
    before_S = np.concatenate([[0.0], np.cumsum(pipeline.forward_s[:-1] / fastest)])
    on = [[model.new_bool_var("") for _ in range(devices)] for _ in range(num)]
    longest = model.new_int_var(0, int(work_S.sum() / tick) * 2, "")
    for s in range(num):
        model.add_exactly_one(on[s])
    for d in range(devices):
        model.add(sum(on[s][d] for s in range(num)) >= 1)
        load = sum(int(work_S[s] / pipeline.speed[d] / tick) * on[s][d] for s in range(num))
        for s in range(num):  # no stage before s is there: it waits for all before s
            model.add(load + int(before_S[s] / tick) <= longest).only_enforce_if(
                [~on[j][d] for j in range(s)]
            )
    model.minimize(longest)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds, solver.parameters.num_workers = 20, 1
    solver.solve(model)
    return solver.best_objective_bound * tick


def cell(case: str, num: int, microbatches: int, times: float, search: Any) -> dict[str, Any]:
    """One line of the table."""
    one = judged_schedules(
        problem_of(pipeline_of(case, num, microbatches, 1, "loop"), None), STRICT
    )["1F1B"]
    memory = float(one.peak_bytes.max()) * times
    row: dict[str, Any] = {
        **{"case": case, "stages": num, "microbatches": microbatches, "memory": times},
        "1F1B": one.seconds,
    }
    best, theirs = None, {"1F1B": one.seconds}
    bound_s = free_bound_s(pipeline_of(case, num, microbatches, 2, "free"))
    begin = time.perf_counter()
    for parts, arrangement in sorted(OPTIONS, reverse=True):
        pipeline = pipeline_of(case, num, microbatches, parts, arrangement)
        problem = problem_of(pipeline, memory)
        if arrangement != "free":
            for name, judged in judged_schedules(problem, STRICT).items():
                if judged.fits:
                    key = f"{name} x{parts}" if parts > 1 else name
                    theirs[key] = judged.seconds
            least = assignment_bound_s(pipeline, pipeline.devices(), problem.arrays.memory_bytes)
            if best is not None and best["seconds"] <= least * (1 + 1e-12):
                continue  # it cannot be better
        with STRICT.open(problem) as session:
            found = search.place(session, np.random.default_rng(0))
            peak = float(session.trace(found.placement).peak_bytes.max())
        if best is None or found.makespan_s < best["seconds"]:
            best = {
                "seconds": found.makespan_s,
                "arrangement": f"{arrangement} x{parts}",
                "peak": peak,
            }
        if best["seconds"] <= bound_s * (1 + 1e-9):
            break
    # What stands in another order of the options is judged for torch too.
    for parts, arrangement in OPTIONS[:3]:
        pipeline = pipeline_of(case, num, microbatches, parts, arrangement)
        for name, judged in judged_schedules(problem_of(pipeline, memory), STRICT).items():
            if judged.fits:
                theirs[f"{name} x{parts}" if parts > 1 else name] = judged.seconds
    assert best is not None
    name = min(theirs, key=theirs.__getitem__)
    return {
        **row,
        "best of torch": name,
        "best of torch s": theirs[name],
        "torch": theirs,
        "ours": best["seconds"],
        "arrangement": best["arrangement"],
        "peak": best["peak"],
        "memory bytes": memory,
        "bound": bound_s,
        "search s": time.perf_counter() - begin,
    }


def table(out: Path, turns: int) -> None:
    """All cells, printed as they are done."""
    file = out / "cells.json"
    rows = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    done = {(r["case"], r["stages"], r["microbatches"], r["memory"]) for r in rows}
    search = pipeline_search(200, turns)
    for num, microbatches in SIZES:
        for case in cases(num):
            for times in MEMORY:
                if (case, num, microbatches, times) in done:
                    continue
                rows.append(cell(case, num, microbatches, times, search))
                file.write_text(json.dumps(rows, indent=1), encoding="utf-8")
                print(_line(rows[-1]), flush=True)
    (out / "table.md").write_text(markdown(rows), encoding="utf-8")
    print(markdown(rows))


def _line(r: dict[str, Any]) -> str:
    return (
        f"| {r['case']} | {r['stages']} x {r['microbatches']} | {r['memory']:g} | {r['1F1B']:.2f} "
        f"| {r['best of torch s']:.2f} ({r['best of torch']}) | {r['ours']:.2f} "
        f"({r['arrangement']}) | {r['bound']:.2f} | {r['ours'] / r['1F1B'] - 1:+.1%} "
        f"| {r['ours'] / r['best of torch s'] - 1:+.1%} | {r['ours'] / r['bound'] - 1:.1%} |"
    )


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table, and its means."""
    head = (
        "| case | stages x microbatches | memory / 1F1B | 1F1B | best of torch | ours | bound | "
        "to 1F1B | to best of torch | over bound |\n|---|---|--:|--:|--:|--:|--:|--:|--:|--:|\n"
    )
    uneven = [r for r in rows if r["case"] != "equal"]
    free = [r for r in rows if r["memory"] == max(MEMORY)]
    longer = sum(r["ours"] > r["best of torch s"] * (1 + 1e-9) for r in rows)
    most = [max(r["ours"] / r["bound"] - 1 for r in some) for some in (free or rows, rows)]
    said = [
        f"uneven cases, mean: {_mean(uneven, '1F1B'):+.1%} to 1F1B, "
        f"{_mean(uneven, 'best of torch s'):+.1%} to the best of torch's that fit",
        *(
            f"{case}: {_mean(own, '1F1B'):+.1%}, {_mean(own, 'best of torch s'):+.1%}"
            for case in dict.fromkeys(r["case"] for r in rows)
            for own in [[r for r in rows if r["case"] == case]]
        ),
        f"cells in which ours is longer than the best of torch's: {longer} of {len(rows)}",
        f"over the bound at twice the memory, most: {most[0]:.1%}; anywhere: {most[1]:.1%}",
    ]
    return head + "\n".join(map(_line, rows)) + "\n\n" + "\n".join(said) + "\n"


def _mean(rows: list[dict[str, Any]], other: str) -> float:
    return float(np.mean([r["ours"] / r[other] - 1 for r in rows])) if rows else 0.0


def proofs(out: Path, seconds: float) -> None:
    """Cells of 4 x 8 with given devices: what CP-SAT proves, memory included."""
    solver = CPSAT(deterministic_time=seconds, seconds=3 * seconds, workers=1)
    search = pipeline_search(200, 3)
    print("| case | arrangement | memory / 1F1B | found | CP-SAT | proven bound | gap |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for case in cases(4):
        for parts, arrangement in ((1, "loop"), (2, "v")):
            problem = problem_of(pipeline_of(case, 4, 8, parts, arrangement), 4.0)
            with STRICT.open(problem) as session:
                found = search.place(session, np.random.default_rng(0))
                proof = prove(session, found.placement, solver)
            print(
                f"| {case} | {arrangement} x{parts} | 1 | {found.makespan_s:.4g} "
                f"| {proof.makespan_s:.4g} | {proof.lower_bound_s:.4g} "
                f"| {found.makespan_s / proof.lower_bound_s - 1:.2%} |",
                flush=True,
            )


def measured(unit_s: float, turns: int, processes_of: list[int]) -> None:
    """Steps of waiting stages: ours against ZBV and 1F1B, in turns."""
    print("| processes | schedule | simulated | measured | interval | measured / simulated |")
    print("|--:|---|--:|--:|--:|--:|")
    search = pipeline_search(200, 3)
    for num in processes_of:
        microbatches = 2 * num
        case = "embedding and head"
        whole = pipeline_of(case, num, microbatches, 1, "loop")
        memory = float(num)
        chosen: dict[str, tuple[TrainingPipeline, Orders, float]] = {}
        base = judged_schedules(problem_of(whole, memory), STRICT)["1F1B"]
        chosen["1F1B"] = (whole, base.orders, base.seconds)
        v = pipeline_of(case, num, microbatches, 2, "v")
        zbv = judged_schedules(problem_of(v, memory), STRICT)["ZBVZeroBubble"]
        chosen["ZBV"] = (v, zbv.orders, zbv.seconds)
        best = None
        for arrangement in ("loop", "v", "free"):
            pipeline = pipeline_of(case, num, microbatches, 2, arrangement)
            problem = problem_of(pipeline, memory)
            with STRICT.open(problem) as session:
                result = search.place(session, np.random.default_rng(0))
            if best is None or result.makespan_s < best[2]:
                best = pipeline, found_orders(problem, STRICT, result.placement), result.makespan_s
        assert best is not None
        chosen["ours"] = best
        waits = [_waits(pipeline, unit_s) for pipeline, _, _ in chosen.values()]
        orders = [orders for _, orders, _ in chosen.values()]
        with Processes(num, timeout_s=600) as processes:
            told = processes.call(step_seconds, orders, microbatches, waits, turns)
        for (name, (_, _, simulated)), seconds in zip(chosen.items(), told[0], strict=True):
            low, high = _interval(np.array(seconds) / unit_s)
            middle = float(np.median(seconds)) / unit_s
            print(
                f"| {num} | {name} | {simulated:.2f} | {middle:.2f} | {low:.2f} to {high:.2f} "
                f"| {middle / simulated:.3f} |",
                flush=True,
            )


def _interval(values: np.ndarray) -> tuple[float, float]:
    """95% of the median, by resampling."""
    drawn = np.random.default_rng(0).choice(values, (2000, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return float(low), float(high)


def _waits(pipeline: TrainingPipeline, unit_s: float) -> WaitingStages:
    assert pipeline.weight_grad_s is not None
    return WaitingStages(
        forward_s=(pipeline.forward_s * unit_s).tolist(),
        input_grad_s=(pipeline.input_grad_s * unit_s).tolist(),
        weight_grad_s=(pipeline.weight_grad_s * unit_s).tolist(),
    )


def random_orders(
    device_S: np.ndarray, microbatches: int, rng: np.random.Generator, *, valid: bool
) -> Orders:
    """Any order of actions that could be; without ``valid`` some are swapped after that."""
    num = len(device_S)
    orders: Orders = [[] for _ in range(int(device_S.max()) + 1)]
    waiting = [Action(s, k, m) for s in range(num) for k in "FIW" for m in range(microbatches)]
    done: set[Action] = set()
    while waiting:
        ready = [one for one in waiting if done.issuperset(_needs(one, num))]
        action = ready[rng.integers(len(ready))]
        waiting.remove(action)
        done.add(action)
        orders[device_S[action.stage]].append(action)
    orders = [renumbered(order) for order in orders]
    if not valid:
        order = orders[rng.integers(len(orders))]
        i, j = rng.integers(len(order), size=2)
        order[i], order[j] = order[j], order[i]
    return orders


def _needs(action: Action, num_stages: int) -> list[Action]:
    stage, kind, m = action
    if kind == "F":
        return [Action(stage - 1, "F", m)] * (stage > 0)
    if kind == "W":
        return [Action(stage, "I", m)]
    return [Action(stage, "F", m), *([Action(stage + 1, "I", m)] * (stage + 1 < num_stages))]


def run_random(num: int) -> None:
    """Random schedules with empty stages, in groups kept alive, under a watchdog."""
    rng, ran, refused = np.random.default_rng(5), 0, 0
    begin = time.perf_counter()
    for processes_of, stages, microbatches in ((2, 4, 4), (3, 6, 3), (4, 4, 5)):
        with Processes(processes_of, timeout_s=60) as processes:
            for i in range(num // 3 + 1):
                device_S = rng.integers(processes_of, size=stages)
                device_S[rng.permutation(stages)[:processes_of]] = np.arange(processes_of)
                orders = random_orders(device_S, microbatches, rng, valid=i % 3 > 0)
                try:
                    check_orders(orders, microbatches)
                except InputError:
                    refused += 1
                    continue
                processes.call(run_empty, orders, stages, microbatches)
                ran += 1
    took = time.perf_counter() - begin
    print(f"{ran + refused} schedules: {ran} ran to the end, {refused} refused before, 0 hang")
    print(f"{took:.0f} s")


def large(num: int, microbatches: int) -> None:
    """Patterns against the full search on large pipelines."""
    print("| case | torch | list | patterns | s | full search | s | bound |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    search = pipeline_search(100, 4)
    for case in cases(num):
        pipeline = pipeline_of(case, num, microbatches, 1, "loop")
        problem = problem_of(pipeline, float(num))
        cells = []
        with STRICT.open(problem) as session:
            for method in (TorchSchedules(), ListSchedules(), Patterns(), search):
                begin = time.perf_counter()
                found = method.place(session, np.random.default_rng(0))
                cells.append((found.makespan_s, time.perf_counter() - begin))
        bound = assignment_bound_s(pipeline, pipeline.devices(), problem.arrays.memory_bytes)
        (torch, _), (listed, _), (pattern, pattern_s), (full, full_s) = cells
        print(
            f"| {case} | {torch:.2f} | {listed:.2f} | {pattern:.2f} | {pattern_s:.1f} "
            f"| {full:.2f} | {full_s:.1f} | {bound:.2f} |",
            flush=True,
        )


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("table", "prove", "measured", "random", "large"))
    parser.add_argument("--out", type=Path, default=Path("outputs/pipelines"))
    parser.add_argument("--turns", type=int, default=4, help="of annealing, or measured steps")
    parser.add_argument("--unit", type=float, default=0.3, help="seconds of a waiting stage")
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--seconds", type=float, default=40, help="of CP-SAT")
    parser.add_argument("--num", type=int, default=500, help="random schedules")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.what == "table":
        table(options.out, options.turns)
    elif options.what == "prove":
        proofs(options.out, options.seconds)
    elif options.what == "measured":
        measured(options.unit, options.turns, options.processes)
    elif options.what == "random":
        run_random(options.num)
    else:
        large(16, 64)


if __name__ == "__main__":
    main()
