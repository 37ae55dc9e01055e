"""Episodes per second of real training runs, as Lightning runs them, from the command line's code.

    python benchmarks/training.py            # the workloads, beside the published code's figures
    python benchmarks/training.py --growth   # layered graphs of 100 to 10,000 ops: time and memory,
                                             # with the graph network and without

Each run is stage II from random weights, with simulation, update, logging and checkpoints. The
first run of a process compiles and is not counted. The published code's figures are recorded ones
(one core, seconds of CPU time per episode) and marked so. Growth: a process for each size; peak
memory is that of the whole process.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir
from rich.console import Console

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / "src"))

from doppler.experiment import execute  # noqa: E402

# Episodes per second of the released training code on one core of another machine, recorded.
RECORDED_PER_S = {
    "chain_mm_112nodes": 0.83,
    "ffnn_192nodes": 0.36,
    "transformer_block_215nodes": 0.37,
    "llama_layer": 0.28,
}
REPETITIONS, EVALUATIONS = 3, 2400
SIZES = (100, 300, 1000, 3000, 10000)


def problems() -> dict[str, list[str]]:
    """Overrides by name: the published graphs that are at hand, and the largest workload."""
    folder = Path(os.environ.get("DOPPLER_SHARED") or PROJECT.parent / "shared") / "graphs"
    paths = [folder / f"{name}.txt" for name in RECORDED_PER_S]
    stored = {p.stem: ["workload=file", f"workload.path={p}"] for p in paths if p.exists()}
    return {**stored, "llama_layer": ["workload=llama_layer"]}


def train(overrides: list[str], seed: int, output_dir: str, evaluations: int) -> dict:
    """One training run; its summary."""
    settings = ["stage=rl_sim", "stage.init_from=null", f"budget.evaluations={evaluations}"]
    places = [f"seed={seed}", f"output_dir={output_dir}"]
    cfg = compose("config", [*overrides, *settings, *places])
    return execute(cfg, [], Console(quiet=True))


def speeds(overrides: list[str], evaluations: int) -> list[float]:
    """Episodes per second of the repetitions, sorted."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [train(overrides, seed, folder, evaluations) for seed in range(1, REPETITIONS + 1)]
    return sorted(run["episodes_per_s"] for run in runs)


def compare() -> None:
    """The workloads, one line each."""
    with tempfile.TemporaryDirectory() as folder:
        train(["workload=llama_layer"], 0, folder, 64)  # compiles
    for name, overrides in problems().items():
        found = speeds(overrides, EVALUATIONS)
        middle, recorded = statistics.median(found), RECORDED_PER_S[name]
        print(
            f"{name}: {middle:.0f} episodes/s (from {found[0]:.0f} to {found[-1]:.0f}); published "
            f"code {recorded:.2f}/s (recorded), {middle / recorded:,.0f} times that",
            flush=True,
        )


def measure_size(num_ops: int, *, network: bool) -> None:
    """A layered graph in this process, printed for the one that asks."""
    overrides = ["workload=synthetic", f"workload.num_ops={num_ops}"]
    # Updates alone: no search and no imitation at the end, which a short run would count most.
    overrides += ["algorithm.search_share=0", "algorithm.imitate_best=false"]
    overrides += [] if network else ["policy.build.hidden=0"]
    evaluations = 96 if num_ops > 2000 else 480
    with tempfile.TemporaryDirectory() as folder:
        train(overrides, 0, folder, 64)
    middle = statistics.median(speeds(overrides, evaluations))
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"per_s": middle, "peak_mib": peak_mib}))


def grow() -> None:
    """One line for each size."""
    for num_ops in SIZES:
        full, bare = (_measured(num_ops, *words) for words in ([], ["--without-network"]))
        print(
            f"{num_ops:6,} ops: {full['per_s']:8.2f} episodes/s, "
            f"{1e6 / full['per_s'] / num_ops:6.1f} us an op, peak {full['peak_mib']:,.0f} MiB; "
            f"without network {bare['per_s']:8.2f} episodes/s, peak {bare['peak_mib']:,.0f} MiB; "
            f"with it an episode takes {bare['per_s'] / full['per_s']:.2f} times as long",
            flush=True,
        )


def _measured(num_ops: int, *words: str) -> dict[str, float]:
    """Episodes per second and peak memory of a process of its own."""
    command = [sys.executable, __file__, "--size", str(num_ops), *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--growth", action="store_true", help="by graph size")
    parser.add_argument("--size", type=int, help="one size, figures as JSON")
    parser.add_argument("--without-network", action="store_true", help="of this size")
    arguments = parser.parse_args()
    with initialize_config_dir(str(PROJECT / "conf"), version_base="1.3"):
        if arguments.size:
            measure_size(arguments.size, network=not arguments.without_network)
            return
        cores = len(os.sched_getaffinity(0))
        print(
            f"{platform.machine()}, {cores} cores, python {platform.python_version()}, "
            f"torch {torch.__version__}; median of {REPETITIONS}"
        )
        grow() if arguments.growth else compare()


if __name__ == "__main__":
    main()
