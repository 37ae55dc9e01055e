"""Episodes per second of real training runs, as Lightning runs them, from the command line's code.

    python benchmarks/training.py [GRAPH ...]

Each run is stage II from random weights on a stored graph (the published ones if they are there,
else chainmm), with simulation, update, logging and checkpoints. The first run of a process compiles
and is not counted. The published code's figures are recorded ones (one core, seconds of CPU time
per episode) and marked so.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from rich.console import Console

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / "src"))

from doppler.stages import execute  # noqa: E402

# Seconds per episode of the released training code on one core of another machine, recorded.
RECORDED_S = {
    "chain_mm_112nodes": 1.2,
    "ffnn_192nodes": 2.8,
    "transformer_block_215nodes": 2.7,
}
REPETITIONS, EVALUATIONS = 3, 1600


def published_graphs() -> list[Path]:
    """The published graphs that are at hand, or none."""
    folder = Path(os.environ.get("DOPPLER_GRAPHS", PROJECT.parent / "shared" / "graphs"))
    return [path for name in RECORDED_S if (path := folder / f"{name}.txt").exists()]


def train(overrides: list[str], seed: int, output_dir: str) -> dict:
    """One training run; its summary."""
    cfg = compose(
        "config",
        [
            *overrides,
            "stage=rl_sim",
            "stage.init_from=null",
            f"budget.evaluations={EVALUATIONS}",
            f"seed={seed}",
            f"output_dir={output_dir}",
        ],
    )
    return execute(cfg, [], Console(quiet=True), is_step=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("graphs", nargs="*", type=Path, help="graph files")
    graphs = parser.parse_args().graphs or published_graphs()
    OmegaConf.register_new_resolver("stem", lambda path: Path(path).stem)
    problems = {path.stem: ["workload=file", f"workload.path={path}"] for path in graphs} or {
        "chainmm": ["workload=chainmm"]
    }
    cores = len(os.sched_getaffinity(0))
    print(
        f"{platform.machine()}, {cores} cores, python {platform.python_version()}, "
        f"torch {torch.__version__}; {EVALUATIONS} evaluations a run, median of {REPETITIONS}"
    )
    with (
        initialize_config_dir(str(PROJECT / "conf"), version_base="1.3"),
        tempfile.TemporaryDirectory() as folder,
    ):
        train(next(iter(problems.values())), 0, folder)
        for name, overrides in problems.items():
            runs = [train(overrides, seed, folder) for seed in range(1, REPETITIONS + 1)]
            speed = statistics.median(run["episodes_per_s"] for run in runs)
            spread = sorted(run["episodes_per_s"] for run in runs)
            line = f"{name}: {speed:.0f} episodes/s (from {spread[0]:.0f} to {spread[-1]:.0f})"
            if name in RECORDED_S:
                line += (
                    f"; published code {1 / RECORDED_S[name]:.2f}/s (recorded), "
                    f"{speed * RECORDED_S[name]:.0f} times that"
                )
            print(line)
            print(json.dumps({"graph": name, "episodes_per_s": [round(s, 1) for s in spread]}))


if __name__ == "__main__":
    main()
