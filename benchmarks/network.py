"""What the graph network, the features and the list scheduler are worth: the fair ablation.

    python benchmarks/network.py run      # all cells; those that the CSV file has are kept
    python benchmarks/network.py table    # what the CSV file says, as Markdown

Eight arms: the published features or all, logits with a list scheduler's terms or without, with all
that reads the graph network (messages, pairs, numbers of each op) or with the heads alone. Each
trains by stage II alone from new weights, without extra candidates, returns to the best placement,
its imitation, and a search: what is measured is what the policy has learned. *Greedy* is its last
greedy episode, *of 16* the best of 16 episodes drawn from it. Each arm has the learning rate, of
three, that was best on a problem that stands in no table (TUNING); 500 updates of 8 episodes
decide, and longer trainings have less (tuned_updates). Simulated, work-conserving, contention fifo,
queue priority.
"""

import argparse
import csv
import io
import itertools
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import DictConfig
from rich.console import Console

from doppler.env import make_view
from doppler.experiment import execute
from doppler.experiment.problem_set import problems_of
from doppler.policies.weights import load_policy_weights
from doppler.problem import Problem
from doppler.simulator import WorkConserving

PROJECT = Path(__file__).resolve().parents[1]
ROWS = PROJECT / "docs" / "results" / "data" / "network.csv"
PROBLEMS = {
    "chainmm, 4 devices": "workload=chainmm cluster=p100x4",
    "llama_block, 8 devices": "workload=llama_block cluster=v100x8",
    "random graph of 320 ops, 8 devices": (
        "workload=synthetic workload.family=random workload.num_ops=320 workload.seed=61 "
        "cluster=h100x8"
    ),
}
TUNING = (
    "workload=synthetic workload.family=layered workload.num_ops=160 workload.seed=62 "
    "cluster=v100x8"
)
RATES, TUNING_UPDATES = (5e-3, 2e-2, 5e-2), 500
UPDATES, EPISODES, SAMPLED = (50, 500, 5000), 8, 16


@dataclass(frozen=True)
class Arm:
    """What the policy has."""

    all_features: bool
    scheduler: bool
    network: bool

    @property
    def settings(self) -> list[str]:
        """Overrides of the configuration."""
        return [
            f"+policy.build.look_ahead={self.all_features}",
            f"+policy.build.scheduler={self.scheduler}",
            f"policy.build.hidden={64 if self.network else 0}",
        ]


ARMS = tuple(itertools.starmap(Arm, itertools.product((False, True), repeat=3)))


@dataclass(frozen=True)
class Row:
    """One training. greedy, sampled: makespans in seconds, the latter the best of 16."""

    all_features: bool
    scheduler: bool
    network: bool
    problem: str
    updates: int
    rate: float
    seed: int
    greedy: float
    sampled: float

    @property
    def arm(self) -> Arm:
        """Whose it is."""
        return Arm(self.all_features, self.scheduler, self.network)


def configured(line: str, arm: Arm, updates: int, rate: float, seed: int) -> DictConfig:
    """Stage II alone with so many updates."""
    cfg = compose(
        "config",
        [
            *line.split(),
            *arm.settings,
            *("stage=rl_sim", "stage.init_from=null", "baseline=[]", "logger=[]"),
            *("algorithm.search_share=0", "algorithm.imitate_best=false"),
            f"algorithm.reinforcement.batch_episodes={EPISODES}",
            "algorithm.reinforcement.extra_candidates=0",
            "algorithm.reinforcement.returning_share=0",
            f"algorithm.reinforcement.tuned_updates={TUNING_UPDATES}",
            f"algorithm.reinforcement.try_every={max(8, updates // 10)}",
            f"algorithm.reinforcement.learning_rate=[{rate},{rate / 10}]",
            f"seed={seed}",
        ],
    )
    options = instantiate(cfg.algorithm.reinforcement)
    cfg.budget.evaluations = options.evaluations(updates, 0)
    return cfg


def trained(problem: Problem, cfg: DictConfig) -> tuple[float, float]:
    """Makespans of the last greedy episode and of the best of 16 that are drawn."""
    with tempfile.TemporaryDirectory() as folder:
        cfg.output_dir = folder
        execute(cfg, [], Console(file=io.StringIO()))
        (weights,) = Path(folder).rglob("rl_sim/**/last.ckpt")
        policy = instantiate(cfg.policy.build)
        view = make_view(problem)
        policy.bind(view)
        load_policy_weights(policy, weights)
    rng = np.random.default_rng(cfg.seed)
    with WorkConserving().open(problem) as session:
        found = [
            session.measure(*policy.rollout(view, num, explore, rng).placements(), rng=rng).cost_s()
            for num, explore in ((1, 0.0), (SAMPLED, None))
        ]
    return float(found[0].min()), float(found[1].min())


class Table:
    """Rows of a CSV file, which grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Row] = []
        if path.exists():
            with path.open(encoding="utf-8", newline="") as file:
                self.rows = [_row(one) for one in csv.DictReader(file)]

    def has(self, arm: Arm, name: str, updates: int, rate: float, seed: int) -> bool:
        """Whether a training is in it."""
        wanted = (arm, name, updates, rate, seed)
        return any((r.arm, r.problem, r.updates, r.rate, r.seed) == wanted for r in self.rows)

    def add(self, row: Row) -> None:
        """Append a row."""
        is_new = not self.path.exists()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, [one.name for one in fields(Row)], lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerow(asdict(row))
        self.rows.append(row)

    def best_rate(self, arm: Arm) -> float:
        """That of an arm, by the mean of greedy and sampled makespans on the tuning problem."""
        found = {
            row.rate: row.greedy + row.sampled
            for row in self.rows
            if row.problem == "tuning" and row.arm == arm
        }
        return min(found, key=lambda rate: found[rate])


def _row(read: dict[str, str]) -> Row:
    flags = {name: read[name] == "True" for name in ("all_features", "scheduler", "network")}
    return Row(
        **flags,
        problem=read["problem"],
        updates=int(read["updates"]),
        rate=float(read["rate"]),
        seed=int(read["seed"]),
        greedy=float(read["greedy"]),
        sampled=float(read["sampled"]),
    )


def run(table: Table, updates: Sequence[int], seeds: Sequence[int]) -> None:
    """Train what the table lacks: first what chooses the rates."""
    lines = {"tuning": TUNING, **PROBLEMS}
    problems = {name: next(problems_of((line,), name)) for name, line in lines.items()}

    def train(arm: Arm, name: str, num: int, rate: float, seed: int) -> None:
        if not table.has(arm, name, num, rate, seed):
            greedy, sampled = trained(problems[name], configured(lines[name], arm, num, rate, seed))
            table.add(
                Row(
                    **asdict(arm),
                    problem=name,
                    updates=num,
                    rate=rate,
                    seed=seed,
                    greedy=greedy,
                    sampled=sampled,
                )
            )

    for arm, rate in itertools.product(ARMS, RATES):
        train(arm, "tuning", TUNING_UPDATES, rate, 0)
    for num, seed, name, arm in itertools.product(updates, seeds, PROBLEMS, ARMS):
        train(arm, name, num, table.best_rate(arm), seed)


def lines_of(table: Table) -> Iterator[str]:
    """Markdown: medians and ranges over seeds, over the best of all that was found."""
    for name in PROBLEMS:
        here = [row for row in table.rows if row.problem == name]
        if not here:
            continue
        best = min(min(row.greedy, row.sampled) for row in here)
        updates = sorted({row.updates for row in here})
        yield f"\n{name}, makespan over {best * 1e3:.4g} ms, the best of all arms:\n"
        heads = [f"{num:,} updates, {what}" for num in updates for what in ("greedy", "of 16")]
        yield "| features | scheduler | network | " + " | ".join(heads) + " |"
        yield "| --- | --- | --- |" + " ---: |" * len(heads)
        for arm in ARMS:
            cells = []
            for num, what in itertools.product(updates, ("greedy", "sampled")):
                found = [getattr(r, what) / best for r in here if (r.arm, r.updates) == (arm, num)]
                cells.append(
                    f"{np.median(found):.3f} ({min(found):.3f} to {max(found):.3f})"
                    if found
                    else ""
                )
            parts = (
                "all" if arm.all_features else "published",
                "with" if arm.scheduler else "without",
                "with" if arm.network else "without",
            )
            yield f"| {' | '.join(parts)} | {' | '.join(cells)} |"


def main() -> None:
    """Train, or print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--updates", type=int, nargs="*", default=list(UPDATES))
    parser.add_argument("--seeds", type=int, nargs="*", default=list(range(5)))
    parser.add_argument("--rows", type=Path, default=ROWS)
    options = parser.parse_args()
    table = Table(options.rows)
    if options.what == "run":
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        with initialize_config_dir(str(PROJECT / "conf"), version_base="1.3"):
            run(table, options.updates, options.seeds)
    print("\n".join(lines_of(table)))


if __name__ == "__main__":
    main()
