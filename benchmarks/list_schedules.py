"""List schedules chosen by estimates: a control for training that uses estimates too.

    python benchmarks/list_schedules.py --seeds 0 1

`method=learning_alone` draws 32 drafts of an episode that returns to the best placement, and
executes the one with the best estimate. Here ETF gets the same: of every 32 schedules with random
ties the one with the best estimate is executed. A row has the best makespan after so many
executions. Simulated, work-conserving, contention fifo, queue priority.
"""

import argparse
import csv
import itertools
from pathlib import Path

import numpy as np
from hydra import initialize_config_dir

from doppler.baselines import ETF
from doppler.experiment.problem_set import problems_of
from doppler.problem import Problem
from doppler.search import seeded_generator
from doppler.search.estimating import estimated_costs, open_estimates_of
from doppler.simulator import WorkConserving

PROJECT = Path(__file__).resolve().parents[1]
ROWS = PROJECT / "docs" / "results" / "data" / "list_schedules.csv"
WORKLOADS = ("chainmm", "ffnn", "llama_block", "llama_layer")
CLUSTERS = ("p100x4", "v100x8")
EXECUTIONS, DRAFTS, BATCH = (1000, 8000), 32, 50
COLUMNS = ("workload", "cluster", "seed", "method", "drafts", "executions", "makespan_s")


def best_after(problem: Problem, seed: int) -> list[float]:
    """Return the best makespan in seconds after each of the numbers of executions.

    Args:
        problem: to schedule.
        seed: of the ties.
    """
    rng, etf = seeded_generator(seed, "list schedules"), ETF.once()
    cost_B = np.empty(max(EXECUTIONS))
    with WorkConserving().open(problem) as session, open_estimates_of(session) as estimates:
        for first in range(0, len(cost_B), BATCH):
            device_BV, priority_BV = etf.draw(problem, BATCH * DRAFTS, rng)
            estimated = [one.cost for one in estimated_costs(estimates, device_BV, priority_BV)]
            best_B = np.reshape(estimated, (BATCH, DRAFTS)).argmin(axis=1)
            best_B += DRAFTS * np.arange(BATCH)
            measured = session.measure(device_BV[best_B], priority_BV[best_B])
            cost_B[first : first + BATCH] = measured.cost_s()
    return [float(cost_B[:num].min()) for num in EXECUTIONS]


def main() -> None:
    """Write the rows of all problems."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rows", type=Path, default=ROWS)
    options = parser.parse_args()
    rows = []
    with initialize_config_dir(str(PROJECT / "conf"), version_base="1.3"):
        for workload, cluster in itertools.product(WORKLOADS, CLUSTERS):
            line = f"workload={workload} cluster={cluster}"
            problem = next(problems_of((line,), line))
            for seed in options.seeds:
                for num, seconds in zip(EXECUTIONS, best_after(problem, seed), strict=True):
                    rows.append((workload, cluster, seed, "etf", DRAFTS, num, seconds))
    with options.rows.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)


if __name__ == "__main__":
    main()
