"""One run from its configuration: what is built, in which directory, and what it leaves there."""

import hashlib
import json
import os
import platform
import subprocess
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from hydra.utils import instantiate
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from doppler.baselines import Baseline, LowerBound, lower_bound
from doppler.costs import load_costs
from doppler.episode import View, make_view
from doppler.errors import InputError
from doppler.graph import save_json
from doppler.graph.formats import write_atomically
from doppler.problem import Placement, Problem, build
from doppler.report.rows import (
    PLACEMENTS,
    RESULTS_FILE,
    SUMMARY_FILE,
    ResultRow,
    format_seconds,
    gap_over,
    print_results,
    write_results,
)
from doppler.stages.checkpoints import load_checkpoint
from doppler.stages.optimisation import seeded_generator
from doppler.stages.run_directory import run_directory
from doppler.system import Session, System
from doppler.trace import explain, save_gantt, save_perfetto

PLACEMENT_FILE = "placement.json"
JITTER, JITTER_DRAWS = 0.05, 1000
UNKNOWN_BOUND = LowerBound(seconds=0.0, name="unknown")

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class Method:
    """A method's outcome: the placement, its nominal makespan, and what it took to find it.

    settings: of the method, as configured. uses_order: it chose the order, and the system keeps it.
    lower_bound_s: what it proved that no placement can beat, if it proves such things.
    """

    name: str
    settings: Any
    placement: Placement
    makespan_s: float
    uses_order: bool
    evaluations: int
    wall_s: float
    lower_bound_s: float | None = None


@dataclass(frozen=True, eq=False)
class Run:
    """A run: its configuration, its directory, and what they determine.

    method: what it is about, as its directory is called. is_step: it serves another run, which
    will show the results. executes: its system is the executor, not the simulator.
    """

    cfg: DictConfig
    method: str
    console: Console
    is_step: bool = False
    executes: bool = False

    @cached_property
    def directory(self) -> Path:
        """Where it leaves its results."""
        return run_directory(self.cfg, self.method, self.problem.hash)

    @cached_property
    def problem(self) -> Problem:
        """The workload on the cluster; where costs are to be measured, they are not there yet."""
        graph, cluster = instantiate(self.cfg.workload), instantiate(self.cfg.cluster)
        costs = None
        if self.cfg.costs is not None and self.cfg.stage.name != "calibrate":
            names = tuple(device.name for device in cluster.devices)
            costs = load_costs(str(self.cfg.costs), names)
        return build(graph, cluster, costs)

    @cached_property
    def system(self) -> System:
        """What executes placements."""
        return instantiate(self.cfg.executor if self.executes else self.cfg.simulator)

    @cached_property
    def simulated(self) -> "Run":
        """The same run with the simulator as its system."""
        return replace(self, executes=False)

    @cached_property
    def view(self) -> View:
        """What policies see of the problem."""
        return make_view(self.problem)

    @cached_property
    def baselines(self) -> dict[str, Baseline]:
        """Methods to compare with, by name."""
        chosen = self.cfg.get("baseline") or {}
        return {str(name): instantiate(conf) for name, conf in chosen.items()}

    @property
    def origin(self) -> str | None:
        """Where the first weights come from, for any seed: seeds of one method are averaged."""
        init_from = self.cfg.stage.get("init_from")
        return init_from and str(init_from).replace(f"seed={self.cfg.seed}", "seed=*")

    @property
    def honours_order(self) -> bool:
        """Whether the system runs ready ops by their priority."""
        return self.system.queue in ("priority", "strict")

    @property
    def is_random(self) -> bool:
        """Whether executing a placement twice can take different times."""
        system = self.system
        return system.kind == "measured" or system.queue == "random" or system.noise > 0  # pyright: ignore[reportAttributeAccessIssue]

    @cached_property
    def bound(self) -> LowerBound:
        """What no placement can beat on this system, known before any search."""
        return lower_bound(self.problem, streams=self.system.streams)

    def open(self) -> Session:
        """A session of the system on the problem."""
        return self.system.open(self.problem)

    def say(self, text: str) -> None:
        """One line for the person who watches; numbers are not coloured in."""
        self.console.print(text, highlight=False, soft_wrap=True)

    def check(self) -> None:
        """Build what the configuration describes: what is wrong with it ends before any claim.

        Raises:
            InputError: or Hydra's own error, in one line.
        """
        cfg = self.cfg
        if type(cfg.seed) is not int or cfg.seed < 0:
            raise InputError(f"seed: must be a whole number from 0 on, got {cfg.seed!r}")
        if type(cfg.overwrite) is not bool:
            raise InputError(f"overwrite: must be true or false, got {cfg.overwrite!r}")
        for key in ("workload", "cluster", "policy"):
            if "/" in str(cfg[key].name) or str(cfg[key].name).startswith("."):
                raise InputError(f"{key}.name: {cfg[key].name!r} is no name for a directory")
        _ = self.problem, self.system, self.baselines, self.bound
        if bool(cfg.problems) != bool(cfg.held_out):
            raise InputError("problems, held_out: training on a set needs both")
        if cfg.problems and cfg.stage.name != "rl_sim":
            raise InputError(f"problems: only stage=rl_sim trains on a set, not {cfg.stage.name}")
        init_from = cfg.stage.get("init_from")
        if init_from not in (None, "auto"):
            load_checkpoint(init_from)

    def introduce(self) -> None:
        """Say what is run on what."""
        problem, graph = self.problem, self.problem.graph
        self.say(
            f"{graph.name}: {graph.num_ops} ops, {graph.num_edges} edges on "
            f"{self.cfg.cluster.name}, {problem.num_devices} devices -> {self.directory}"
        )
        if self.executes:
            self.say(f"executor: {self.system.name}")
        if problem.has_given_costs:
            self.say(
                f"{graph.name} comes with its own times: speeds, links and memory sizes of "
                f"{self.cfg.cluster.name} are not used"
            )
        elif problem.costs is not None:
            measured_VD = problem.is_measured()
            num_modelled = int((np.isfinite(problem.arrays.op_seconds) & ~measured_VD).any(1).sum())
            self.say(
                f"measured costs of {self.cfg.costs}: {graph.num_ops - num_modelled} ops, "
                f"{'all' if problem.costs.has_links else 'not all'} links; "
                f"{num_modelled} ops are modelled"
            )

    def keep_best(self, placement: Placement, seconds: float) -> None:
        """Best so far, on disk; a better one that an interrupted run left there stays."""
        if self._kept_s() > seconds:
            self._save(placement, seconds)

    def _kept_s(self) -> float:
        try:
            kept = json.loads((self.directory / PLACEMENT_FILE).read_text())
            return float(kept["makespan_s"])
        except (OSError, ValueError, KeyError, TypeError):
            return float("inf")

    def _save(self, placement: Placement, seconds: float) -> None:
        placement.save(
            self.directory / PLACEMENT_FILE,
            {"makespan_s": seconds, "system_kind": self.system.kind},
        )

    def nominal_s(self, placement: Placement) -> float:
        """Seconds without jitter; inf where the placement does not fit in memory."""
        nominal = replace(self.system, noise=0.0)  # type: ignore[type-var]
        with nominal.open(self.problem) as session:
            rng = seeded_generator(int(self.cfg.seed), "nominal")
            rows = placement.device[None], placement.priority[None]
            return float(session.measure(*rows, rng=rng).cost_s()[0])

    def row(self, method: Method, bound: LowerBound) -> ResultRow:
        """The protocol's figures of a method, jitter on fresh draws that all methods share.

        On a simulator; of measured methods see `measured_row`.
        """
        placement = method.placement
        jittered = replace(self.system, noise=JITTER)  # type: ignore[type-var]
        with jittered.open(self.problem) as session:
            draws = session.measure(
                placement.device[None],
                placement.priority[None],
                repeats=JITTER_DRAWS,
                rng=seeded_generator(int(self.cfg.seed), "jitter"),
            ).seconds[0]
        return self._row(method, bound, draws)

    def measured_row(self, method: Method, seconds_R: FloatArray) -> ResultRow:
        """The figures of a method that was executed R times; its makespan is their median."""
        median_s = float(np.median(seconds_R))
        return self._row(replace(method, makespan_s=median_s), UNKNOWN_BOUND, seconds_R)

    def _row(self, method: Method, bound: LowerBound, draws: FloatArray) -> ResultRow:
        return ResultRow(
            method=method.name,
            variant=_short_hash(method.settings),
            problem=self.problem.hash,
            rules=", ".join(f"{key} {value}" for key, value in self._rules().items()),
            workload=str(self.cfg.workload.name),
            cluster=str(self.cfg.cluster.name),
            num_devices=self.problem.num_devices,
            system=self.system.name,
            system_kind=self.system.kind,
            queue=self.system.queue,
            uses_order=method.uses_order,
            seed=int(self.cfg.seed),
            evaluations=method.evaluations,
            wall_s=method.wall_s,
            makespan_s=method.makespan_s,
            jitter_mean_s=float(draws.mean()),
            jitter_p95_s=float(np.quantile(draws, 0.95)),
            lower_bound_s=bound.seconds,
            bound=bound.name,
            gap=gap_over(bound.seconds, method.makespan_s),
        )

    def _rules(self) -> dict[str, Any]:
        chosen = self.cfg.executor if self.executes else self.cfg.simulator
        return {key: value for key, value in plain(chosen).items() if key != "_target_"}

    def largest_bound(self, methods: list[Method]) -> LowerBound:
        """The largest of what is known before any search and what the methods proved."""
        proven = [
            LowerBound(seconds=method.lower_bound_s, name=method.name)
            for method in methods
            if method.lower_bound_s is not None
        ]
        return max([self.bound, *proven], key=lambda bound: bound.seconds)

    def finish(self, method: Method, others: list[Method], extra: dict[str, Any]) -> dict[str, Any]:
        """Write everything that a finished run leaves behind; the summary, last, marks it done.

        method: the one that the run is about. others: compared with it. extra: further entries
        of the summary.
        """
        methods = [method, *others]
        bound = self.largest_bound(methods)
        return self.leave(methods, [self.row(each, bound) for each in methods], extra)

    def leave(
        self, methods: list[Method], rows: list[ResultRow], extra: dict[str, Any]
    ) -> dict[str, Any]:
        """As `finish`, with the rows of the table at hand; the run is about the first method."""
        method = methods[0]
        write_results(self.directory / RESULTS_FILE, rows)
        save_json(self.problem.graph, self.directory / "graph.json")
        self._save(method.placement, rows[0].makespan_s)
        for each in methods:
            each.placement.save(
                self.directory / PLACEMENTS / f"{each.name}.json", {"makespan_s": each.makespan_s}
            )
        with self.open() as session:
            trace = session.trace(method.placement)
        save_perfetto(trace, self.directory / "trace.json")
        title = f"{method.name}: {rows[0].workload} on {rows[0].cluster}, seed {rows[0].seed}"
        save_gantt(trace, self.directory / "schedule.png", title=title)
        explanation = explain(trace).lines()
        write_atomically(self.directory / "explanation.txt", "\n".join(explanation) + "\n")
        summary = self.summarise({**_outcome(rows[0]), **extra})
        if self.is_step:
            return summary
        for line in explanation:
            self.say(line)
        print_results(rows, self.console)
        self.say(
            f"{method.name}: {format_seconds(rows[0].makespan_s)}; "
            f"placement, trace, schedule and table are in {self.directory}"
        )
        return summary

    def summarise(self, outcome: dict[str, Any]) -> dict[str, Any]:
        """Write the summary, which marks the run as finished."""
        summary = {**self.identity(), **outcome}
        write_atomically(self.directory / SUMMARY_FILE, json.dumps(summary, indent=1) + "\n")
        return summary

    def identity(self) -> dict[str, Any]:
        """What was run, and by what: the head of every summary."""
        graph = self.problem.graph
        return {
            "workload": str(self.cfg.workload.name),
            "num_ops": graph.num_ops,
            "num_edges": graph.num_edges,
            "problem_hash": self.problem.hash,
            "cluster": str(self.cfg.cluster.name),
            "num_devices": self.problem.num_devices,
            "stage": str(self.cfg.stage.name),
            "seed": int(self.cfg.seed),
            "versions": {
                name: version(name)
                for name in ("doppler", "torch", "numba", "numpy", "pytorch-lightning")
            }
            | {"python": platform.python_version()},
            "git_commit": _git_commit(),
            "host": {"name": platform.node(), "cpus": len(os.sched_getaffinity(0))},
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


def _short_hash(settings: Any) -> str:
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def plain(cfg: DictConfig) -> Any:
    """A part of the configuration as dictionaries and lists."""
    return OmegaConf.to_container(cfg, resolve=True)


def _git_commit() -> str | None:
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
