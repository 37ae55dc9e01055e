"""The parts of `make gpu` that are stages of src/run.py; what they leave is in summary.json."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.gpu.parts import PROJECT, Fault, Figure, Settings

Findings = Iterator[Figure | Fault]

# Kernels of milliseconds; on a GPU of 40 GB all devices have room.
# A strict order runs as one CUDA graph. Dispatched op by op, such runs wait for the host.
ON_GPUS = [
    *("workload=llama_block", "workload.preset=paper", "workload.params.seq=2048"),
    "system.queue=strict",
]
ON_CORES = ["workload=chainmm", "workload.preset=small"]

CALIBRATION = {
    False: {"runs": 16, "seconds": 2, "placements": 30, "repeats": 5},
    True: {"runs": 2, "seconds": 0, "placements": 3, "repeats": 2},
}
TRAINING = {
    False: {
        "budget.imitation_episodes": 128,
        "budget.evaluations": 400,
        "budget.measured_evaluations": 160,
        "stage.choosing": 5,
        "stage.repeats": 15,
    },
    True: {
        "budget.imitation_episodes": 16,
        "budget.evaluations": 80,
        "budget.measured_evaluations": 60,
        "stage.choosing": 2,
        "stage.repeats": 3,
    },
}


def overrides(name: str, settings: Settings) -> list[str]:
    """The command line of a stage. Costs that were measured are found by whoever comes next."""
    chosen = [
        f"system={settings.executor}",
        "cluster=host",
        f"cluster.num_devices={settings.num_devices}",
        *(ON_GPUS if settings.executor == "cuda" else ON_CORES),
        f"output_dir={settings.runs}",
        f"run_dir={settings.runs}/{name}",
        "overwrite=true",
        "measure.force=true",  # nobody is there to close other programs; rows are marked
    ]
    calibration = CALIBRATION[settings.small].items()
    if name == "calibrate":
        return ["stage=calibrate", *chosen, *(f"stage.{key}={one}" for key, one in calibration)]
    return [
        "stage=rl_real",
        "baseline=[critical_path,annealing_order]",
        *chosen,
        *(f"stage.calibration.{key}={one}" for key, one in calibration),
        *(f"{key}={one}" for key, one in TRAINING[settings.small].items()),
    ]


def calibrate(settings: Settings) -> Findings:
    """Costs are measured; how well they, and modelled ones, predict."""
    summary = yield from _run("calibrate", settings)
    for label, one in summary.get("fidelity", {}).items():
        yield Figure(label, "Pearson", one["pearson"])
        yield Figure(label, "Spearman", one["spearman"])
        yield Figure(label, "split-half", one["split_half"])
        yield Figure(label, "mean error, %", 100 * one["mean_error"])
        yield Figure(label, "simulated / measured", one["median_ratio"])
    rates = [rate for row in summary.get("bandwidth_bytes_per_s") or [] for rate in row if rate]
    if rates:
        text = f"{min(rates) / 1e9:.3g} to {max(rates) / 1e9:.3g} GB/s"
        yield Figure("links, nothing else running", "rate", text)


def stage_three(settings: Settings) -> Findings:
    """Stage III and what it is held against, in turns."""
    summary = yield from _run("stage_three", settings)
    if not summary:
        return
    yield Figure("stage III", "ms", summary["makespan_s"] * 1e3)
    for other, (ratio, low, high) in summary["paired"].items():
        yield Figure(other, "ms", summary["makespan_s"] * 1e3 / ratio)
        yield Figure(other, "stage III's seconds over its", ratio)
        yield Figure(other, "95% interval", f"{low:.3f} to {high:.3f}")
    for gpu, one in summary["gpus"].items():
        text = f"{one['busy']:.0%} busy, {one['memory_bytes'] / 1e9:.3g} GB in use"
        yield Figure(gpu, "use", text)


def _run(name: str, settings: Settings) -> Iterator[Any]:
    """Run a stage; returns its summary, an empty one if it failed."""
    command = [sys.executable, "src/run.py", *overrides(name, settings)]
    done = subprocess.run(command, cwd=PROJECT, stderr=subprocess.PIPE, text=True, encoding="utf-8")
    print(done.stderr, file=sys.stderr, end="")
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        yield Fault(f"python src/run.py ended with {done.returncode}: {reason}")
        return {}
    return json.loads((settings.runs / name / "summary.json").read_text(encoding="utf-8"))
