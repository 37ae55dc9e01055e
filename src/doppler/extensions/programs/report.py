"""Tables of streams: accuracy and cost of every allocator, over seeds."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from doppler.report.aggregate import differences
from doppler.report.finished import FinishedRun
from doppler.report.text_table import TextTable
from doppler.support.errors import InputError

_KEYS = ("workload", "order", "method", "settings")
_NOTE = "means over seeds, ± their standard deviation; above: percentage points over a random \
mixture of the cheapest and the dearest backend at the same cost"


def stream_tables(runs: Sequence[FinishedRun]) -> list[TextTable]:
    """Return one table of all runs of stage=stream, or no table if there are none.

    Args:
        runs: finished runs, of any stage.

    Raises:
        InputError: the summary of a run lacks what stage=stream writes.
    """
    runs = [run for run in runs if run.summary["stage"] == "stream"]
    if not runs:
        return []
    rows = [_row(run) for run in runs]
    _tell_apart(rows, runs)
    cells = [
        {
            **dict(zip(_KEYS, map(str, keys if isinstance(keys, tuple) else (keys,)), strict=True)),
            "accuracy": _told(group["accuracy"], 100.0, "%"),
            "cost": _told(group["cost"]),
            "above": _told(group["above"], 100.0),
            "n": str(len(group)),
        }
        for keys, group in pd.DataFrame(rows).groupby(list(_KEYS))
    ]
    return [TextTable(title="Streams", note=_NOTE, cells=pd.DataFrame(cells))]


def _tell_apart(rows: Sequence[dict[str, Any]], runs: Sequence[FinishedRun]) -> None:
    """Add to the names of workloads the settings in which those of one name differ."""
    for name in {row["workload"] for row in rows}:
        same = [i for i, row in enumerate(rows) if row["workload"] == name]
        texts = differences([runs[i].config.get("workload") or {} for i in same])
        for i, text in zip(same, texts, strict=True):
            rows[i]["workload"] = f"{name}, {text}" if text else name


def _row(run: FinishedRun) -> dict[str, Any]:
    summary = run.summary
    try:
        mixed = summary["controls"].get("random_mixture")
        accuracy, cost = float(summary["accuracy"]), float(summary["cost"])
        above = float("nan") if mixed is None else accuracy - float(mixed["accuracy"])
        given = dict(run.config["stage"]["allocator"])
        keys = {"workload": summary["workload"], "order": summary["order"]}
        method = str(summary["method"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{run.directory}: not the summary of a stream ({error!r})") from None
    settings = ", ".join(f"{key} {value}" for key, value in given.items() if key != "_target_")
    figures = {"accuracy": accuracy, "cost": cost, "above": above}
    return {**keys, "method": method, "settings": settings, **figures}


def _told(values: "pd.Series[float]", scale: float = 1.0, unit: str = "") -> str:
    mean, spread = scale * values.mean(), scale * values.std()
    if pd.isna(mean):
        return "-"
    digits = 2 if scale > 1 else 3
    return f"{mean:.{digits}f}{unit}" + ("" if pd.isna(spread) else f" ± {spread:.{digits}f}")
