"""What a run is: the problem, systems, methods and seed that its configuration names."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from doppler.baselines import Baseline, LowerBound, lower_bound
from doppler.env import ProblemView, make_view
from doppler.graph.optima import Optimum, known_optima
from doppler.problem import Problem, build
from doppler.problem.costs import load_costs
from doppler.simulator import WorkConserving
from doppler.support.compute import Compute
from doppler.system import MemoryMode, Refuse, System, check_hosts

# Keys that say where and how to run. They do not change results, so they are not hashed. Measured
# costs are part of the problem's hash.
_NOT_HASHED = (
    *("output_dir", "run_dir", "overwrite", "costs", "measure", "logger", "optimized_metric"),
    "compute.workers",
)


@dataclass(frozen=True, eq=False)
class Specification:
    """A configuration, and what it determines.

    Attributes:
        cfg: as composed; nothing changes it.
        costs: the file of measured costs; None: costs are modelled.
        given: a system in place of the configured one.
    """

    cfg: DictConfig
    costs: Path | None = None
    given: System | None = None

    @cached_property
    def problem(self) -> Problem:
        """The workload on the cluster."""
        graph, cluster = instantiated(self.cfg.workload), instantiated(self.cfg.cluster)
        costs = None
        if self.costs is not None:
            costs = load_costs(self.costs, tuple(device.name for device in cluster.devices))
        return build(graph, cluster, costs)

    @cached_property
    def compute(self) -> Compute | None:
        """Where jobs are done; None: what is computed is not cut into jobs."""
        conf = self.cfg.get("compute")
        return instantiate(conf) if conf else None

    @cached_property
    def memory(self) -> MemoryMode:
        """What is done with placements that do not fit."""
        return instantiate(self.cfg.memory)

    @cached_property
    def system(self) -> System:
        """What executes placements."""
        if self.given is not None:
            return self.given
        return self.memory.applied(instantiate(self.cfg.system))

    @property
    def is_measured(self) -> bool:
        """Whether placements run on real devices."""
        return self.system.kind == "measured"

    @cached_property
    def simulator(self) -> System:
        """What predicts the seconds of the system: the system itself if it is a simulator.

        Of a real system it is the work-conserving simulator with the system's own queue, and with
        transfers that wait for what they wait for there. Tasks slow each other down on what the
        machine says is shared, as streams of one GPU do.
        """
        if not self.is_measured:
            return self.system
        contention = getattr(self.system, "contention", "fifo")
        if self.problem.cluster.shared and isinstance(self.memory, Refuse):
            contention = "shared"
        return self.memory.applied(
            WorkConserving(queue=self.system.queue, contention=contention)  # type: ignore[arg-type]
        )

    @property
    def evaluations_option(self) -> str:
        """The option that says how often a method may execute placements of its own."""
        return "budget.measured_evaluations" if self.is_measured else "budget.evaluations"

    @property
    def evaluations_simulated(self) -> int:
        """How often a method may execute placements in a simulator."""
        return int(self.cfg.budget.evaluations)

    @property
    def evaluations(self) -> int:
        """How often a method may execute placements."""
        return int(OmegaConf.select(self.cfg, self.evaluations_option))

    def on(self, system: System) -> Self:
        """The same on another system; the problem is not built again."""
        other = replace(self, given=system)
        vars(other)["problem"] = self.problem
        return other

    @cached_property
    def view(self) -> ProblemView:
        """What policies see of the problem."""
        return make_view(self.problem)

    @cached_property
    def baselines(self) -> dict[str, Baseline]:
        """Methods to compare with, by name; those with the common budget have the system's."""
        chosen, common = self.cfg.get("baseline") or {}, self.cfg.budget.evaluations
        own = {"evaluations": self.evaluations}
        return {
            str(name): instantiate(conf, **(own if conf.get("evaluations") == common else {}))
            for name, conf in chosen.items()
        }

    @cached_property
    def bound(self) -> LowerBound:
        """What no placement can beat on this system, known before any search."""
        shares = getattr(self.system, "shares", False)
        return lower_bound(self.problem, streams=self.system.streams, shares=shares)

    @cached_property
    def optimum(self) -> Optimum | None:
        """What is known of a stored graph's optimum, if this system is not faster than its own.

        Such optima are of one op a time on each of some processors without differences; contention
        only makes an execution longer.
        """
        path, problem = self.cfg.workload.get("path"), self.problem
        is_other = self.system.kind != "simulated" or self.system.streams != 1
        if path is None or is_other or not problem.has_given_costs:
            return None
        known = {one.processors: one for one in known_optima(str(path))}
        return known.get(problem.num_devices)

    @property
    def seed(self) -> int:
        """Of everything random."""
        return int(self.cfg.seed)

    @property
    def policy_name(self) -> str:
        """What the learned method is called."""
        return str(self.cfg.policy.name)

    @property
    def origin(self) -> str | None:
        """Where the first weights come from, for any seed: seeds of one method are averaged."""
        init_from = self.cfg.stage.get("init_from")
        return init_from and str(init_from).replace(f"seed={self.seed}", "seed=*")

    def hash(self, unused: Sequence[str]) -> str:
        """Eight hex digits of the resolved configuration and of the problem that it led to.

        The problem counts too: the same configuration may name a file whose content has changed.

        Args:
            unused: keys, dotted ones too, on which the results do not depend.
        """
        beside = getattr(self.problem.graph, "digest", None)  # of what comes with the graph
        return short_hash([self.settings(unused), self.problem.hash, *([beside] if beside else [])])

    def settings(self, unused: Sequence[str] = ()) -> dict[str, Any]:
        """The configuration without what says where and how to run, and without these keys."""
        resolved = as_container(self.cfg)
        # memory=refuse is not hashed, so that runs from before memory plans keep their names.
        refused = ("memory",) if isinstance(self.memory, Refuse) else ()
        # `compute` changes results only when training on many problems, which draws numbers by job.
        spread = () if self.cfg.stage.get("problems") else ("compute",)
        for key in (*_NOT_HASHED, *refused, *spread, *unused):
            *parents, last = key.split(".")
            node = resolved
            for parent in parents:
                node = node.get(parent) or {}
            node.pop(last, None)
        return resolved

    def check(self) -> None:
        """Build what the configuration describes: what is wrong with it ends before any claim.

        Raises:
            InputError: or Hydra's own error, in one line.
        """
        check_hosts(self.system, self.problem)
        _ = self.baselines, self.bound, self.optimum


def as_container(cfg: DictConfig) -> Any:
    """A part of the configuration as dictionaries and lists."""
    return OmegaConf.to_container(cfg, resolve=True)


def escaped(settings: Any) -> Any:
    """Plain settings from which a configuration can be made: no text refers to anything."""
    if isinstance(settings, dict):
        return {key: escaped(value) for key, value in settings.items()}
    if isinstance(settings, list):
        return [escaped(value) for value in settings]
    if isinstance(settings, str):
        return re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + r"\${", settings)
    return settings


def instantiated(part: DictConfig) -> Any:
    """What a part of the configuration names, made.

    Hydra reads a text twice, so that one that had a ``${`` in it would refer to something.
    """
    return instantiate(escaped(escaped(as_container(part))))


def short_hash(settings: Any) -> str:
    """Eight hex digits that equal settings share."""
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
