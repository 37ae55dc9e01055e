"""stage=calibrate: costs are measured, and how well they predict is reported.

Shape suffixes: B placements, R rounds, V ops.
"""

import json
from typing import Any

import numpy as np
from omegaconf import DictConfig
from rich.console import Console

from doppler.baselines import CPOP, ETF, HEFT, Annealing, CriticalPath
from doppler.baselines.levels import b_level_priority
from doppler.baselines.simple import random_devices
from doppler.calibration import calibrate
from doppler.costs import CostTable, load_costs, save_costs
from doppler.errors import InputError
from doppler.executor import ExecutorSession
from doppler.graph.formats import write_atomically
from doppler.problem import Placement, Problem, build
from doppler.report.fidelity import Fidelity, fidelity_table, write_fidelity
from doppler.report.rows import SUMMARY_FILE
from doppler.stages.optimisation import check_at_least, check_count, seeded_generator
from doppler.stages.run import Run
from doppler.stages.settling import costs_path
from doppler.system import System

MODELLED, CALIBRATED = "modelled costs", "measured costs"
_LEAST_PLACEMENTS = 3  # for correlations


def is_calibrated(run: Run) -> bool:
    """Whether the file of cost tables has all kernels and links of a run's problem."""
    path, problem = costs_path(run.cfg), run.problem
    if not path.exists():
        return False
    table = load_costs(path, _devices(problem))
    able_VD = np.isfinite(problem.arrays.op_seconds)
    measured_VD = build(problem.graph, problem.cluster, table).is_measured()
    return bool((measured_VD == able_VD).all()) and table.has_links


def run_calibrate(run: Run) -> dict[str, Any]:
    """Measure kernels and links, keep them in the file of cost tables, and report fidelity.

    What the file has stays as it is, so that runs that were built on it are found again;
    ``overwrite=true`` on the command line replaces it.
    """
    settings, problem = run.cfg.stage, run.problem
    for key, least in (("runs", 1), ("placements", _LEAST_PLACEMENTS), ("repeats", 1)):
        check_count(f"stage.{key}", settings[key], least)
    check_at_least("stage.seconds", settings.seconds, 0.0)
    rng = seeded_generator(run.cfg.seed, "calibration")
    path = costs_path(run.cfg)
    anew = run.cfg.overwrite and not run.is_step
    known = CostTable.empty(_devices(problem))
    if path.exists() and not anew:
        known = load_costs(path, known.devices)
    measured = calibrate(
        run.system,
        problem,
        runs=settings.runs,
        seconds=settings.seconds,
        rng=rng,
        links=not known.has_links,
    )
    table = save_costs(path, measured, replace=anew)
    run.say(
        f"{len(measured.kernels)} kernels of {problem.graph.num_ops} ops measured on "
        f"{problem.num_devices} devices; {path} has {len(table.kernels)}"
    )
    figures = _report_fidelity(run, build(problem.graph, problem.cluster, table), rng)
    bandwidth_DD = _report_bandwidths(run)
    summary = {
        **run.identity(),
        "method": "calibration",
        "system": run.system.name,
        "system_kind": run.system.kind,
        "costs": str(path),
        "kernels": len(measured.kernels),
        "fidelity": figures,
        "bandwidth_bytes_per_s": bandwidth_DD,
    }
    write_atomically(run.directory / SUMMARY_FILE, json.dumps(summary, indent=1) + "\n")
    show_fidelity(run.cfg, figures, run.console)
    return summary


def _report_bandwidths(run: Run) -> list[list[float | None]] | None:
    """What the links do at best, all else at rest; None where the system is none that copies."""
    with run.system.open(run.problem) as session:
        if not isinstance(session, ExecutorSession) or run.problem.num_devices == 1:
            return None
        rate_DD = session.bandwidths()
    names = _devices(run.problem)
    slowest, fastest = (
        np.unravel_index(arg(rate_DD), rate_DD.shape) for arg in (np.nanargmin, np.nanargmax)
    )
    said = [
        f"{rate_DD[src, dst] / 1e9:.3g} GB/s ({names[src]} to {names[dst]})"
        for src, dst in (slowest, fastest)
    ]
    run.say(f"copies between devices, nothing else running: {said[0]} to {said[1]}")
    return [[None if np.isnan(rate) else float(rate) for rate in row] for row in rate_DD]


def show_fidelity(cfg: DictConfig, figures: dict[str, Any], console: Console) -> None:
    """Print the fidelity report of a run."""
    title = f"{cfg.workload.name} on {cfg.cluster.name}: simulated against measured seconds"
    console.print(fidelity_table(title, figures))


def _devices(problem: Problem) -> tuple[str, ...]:
    return tuple(device.name for device in problem.cluster.devices)


def _report_fidelity(run: Run, calibrated: Problem, rng: np.random.Generator) -> dict[str, Any]:
    settings, simulator = run.cfg.stage, run.simulated.system
    placements, groups = varied_placements(simulator, calibrated, settings.placements, rng)
    device_BV = np.stack([placement.device for placement in placements])
    priority_BV = np.stack([placement.priority for placement in placements])
    with run.system.open(calibrated) as session:
        fits_B = session.measure(device_BV, priority_BV, rng=rng).feasible
        if fits_B.sum() < _LEAST_PLACEMENTS:
            raise InputError(
                f"stage=calibrate: {fits_B.sum()} of {len(fits_B)} placements fit in memory, the "
                f"fidelity report needs {_LEAST_PLACEMENTS}"
            )
        device_BV, priority_BV = device_BV[fits_B], priority_BV[fits_B]
        rounds_BR = np.empty((len(device_BV), settings.repeats))
        order_RB = np.stack([rng.permutation(len(device_BV)) for _ in range(settings.repeats)])
        for r, order_B in enumerate(order_RB):
            measured = session.measure(device_BV[order_B], priority_BV[order_B], rng=rng)
            rounds_BR[order_B, r] = measured.seconds[:, 0]
    compared = []
    for label, problem in ((MODELLED, run.problem), (CALIBRATED, calibrated)):
        with simulator.open(problem) as session:
            simulated = session.measure(device_BV, priority_BV, rng=rng)
        compared.append(
            Fidelity(
                label=label,
                simulated_s=simulated.seconds[:, 0],
                rounds_s=rounds_BR,
                order=order_RB,
            )
        )
    kept = [group for group, fits in zip(groups, fits_B, strict=True) if fits]
    write_fidelity(run.directory, compared, kept)
    return {one.label: one.figures() for one in compared}


def varied_placements(
    simulator: System, problem: Problem, num: int, rng: np.random.Generator
) -> tuple[list[Placement], list[str]]:
    """Placements of different quality, and where each comes from.

    A third are random, from balanced to all ops on one device; a third are what annealing
    finds in 1 to 2,000 evaluations; a third are heuristics' with a share of their ops moved at
    random.
    """
    placements, groups = [], []
    with simulator.open(problem) as session:
        for i in range(num):
            kind, degree = i % 3, (i // 3) / max(1, (num - 1) // 3)
            if kind == 0:
                chosen, group = _lopsided(problem, degree, rng), "random"
            elif kind == 1:
                evaluations = round(2000**degree)
                search = Annealing(
                    evaluations=evaluations,
                    order=bool(i % 2),
                    starts=1,
                    draws=1,
                    hot=0.02,
                    cold=1e-4,
                )
                chosen, group = search.place(session, rng).placement, "annealing"
            else:
                heuristic = (HEFT, ETF, CriticalPath, CPOP)[i // 3 % 4](runs=1)
                found = heuristic.place(session, rng).placement
                chosen, group = _moved(problem, found, degree, rng), "heuristic"
            placements.append(chosen)
            groups.append(group)
    return placements, groups


def _lopsided(problem: Problem, degree: float, rng: np.random.Generator) -> Placement:
    """Random devices; a share of the ops, ``degree``, keeps to one of them where it can."""
    able_VD = np.isfinite(problem.arrays.op_seconds)
    favourite = int(rng.integers(problem.num_devices))
    keeps_V = able_VD[:, favourite] & (rng.random(problem.num_ops) < degree)
    device_V = np.where(keeps_V, favourite, random_devices(problem, 1, rng)[0])
    return Placement.make(problem, device_V, b_level_priority(problem))


def _moved(
    problem: Problem, placement: Placement, share: float, rng: np.random.Generator
) -> Placement:
    """The placement with a share of its ops on random devices."""
    elsewhere_V = _lopsided(problem, 0.0, rng).device
    moves_V = rng.random(problem.num_ops) < share
    device_V = np.where(moves_V, elsewhere_V, placement.device)
    return Placement.make(problem, device_V, placement.priority)
