"""A trained policy on problems that it never saw, against baselines: quality and seconds.

    python benchmarks/transfer.py [CHECKPOINT]      # the one that comes with the package

Each figure is a makespan over that of annealing with 100,000 evaluations (4 starts, with order) on
the same problem and system (work-conserving, contention fifo, queue priority), and the seconds of
CPU that it took to find, with the view of the problem, without reading the weights. The policy
takes the steps of stage=inference, each timed by itself; the same with new weights, which were
never trained, tells what training is worth. Of the problems the synthetic families elimination and
butterfly, the workloads cholesky and dataproc, and clusters of H100 are in no
training set; the others are of sizes, costs or clusters that are not.
"""

import argparse
import platform
import sys
import time
from collections.abc import Callable
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
from omegaconf import DictConfig  # noqa: E402

from doppler.baselines import ETF, HEFT, Annealing, Baseline, Clustering, CriticalPath  # noqa: E402
from doppler.env import make_view  # noqa: E402
from doppler.experiment.problem_set import problems_of  # noqa: E402
from doppler.policies import Policy  # noqa: E402
from doppler.policies.weights import PRETRAINED  # noqa: E402
from doppler.search import (  # noqa: E402
    Budget,
    Combined,
    Evaluator,
    SearchStep,
    estimates_step,
    load_policy,
    policy_steps,
    search,
)
from doppler.simulator import WorkConserving  # noqa: E402
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
ANNEAL = partial(Annealing, order=True, draws=1, hot=0.02, cold=1e-4)
SEEDS = 3
REFERENCE, TRAINED, UNTRAINED = "annealing, 100,000", "policy", "untrained weights"
ALONE, AT_ONCE = "alone", "1 on estimates"
ON_ESTIMATES, ANNEALED = "65 on estimates", "65, then annealing with 935"
GREEDY = f"{TRAINED}, {ALONE}"
WITHOUT = (
    "without policy, 1 on estimates",
    "without policy, 64 on estimates",
    "without policy, 64, then annealing with 936",
)


def baselines(cfg: DictConfig) -> dict[str, Baseline]:
    """What stands beside the policy: its own search without it, too."""
    drafts = instantiate(cfg.search.drafts, _convert_="all")
    estimates = instantiate(cfg.search.estimates)(drafts=drafts, share=None)
    combined = partial(Combined, confirmations=0)
    return {
        WITHOUT[0]: combined(evaluations=1, steps=[estimates]),
        WITHOUT[1]: combined(evaluations=64, steps=[estimates]),
        WITHOUT[2]: combined(evaluations=1000, steps=[estimates, instantiate(cfg.search.anneal)]),
        "critical path, 1": CriticalPath(evaluations=1),
        "HEFT": HEFT(evaluations=1),
        "ETF": ETF(evaluations=1),
        "clustering, 64": Clustering(evaluations=64),
        "clustering, 1,000": Clustering(evaluations=1000),
        "clustering, 200, then annealing with 800": instantiate(cfg.baseline.cluster_then_anneal),
        "annealing, 1,000": ANNEAL(evaluations=1000, starts=1),
        REFERENCE: ANNEAL(evaluations=100_000, starts=4),
    }


class Stopwatch:
    """Makespans and seconds by method, a pair for each seed."""

    def __init__(self) -> None:
        self.found: dict[str, list[tuple[float, float]]] = {}

    def time(self, name: str, method: Callable[[], float]) -> None:
        """Note the makespan that a method finds, and what finding it takes."""
        begin = time.process_time()
        self.note(name, method(), begin)

    def note(self, name: str, makespan_s: float, begin: float) -> None:
        """Note what a method has found since it began."""
        self.found.setdefault(name, []).append((makespan_s, time.process_time() - begin))


def makespans(
    weights: str | Path, cfg: DictConfig, session: Session
) -> dict[str, list[tuple[float, float]]]:
    """Makespans and seconds to find them, by method."""
    watch = Stopwatch()
    for name, baseline in baselines(cfg).items():
        for seed in range(1 if name == REFERENCE else SEEDS):
            place = partial(baseline.place, session, np.random.default_rng(seed))
            watch.time(name, lambda place=place: place().makespan_s)
    for seed in range(SEEDS):
        # A policy keeps what it knows of a problem: each first placement is by a new one.
        for name, its in ((TRAINED, weights), (UNTRAINED, None)):
            search_with(watch, name, load_policy(its), cfg, session, seed)
            first = partial(at_once, load_policy(its), cfg, session, seed)
            watch.time(f"{name}, {AT_ONCE}", first)
    return watch.found


def search_with(
    watch: Stopwatch, name: str, policy: Policy, cfg: DictConfig, session: Session, seed: int
) -> None:
    """The steps of stage=inference, timed."""
    names = iter(f"{name}, {step}" for step in (ALONE, ON_ESTIMATES, ANNEALED))
    best, begin = Evaluator(session=session, confirmations=0, seed=0), time.process_time()

    def note(step: SearchStep) -> None:
        nonlocal begin
        watch.note(next(names), best.seconds, begin)
        begin = time.process_time()

    steps = policy_steps(cfg.search, policy, make_view(session.problem))
    search(steps, best, Budget(evaluations=1000), np.random.default_rng(seed), after=note)


def at_once(policy: Policy, cfg: DictConfig, session: Session, seed: int) -> float:
    """Of one execution, searched on estimates."""
    best = Evaluator(session=session, confirmations=0, seed=0)
    estimates = estimates_step(cfg.search, policy, make_view(session.problem))
    search([estimates], best, Budget(evaluations=1), np.random.default_rng(seed))
    return best.seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", nargs="?", default=PRETRAINED)
    path = parser.parse_args().checkpoint
    torch.set_num_threads(1)
    with initialize_config_dir(str(PROJECT / "conf"), version_base="1.3"):
        cfg = compose("config", ["baseline=[cluster_then_anneal]", "budget=quick"])
        problems = list(problems_of(UNSEEN, "unseen"))

    with WorkConserving().open(problems[0]) as session:
        makespans(path, cfg, session)  # compiles
    rows = []
    for problem in problems:
        with WorkConserving().open(problem) as session:
            rows.append(makespans(path, cfg, session))
        to_beat = rows[-1][REFERENCE][0][0]
        print(
            f"{problem.graph.name} on {problem.num_devices}: "
            + ", ".join(
                f"{name} {np.mean(pairs, axis=0)[0] / to_beat:.3f}"
                for name, pairs in rows[-1].items()
                if name.startswith((TRAINED, UNTRAINED))
            ),
            flush=True,
        )
    table = Table(f"makespan over {REFERENCE}", "mean", "median", "p90", "worst", "CPU ms")
    for name in rows[0]:
        ratios = [np.mean(row[name], axis=0)[0] / row[REFERENCE][0][0] for row in rows]
        figures = np.mean(ratios), np.median(ratios), np.quantile(ratios, 0.9), max(ratios)
        took_ms = np.median([row[name] for row in rows], axis=(0, 1))[1] * 1e3
        table.add_row(name, *(f"{figure:.3f}" for figure in figures), f"{took_ms:.1f}")
    first_ms = [np.median(row[GREEDY], axis=0)[1] * 1e3 for row in rows]
    slow = [p.num_ops for p, ms in zip(problems, first_ms, strict=True) if ms > 50]
    Console(width=100).print(
        f"{len(problems)} problems of {min(p.num_ops for p in problems)} to "
        f"{max(p.num_ops for p in problems)} ops on {platform.machine()}; CPU ms: the median over "
        f"problems and {SEEDS} seeds, of a first placement with its view; the longest by the "
        f"median of its seeds: {max(first_ms):.1f} ms, above 50 on {slow or 'no'} ops",
        table,
    )


if __name__ == "__main__":
    main()
