"""How much faster walks of annealing are that simulate from the first change on.

    python benchmarks/annealing.py [--ops 1000 10000] [--steps 3000]

Evaluations a CPU second of annealing with order, from the placement of one run of ETF, in one
thread: every step simulated whole, and from the first change on until it is sure to be taken back.
Both find the same, to the bit, which is checked. Medians of three, in turns; compilation excluded.
"""

import argparse
import statistics
import time
from unittest.mock import patch

import numpy as np

from doppler.baselines import ETF, Annealing, SearchResult
from doppler.cluster import preset
from doppler.graph import synthetic
from doppler.problem import Problem, build
from doppler.simulator import SimulatorSession, WorkConserving

FAMILIES = ("layered", "random", "fork_join", "tree", "stencil", "products", "map_reduce")
UNSEEN = ("elimination", "butterfly")


def walked(problem: Problem, num_steps: int, *, whole: bool) -> tuple[SearchResult, float]:
    """What a walk finds, and its CPU seconds."""
    make_known = SimulatorSession.make_known

    def unused(session: SimulatorSession):
        known = make_known(session)
        assert known is not None
        return known._replace(in_use=not whole)

    with (
        WorkConserving().open(problem, num_threads=1) as session,
        patch.object(SimulatorSession, "make_known", unused),
    ):
        start = ETF(evaluations=1).place(session, np.random.default_rng(0)).placement
        method = Annealing(evaluations=num_steps, order=True, hot=0.02, cold=1e-4)
        begin_s = time.process_time()
        result = method.place(session, np.random.default_rng(1), initial=start)
        return result, time.process_time() - begin_s


def rates(problem: Problem, num_steps: int) -> dict[bool, float]:
    """Evaluations a second, whole or not."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(3):
        found = {}
        for whole in (True, False):
            found[whole], took_s = walked(problem, num_steps, whole=whole)
            seconds[whole].append(took_s)
        assert found[True].makespan_s == found[False].makespan_s
    return {whole: num_steps / statistics.median(each) for whole, each in seconds.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ops", type=int, nargs="*", default=[1000, 10000])
    parser.add_argument("--steps", type=int, default=3000, help="of a walk of 1,000 ops")
    parser.add_argument("--ratio", type=float, default=1.0, help="of transfers to ops")
    parser.add_argument("--seed", type=int, default=501, help="of the graphs")
    options = parser.parse_args()
    cluster = preset(name="h100x8")
    tiny = build(synthetic(family="layered", num_ops=30, transfer_ratio=1.0, seed=0), cluster)
    walked(tiny, 100, whole=False)
    print("| ops | family | whole, /s | from the first change, /s | ratio |")
    print("| ---: | --- | ---: | ---: | ---: |")
    for num_ops in options.ops:
        ratios = []
        for family in (*FAMILIES, *UNSEEN):
            ratio, seed = options.ratio, options.seed
            graph = synthetic(family=family, num_ops=num_ops, transfer_ratio=ratio, seed=seed)
            problem = build(graph, cluster)
            found = rates(problem, max(300, options.steps * 1000 // num_ops))
            ratios.append(found[False] / found[True])
            print(
                f"| {problem.num_ops:,} | {family} | {found[True]:,.0f} | {found[False]:,.0f} | "
                f"{ratios[-1]:.2f} |",
                flush=True,
            )
        print(f"| {num_ops:,} | mean | | | {statistics.geometric_mean(ratios):.2f} |", flush=True)


if __name__ == "__main__":
    main()
