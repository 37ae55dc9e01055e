"""Recorded answers: the router against controls, over random orders and subject after subject.

    python benchmarks/streams.py answers FILE.csv.gz [--orders 10] [--out FILE.json]

*Above* is accuracy over that of a random mixture of the same cost, in percentage points: mean and
95% interval (Student's t) over orders. Constants of the router were chosen on other orders (seeds
100 to 102).
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from scipy import stats

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / "src"))

from doppler.search import seeded_generator  # noqa: E402
from doppler.streams import Always, Oracle, Router, answers, play  # noqa: E402

SHARES = (0.2, 0.35, 0.5, 0.65, 0.8)


def interval(values: list[float]) -> tuple[float, float]:
    """Mean, and half of its 95% interval."""
    spread = stats.sem(values) * stats.t.ppf(0.975, len(values) - 1) if len(values) > 1 else np.nan
    return float(np.mean(values)), float(spread)


def main() -> None:
    """Print a line for every share and order."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=["answers"])
    parser.add_argument("path")
    parser.add_argument("--orders", type=int, default=10)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    stream = answers(path=given.path).stream
    rng = np.random.default_rng(0)
    every = np.arange(len(stream))
    small, large = (
        play(stream, every, Always(which=one), rng).accuracy for one in ("cheapest", "dearest")
    )
    print(f"always small {small:.4f}, always large {large:.4f}")
    rows = []
    for order in ("random", "by_group"):
        for share in SHARES:
            above, cost, accuracy = [], [], []
            for seed in range(given.orders):
                order_N = stream.in_order(order, seeded_generator(seed, "order"))
                router = Router(share=share)
                played = play(stream, order_N, router, seeded_generator(seed, "router"))
                cost.append(played.mean_cost)
                accuracy.append(played.accuracy)
                mixed = (1 - cost[-1]) * small + cost[-1] * large
                above.append(100 * (played.accuracy - mixed))
            known = play(stream, every, Oracle(share=share), rng)
            mean, half = interval(above)
            print(
                f"{order:9} share {share:.2f}: cost {np.mean(cost):.3f}, accuracy "
                f"{np.mean(accuracy):.4f}, above {mean:.2f} +- {half:.2f}; oracle "
                f"{known.accuracy:.4f} at {known.mean_cost:.3f}",
                flush=True,
            )
            rows.append(
                {"order": order, "share": share, "cost": cost, "accuracy": accuracy, "above": above}
            )
            if given.out:
                given.out.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
