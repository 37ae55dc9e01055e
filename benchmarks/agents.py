"""Agents on this machine: right results, nothing left behind, what messages cost, emulations.

python -m benchmarks.agents results        # six workloads, 2 x 2 and 4 x 1, plain torch beside
python -m benchmarks.agents leaks          # a thousand runs: memory, threads, files of the agents
python -m benchmarks.agents overhead       # two agents against one process, per message
python -m benchmarks.agents emulated       # measured over simulated, by time_scale
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from doppler.cluster import host, preset
from doppler.einsum import load_program, lower
from doppler.executor import Threads
from doppler.experiment.varied_placements import varied_placements
from doppler.extensions.hosts import Emulated, Hosts
from doppler.extensions.hosts.session import HostsSession
from doppler.graph import DataflowGraph
from doppler.problem import Placement, Problem, build
from doppler.simulator import WorkConserving
from doppler.trace import violations

ROOT = Path(__file__).resolve().parents[1]
WORKLOADS = sorted(path.stem for path in (ROOT / "workloads").glob("*.einsum"))
DELAY_S = 0.02


def main() -> None:
    """Run the parts that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parts = {"results": results, "leaks": leaks, "overhead": overhead, "emulated": emulated}
    parser.add_argument("part", nargs="+", choices=parts)
    parser.add_argument("--placements", type=int, default=50)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--scales", type=float, nargs="+", default=[100.0, 400.0])
    arguments = parser.parse_args()
    for part in arguments.part:
        parts[part](arguments)


def graph_of(name: str, size: str = "small") -> DataflowGraph:
    """A workload of the repository; small: at the size for cores."""
    program = load_program(str(ROOT / f"workloads/{name}.einsum"), preset=size)
    return lower(program, program.given_splits)


def random_placements(problem: Problem, num: int) -> list[Placement]:
    """Random devices in the graph's order."""
    rng = np.random.default_rng(0)
    shape = (num, problem.num_ops)
    return [Placement.make(problem, each) for each in rng.integers(problem.num_devices, size=shape)]


def disturb(session: HostsSession, ranks: Sequence[int], delay_s: float) -> None:
    """Let messages come late."""
    fields = {"ask": "disturb", "delay_s": delay_s}
    session._group.ask(ranks, fields, timeout_s=60.0)


def results(arguments: argparse.Namespace) -> None:
    """Every run equals plain torch (verify), every trace passes the checks; also with delays."""
    print(
        "| workload | agents x devices | placements | messages | equal torch | traces | delayed |"
    )
    print("|---|---|--:|--:|--:|--:|--:|")
    for name in WORKLOADS:
        for agents, devices in ((2, 2), (4, 1)):
            problem = build(graph_of(name), host(num_devices=agents * devices))
            with Hosts(agents=agents, verify=True).open(problem) as session:
                placements = random_placements(problem, arguments.placements)
                good = messages = 0
                for placement in placements:
                    trace = session.trace(placement)  # raises where a result differs
                    good += not violations(trace)
                    src, dst = trace.transfer_src // devices, trace.transfer_dst // devices
                    messages += int((src != dst).sum())
                disturb(session, range(agents), DELAY_S)
                late = [session.trace(placement) for placement in placements[:5]]
                disturb(session, range(agents), 0.0)
            passed = sum(not violations(trace) for trace in late)
            num = len(placements)
            print(
                f"| {name} | {agents} x {devices} | {num} | {messages:,} | {num} of {num} | "
                f"{good} of {num} | {passed} of {len(late)} |",
                flush=True,
            )


def leaks(arguments: argparse.Namespace) -> None:
    """What the agents hold after as many runs as they had before, and after a fifth of them."""
    problem = build(graph_of("cholesky"), host(num_devices=4))
    with Hosts(agents=2).open(problem) as session:
        placements = random_placements(problem, 50)
        pids = [member.pid for member in session._group.members]
        for i in range(arguments.runs + 1):
            if i in (0, 100, arguments.runs // 2, arguments.runs):
                held = ", ".join(f"{held_by(pid)}" for pid in pids)
                print(f"after {i:,} runs: {held}", flush=True)
            session.trace(placements[i % len(placements)])


def held_by(pid: int) -> str:
    """Memory, threads and open files of a process."""
    status = dict(
        line.split(":", 1)
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    )
    rss_mb = int(status["VmRSS"].split()[0]) / 1024
    files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return f"{rss_mb:.1f} MiB, {int(status['Threads'])} threads, {files} files"


def overhead(arguments: argparse.Namespace) -> None:
    """Milliseconds that a message adds: two agents against one process, in turns."""
    problem = build(graph_of("llama_layer"), host(num_devices=4))
    placements = random_placements(problem, 10)
    rounds = 9
    with Hosts(agents=2).open(problem) as session:
        many = np.array([[session.trace(p).makespan_s for p in placements] for _ in range(rounds)])
        crossing = np.array([num_crossing(session.trace(p)) for p in placements])
    with Threads().open(problem) as session:
        one = np.array([[session.trace(p).makespan_s for p in placements] for _ in range(rounds)])
    added_s = np.median(many, axis=0) - np.median(one, axis=0)
    per_ms = 1e3 * added_s / crossing
    print(f"llama_layer small, 4 devices, {len(placements)} random placements, {rounds} rounds")
    print(f"one process {1e3 * np.median(one):.2f} ms, two agents {1e3 * np.median(many):.2f} ms")
    print(
        f"{crossing.mean():.0f} messages; per message {np.median(per_ms):.3f} ms "
        f"({per_ms.min():.3f} to {per_ms.max():.3f})"
    )


def num_crossing(trace) -> int:
    """Transfers between the two halves of the devices."""
    half = trace.problem.num_devices // 2
    return int(((trace.transfer_src < half) != (trace.transfer_dst < half)).sum())


def emulated(arguments: argparse.Namespace) -> None:
    """60 placements within a factor of two: measured over simulated, Spearman, mean error."""
    graph = graph_of("chainmm", "paper")
    print("| machine | agents | time_scale | Spearman | mean error | largest | s a run |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name, num_devices, agents in (("h100x8", 8, 1), ("h100x8", 8, 2), ("dgx_h100x32", 32, 4)):
        problem = build(graph, preset(name=name, num_devices=num_devices))
        placements, simulated_s = within_a_factor_of_two(problem, 60)
        for scale in arguments.scales:
            system = Emulated(agents=agents, time_scale=scale)
            begin_s = time.perf_counter()
            with system.open(problem) as session:
                measured_s = np.array([session.trace(one).makespan_s for one in placements])
            took_s = (time.perf_counter() - begin_s) / len(placements)
            error = np.abs(measured_s / simulated_s - 1.0)
            rank = float(spearmanr(simulated_s, measured_s).statistic)
            print(
                f"| {name} | {agents} | {scale:g} | {rank:.4f} | {error.mean():.2%} | "
                f"{error.max():.2%} | {took_s:.2f} |",
                flush=True,
            )


def within_a_factor_of_two(problem: Problem, num: int) -> tuple[list[Placement], np.ndarray]:
    """Placements of different quality whose simulated seconds span a factor of two."""
    rng = np.random.default_rng(0)
    found, _ = varied_placements(WorkConserving(), problem, 6 * num, rng)
    with WorkConserving().open(problem) as session:
        seconds = np.array([session.trace(one).makespan_s for one in found])
    order = np.argsort(seconds)
    order = order[seconds[order] <= 2 * seconds[order[0]]]
    chosen = order[np.linspace(0, len(order) - 1, num).astype(int)]
    return [found[i] for i in chosen], seconds[chosen]


if __name__ == "__main__":
    main()
