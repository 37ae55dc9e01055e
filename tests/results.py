"""Finished runs as a run leaves them, made up; and rows of their tables."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
from omegaconf import OmegaConf

from doppler.report.aggregate import summarise
from doppler.report.rows import ResultRow, write_results

ROW = ResultRow(
    method="doppler",
    variant="aaaa",
    workload="chainmm",
    problem="p0",
    cluster="p100x4",
    num_devices=4,
    system="work_conserving",
    system_kind="simulated",
    rules="queue priority",
    queue="priority",
    uses_order=True,
    seed=0,
    evaluations=1000,
    wall_s=1.0,
    makespan_s=0.1,
    jitter_mean_s=0.11,
    jitter_p95_s=0.12,
    lower_bound_s=0.08,
    bound="load",
    gap=0.25,
)


def seeds(makespans: list[float], **changes) -> list[ResultRow]:
    """One row a seed."""
    return [
        replace(ROW, seed=seed, makespan_s=makespan, **changes)
        for seed, makespan in enumerate(makespans)
    ]


def summary(rows: list[ResultRow]) -> pd.DataFrame:
    """Rows averaged over seeds."""
    return summarise(pd.DataFrame(map(vars, rows)))


def leave_run(directory: Path, rows: list[ResultRow], config: dict, **summary) -> Path:
    """A run directory with what reports read."""
    (directory / ".hydra").mkdir(parents=True)
    OmegaConf.save({"workload": {}, **config}, directory / ".hydra/config.yaml")
    write_results(directory / "results.csv", rows)
    head = {"stage": "train", "seed": rows[0].seed, "system_kind": rows[0].system_kind}
    (directory / "summary.json").write_text(json.dumps({**head, **summary}))
    return directory
