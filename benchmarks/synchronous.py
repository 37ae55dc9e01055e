"""Work-conserving against bulk-synchronous execution of the same placements.

    python benchmarks/synchronous.py

True costs, p100x4, simulated. For each workload: the best placement that annealing finds for each
of the two systems, and critical path's, executed on both. Beside it the paper's measured ratio.
"""

import sys
from pathlib import Path

import numpy as np

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / "src"))

from doppler.baselines import Annealing, CriticalPath  # noqa: E402
from doppler.cluster import preset  # noqa: E402
from doppler.einsum import load_workload  # noqa: E402
from doppler.problem import build  # noqa: E402
from doppler.simulator import BulkSynchronous, WorkConserving  # noqa: E402

# DOPPLER (Yao et al., ICLR 2026): milliseconds measured on 4 P100s, synchronous and not.
PAPER_MS = {"chainmm": (185.3, 139.0)}
SEEDS = range(5)


def main() -> None:
    """Measure and print."""
    annealing = Annealing(evaluations=4000, order=False, neighbour=0.8, hot=0.02, cold=0.0005)
    print("workload  placement by          synchronous  work-conserving  ratio (median of 5 seeds)")
    for name, (paper_synchronous, paper_free) in PAPER_MS.items():
        graph = load_workload(program=f"workloads/{name}.einsum")
        problem = build(graph, preset(name="p100x4"))
        with BulkSynchronous().open(problem) as synchronous, WorkConserving().open(problem) as free:
            searches = {
                "critical_path": (CriticalPath(runs=50), free),
                "annealing, free": (annealing, free),
                "annealing, sync": (annealing, synchronous),
            }
            for label, (method, searched) in searches.items():
                times = []
                for seed in SEEDS:
                    placement = method.place(searched, np.random.default_rng(seed)).placement
                    rows = placement.device[None], placement.priority[None]
                    times.append(
                        [system.measure(*rows).seconds[0, 0] for system in (synchronous, free)]
                    )
                slow, fast = np.median(times, axis=0)
                ratio = np.median([one / other for one, other in times])
                print(
                    f"{name:9s} {label:20s} {slow * 1e3:9.1f} ms {fast * 1e3:13.1f} ms {ratio:7.2f}"
                )
        print(
            f"{name:9s} {'paper, measured':20s} {paper_synchronous:9.1f} ms {paper_free:13.1f} ms"
            f" {paper_synchronous / paper_free:7.2f}"
        )


if __name__ == "__main__":
    main()
