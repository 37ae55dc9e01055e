"""stage=calibrate: measures costs, and reports how well they predict measured seconds.

Shape suffixes: B placements, V ops, D devices.
"""

import platform
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from hydra.utils import instantiate
from omegaconf import DictConfig

from doppler.executor import ExecutorSession
from doppler.executor.calibration import calibrate
from doppler.experiment.directory import Summary
from doppler.experiment.gpu_state import warn_of_gpus
from doppler.experiment.results import identity
from doppler.experiment.run import Run, Stage
from doppler.experiment.specification import Specification
from doppler.experiment.trust import check_machine, settle_doubts, unreliable
from doppler.experiment.varied_placements import measure_rounds, varied_placements
from doppler.problem import Problem, build
from doppler.problem.costs import CostTable, load_costs, save_costs
from doppler.report.fidelity import Fidelity, fidelity_verdict, print_fidelity, write_fidelity
from doppler.search import seeded_generator
from doppler.simulator import WorkConserving
from doppler.support.errors import InputError
from doppler.support.options import Batch, Count, Seconds, at_least
from doppler.support.waiting import waiting
from doppler.system import Refuse, System

MODELLED, CALIBRATED = "modelled costs", "measured costs"
UNSHARED = "measured costs, no sharing"
_LEAST_PLACEMENTS = 3  # for correlations


def costs_path(cfg: DictConfig) -> Path:
    """Return the path of the file of cost tables.

    Args:
        cfg: the configuration. Its key ``costs`` names the file; if it is None, the file is named
            after this host, after the agents if the system has some, after the way ops are started
            if a GPU does not get them one by one, and after a system that only simulates: its costs
            must not pass for measured ones.
    """
    if cfg.costs is not None:
        return Path(str(cfg.costs))
    name = platform.node()
    if "agents" in cfg.system:  # the same devices, reached in another way
        kind, num = cfg.system._target_.rpartition(".")[2].lower(), cfg.system.agents
        name += f"-{kind}" if num is None else f"-{kind}-{num}"
    system: System = instantiate(cfg.system)
    if system.kind != "measured":
        name += f"-{system.name}"
    if (starts := getattr(system, "starts", None)) is not None:
        name += f"-{starts}"
    return Path(str(cfg.output_dir), "costs", f"{name}.json")


def is_calibrated(path: Path, problem: Problem) -> bool:
    """Whether the file of cost tables covers all kernels and links of a problem.

    An op without a kernel, which only a simulator executes, needs no entry.

    Args:
        path: the file of cost tables.
        problem: whose kernels and links are looked up.
    """
    if not path.exists():
        return False
    table = load_costs(path, _devices(problem))
    able_VD = np.isfinite(problem.arrays.op_seconds)
    kernels = problem.graph.ops.kernels or (None,) * problem.num_ops
    able_VD[[kernel is None for kernel in kernels]] = False
    measured_VD = build(problem.graph, problem.cluster, table).is_measured()
    return bool((measured_VD == able_VD).all()) and table.has_links


@dataclass(frozen=True, kw_only=True)
class Calibrate(Stage):
    """Measure kernels and links, save them in the file of cost tables, and report fidelity.

    Entries that the file already has are kept, so that the hashes of runs that used them stay
    valid. ``overwrite=true`` on the command line replaces them.

    Attributes:
        runs: placements of the workload, and of a graph that probes the links, from which costs are
            taken.
        seconds: minimum time, in seconds, for which each of the two is executed.
        placements: placements of different quality that are both simulated and measured.
        repeats: rounds of these measurements, each in a random order.
    """

    runs: Count
    seconds: Seconds
    placements: Annotated[Batch, at_least(_LEAST_PLACEMENTS)]
    repeats: Count
    name: ClassVar[str] = "calibrate"
    unused: ClassVar[tuple[str, ...]] = (
        *("policy", "algorithm", "search", "trainer", "baseline", "budget", "memory"),
    )

    def check(self, spec: Specification) -> None:
        if not isinstance(spec.memory, Refuse):
            raise InputError("memory: stage=calibrate supports only memory=refuse")
        super().check(spec)

    def costs(self, cfg: DictConfig) -> None:
        """Return None: the stage measures costs and must not read any."""

    def method(self, spec: Specification) -> str:
        """Return ``costs``: the stage compares no methods."""
        return "costs"

    def run(self, run: Run) -> Summary:
        problem, path = run.spec.problem, costs_path(run.spec.cfg)
        doubt = check_machine(run).doubt
        rng = seeded_generator(run.spec.seed, "calibration")
        anew = run.spec.cfg.overwrite and not run.is_step
        known = CostTable.empty(_devices(problem))
        if path.exists() and not anew:
            known = load_costs(path, known.devices)
        warn_of_gpus(run)
        doing = "measuring" if run.spec.is_measured else "simulating"
        with waiting(run.say, f"{doing} {problem.graph.num_ops} ops and the links"):
            measured = calibrate(
                run.spec.system,
                problem,
                runs=self.runs,
                seconds=self.seconds,
                rng=rng,
                links=not known.has_links,
            )
        calibrated = build(problem.graph, problem.cluster, measured.updated(known))
        with waiting(run.say, f"executing {self.placements} placements {self.repeats} times"):
            figures = self._fidelity(run, calibrated, rng)
        # Unreliable costs are not saved, because other runs would use them.
        reliability = figures[CALIBRATED]["split_half"]
        doubts = unreliable(reliability, self.placements) if run.spec.is_measured else []
        doubt = settle_doubts(run, doubts) or doubt
        table = save_costs(path, measured, replace=anew)
        kind = run.spec.system.kind
        run.say(
            f"{len(measured.kernels)} kernels of {problem.graph.num_ops} ops {kind} on "
            f"{problem.num_devices} devices; {path} has {len(table.kernels)}"
        )
        summary = {
            **identity(run),
            "method": "calibration",
            "system": run.spec.system.name,
            "system_kind": run.spec.system.kind,
            "costs": str(path),
            "kernels": len(measured.kernels),
            "fidelity": figures,
            "doubt": doubt,
            "bandwidth_bytes_per_s": _report_bandwidths(run),
        }
        run.directory.write_summary(summary)
        self._print(run, figures)
        return summary

    def show(self, run: Run) -> None:
        self._print(run, run.directory.summary()["fidelity"])

    def _print(self, run: Run, figures: dict[str, Any]) -> None:
        cfg = run.spec.cfg
        where = f"{cfg.workload.name} on {cfg.cluster.name}"
        if run.spec.is_measured:
            print_fidelity(f"{where}: simulated against measured seconds", figures, run.console)
            run.say(fidelity_verdict(figures[CALIBRATED]))
            return
        name = run.spec.system.name
        figures = {label.replace("measured", "simulated"): one for label, one in figures.items()}
        print_fidelity(f"{where}: simulated against seconds of {name}", figures, run.console)
        run.say(f"{name} is a simulator: these costs are simulated, nothing was measured")

    def _fidelity(self, run: Run, calibrated: Problem, rng: np.random.Generator) -> dict[str, Any]:
        """Compare simulated and measured seconds of varied placements, for both cost tables.

        Where devices share resources, the simulator is also compared without sharing, which shows
        what the sharing model is worth.
        """
        simulator = run.spec.simulator
        simulations = [(MODELLED, simulator, run.spec.problem), (CALIBRATED, simulator, calibrated)]
        if isinstance(simulator, WorkConserving) and simulator.contention == "shared":
            contention = getattr(run.spec.system, "contention", "fifo")
            unshared = replace(simulator, contention=contention)
            simulations.append((UNSHARED, unshared, calibrated))
        placements, origins = varied_placements(simulator, calibrated, self.placements, rng)
        device_BV = np.stack([placement.device for placement in placements])
        priority_BV = np.stack([placement.priority for placement in placements])
        with run.spec.system.open(calibrated) as session:
            fits_B = session.measure(device_BV, priority_BV, rng=rng).feasible
            if fits_B.sum() < _LEAST_PLACEMENTS:
                raise InputError(
                    f"stage=calibrate: {fits_B.sum()} of {len(fits_B)} placements fit in memory, "
                    f"the fidelity report needs {_LEAST_PLACEMENTS}"
                )
            device_BV, priority_BV = device_BV[fits_B], priority_BV[fits_B]
            fitting = [one for one, fits in zip(placements, fits_B, strict=True) if fits]
            rounds_BR, order_RB = measure_rounds(session, fitting, self.repeats, rng)
        compared = []
        for label, system, problem in simulations:
            with system.open(problem) as session:
                simulated = session.measure(device_BV, priority_BV, rng=rng)
            compared.append(
                Fidelity(
                    label=label,
                    simulated_s=simulated.seconds[:, 0],
                    rounds_s=rounds_BR,
                    order=order_RB,
                )
            )
        kept = [origin for origin, fits in zip(origins, fits_B, strict=True) if fits]
        write_fidelity(run.directory.path, compared, kept)
        return {one.label: one.figures() for one in compared}


def _report_bandwidths(run: Run) -> list[list[float | None]] | None:
    """Report how fast each link copies when it is alone; None if the system copies nothing."""
    with run.open() as session:
        if not isinstance(session, ExecutorSession) or run.spec.problem.num_devices == 1:
            return None
        rate_DD = session.bandwidths()
    if rate_DD is None:
        return None
    names = _devices(run.spec.problem)
    slowest, fastest = (
        np.unravel_index(arg(rate_DD), rate_DD.shape) for arg in (np.nanargmin, np.nanargmax)
    )
    said = [
        f"{rate_DD[src, dst] / 1e9:.3g} GB/s ({names[src]} to {names[dst]})"
        for src, dst in (slowest, fastest)
    ]
    run.say(f"copies between devices, nothing else running: {said[0]} to {said[1]}")
    return [[None if np.isnan(rate) else float(rate) for rate in row] for row in rate_DD]


def _devices(problem: Problem) -> tuple[str, ...]:
    return tuple(device.name for device in problem.cluster.devices)
