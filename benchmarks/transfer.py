"""A trained policy on problems that it never saw, against baselines: quality and seconds.

    python benchmarks/transfer.py [CHECKPOINT]      # the one that comes with the package

Each figure is a makespan over that of annealing with 100,000 evaluations (4 starts, with order) on
the same problem and system (work-conserving, contention fifo, queue priority), and the seconds that
it took to find. "at once" and "of drafts" execute what the placement process itself estimates to be
the shortest of several episodes; clustering with the same choice stands beside. Of the problems the
synthetic families elimination and butterfly, the workloads cholesky and dataproc, and clusters of
H100 are in no training set; the others are of sizes, costs or clusters that are not.
"""

import argparse
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / "src"))

from hydra import compose, initialize_config_dir  # noqa: E402
from hydra.utils import instantiate  # noqa: E402

from doppler.baselines import ETF, HEFT, Annealing, Baseline, Clustering, CriticalPath  # noqa: E402
from doppler.baselines.clustering import draw_clusterings  # noqa: E402
from doppler.episode import estimated_makespans, make_view  # noqa: E402
from doppler.policies import DualPolicy  # noqa: E402
from doppler.problem import Problem  # noqa: E402
from doppler.simulator import WorkConserving  # noqa: E402
from doppler.stages.best_so_far import BestSoFar  # noqa: E402
from doppler.stages.checkpoints import PRETRAINED, load_policy_weights  # noqa: E402
from doppler.stages.inference import Inference  # noqa: E402
from doppler.stages.problem_set import problems_of  # noqa: E402
from doppler.system import Session  # noqa: E402

SYNTHETIC, SEEN = (
    "workload=synthetic workload.family=",
    "layered,random,fork_join,tree,stencil,map_reduce",
)
UNSEEN = (
    "workload=chainmm,ffnn,llama_block,llama_layer cluster=p100x4,v100x8",
    "workload=cholesky,dataproc cluster=p100x4,h100x8",
    f"{SYNTHETIC}elimination,butterfly workload.num_ops=60,120,200 "
    "workload.transfer_ratio=0.3,2.0 workload.seed=11 cluster=h100x8 cluster.num_devices=6",
    f"{SYNTHETIC}elimination,butterfly workload.num_ops=90 workload.seed=12 "
    "cluster=p100x4,v100x8,mixed cluster.num_devices=5",
    f"{SYNTHETIC}{SEEN},products workload.num_ops=220 workload.transfer_ratio=0.2,1.5 "
    "workload.seed=13 cluster=h100x8 cluster.num_devices=7",
    f"{SYNTHETIC}{SEEN},products workload.num_ops=180 workload.transfer_ratio=0.8 "
    "workload.seed=14 cluster=mixed",
)
ANNEAL = partial(Annealing, order=True, draws=1, hot=0.02)
SEEDS = 3  # of what is sampled; it counts the mean over them
REFERENCE, AT_ONCE = "annealing, 100,000", "policy, at once"


def baselines() -> dict[str, Baseline]:
    """What stands beside the policy."""
    return {
        "critical path, 1": CriticalPath(runs=1),
        "HEFT": HEFT(runs=1),
        "ETF": ETF(runs=1),
        "clustering, 64": Clustering(evaluations=64),
        "clustering, 1,000": Clustering(evaluations=1000),
        "annealing, 1,000": ANNEAL(evaluations=1000, starts=1, cold=1e-4),
        REFERENCE: ANNEAL(evaluations=100_000, starts=4, cold=1e-4),
    }


class Stopwatch:
    """Makespan and seconds by method."""

    def __init__(self) -> None:
        self.found: dict[str, list[tuple[float, float]]] = {}

    def time(self, name: str, method: Callable[[], float]) -> None:
        """Note the makespan that a method finds, and what finding it takes."""
        begin = time.perf_counter()
        makespan_s = method()
        self.found.setdefault(name, []).append((makespan_s, time.perf_counter() - begin))

    def mean(self) -> dict[str, tuple[float, float]]:
        """Over all that was noted under a name."""
        return {name: tuple(np.mean(pairs, axis=0)) for name, pairs in self.found.items()}


def drafted_clusterings(session: Session, rng: np.random.Generator) -> float:
    """The best of the 64 of 256 clusterings that are the shortest by estimate."""
    drafts = draw_clusterings(session.problem, 256, rng)
    kept = np.argsort(estimated_makespans(session.problem, drafts.op, drafts.device))[:64]
    placements = (rows[kept] for rows in drafts.placements())
    return float(session.measure(*placements, rng=rng).cost_s().min())


def makespans(
    policy: DualPolicy, inference: Inference, problem: Problem
) -> dict[str, tuple[float, float]]:
    """Makespan and seconds to find it, by method; views are made anew for every first placement."""
    watch = Stopwatch()
    with WorkConserving().open(problem) as session:
        for name, baseline in baselines().items():
            place = partial(baseline.place, session, np.random.default_rng(0))
            watch.time(name, lambda place=place: place().makespan_s)
        for seed in range(SEEDS):
            drafted = partial(drafted_clusterings, session, np.random.default_rng(seed))
            watch.time("clustering, 64 of 256 drafts", drafted)
            for drafts in (1, inference.drafts):
                search_like(watch, policy, replace(inference, drafts=drafts), session, seed)
    return watch.mean()


def search_like(
    watch: Stopwatch, policy: DualPolicy, inference: Inference, session: Session, seed: int
) -> None:
    """Time the steps of stage=inference."""
    rng = np.random.default_rng(seed)
    best = BestSoFar(session=session, confirmations=0, seed=0, on_best=lambda *_: None)
    view = make_view(session.problem)

    def first() -> float:
        placement = inference.first(policy, make_view(session.problem), rng)
        return best.confirm(placement)

    def samples() -> float:
        inference.sample(policy, view, best, 63, rng)
        return best.seconds

    def polish() -> float:
        inference.polish(best, 936, order=True, rng=rng)
        return best.seconds

    executed = "" if inference.drafts == 1 else f" of {64 * inference.drafts} drafts"
    watch.time("policy, greedy" if inference.drafts == 1 else AT_ONCE, first)
    watch.time(f"policy, best of 64{executed}", samples)
    watch.time(f"policy, 64{executed}, then annealing with 936", polish)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", nargs="?", default=PRETRAINED)
    path = parser.parse_args().checkpoint
    torch.set_num_threads(1)
    with initialize_config_dir(str(PROJECT / "conf"), version_base="1.3"):
        cfg = compose("config")
        policy = instantiate(cfg.policy.build)
        inference = instantiate(cfg.algorithm.inference)
        problems = list(problems_of(UNSEEN, "unseen"))
    load_policy_weights(policy, path)
    makespans(policy, inference, problems[0])  # compiles
    rows = []
    for problem in problems:
        rows.append(makespans(policy, inference, problem))
        to_beat, _ = rows[-1][REFERENCE]
        print(
            f"{problem.graph.name} on {problem.num_devices}: "
            + ", ".join(
                f"{name} {makespan_s / to_beat:.3f}"
                for name, (makespan_s, _) in rows[-1].items()
                if name.startswith("policy")
            ),
            flush=True,
        )
    table = Table("makespan over the last baseline's", "mean", "median", "p90", "worst", "ms")
    for name in rows[0]:
        ratios = [row[name][0] / row[REFERENCE][0] for row in rows]
        figures = np.mean(ratios), np.median(ratios), np.quantile(ratios, 0.9), max(ratios)
        took_ms = np.median([row[name][1] for row in rows]) * 1e3
        table.add_row(name, *(f"{figure:.3f}" for figure in figures), f"{took_ms:.1f}")
    longest = max(row[AT_ONCE][1] for row in rows)
    Console(width=100).print(
        f"{len(problems)} problems of {min(p.num_ops for p in problems)} to "
        f"{max(p.num_ops for p in problems)} ops on {platform.machine()}; ms: the median over "
        f"problems, views included; {AT_ONCE}: the longest {longest * 1e3:.1f} ms",
        table,
    )


if __name__ == "__main__":
    main()
