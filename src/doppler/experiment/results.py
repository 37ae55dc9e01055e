"""Judges the methods of a finished run, and writes and prints its results."""

import os
import platform
import subprocess
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from doppler.executor.quiet import OtherLoad
from doppler.experiment.directory import Summary
from doppler.experiment.interleaved import Contender, leave_measured, measure_interleaved, show_rows
from doppler.experiment.judging import Method, judged_row, largest_bound
from doppler.experiment.run import Run
from doppler.experiment.trust import disturbed
from doppler.graph import save_json
from doppler.graph.formats import write_atomically
from doppler.hooks import contributed
from doppler.report.rows import (
    PLACEMENTS,
    RESULTS_FILE,
    TRACES,
    ResultRow,
    format_seconds,
    write_results,
)
from doppler.report.run_table import is_own
from doppler.search import seeded_generator
from doppler.support.errors import InputError
from doppler.support.waiting import waiting
from doppler.trace import Trace, explain, save_gantt, save_perfetto
from doppler.version import __version__

# Rounds of measurement. Each round executes all placements in a new random order.
ROUNDS = 11


def finish(
    run: Run, method: Method, others: list[Method], extra: Summary, *, ranks: bool = False
) -> Summary:
    """Judge the methods and write all results of a run.

    Args:
        run: the run that ends.
        method: the main method, which the run is named after.
        others: methods to compare with.
        extra: further entries of the summary.
        ranks: if methods are measured, the fastest becomes the main method.
    """
    methods = [method, *others]
    if run.spec.system.kind == "measured":
        return _finish_measured(run, methods, extra, ranks)
    bound = largest_bound(run.spec, methods)
    with waiting(run.say, f"judging {len(methods)} placements"):
        rows = [judged_row(run.spec, each, bound) for each in methods]
    return leave(run, methods, rows, extra)


def _finish_measured(run: Run, methods: list[Method], extra: Summary, ranks: bool) -> Summary:
    """Finish a run on a real system: execute the placements in turns and compare medians."""
    spec, rng = run.spec, seeded_generator(run.spec.seed, "turns")
    load = OtherLoad()
    with waiting(run.say, f"executing {len(methods)} placements {ROUNDS} times"):
        seconds_MR = measure_interleaved([Contender(spec, each) for each in methods], ROUNDS, rng)
    doubt = disturbed(run, load)
    fits_M = np.asarray(np.isfinite(seconds_MR).all(axis=1))
    if not fits_M[0] and not ranks:
        raise InputError(f"{methods[0].name}: its placement does not fit in memory")
    order = (
        np.argsort(np.median(seconds_MR, axis=1), kind="stable") if ranks else range(len(methods))
    )
    kept = [int(m) for m in order if fits_M[m]]
    if not kept:
        raise InputError("no placement fits in memory")
    methods, seconds_MR = [methods[m] for m in kept], seconds_MR[kept]
    contenders = [Contender(spec, each) for each in methods]
    rows, ratios = leave_measured(run.directory.path, spec, contenders, seconds_MR, doubt)
    measured = {
        "doubt": doubt,
        "repeats": ROUNDS,
        "std": float(seconds_MR[0].std()),
        "paired": {one.other: [one.ratio, one.low, one.high] for one in ratios},
    }
    return leave(run, methods, rows, {**measured, **extra})


def leave(run: Run, methods: list[Method], rows: list[ResultRow], extra: Summary) -> Summary:
    """Write all results of a run whose table rows are known.

    The summary is written last, because it marks the run as finished.

    Args:
        run: the run that ends.
        methods: the main method first.
        rows: of the table, one per method.
        extra: further entries of the summary.

    Returns:
        The summary.
    """
    method, directory, spec = methods[0], run.directory.path, run.spec
    write_results(directory / RESULTS_FILE, rows)
    save_json(spec.problem.graph, directory / "graph.json")
    run.directory.save_placement(method.placement, rows[0].makespan_s, spec.system.kind)
    for each, row in zip(methods, rows, strict=True):
        each.placement.save(
            directory / PLACEMENTS / f"{each.name}.json", {"makespan_s": row.makespan_s}
        )
    with run.open() as session:
        trace = session.trace(method.placement)
        if control := _strongest_other(methods, rows):
            beside = session.trace(control.placement)
            save_perfetto(beside, directory / TRACES / f"{control.name}.json")
    save_perfetto(trace, directory / "trace.json")
    title = f"{method.name}: {rows[0].workload} on {rows[0].cluster}, seed {rows[0].seed}"
    save_gantt(trace, directory / "schedule.png", title=title)
    artifacts = contributed("leave_artifacts", run=run, trace=trace, title=title)
    explanation = [*explain(trace).lines(), *chain(*(one.lines for one in artifacts))]
    write_atomically(directory / "explanation.txt", "\n".join(explanation) + "\n")
    summary = {**identity(run), **_outcome(rows[0]), **_memory(trace)}
    for one in artifacts:
        summary |= one.summary
    summary |= extra
    run.directory.write_summary(summary)
    if not run.is_step:
        for line in explanation:
            run.say(line)
        show_rows(directory, run.console)
        run.say(
            f"{method.name}: {format_seconds(rows[0].makespan_s)}; "
            f"placement, trace, schedule and table are in {directory}"
        )
    return summary


def _strongest_other(methods: list[Method], rows: list[ResultRow]) -> Method | None:
    """The best method that is not a variant of the main one; its trace is written too."""
    others = [(row.makespan_s, i) for i, row in enumerate(rows) if not is_own(row, rows[0])]
    return methods[min(others)[1]] if others else None


def identity(run: Run) -> Summary:
    """Return the head of every summary: problem, stage, seed, versions and host.

    Args:
        run: to describe.
    """
    spec, graph = run.spec, run.spec.problem.graph
    packages = ("torch", "numba", "numpy", "pytorch-lightning")
    known = spec.optimum
    optimum = {"optimum_s": known.seconds, "optimum_is_proven": known.is_proven} if known else {}
    return {
        "workload": str(spec.cfg.workload.name),
        "num_ops": graph.num_ops,
        "num_edges": graph.num_edges,
        "problem_hash": spec.problem.hash,
        "cluster": str(spec.cfg.cluster.name),
        "num_devices": spec.problem.num_devices,
        "stage": run.stage.name,
        "seed": spec.seed,
        "versions": {
            "doppler": __version__,
            **{name: version(name) for name in packages},
            "python": platform.python_version(),
        },
        "git_commit": _git_commit(),
        "host": {"name": platform.node(), "cpus": len(os.sched_getaffinity(0))},
        **optimum,
    }


def _outcome(row: ResultRow) -> dict[str, Any]:
    return {
        "method": row.method,
        "system": row.system,
        "system_kind": row.system_kind,
        "queue": row.queue,
        "makespan_s": row.makespan_s,
        "jitter_mean_s": row.jitter_mean_s,
        "jitter_p95_s": row.jitter_p95_s,
        "repeats": 1,
        "std": 0.0,
        "lower_bound_s": row.lower_bound_s,
        "bound": row.bound,
        "evaluations": row.evaluations,
        "wall_s": row.wall_s,
    }


def _memory(trace: Trace) -> dict[str, Any]:
    """Peak bytes per device, null where the system reports none, and bytes that were offloaded."""
    peaks = [peak if np.isfinite(peak) else None for peak in trace.peak_bytes.tolist()]
    offloaded = 0.0 if trace.memory is None else trace.memory.offloaded_bytes
    return {"peak_bytes": peaks, "offloaded_bytes": offloaded}


def _git_commit() -> str | None:
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
            encoding="utf-8",
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
