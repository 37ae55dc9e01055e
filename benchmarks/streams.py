"""Streams: what the results page says of routers, cascades, programs and queues, all in tables.

    python benchmarks/streams.py answers|program|load FILE.csv.gz [--orders 10]
    python benchmarks/streams.py synthetic|cascade [--orders 10]

FILE is a table of recorded answers (docs/programs.md). Means with 95% intervals (Student's t) over
random orders, of seeds 0, 1, ...; constants were chosen on orders of seeds from 100 on. *Above* is
accuracy over that of a random mixture of the same cost, in percentage points.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import numpy as np
from scipy import stats

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / "src"))

from doppler.extensions.programs.streams import (  # noqa: E402
    Always,
    BestFixed,
    Cascade,
    Oracle,
    Played,
    Router,
    StructuredReinforce,
    StructuredThompson,
    answers,
    answers_program,
    digits,
    play,
    synthetic_stream,
)
from doppler.extensions.programs.streams.load import Servers, UnderLoad, arrivals  # noqa: E402
from doppler.search import seeded_generator  # noqa: E402

SHARES = (0.2, 0.35, 0.5, 0.65, 0.8)
PRICE = 0.1  # of the large model on synthetic streams
THRESHOLDS = (0.7, 0.85, 0.95, 1.0)


def told(values: Sequence[float], scale: float = 1.0, digits: int = 2) -> str:
    """Mean and half of its 95% interval."""
    half = stats.sem(values) * stats.t.ppf(0.975, len(values) - 1) if len(values) > 1 else np.nan
    return f"{scale * np.mean(values):.{digits}f} +- {scale * half:.{digits}f}"


def played_by(stream, allocator, seed: int, order: str = "random") -> Played:
    """One pass, in the order of a seed."""
    order_N = stream.in_order(order, seeded_generator(seed, "order"))
    return play(stream, order_N, allocator, seeded_generator(seed, allocator.name))


def show_answers(path: str, orders: int) -> None:
    """A router against the random mixture, at several shares of the large model."""
    stream = answers(path=path).stream
    small, large = (played_by(stream, Always(which=w), 0).accuracy for w in ("cheapest", "dearest"))
    print(f"always small {small:.4f}, always large {large:.4f}")
    for order, share in product(("random", "by_group"), SHARES):
        found = [played_by(stream, Router(share=share), seed, order) for seed in range(orders)]
        above = [p.accuracy - (1 - p.mean_cost) * small - p.mean_cost * large for p in found]
        known = played_by(stream, Oracle(share=share), 0)
        print(
            f"{order:9} share {share:.2f}: cost {np.mean([p.mean_cost for p in found]):.3f}, "
            f"accuracy {100 * np.mean([p.accuracy for p in found]):.2f}, above {told(above, 100)}; "
            f"oracle {100 * known.accuracy:.2f} at {known.mean_cost:.3f}",
            flush=True,
        )


def show_synthetic(orders: int) -> None:
    """Regret of a router against the best policy, which is known, over time."""
    at = np.array([200, 500, 1000, 2000, 5000, 10000])
    regret = []
    for seed in range(2 * orders):
        stream = synthetic_stream(num_inputs=int(at[-1]), seed=seed).stream
        played = played_by(stream, Router(price=PRICE), seed)
        gain_N = (stream.expected[:, 0, 1] - stream.expected[:, 0, 0] - PRICE)[played.order]
        lost_N = np.maximum(gain_N, 0.0) - np.where(played.choice[:, 0] == 1, gain_N, 0.0)
        regret.append(np.cumsum(lost_N)[at - 1])
    slopes = [np.polyfit(np.log(at), np.log(one), 1)[0] for one in regret]
    for t, of_t in zip(at, np.array(regret).T, strict=True):
        print(f"after {t:6}: regret {told(of_t, 1.0, 1)}")
    print(f"exponent of time over {len(slopes)} seeds: {told(slopes)}")


def lost(played: Played, price: float) -> float:
    """What a pass cost in all: wrong answers, and what ran at its price."""
    return float((1.0 - played.right + price * played.cost).sum())


def show_cascade(orders: int) -> None:
    """Accuracy and cost of the cascade; regret against the best fixed one."""
    stream = digits().stream
    expert = float((stream.expert == stream.label).mean())
    print(f"{len(stream)} inputs, the expert is right on {100 * expert:.2f}% at cost 1")
    for order, price in product(("random", "by_group"), (0.05, 0.12, 0.3)):
        found = [played_by(stream, Cascade(price=price), seed, order) for seed in range(orders)]
        fixed = {
            pair: [
                lost(played_by(stream, Cascade(price=price, fixed=pair), s, order), price)
                for s in range(min(2, orders))
            ]
            for pair in product(THRESHOLDS, THRESHOLDS)
        }
        best = min(fixed, key=lambda pair: np.mean(fixed[pair]))
        held = [
            played_by(stream, Cascade(price=price, fixed=best), s, order) for s in range(orders)
        ]
        regret = [lost(a, price) - lost(b, price) for a, b in zip(found, held, strict=True)]
        levels = np.mean([np.bincount(p.choice[:, 0], minlength=3) for p in found], axis=0)
        print(
            f"{order:9} price {price:.2f}: accuracy {told([p.accuracy for p in found], 100)}, cost "
            f"{told([p.mean_cost for p in found])}, answered by {np.round(levels / len(stream), 2)}"
            f"; regret against stopping at {best}: {told(regret, 1.0, 1)}",
            flush=True,
        )


def show_program(path: str, orders: int) -> None:
    """Rewards of what learns module by module, and of controls."""
    stream = answers_program(path=path).stream
    small, large = (played_by(stream, Always(which=w), 0) for w in ("cheapest", "dearest"))
    print(f"{len(stream)} programs")
    for price in (0.05, 0.1, 0.15):

        def reward(p: Played, price: float = price) -> float:
            return p.accuracy - price * p.mean_cost

        known = [played_by(stream, each(price=price), 0) for each in (BestFixed, Oracle)]
        print(
            f"price {price}: always small {reward(small):.4f}, always large {reward(large):.4f}, "
            f"best fixed {reward(known[0]):.4f}, oracle {reward(known[1]):.4f}"
        )
        for make in (StructuredReinforce, StructuredThompson):
            found = [played_by(stream, make(price=price), seed) for seed in range(orders)]
            above = [
                reward(p) - (1 - p.mean_cost) * reward(small) - p.mean_cost * reward(large)
                for p in found
            ]
            half = [float((p.right - price * p.cost)[len(p.right) // 2 :].mean()) for p in found]
            print(
                f"  {make.name:21} reward {told([reward(p) for p in found], 1.0, 4)}, second half "
                f"{told(half, 1.0, 4)}, cost {np.mean([p.mean_cost for p in found]):.2f}, above "
                f"the mixture {told(above, 100)}",
                flush=True,
            )


def show_load(path: str, orders: int) -> None:
    """Latency and accuracy where inputs wait for devices, with and without an eye on queues."""
    stream, servers = answers(path=path).stream, Servers()
    print(f"capacity {servers.capacity_per_s} a second, {servers.share:.0%} of it large")
    for load, sees in product((0.5, 0.8, 0.95), (False, True)):
        served = []
        for seed in range(orders):
            rng = seeded_generator(seed, "arrivals")
            order_N = stream.in_order("random", seeded_generator(seed, "order"))
            arrival_N = arrivals(len(stream), load * servers.capacity_per_s, rng)
            method = UnderLoad(servers=servers, sees_queues=sees)
            served.append(method.serve(stream, order_N, arrival_N, seeded_generator(seed, "load")))
        latencies = [one.latency_s for one in served]
        print(
            f"load {load:.2f}, {'sees queues' if sees else 'sees none  '}: mean "
            f"{told([x.mean() for x in latencies])} s, p95 "
            f"{told([np.quantile(x, 0.95) for x in latencies])} s, accuracy "
            f"{told([one.played.accuracy for one in served], 100)}, large "
            f"{np.mean([one.played.mean_cost for one in served]):.3f}",
            flush=True,
        )


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    of_file: dict[str, Callable[[str, int], None]] = {
        "answers": show_answers,
        "program": show_program,
        "load": show_load,
    }
    alone = {"synthetic": show_synthetic, "cascade": show_cascade}
    parser.add_argument("what", choices=[*of_file, *alone])
    parser.add_argument("path", nargs="?")
    parser.add_argument("--orders", type=int, default=10)
    given = parser.parse_args()
    if given.what in alone:
        alone[given.what](given.orders)
    elif given.path is None:
        parser.error(f"{given.what} needs a file of recorded answers")
    else:
        of_file[given.what](given.path, given.orders)


if __name__ == "__main__":
    main()
