"""What each part of the policy is worth: trained without it, judged on problems of no training set.

    python -m benchmarks.parts [--updates 400] [--seeds 2] [--problem-seeds 1] --runs outputs/parts

Every variant is trained on the set of the pretrained weights (training_set=families), with fewer
updates; then each places problems as benchmarks/families.py does, of other seeds: *policy*, one
greedy episode, and *at once*, one execution chosen by estimates. Figures are makespans over those
of the whole policy on the same problem: geometric means over problems and seeds of training, and
95% intervals over problems. What does not fit in memory with either is left out.
"""

import argparse
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.families import PROJECT, problems_by_kind, searched
from hydra import initialize_config_dir

from doppler.env import make_view
from doppler.policies import DualPolicy, Policy
from doppler.policies.weights import load_policy_weights
from doppler.problem import Problem
from doppler.search import GreedyEpisode, estimates_step, search_settings

FIRST_SEED, CLUSTERS, RATIOS = 501, ("h100x8", "mixed"), (0.1, 1.0, 10.0)
SET = ("training_set=families",)
COLUMNS = ("policy", "at once")


@dataclass(frozen=True)
class Variant:
    """A policy that lacks something.

    policy: arguments of DualPolicy beside the defaults. training: overrides; None: not trained.
    merges: whether its greedy episode may place groups of ops.
    """

    policy: Mapping[str, Any] = field(default_factory=dict)
    training: tuple[str, ...] | None = SET
    merges: bool = True


WHOLE = "the whole policy"
VARIANTS = {
    WHOLE: Variant(),
    "no list scheduler in the logits": Variant(policy={"scheduler": False}),
    "published features alone, no list scheduler": Variant(policy={"look_ahead": False}),
    "SEL alone is learned": Variant(policy={"plc": "earliest_start"}),
    "PLC alone is learned": Variant(policy={"sel": "b_level"}),
    "no groups in training": Variant(training=(*SET, "algorithm.reinforcement.merged_share=0.0")),
    "no groups when it places": Variant(merges=False),
    "trained on 30 to 2,000 ops": Variant(training=("training_set=broad",)),
    "not trained": Variant(training=None),
}


def weights_of(name: str, variant: Variant, seed: int, options: argparse.Namespace) -> Path | None:
    """The checkpoint of its training, which is run if it has not been."""
    if variant.training is None:
        return None
    trained_as = WHOLE if not (variant.policy or variant.training != SET) else name
    label = "_".join(trained_as.replace(",", "").split())
    run = (Path(options.runs) / f"{label}-{seed}-{options.updates}").resolve()
    checkpoint = run / "checkpoints" / "last.ckpt"
    if not (run / "done").exists():
        parts = [f"policy.build.{key}={value}" for key, value in variant.policy.items()]
        command = [
            *(sys.executable, str(PROJECT / "src" / "run.py"), "stage=rl_sim", "baseline=[]"),
            *(*variant.training, "workload=llama_block"),
            *(f"stage.updates={options.updates}", f"seed={seed}", f"run_dir={run}"),
            *(*(f"+{part}" for part in parts), "overwrite=true"),
        ]
        print("training:", trained_as, seed, file=sys.stderr, flush=True)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (run / "done").touch()
    return checkpoint


def found_by(policy: Policy, merges: bool, problem: Problem) -> list[float]:
    """Makespans, a column each."""
    view = make_view(problem)
    greedy = GreedyEpisode(policy=policy, views=[view])
    if merges:
        greedy = GreedyEpisode.of(policy, view)
    return [
        searched([greedy], problem),
        searched([estimates_step(search_settings(), policy, view)], problem),
    ]


def print_table(found: Mapping[str, np.ndarray]) -> None:
    """A row for each variant: over the whole policy, by column."""
    print("| without | n |", " | ".join(COLUMNS), "|")
    print("| --- | ---: |", " ---: |" * len(COLUMNS))
    for name, seconds_PSC in found.items():
        with np.errstate(invalid="ignore"):
            ratio_PSC = seconds_PSC / found[WHOLE]
        cells = []
        for column in range(len(COLUMNS)):
            logs = np.log(ratio_PSC[..., column]).mean(axis=1)
            logs = logs[np.isfinite(logs)]
            half = 1.96 * logs.std(ddof=1) / np.sqrt(len(logs))
            low, mean, high = np.exp([logs.mean() - half, logs.mean(), logs.mean() + half])
            cells.append("1" if name == WHOLE else f"{mean:.3f} ({low:.3f} to {high:.3f})")
        print(f"| {name} | {len(seconds_PSC)} |", " | ".join(cells), "|")


def main() -> None:
    """Train, judge and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=2, help="of training")
    parser.add_argument("--problem-seeds", type=int, default=1)
    parser.add_argument("--ops", type=int, nargs="*", default=[60, 300, 1000])
    parser.add_argument("--runs", default="outputs/parts", help="where what is trained is kept")
    options = parser.parse_args()
    torch.set_num_threads(1)
    policies: dict[str, list[Policy]] = {}
    for seed, (name, variant) in product(range(options.seeds), VARIANTS.items()):
        torch.manual_seed(seed)
        policy = DualPolicy(**variant.policy)
        if (checkpoint := weights_of(name, variant, seed, options)) is not None:
            load_policy_weights(policy, checkpoint)
        policies.setdefault(name, []).append(policy)
    found: dict[str, list[list[list[float]]]] = {name: [] for name in VARIANTS}
    with initialize_config_dir(str(PROJECT / "conf"), version_base="1.3"):
        seeds = range(FIRST_SEED, FIRST_SEED + options.problem_seeds)
        for _, problem in problems_by_kind(CLUSTERS, options.ops, RATIOS, seeds):
            for name, variant in VARIANTS.items():
                rows = [found_by(one, variant.merges, problem) for one in policies[name]]
                found[name].append(rows)
    print_table({name: np.array(rows) for name, rows in found.items()})


if __name__ == "__main__":
    main()
