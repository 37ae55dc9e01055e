"""A placer on a stream of problems against every level for all of them, in several orders.

    python benchmarks/placer.py record FILE [--sets FOLDER] [--problems 1000] [--seed 4242]
    python benchmarks/placer.py replay FILE [--prices 0.005 0.01 0.02] [--orders 3]

*record* runs all levels on synthetic graphs of all nine families (30 to 500 ops, transfers of 0.05
to 10 mean ops, 2 to 8 devices of five machines) and, of test sets in FOLDER, on all of auckland and
on each graph of stg for one number of processors; all in a random order, a line each, CPU seconds.
Started again it goes on. *replay* lets a placer see what the levels that it runs have found.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / "src"))

from doppler.cluster import preset  # noqa: E402
from doppler.graph import load_graph, synthetic  # noqa: E402
from doppler.graph.optima import known_optima  # noqa: E402
from doppler.graph.synthetic import FAMILIES  # noqa: E402
from doppler.placer import (  # noqa: E402
    LadderRecord,
    StreamCost,
    WhenToGoOn,
    cost_of,
    fixed_costs,
    hindsight_cost,
    read_records,
    record,
    replay,
    to_line,
)
from doppler.problem import Problem, build  # noqa: E402
from doppler.search import load_policy  # noqa: E402
from doppler.simulator import WorkConserving  # noqa: E402

MACHINES = ("p100x4", "v100x8", "a100x8", "h100x8", "mixed")
# A problem, what executes it, and what is known that no placement undercuts.
Made = tuple[Problem, WorkConserving, float]


def synthetic_problems(num: int, seed: int) -> Iterator[tuple[str, Callable[[], Made]]]:
    """Names, and what makes each."""
    rng = np.random.default_rng(seed)
    for i in range(num):
        family = tuple(FAMILIES)[i % len(FAMILIES)]
        num_ops = int(np.exp(rng.uniform(np.log(30), np.log(500))))
        ratio = float(np.exp(rng.uniform(np.log(0.05), np.log(10))))
        machine = str(rng.choice(MACHINES))
        devices = int(rng.integers(2, (4 if machine == "p100x4" else 8) + 1))
        drawn = int(rng.integers(10**6, 2 * 10**6))
        name = f"{family}_{num_ops}_{ratio:.3g}_{machine}_{devices}_{drawn}"

        def make(family, num_ops, ratio, drawn, machine, devices) -> Made:
            graph = synthetic(family=family, num_ops=num_ops, transfer_ratio=ratio, seed=drawn)
            return build(graph, preset(name=machine, num_devices=devices)), WorkConserving(), 0.0

        yield name, partial(make, family, num_ops, ratio, drawn, machine, devices)


def stored_problems(folder: Path, seed: int) -> Iterator[tuple[str, Callable[[], Made]]]:
    """Of graphs with known optima, for one of their numbers of processors."""
    rng = np.random.default_rng(seed)
    for file in sorted(folder.glob("*.*")):
        known = known_optima(file) if file.suffix in (".dot", ".stg") else []
        if known:
            one = known[int(rng.integers(len(known)))]

            def make(file, one) -> Made:
                machine = preset(name="identical", num_devices=one.processors)
                problem = build(load_graph(file), machine)
                return problem, WorkConserving(contention="none"), one.seconds

            yield f"{file.stem}_{one.processors}", partial(make, file, one)


def record_all(path: Path, sets: Path | None, num: int, seed: int) -> None:
    """Write a line for each problem."""
    stored = []
    if sets is not None:
        stored = [*stored_problems(sets / "auckland", 1), *stored_problems(sets / "stg", 2)]
    todo = [*stored, *synthetic_problems(max(0, num - len(stored)), seed)]
    order = np.random.default_rng(0).permutation(len(todo))
    done, policy = len(read_records(path)) if path.exists() else 0, load_policy()
    with path.open("a") as file:
        for number in range(done, len(todo)):
            name, make = todo[order[number]]
            problem, system, known_s = make()
            clock = time.process_time
            one = record(name, problem, system, policy, known_s=known_s, seed=number, clock=clock)
            file.write(to_line(one))
            file.flush()


def told(name: str, costs: list[StreamCost], deepest_s: float) -> str:
    """A row of the table: means over orders."""
    ratio, loss = (np.mean([getattr(one, key) for one in costs]) for key in ("ratio", "loss"))
    seconds = np.array([one.seconds for one in costs])
    spread = f" +- {np.std(seconds, ddof=1):.0f}" if len(seconds) > 1 else ""
    levels = " ".join(
        f"{share:.0%}" for share in np.mean([x.levels for x in costs], 0) / num_of(costs)
    )
    return (
        f"{name:24} {seconds.mean():7.1f}{spread} s, {deepest_s / seconds.mean():5.2f} times fewer,"
        f" ratio {ratio:.4f}, loss {loss:.2%}, levels {levels}"
    )


def num_of(costs: list[StreamCost]) -> int:
    """Problems."""
    return sum(costs[0].levels)


def replay_all(path: Path, prices: list[float], orders: int) -> None:
    """Print the table."""
    records: list[LadderRecord] = read_records(path)
    fixed = fixed_costs(records)
    print(f"{len(records)} problems")
    for one in fixed:
        print(told(one.name, [one], fixed[-1].seconds))
    for price in prices:
        found = []
        for seed in range(orders):
            rng = np.random.default_rng(seed)
            shuffled = [records[i] for i in rng.permutation(len(records))]
            climbed = replay(shuffled, WhenToGoOn(price=price), rng)
            found.append(cost_of("placer", shuffled, [len(one.found_s) for one in climbed]))
        print(told(f"placer, price {price}", found, fixed[-1].seconds))
        known = hindsight_cost(records, price)
        print(told(f"in hindsight, {price}", [known], fixed[-1].seconds))


def main() -> None:
    """Record, or replay."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=["record", "replay"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--sets", type=Path)
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=4242)
    parser.add_argument("--prices", type=float, nargs="+", default=[0.005, 0.01, 0.02])
    parser.add_argument("--orders", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "record":
        record_all(given.file, given.sets, given.problems, given.seed)
    else:
        replay_all(given.file, given.prices, given.orders)


if __name__ == "__main__":
    main()
