"""What needs no training, against the control without learning, at equal evaluations.

    python benchmarks/controls.py [--evaluations 1000 --seeds 3]
    python benchmarks/controls.py --held-out search.share=0.35     # what constants are chosen by

Prints a Markdown table: the makespan of each method over that of ``cluster_then_anneal``, both
means over seeds, on the four workloads and two machines of the main tables, and on ten random
graphs of which no constant was chosen (problems of benchmarks/transfer.py). The system is
work-conserving, contention fifo, queue priority. A method that takes fewer evaluations than it may
is marked. ``--held-out`` takes the held-out problems of conf/training_set instead, the workloads of
the main tables left out; further arguments are Hydra's.
"""

import argparse
from pathlib import Path

import numpy as np
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf

from doppler.baselines import Baseline
from doppler.experiment.problem_set import problems_of
from doppler.problem import Problem
from doppler.simulator import WorkConserving
from doppler.support.errors import InputError

PROJECT = Path(__file__).resolve().parents[1]
MAIN = ("workload=chainmm,ffnn,llama_block,llama_layer cluster=p100x4,v100x8",)
UNSEEN = (
    "workload=synthetic workload.family=layered,random,fork_join,tree,stencil,map_reduce,products "
    "workload.num_ops=180 workload.transfer_ratio=0.8 workload.seed=14 cluster=mixed",
    "workload=synthetic workload.family=elimination,butterfly workload.num_ops=90 "
    "workload.seed=12 cluster=p100x4 cluster.num_devices=5",
    "workload=synthetic workload.family=elimination workload.num_ops=120 "
    "workload.transfer_ratio=2.0 workload.seed=11 cluster=h100x8 cluster.num_devices=6",
)
CONTROL = "cluster_then_anneal"
# Of another purpose: a solver with a budget of seconds, and what searches under jitter.
LEFT_OUT = ("cp_sat", "annealing_jitter")


def mean_s(baseline: Baseline, problem: Problem, seeds: int) -> tuple[float, int]:
    """Mean makespan in seconds, nan where the method knows no such problem; evaluations used."""
    found, used = [], 0
    with WorkConserving().open(problem) as session:
        for seed in range(seeds):
            try:
                result = baseline.place(session, np.random.default_rng(seed))
            except InputError:
                return np.nan, 0
            found.append(result.makespan_s)
            used = result.evaluations
    return float(np.mean(found)), used


def problems(held_out: bool) -> tuple[list[Problem], list[Problem]]:
    """Those that have columns of their own, and those of which means are shown."""
    if held_out:
        families = OmegaConf.load(PROJECT / "conf/training_set/families.yaml")
        lines = [one for one in families.stage.held_out if "llama" not in one]
        return [], list(problems_of(lines, "held out"))
    return list(problems_of(MAIN, "main")), list(problems_of(UNSEEN, "unseen"))


def print_table(ratio: dict[str, np.ndarray], shown: list[Problem], mark: dict[str, str]) -> None:
    """The best on average first; problems that are shown come first in ``ratio``."""
    num, any_row = len(shown), next(iter(ratio.values()))
    columns = [f"{one.graph.name} {one.num_devices}" for one in shown]
    columns += ["mean of these"] if shown else []
    columns += [f"mean of {len(any_row) - num} others", "worst"]
    print("| method | " + " | ".join(columns) + " |")
    print("| --- |" + " ---: |" * len(columns))
    for name, row in sorted(ratio.items(), key=lambda item: np.nan_to_num(item[1], nan=9).mean()):
        told = [*row[:num], *([geometric(row[:num])] if shown else [])]
        told += [geometric(row[num:]), row[num:].max()]
        cells = ("-" if np.isnan(one) else f"{one:.3f}" for one in told)
        print(f"| {name}{mark[name]} | " + " | ".join(cells) + " |")


def geometric(ratios: np.ndarray) -> float:
    """The geometric mean."""
    return float(np.exp(np.log(ratios).mean()))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--evaluations", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("overrides", nargs="*", help="as on the command line of doppler run")
    arguments = parser.parse_args()
    configured = sorted(path.stem for path in (PROJECT / "conf/baseline").glob("*.yaml"))
    names = [name for name in configured if name not in LEFT_OUT]
    chosen = [f"baseline=[{','.join(names)}]", f"budget.evaluations={arguments.evaluations}"]
    with initialize_config_dir(str(PROJECT / "conf"), version_base="1.3"):
        cfg = compose("config", [*chosen, *arguments.overrides])
        shown, others = problems(arguments.held_out)
    methods = {str(name): instantiate(one) for name, one in cfg.baseline.items()}
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    used = dict.fromkeys(methods, 0)
    for problem in [*shown, *others]:
        for name, method in methods.items():
            mean, num = mean_s(method, problem, arguments.seeds)
            seconds[name].append(mean)
            used[name] = max(used[name], num)
    mark = {
        name: "" if used[name] == arguments.evaluations else f" ({used[name]:,})" for name in used
    }
    ratio = {name: np.array(row) / seconds[CONTROL] for name, row in seconds.items()}
    print_table(ratio, shown, mark)


if __name__ == "__main__":
    main()
