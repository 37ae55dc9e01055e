"""What a configuration determines: problem, systems, methods and seed."""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
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
# Values of stage.init_from that name no checkpoint: earlier stages, which are part of the run, make
# the first weights; or stage I alone, in a folder of this name.
AUTO, IMITATION = "auto", "imitation"


@dataclass(frozen=True, eq=False)
class Specification:
    """A configuration, and the objects that it determines.

    Attributes:
        cfg: the composed configuration; it is never changed.
        costs: the file of measured costs; None: costs are modelled.
        given: a system to use instead of the configured one.
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
        """Where jobs run in parallel; None: work is not split into jobs."""
        conf = self.cfg.get("compute")
        return instantiate(conf) if conf else None

    @cached_property
    def memory(self) -> MemoryMode:
        """How to treat placements that do not fit in memory."""
        return instantiate(self.cfg.memory)

    @cached_property
    def system(self) -> System:
        """The system that executes placements."""
        if self.given is not None:
            return self.given
        return self.memory.applied(instantiate(self.cfg.system))

    @property
    def is_measured(self) -> bool:
        """Whether placements run on real devices."""
        return self.system.kind == "measured"

    @property
    def is_random(self) -> bool:
        """Whether two executions of one placement can take different times."""
        if self.is_measured:
            return True
        with self.system.open(self.problem) as session:
            return session.is_random

    @cached_property
    def simulator(self) -> System:
        """The simulator that predicts the system's seconds; a simulator predicts itself.

        A real system is predicted by the work-conserving simulator with the same queue and the same
        rule for what transfers wait for. Tasks on a shared resource of the machine, such as streams
        of one GPU, slow each other down.
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
        """The option that limits how many placements a method may execute."""
        return "budget.measured_evaluations" if self.is_measured else "budget.evaluations"

    @property
    def evaluations_simulated(self) -> int:
        """How many placements a method may execute in a simulator."""
        return int(self.cfg.budget.evaluations)

    @property
    def evaluations(self) -> int:
        """How many placements a method may execute on this system."""
        return int(OmegaConf.select(self.cfg, self.evaluations_option))

    def on(self, system: System) -> Self:
        """The same specification on another system; the problem is not built again.

        Args:
            system: the other one.
        """
        other = replace(self, given=system)
        vars(other)["problem"] = self.problem
        return other

    @cached_property
    def view(self) -> ProblemView:
        """The problem as policies see it."""
        return make_view(self.problem)

    @cached_property
    def baselines(self) -> dict[str, Baseline]:
        """Methods to compare with, by name. The common budget is that of the system."""
        chosen, common = self.cfg.get("baseline") or {}, self.cfg.budget.evaluations
        own = {"evaluations": self.evaluations}
        return {
            str(name): instantiate(conf, **(own if conf.get("evaluations") == common else {}))
            for name, conf in chosen.items()
        }

    @cached_property
    def bound(self) -> LowerBound:
        """A lower bound on the makespan on this system, known before any search."""
        shares = getattr(self.system, "shares", False)
        return lower_bound(self.problem, streams=self.system.streams, shares=shares)

    @cached_property
    def optimum(self) -> Optimum | None:
        """The known optimum of a stored graph; None if this system may be faster than its own.

        Such optima are for identical processors that run one op at a time. Contention only makes an
        execution longer.
        """
        path, problem = self.cfg.workload.get("path"), self.problem
        is_other = self.system.kind != "simulated" or self.system.streams != 1
        if path is None or is_other or not problem.has_given_costs:
            return None
        known = {one.processors: one for one in known_optima(str(path))}
        return known.get(problem.num_devices)

    @property
    def seed(self) -> int:
        """The seed of all random numbers."""
        return int(self.cfg.seed)

    @property
    def policy_name(self) -> str:
        """The name of the learned method."""
        return str(self.cfg.policy.name)

    @property
    def origin(self) -> str | None:
        """Where the first weights come from, without the seed: seeds of one method are averaged."""
        init_from = self.cfg.stage.get("init_from")
        own = rf"seed={self.seed}(-[0-9a-f]{{8}})?(?=/|$)"  # what names the directory of a run
        return init_from and re.sub(own, "seed=*", str(init_from))

    def hash(self, unused: Sequence[str]) -> str:
        """Return eight hex digits of the resolved configuration and of the problem.

        The problem, the first weights and the files of a training set count too, because the same
        configuration may name a file whose content has changed.

        Args:
            unused: keys, also dotted ones, that do not affect the results.
        """
        beside = getattr(self.problem.graph, "digest", None)  # of what comes with the graph
        named = [one for one in (beside, self._weights_digest, *self._set_digests()) if one]
        return short_hash([self.settings(unused), self.problem.hash, *named])

    @cached_property
    def _weights_digest(self) -> str | None:
        """Of the checkpoint that stage.init_from names, if it names one."""
        from doppler.policies.weights import weights_digest  # imports torch

        init_from = self.cfg.stage.get("init_from")
        return None if init_from in (None, AUTO, IMITATION) else weights_digest(init_from)

    def _set_digests(self) -> Iterator[str]:
        """Of the files that the lines of a training set name, as ``workload.path=FILE,FILE``."""
        lines = [self.cfg.stage.get(key) or () for key in ("problems", "held_out")]
        for word in " ".join(map(str, chain(*lines))).split():
            key, _, value = word.partition("=")
            if not key.endswith(".path"):
                continue
            swept = re.sub(r"^choice\((.*)\)$", r"\1", value).split(",")
            for path in (Path(one.strip("'\"")) for one in swept):
                for file in sorted(path.iterdir()) if path.is_dir() else [path]:
                    if file.is_file():
                        yield hashlib.sha256(file.read_bytes()).hexdigest()

    def settings(self, unused: Sequence[str] = ()) -> dict[str, Any]:
        """Return the configuration without keys that say where and how to run.

        Args:
            unused: further keys to leave out.
        """
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
        """Build everything that is configured, so that errors end a run before it starts.

        Raises:
            InputError: something cannot be built. Hydra's own errors may be raised too.
        """
        check_hosts(self.system, self.problem)
        _ = self.baselines, self.bound, self.optimum


def as_container(cfg: DictConfig) -> Any:
    """Return a part of the configuration as plain dictionaries and lists.

    Args:
        cfg: the part.
    """
    return OmegaConf.to_container(cfg, resolve=True)


def escaped(settings: Any) -> Any:
    """Escape plain settings so that a configuration made of them resolves no references.

    Args:
        settings: nested dictionaries and lists.
    """
    if isinstance(settings, dict):
        return {key: escaped(value) for key, value in settings.items()}
    if isinstance(settings, list):
        return [escaped(value) for value in settings]
    if isinstance(settings, str):
        return re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + r"\${", settings)
    return settings


def instantiated(part: DictConfig) -> Any:
    """Instantiate a part of the configuration.

    Hydra resolves texts twice. Without this function, a text with an escaped ``${`` would become a
    reference.

    Args:
        part: with a ``_target_``.
    """
    return instantiate(escaped(escaped(as_container(part))))


def short_hash(settings: Any) -> str:
    """Return eight hex digits; equal settings have equal digits.

    Args:
        settings: anything that JSON can hold.
    """
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
