"""Compares makespans with known optima, or with bounds on them."""

from collections.abc import Mapping

import pandas as pd

from doppler.report.aggregate import makespan_text
from doppler.report.rows import format_seconds
from doppler.report.run_table import DOUBT
from doppler.report.text_table import TextTable


def ratio_text(row) -> str:
    """Write the ratio of a row's makespan to the known optimum or bound.

    Args:
        row: of a summary.
    """
    if pd.isna(row.over_optimum):
        return "-"
    return (
        f"{row.over_optimum:.3f}" if row.optimum_is_proven else f"{row.over_optimum:.3f} of a bound"
    )


def optima_table(where: str, rows: pd.DataFrame) -> list[TextTable]:
    """Tabulate mean and worst ratio of every method, for proven optima and for bounds.

    Args:
        where: words for the machine and system.
        rows: of a summary.
    """
    rows = rows[rows["over_optimum"].notna()]  # the optimum of some problems is unknown
    cells = []
    for label, group in rows.groupby("label", sort=False):
        proven, rest = (group[group["optimum_is_proven"] == one]["over_optimum"] for one in (1, 0))
        cells.append(
            {
                **{"method": str(label), "problems": str(len(proven))},
                "mean": f"{proven.mean():.4f}" if len(proven) else "-",
                "worst": f"{proven.max():.3f}" if len(proven) else "-",
                "optimal": f"{100 * (proven <= 1.0).mean():.0f}%" if len(proven) else "-",
                "others": str(len(rest)),
                "mean over bound": f"{rest.mean():.4f}" if len(rest) else "-",
            }
        )
    note = "makespan over the optimum that optimal.csv beside the graph gives, where it is proven; \
of others over the bound"
    title = f"Over known optima: {where}"
    cells.sort(key=lambda one: (one["mean"], one["mean over bound"]))
    return [TextTable(title=title, note=note, cells=pd.DataFrame(cells))] if cells else []


def file_table(where: str, note: str, rows: pd.DataFrame, names: Mapping[str, str]) -> TextTable:
    """Tabulate the makespan of every method by problem, as a ratio if the optimum is known.

    Args:
        where: words for the machine and system.
        note: below the table.
        rows: of a summary, with ``label`` of the method and ``is_best``.
        names: of problems.
    """
    columns = list(dict.fromkeys(rows["label"]))
    cells, bold = [], set()
    for i, (problem, group) in enumerate(rows.groupby("problem", sort=False)):
        of_label = {row.label: row for row in group.itertuples()}
        known = "over_optimum" in group and group["over_optimum"].notna().any()
        first = group.iloc[0]
        line = {"problem": names[str(problem)]}
        if "over_optimum" in rows and rows["over_optimum"].notna().any():
            mark = "" if first.optimum_is_proven else "at least "
            line["optimum"] = f"{mark}{format_seconds(first.optimum_s)}" if known else "-"
        for label in columns:
            row = of_label.get(label)
            if row is None:
                line[label] = "-"
            else:
                line[label] = f"{row.over_optimum:.3f}" if known else makespan_text(row)
                line[label] += DOUBT if row.doubt else ""
                if row.is_best:
                    bold.add((i, len(line) - 1))
        cells.append(line)
    return TextTable(
        title=f"Overview: {where}", note=note, cells=pd.DataFrame(cells), bold=frozenset(bold)
    )
