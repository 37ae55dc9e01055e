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
from scipy.stats import spearmanr

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / "src"))

from hydra import compose, initialize_config_dir  # noqa: E402
from hydra.utils import instantiate  # noqa: E402

from doppler.baselines import ETF, HEFT, Annealing, Baseline, Clustering, CriticalPath  # noqa: E402
from doppler.baselines.clustering import draw_clusterings  # noqa: E402
from doppler.episode import (  # noqa: E402
    estimated_makespans,
    heavy_merged,
    make_view,
    merged_at_random,
)
from doppler.policies import DualPolicy  # noqa: E402
from doppler.simulator import WorkConserving  # noqa: E402
from doppler.stages.best_so_far import BestSoFar  # noqa: E402
from doppler.stages.checkpoints import PRETRAINED, load_policy_weights  # noqa: E402
from doppler.stages.inference import Inference, Sampling, place_at_once, sample  # noqa: E402
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
SEEDS = 3
REFERENCE, GREEDY, AT_ONCE = "annealing, 100,000", "policy, greedy", "policy, at once"


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
    """Makespans and seconds by method, a pair for each seed."""

    def __init__(self) -> None:
        self.found: dict[str, list[tuple[float, float]]] = {}

    def time(self, name: str, method: Callable[[], float]) -> None:
        """Note the makespan that a method finds, and what finding it takes."""
        begin = time.perf_counter()
        makespan_s = method()
        self.found.setdefault(name, []).append((makespan_s, time.perf_counter() - begin))


def makespans(
    make_policy: Callable[[], DualPolicy], inference: Inference, session: Session
) -> dict[str, list[tuple[float, float]]]:
    """Makespans and seconds to find them, by method."""
    watch = Stopwatch()
    for name, baseline in baselines().items():
        for seed in range(1 if name == REFERENCE else SEEDS):
            place = partial(baseline.place, session, np.random.default_rng(seed))
            watch.time(name, lambda place=place: place().makespan_s)
    for seed in range(SEEDS):
        drafted = partial(drafted_clusterings, session, np.random.default_rng(seed))
        watch.time("clustering, 64 of 256 drafts", drafted)
        for sampling in (replace(inference.unseen, drafts=1), inference.unseen):
            # A policy keeps what it knows of a problem: each first placement is by a new one.
            search(watch, make_policy(), sampling, inference, session, seed)
    return watch.found


def drafted_clusterings(session: Session, rng: np.random.Generator) -> float:
    """The best of the 64 of 256 clusterings that are the shortest by estimate."""
    drafts = draw_clusterings(session.problem, 256, rng)
    kept = np.argsort(estimated_makespans(session.problem, drafts.op, drafts.device))[:64]
    placements = (rows[kept] for rows in drafts.placements())
    return float(session.measure(*placements, rng=rng).cost_s().min())


def search(
    watch: Stopwatch,
    policy: DualPolicy,
    sampling: Sampling,
    inference: Inference,
    session: Session,
    seed: int,
) -> None:
    """The steps of stage=inference, timed."""
    rng, views = np.random.default_rng(seed), []
    best = BestSoFar(session=session, confirmations=0, seed=0, on_best=lambda *_: None)

    def first() -> float:
        views.append(heavy_merged(make_view(session.problem)))
        return best.confirm(place_at_once(policy, views[0], sampling.drafts, rng))

    def samples() -> float:
        sample(policy, views[0], sampling, best, 63, rng)
        return best.seconds

    def polish() -> float:
        inference.polish(best, 936, order=True, rng=rng)
        return best.seconds

    of_drafts = "" if sampling.drafts == 1 else f" of {64 * sampling.drafts} drafts"
    watch.time(GREEDY if sampling.drafts == 1 else AT_ONCE, first)
    watch.time(f"policy, best of 64{of_drafts}", samples)
    watch.time(f"policy, 64{of_drafts}, then annealing with 936", polish)


def rank_correlations(policy: DualPolicy, session: Session) -> tuple[float, float]:
    """Spearman's, of estimates and makespans: of 128 samples, and of as many, half of clusters."""
    view, rng = make_view(session.problem), np.random.default_rng(0)
    plain = policy.rollout(view, 128, None, rng)
    clustered = [policy.rollout(merged_at_random(view, rng), 1, None, rng) for _ in range(64)]
    pairs = [
        (
            estimated_makespans(session.problem, each.op, each.device),
            session.measure(*each.placements(), rng=rng).cost_s(),
        )
        for each in (plain, *clustered)
    ]
    mixed = np.concatenate([pairs[0], *pairs[1:]], axis=1)[:, 64:]
    return spearmanr(*pairs[0]).statistic, spearmanr(*mixed).statistic


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", nargs="?", default=PRETRAINED)
    path = parser.parse_args().checkpoint
    torch.set_num_threads(1)
    with initialize_config_dir(str(PROJECT / "conf"), version_base="1.3"):
        cfg = compose("config")
        inference = instantiate(cfg.algorithm.inference)
        problems = list(problems_of(UNSEEN, "unseen"))

    def make_policy() -> DualPolicy:
        policy = instantiate(cfg.policy.build)
        load_policy_weights(policy, path)
        return policy

    with WorkConserving().open(problems[0]) as session:
        makespans(make_policy, inference, session)  # compiles
    rows, correlations = [], []
    for problem in problems:
        with WorkConserving().open(problem) as session:
            rows.append(makespans(make_policy, inference, session))
            correlations.append(rank_correlations(make_policy(), session))
        to_beat = rows[-1][REFERENCE][0][0]
        print(
            f"{problem.graph.name} on {problem.num_devices}: "
            + ", ".join(
                f"{name} {np.mean(pairs, axis=0)[0] / to_beat:.3f}"
                for name, pairs in rows[-1].items()
                if name.startswith("policy")
            ),
            flush=True,
        )
    table = Table(f"makespan over {REFERENCE}", "mean", "median", "p90", "worst", "ms")
    for name in rows[0]:
        ratios = [np.mean(row[name], axis=0)[0] / row[REFERENCE][0][0] for row in rows]
        figures = np.mean(ratios), np.median(ratios), np.quantile(ratios, 0.9), max(ratios)
        took_ms = np.median([row[name] for row in rows], axis=(0, 1))[1] * 1e3
        table.add_row(name, *(f"{figure:.3f}" for figure in figures), f"{took_ms:.1f}")
    longest = []
    for name in (GREEDY, AT_ONCE):
        first_ms = [np.median(row[name], axis=0)[1] * 1e3 for row in rows]
        slow = [p.num_ops for p, ms in zip(problems, first_ms, strict=True) if ms > 50]
        longest.append(f"{name}: {max(first_ms):.1f} ms, above 50 on {slow or 'no'} ops")
    plain, mixed = np.nanmean(correlations, axis=0)
    Console(width=100).print(
        f"{len(problems)} problems of {min(p.num_ops for p in problems)} to "
        f"{max(p.num_ops for p in problems)} ops on {platform.machine()}; ms: the median over "
        f"problems and {SEEDS} seeds, of a first placement with its view; the longest by the "
        f"median of its seeds: {'; '.join(longest)}; Spearman of estimates and makespans "
        f"{plain:.2f} among samples, {mixed:.2f} where half of them are of clusters",
        table,
    )


if __name__ == "__main__":
    main()
