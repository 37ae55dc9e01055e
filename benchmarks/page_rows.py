"""Rows of docs/results/data, and tables of them in Markdown."""

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import pandas as pd

from doppler.report.aggregate import over_controls

PROJECT = Path(__file__).resolve().parents[1]
DATA = PROJECT / "docs/results/data"
# Columns that are numbers in every file of `doppler report`; others stay as they are written.
_NUMBERS = (
    "makespan_s",
    "spread_s",
    "log_mean",
    "log_spread",
    "seeds",
    "gap",
    "over_control",
    "over_control_low",
    "over_control_high",
)


@cache
def read(file: str) -> pd.DataFrame:
    """The rows of a file as texts; in those of `doppler report`, `_NUMBERS` are numbers."""
    table = pd.read_csv(DATA / f"{file}.csv", dtype=str, keep_default_na=False)
    if "is_control" in table:
        table = table.join(_over_controls(file))
    if "system_kind" in table:
        numbers = [name for name in _NUMBERS if name in table]
        table[numbers] = table[numbers].apply(pd.to_numeric)
    return table


def _over_controls(file: str) -> pd.DataFrame:
    """Each row over the strongest method without learning, with the interval of the ratio."""
    table = pd.read_csv(DATA / f"{file}.csv")
    groups = [group for _, group in table.groupby(["system", "rules", "problem"], sort=False)]
    return pd.DataFrame(
        [
            (ratio.value, ratio.low, ratio.high)
            for group in groups
            for ratio in filter(None, over_controls(group))
        ],
        columns=["over_control", "over_control_low", "over_control_high"],
        index=[index for group in groups for index in group.index],
    )


def rows_with(table: pd.DataFrame, **keys: str) -> pd.DataFrame:
    """The rows whose columns have these values."""
    for column, wanted in keys.items():
        table = table[table[column] == wanted]
    return table


def one_row(table: pd.DataFrame, **keys: str) -> pd.Series:
    """The row whose columns have these values.

    Raises:
        ValueError: no row has them, or several.
    """
    table = rows_with(table, **keys)
    if len(table) != 1:
        raise ValueError(f"{len(table)} rows have {keys}, not one")
    return table.iloc[0]


def result_row(file: str, workload: str, method: str, *conditions: str) -> pd.Series:
    """A row of a comparison; conditions are further ``COLUMN=VALUE``."""
    keys = dict(condition.split("=", 1) for condition in conditions)
    return one_row(read(file), workload=workload, method=method, **keys)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[object]], words: int = 1) -> str:
    """A table in Markdown; columns after the first `words` are numbers, on the right."""
    lines = [head, ["---"] * words + ["---:"] * (len(head) - words), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)
