"""Splits the ops of a module's program for a machine."""

from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from doppler.baselines import HEFT, Clustering, Judge
from doppler.cluster import Cluster
from doppler.einsum import Auto, Decomposition, FewestElements, Program, lower
from doppler.extensions.modules import check_memory
from doppler.graph import DataflowGraph
from doppler.precompile import warm_up
from doppler.problem import Problem, build
from doppler.support.errors import InputError
from doppler.support.phases import Phases
from doppler.support.resources import resource
from doppler.system import System

# Time for choosing splits: share of the remaining time, and least share of the whole time.
_SHARE, _LEAST = 0.5, 0.3
# Evaluations times (ops + edges) of one judgement, which takes about a second; and the least number
# of evaluations.
_JUDGED, _LEAST_JUDGED = 2_000_000, 4


def split(
    program: Program,
    cluster: Cluster,
    decomposition: str | Decomposition,
    phases: Phases,
    *,
    simulator: System,
    must_fit: bool,
) -> DataflowGraph:
    """Return the graph of a module's program, with its ops split for a machine.

    Args:
        program: of the module.
        cluster: the machine.
        decomposition: chooses the splits; ``auto`` (conf/decomposition/auto.yaml) or ``published``.
        phases: the clock of the call.
        simulator: on which ``auto`` compares ways to split.
        must_fit: whether the parameters must fit into the memory of the devices.

    Raises:
        InputError: the parameters do not fit, or the decomposition raises it.
    """
    if must_fit:
        check_memory(program, cluster)
    if decomposition != "auto":
        made: Any = FewestElements() if decomposition == "published" else decomposition
        with phases.timed("split"):
            return lower(program, made.splits(program, cluster.num_devices))
    with phases.timed("compile", counts=False):
        listed = [HEFT(evaluations=1)] if cluster.num_hosts > 1 else []  # the judge uses it
        warm_up(simulator, [Clustering(evaluations=1), *listed])
    with phases.timed("split"):
        until_s = phases.until_s(_SHARE, _LEAST)
        choice = _auto(cluster, simulator).choose(program, cluster.num_devices, until_s=until_s)
        if choice.tried < choice.num:
            phases.cut_short.append(f"{choice.tried} of {choice.num} ways to split were tried")
        return lower(program, choice.splits)


def _auto(cluster: Cluster, simulator: System) -> Auto:
    settings: Any = OmegaConf.load(resource("conf") / "decomposition" / "auto.yaml")
    judge = _QuickJudge(evaluations=settings.judge.baseline.evaluations, simulator=simulator)
    return Auto(cluster=cluster, judge=judge, grains=tuple(settings.grains), whole=True)


@dataclass(frozen=True)
class _QuickJudge:
    """Judges splits by the best placement of some clusterings; of fewer for large graphs."""

    evaluations: int
    simulator: System

    def __call__(self, problem: Problem) -> float:
        """Return the makespan in seconds; inf if no placement that was found fits in memory."""
        graph = problem.graph
        most = _JUDGED // (graph.num_ops + graph.num_edges)
        baseline: Any = Clustering(evaluations=min(self.evaluations, max(most, _LEAST_JUDGED)))
        return Judge(baseline=baseline, system=self.simulator)(problem)


def unsplit(program: Program, cluster: Cluster) -> Problem | None:
    """Build the problem of a module whose ops are not split.

    Args:
        program: of the module.
        cluster: the machine.

    Returns:
        None if the module does not fit on the machine.
    """
    try:
        return build(lower(program, {}), cluster)
    except InputError:
        return None
