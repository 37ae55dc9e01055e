"""Work-conserving against bulk-synchronous execution of the same placements.

    python benchmarks/synchronous.py

True costs, p100x4, simulated. For each workload: the best placement that annealing and clustering
find for each of the two systems, executed on both. Beside it the paper's measured ratio.
"""

import sys
from pathlib import Path

import numpy as np

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / "src"))

from hydra import compose, initialize_config_dir  # noqa: E402
from hydra.utils import instantiate  # noqa: E402

from doppler.cluster import preset  # noqa: E402
from doppler.problem import build  # noqa: E402
from doppler.simulator import BulkSynchronous, WorkConserving  # noqa: E402

# DOPPLER (Yao et al., ICLR 2026): milliseconds measured on 4 P100s, synchronous and not.
PAPER_MS = {"chainmm": (185.3, 139.0), "ffnn": (76.9, 50.2)}
SEEDS = range(5)


def main() -> None:
    """Measure and print."""
    print("workload  placement by          synchronous  work-conserving  ratio (median of 5 seeds)")
    for name, (paper_synchronous, paper_free) in PAPER_MS.items():
        with initialize_config_dir(str(PROJECT / "conf"), version_base="1.3"):
            overrides = [f"workload={name}", "baseline=[annealing,clustering]"]
            cfg = compose("config", [*overrides, "budget.evaluations=4000"])
        problem = build(instantiate(cfg.workload), preset(name="p100x4"))
        methods = {method: instantiate(conf) for method, conf in cfg.baseline.items()}
        with BulkSynchronous().open(problem) as synchronous, WorkConserving().open(problem) as free:
            searches = {
                f"{method}, {label}": (built, system)
                for method, built in methods.items()
                for label, system in (("free", free), ("sync", synchronous))
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
