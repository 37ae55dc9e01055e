"""A trained policy on problems that it never saw, against baselines: quality and seconds.

    python benchmarks/transfer.py [CHECKPOINT]      # the one that comes with the package

Each figure is a makespan over that of annealing with 100,000 evaluations (4 starts, with order) on
the same problem and system (work-conserving, contention fifo, queue priority). Of the problems the
synthetic families elimination and butterfly, the workloads cholesky and dataproc, and clusters of
H100 are in no training set; the others are of sizes, costs or clusters that are not.
"""

import argparse
import platform
import statistics
import sys
import time
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
from doppler.episode import make_view  # noqa: E402
from doppler.policies import DualPolicy  # noqa: E402
from doppler.problem import Placement, Problem  # noqa: E402
from doppler.simulator import WorkConserving  # noqa: E402
from doppler.stages.best_so_far import BestSoFar  # noqa: E402
from doppler.stages.checkpoints import PRETRAINED, load_policy_weights  # noqa: E402
from doppler.stages.inference import Inference  # noqa: E402
from doppler.stages.problem_set import problems_of  # noqa: E402

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
SEEDS = 3  # of the samples; what follows the greedy placement is a mean over them
GREEDY, SAMPLES, POLISHED = "policy, greedy", "policy, best of 64", "policy, 64, annealing 936"


def baselines() -> dict[str, Baseline]:
    """What stands beside the policy."""
    return {
        "critical path, 1": CriticalPath(runs=1),
        "HEFT": HEFT(runs=1),
        "ETF": ETF(runs=1),
        "clustering, 64": Clustering(evaluations=64),
        "clustering, 1,000": Clustering(evaluations=1000),
        "annealing, 1,000": ANNEAL(evaluations=1000, starts=1, cold=1e-4),
    }


def makespans(
    policy: DualPolicy, inference: Inference, problem: Problem
) -> tuple[dict[str, float], float]:
    """Seconds by method; and what the first placement took, view included."""
    rng = np.random.default_rng(0)
    with WorkConserving().open(problem) as session:
        long = ANNEAL(evaluations=100_000, starts=4, cold=1e-4)
        found = {"reference": long.place(session, np.random.default_rng(0)).makespan_s}
        for name, baseline in baselines().items():
            found[name] = baseline.place(session, np.random.default_rng(0)).makespan_s
        best = BestSoFar(session=session, confirmations=0, seed=0, on_best=lambda *_: None)
        begin = time.perf_counter()
        view = make_view(problem)
        device_BV, priority_BV = policy.rollout(view, 1, 0.0, rng).placements()
        took_s = time.perf_counter() - begin
        best.confirm(Placement.make(problem, device_BV[0], priority_BV[0]))
        found[GREEDY], greedy = best.seconds, best.found
        sampled, polished = [], []
        for seed in range(SEEDS):
            rng, best.found = np.random.default_rng(seed), greedy
            inference.sample(policy, view, best, 63, rng)
            sampled.append(best.seconds)
            inference.polish(best, 936, order=True, rng=rng)
            polished.append(best.seconds)
        found[SAMPLES], found[POLISHED] = np.mean(sampled), np.mean(polished)
    return found, took_s


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
    rows, seconds = [], []
    for problem in problems:
        found, took_s = makespans(policy, inference, problem)
        rows.append({name: value / found["reference"] for name, value in found.items()})
        seconds.append(took_s)
        print(
            f"{problem.graph.name} on {problem.num_devices}: "
            + ", ".join(f"{name} {rows[-1][name]:.3f}" for name in (GREEDY, SAMPLES, POLISHED)),
            flush=True,
        )
    table = Table("method", "mean", "median", "p90", "worst")
    for name in [key for key in rows[0] if key != "reference"]:
        ratios = [row[name] for row in rows]
        figures = np.mean(ratios), np.median(ratios), np.quantile(ratios, 0.9), max(ratios)
        table.add_row(name, *(f"{figure:.3f}" for figure in figures))
    Console(width=100).print(
        f"{len(problems)} problems of {min(p.num_ops for p in problems)} to "
        f"{max(p.num_ops for p in problems)} ops on {platform.machine()}; first placement: median "
        f"{statistics.median(seconds) * 1e3:.1f} ms, longest {max(seconds) * 1e3:.1f} ms",
        table,
    )


if __name__ == "__main__":
    main()
