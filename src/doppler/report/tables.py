"""Makes tables of text from a summary of runs; only comparable rows share a table."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any, cast

import numpy as np
import pandas as pd

from doppler.report.aggregate import (
    COMPARABLE,
    SETTINGS,
    budgets_of,
    leader,
    makespan_text,
    over_controls,
    section_of,
    verdict,
)
from doppler.report.fidelity import CORRELATIONS, format_correlation
from doppler.report.finished import FinishedRun
from doppler.report.optima import file_table, optima_table, ratio_text
from doppler.report.paired import PairedRatio
from doppler.report.published_figures import (
    PAPER_SYNCHRONOUS_MS,
    REFERENCE,
    is_papers_machine,
    paper_ratio,
    papers_method,
)
from doppler.report.rows import ResultRow, format_seconds
from doppler.report.run_table import DOUBT
from doppler.report.sources import SOURCES_NOTE
from doppler.report.text_table import MANY, TextTable
from doppler.report.units import Unit, unit_of

_SPREAD = "mean ± standard deviation over n seeds"
_INTERVAL = "95% interval over seeds (Welch, of logarithms)"
_BOLD = "bold: the best, where the 95% interval of its lead leaves no doubt"
_SIMULATED = (
    f"{_SPREAD}; gap: over the lower bound; "
    f"jitter: 1,000 fresh draws of 5% lognormal noise; {_BOLD}"
)
_MEASURED = (
    f"Makespan: median over executions in turns, {_SPREAD}; mean, p95: of these executions; {_BOLD}"
)


def result_tables(table: pd.DataFrame, labels: Mapping[str, str]) -> list[TextTable]:
    """Return, per section, an overview if it has several problems, then one table per problem.

    A *section* is one kind of system under one set of rules. If optima are known or problems are
    many, one table has a row per problem. Many problems have no tables of their own.

    Args:
        table: as `summarise` makes it.
        labels: words for every problem hash.
    """
    found = []
    for section, rows in table.groupby("section", sort=False):
        is_known, num = _has_optima(rows), rows["problem"].nunique()
        if num > MANY or (is_known and num > 1):
            found += _by_problem(str(section), rows, labels)
            if num > MANY:
                continue
        for (cluster, num_devices), group in rows.groupby(["cluster", "num_devices"], sort=False):
            if group["problem"].nunique() > 1 and not is_known:
                where = f"{cluster}, {num_devices} devices, {section}"
                found.append(_overview(where, group, labels))
                found += _ratios(where, group, labels)
        for problem, group in rows.groupby("problem", sort=False):
            found.append(_details(f"{labels[str(problem)]}, {section}", group))
    return [*found, *_synchronous(table, labels)]


def method_labels(rows: pd.DataFrame) -> list[str]:
    """Return names of methods; equal names are told apart by budget or a hash of settings.

    Args:
        rows: of a summary.
    """
    settings = rows.groupby("method", sort=False)
    variants, budgets = settings["variant"].nunique(), settings["budget"].nunique()
    pairs = rows.drop_duplicates(["method", "variant", "budget"])["method"].value_counts()
    own_budgets = rows.groupby(["method", "variant"])["budget"].nunique()

    def label(row) -> str:
        if variants[row.method] == budgets[row.method] == 1:
            return row.method
        if budgets[row.method] == pairs[row.method]:
            return f"{row.method}, {row.budget:,}"
        name = f"{row.method} #{row.variant}"
        return name if own_budgets[row.method, row.variant] == 1 else f"{name}, {row.budget:,}"

    return [label(row) for row in rows.itertuples()]


def _labels_of(runs: Sequence[FinishedRun]) -> dict[tuple[Any, ...], str]:
    """The labels of rows of some runs in tables of results, by `_key_of` each row."""
    rows = pd.DataFrame([vars(row) for run in runs for row in run.rows])
    if rows.empty:
        return {}
    once = rows.assign(budget=budgets_of(rows))[SETTINGS].drop_duplicates()
    return {
        tuple(getattr(row, name) for name in SETTINGS): label
        for _, group in once.groupby(COMPARABLE, sort=False)
        for row, label in zip(group.itertuples(), method_labels(group), strict=True)
    }


def _key_of(row: ResultRow) -> tuple[Any, ...]:
    """The values of SETTINGS that the row has in a summary."""
    return tuple(row.allowed if name == "budget" else getattr(row, name) for name in SETTINGS)


def _details(title: str, rows: pd.DataFrame) -> TextTable:
    """All methods of one problem on one system, the best first."""
    rows = rows.sort_values("makespan_s", kind="stable")
    lead, first = leader(rows), rows.iloc[0]
    is_measured = first.system_kind == "measured"  # then no bound is known
    unit = unit_of(rows["makespan_s"])
    columns: dict[str, Iterable[str]] = {
        "method": _with_doubts(method_labels(rows), rows),
        f"makespan, {unit.name}": (_in(unit, row) for row in rows.itertuples()),
    }
    if not is_measured:
        columns["gap"] = (_percent(gap) for gap in rows["gap"])
    columns |= {"found by": _found_by(rows), "order": rows["order"], "n": map(str, rows["seeds"])}
    if _has_optima(rows):
        columns["over optimum"] = map(ratio_text, rows.itertuples())
    prefix = "" if is_measured else "jitter "
    columns[f"{prefix}mean, {unit.name}"] = map(unit.text, rows["jitter_mean_s"])
    columns[f"{prefix}p95, {unit.name}"] = map(unit.text, rows["jitter_p95_s"])
    columns["evaluations"] = (f"{number:,}" for number in rows["evaluations"])
    columns["search, s"] = (f"{seconds:.1f}" for seconds in rows["wall_s"])
    if not rows["is_control"].all() and rows["is_control"].any():
        ratios = list(map(str, over_controls(rows)))
        columns["over the best control"] = _with_doubts(ratios, _with_doubts_of_controls(rows))
    doppler = rows[rows["method"].map(papers_method) == REFERENCE]
    if len(doppler):  # with our search, if there is such a row
        base = doppler.sort_values("method", kind="stable").iloc[0]
        columns[f"over {base.method}"] = (_ratio(one, base.makespan_s) for one in rows.makespan_s)
        papers = [paper_ratio(row) for row in rows.itertuples()]
        if any(text and i not in doppler.index for i, text in zip(rows.index, papers, strict=True)):
            columns["paper"] = papers
    bound = f"Lower bound {format_seconds(first.lower_bound_s)} ({first.bound})"
    return TextTable(
        title=title,
        note=f"{verdict(rows)}. {_doubted(rows)}"
        + (_MEASURED if is_measured else f"{bound}; {_SIMULATED}")
        + f"; {SOURCES_NOTE}",
        cells=pd.DataFrame({name: list(cells) for name, cells in columns.items()}),
        bold=frozenset({(0, 1)} if lead.is_beyond else ()),
        marked=frozenset(_learned(rows)),
    )


def _in(unit: Unit, row: Any) -> str:
    """The makespan of a row in the unit of its column."""
    if row.seeds < 2:
        return unit.text(row.makespan_s)
    return unit.text_with_spread(row.makespan_s, row.spread_s)


def _found_by(rows: pd.DataFrame) -> list[str]:
    """What found the placements of each row, or which earlier row has the same ones."""
    labels, texts = method_labels(rows), []
    for i, (placements, words) in enumerate(zip(rows["placements"], rows["found_by"], strict=True)):
        earlier = (labels[j] for j in range(i) if rows["placements"].iloc[j] == placements)
        twin = next(earlier, None) if placements else None
        texts.append(words if twin is None else f"same placement as {twin}")
    return texts


def _with_doubts(texts: list[str], rows: pd.DataFrame) -> list[str]:
    """A text for each row, with a mark where its measurements cannot be trusted."""
    return [
        text + (DOUBT if doubt else "") for text, doubt in zip(texts, rows["doubt"], strict=True)
    ]


def _doubted(rows: pd.DataFrame) -> str:
    doubts = ", ".join(dict.fromkeys(filter(None, rows["doubt"])))
    return f"(!): do not trust these rows, {doubts}. " if doubts else ""


def _learned(rows: pd.DataFrame) -> list[int]:
    """Rows of methods that learn, if there are others to compare with."""
    if rows["is_control"].all() or not rows["is_control"].any():
        return []
    return [i for i, is_control in enumerate(rows["is_control"]) if not is_control]


def _overview(where: str, rows: pd.DataFrame, labels: Mapping[str, str]) -> TextTable:
    """Makespans of all methods on all problems of one machine."""
    rows = _labelled(rows)
    units = {str(key): unit_of(group["makespan_s"]) for key, group in rows.groupby("problem")}
    texts = [_in(units[str(row.problem)], row) for row in rows.itertuples()]
    rows["text"] = _with_doubts(texts, rows)
    names, problems = _by_gap(rows), rows["problem"].unique()
    grid = rows.drop_duplicates(["label", "problem"]).set_index(["label", "problem"])
    cells = grid["text"].unstack().reindex(index=names, columns=problems).fillna("-")
    best = grid["is_best"].unstack(fill_value=False).reindex(index=names, columns=problems)
    orders = rows.groupby("label")["order"].agg(lambda column: ", ".join(sorted(set(column))))
    short = _short(problems, labels)
    cells.columns = [
        f"{name}, {units[str(key)].name}" for name, key in zip(short, problems, strict=True)
    ]
    cells.insert(0, "order", orders)
    of_controls = set(rows.loc[rows["is_control"], "label"])
    is_measured = (rows["system_kind"] == "measured").any()
    return TextTable(
        title=f"Overview: {where}",
        note=_doubted(rows) + (_MEASURED if is_measured else _SIMULATED),
        cells=cells.rename_axis("method").reset_index(),
        bold=frozenset((i, j + 2) for i, j in np.argwhere(best.to_numpy()).tolist()),
        marked=frozenset(
            i for i, name in enumerate(names) if of_controls and name not in of_controls
        ),
    )


def _ratios(where: str, rows: pd.DataFrame, labels: Mapping[str, str]) -> list[TextTable]:
    """All methods on all problems of one machine, relative to the best control of each."""
    parts = [
        group.assign(
            label=method_labels(group),
            text=_with_doubts(
                list(map(str, over_controls(group))), _with_doubts_of_controls(group)
            ),
        )
        for _, group in rows.groupby("problem", sort=False)
        if group["is_control"].any() and not group["is_control"].all()
    ]
    if not parts:
        return []
    rows = pd.concat(parts)
    grid = rows.drop_duplicates(["label", "problem"]).set_index(["label", "problem"])["text"]
    cells = grid.unstack().reindex(index=_by_gap(rows), columns=rows["problem"].unique())
    cells.columns = _short(cells.columns, labels)
    note = f"{_doubted(rows)}Makespan over that of the best control, which learns nothing, "
    note += _INTERVAL
    cells = cells.fillna("-").rename_axis("method").reset_index()
    return [TextTable(title=f"Over the best control: {where}", note=note, cells=cells)]


def _with_doubts_of_controls(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of one problem, all doubted if a control is: their ratios may be to this control."""
    doubts = list(filter(None, rows.loc[rows["is_control"], "doubt"]))
    return rows.assign(doubt=rows["doubt"].replace("", doubts[0])) if doubts else rows


def _labelled(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with a label of the method, and whether it is the best of its problem."""
    parts = []
    for _, group in rows.groupby("problem", sort=False):
        lead = leader(group)
        is_best = (group.index == lead.best.name) & lead.is_beyond
        parts.append(group.assign(label=method_labels(group), is_best=is_best))
    return pd.concat(parts)


def _has_optima(rows: pd.DataFrame) -> bool:
    return "over_optimum" in rows and bool(rows["over_optimum"].notna().any())


def _by_problem(where: str, rows: pd.DataFrame, labels: Mapping[str, str]) -> list[TextTable]:
    """The tables that replace the overview if problems are many or have known optima."""
    rows = _labelled(rows)
    names = _by_gap(rows)
    rows["label"] = pd.Categorical(rows["label"], names, ordered=True)
    rows = rows.sort_values(["workload", "num_devices", "problem", "label"], kind="stable")
    rows["label"] = rows["label"].astype(str)
    is_measured = (rows["system_kind"] == "measured").any()
    optima = optima_table(where, rows) if _has_optima(rows) else []
    note = _doubted(rows) + (_MEASURED if is_measured else _SIMULATED)
    return [*optima, file_table(where, note, rows, labels)]


def _synchronous(table: pd.DataFrame, labels: Mapping[str, str]) -> list[TextTable]:
    """Bulk-synchronous over work-conserving makespans, for methods that ran on both.

    Both makespans were found with as many evaluations, and with the same jitter.
    """
    simulated = table[table["system_kind"] == "simulated"]
    if simulated.empty:
        return []
    simulated = simulated.assign(noise=simulated["rules"].map(_noise_of))
    parts = simulated.groupby(["problem", "system", "rules"], sort=False)
    labelled = [part.assign(label=method_labels(part)) for _, part in parts]
    simulated = pd.concat(labelled)
    same = ["problem", "method", "variant", "budget", "noise"]
    rows = []
    for _, group in simulated.groupby(same, sort=False):
        slow, fast = (
            list(cast(Any, group[group["system"] == system].itertuples()))
            for system in ("bulk_synchronous", "work_conserving")
        )
        for one, other in product(slow, fast):
            told = PAPER_SYNCHRONOUS_MS.get(other.workload, ())
            known = told and other.method == "enumerative" and is_papers_machine(other)
            rules = f" ({other.rules})" if len(fast) > 1 else ""
            rows.append(
                {
                    **{"problem": labels[other.problem], "method": f"{other.label}{rules}"},
                    "synchronous": makespan_text(one),
                    "work-conserving": makespan_text(other),
                    "ratio": _ratio(one.makespan_s, other.makespan_s),
                    "paper": _ratio(*told) if known else "-",
                }
            )
    note = "each method searches for each system; the paper's placements are EnumOpt's"
    return _table_of("Bulk-synchronous over work-conserving execution", note, rows)


def _noise_of(rules: str) -> str:
    """The jitter in the rules of a simulator, with which both systems must have been searched."""
    return next((rule for rule in rules.split(", ") if rule.startswith("noise ")), "")


def training_tables(runs: Sequence[FinishedRun], labels: Mapping[str, str]) -> list[TextTable]:
    """Return time and memory of an episode of training, by graph and method, per section.

    Args:
        runs: only those that trained are told.
        labels: words for every problem hash.
    """
    names = _labels_of(runs)
    rows = [
        {
            "section": section_of(run.rows[0]),
            "problem": labels[run.rows[0].problem],
            "ops": run.summary["num_ops"],
            "method": names[_key_of(run.rows[0])],
            "key": _key_of(run.rows[0]),
            "seconds": 1.0 / run.summary["episodes_per_s"],
            "bytes": run.summary.get("peak_memory_bytes", np.nan),
        }
        for run in runs
        if run.summary.get("episodes_per_s") and "num_ops" in run.summary
    ]
    note = "wall time and memory, medians over runs; memory: the process's largest, all libraries \
included"
    tables = []
    for section, group in pd.DataFrame(rows).groupby("section", sort=False) if rows else ():
        of_method = group.groupby(["problem", "ops", "method", "key"], as_index=False)
        medians = of_method.agg(
            runs=("seconds", "size"), seconds=("seconds", "median"), bytes=("bytes", "median")
        )
        cells = [
            {
                **{"problem": problem, "ops": f"{ops:,}", "method": method, "runs": str(num)},
                "time per episode": format_seconds(seconds),
                "peak memory": "-" if np.isnan(size) else f"{size / 1e6:,.0f} MB",
            }
            for problem, ops, method, _, num, seconds, size in medians.itertuples(index=False)
        ]
        tables += _table_of(f"What an episode of training takes, {section}", note, cells)
    return tables


def turns_tables(runs: Sequence[FinishedRun], labels: Mapping[str, str]) -> list[TextTable]:
    """Return, per problem and section, the ratios of methods that one run measured in turns.

    Args:
        runs: only those with paired ratios are told.
        labels: words for every problem hash.
    """
    names = _labels_of(runs)
    # Keys are those of rows; methods of another system, as the synchronous one, have only names.
    pairs: dict[tuple[str, str], dict[tuple[Any, Any], list[PairedRatio]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for run in runs:
        where = run.rows[0].problem, section_of(run.rows[0])
        keys: dict[str, Any] = {row.method: _key_of(row) for row in run.rows}
        for one in run.paired:
            first, second = (keys.get(name, name) for name in (one.method, one.other))
            pairs[where][first, second].append(one)

    def mean(ratios: Sequence[PairedRatio], of: Callable[[PairedRatio], float]) -> float:
        return float(np.mean([of(one) for one in ratios]))

    note = "below 1 the first is faster; mean over n seeds of medians over rounds in which both \
ran; the interval holds the 95% bootstrap intervals of all seeds"
    tables = []
    for (problem, section), of_problem in pairs.items():
        cells = [
            {
                "method": " / ".join(str(names.get(key, key)) for key in pair),
                "n": str(len(ratios)),
                "ratio": f"{mean(ratios, lambda x: x.ratio):.3f}",
                "95% intervals": f"{min(one.low for one in ratios):.3f} to "
                f"{max(one.high for one in ratios):.3f}",
                "the first": format_seconds(mean(ratios, lambda x: x.method_s)),
                "the second": format_seconds(mean(ratios, lambda x: x.other_s)),
            }
            for pair, ratios in of_problem.items()
        ]
        tables += _table_of(f"Measured in turns: {labels[problem]}, {section}", note, cells)
    return tables


def fidelity_tables(runs: Sequence[FinishedRun]) -> list[TextTable]:
    """Return how simulated seconds compare with measured ones, by problem and cost model.

    Args:
        runs: calibrations.
    """
    cells = [
        {
            "problem": f"{run.summary['workload']} on {run.summary['cluster']}, "
            f"{run.summary['num_devices']} devices",
            "simulated with": label,
            "seed": str(run.summary["seed"]),
            "placements": str(one["placements"]),
            **{word: format_correlation(one.get(name)) for name, word in CORRELATIONS.items()},
            "error": f"{100 * one['mean_error']:.1f}%",
            "ratio": f"{one['median_ratio']:.2f}",
        }
        for run in runs
        for label, one in run.summary.get("fidelity", {}).items()
    ]
    note = "of placements of different quality, measured in rounds, changes of the machine's speed \
taken out; split-half: Spearman of the even rounds with the odd ones; error: mean |simulated - \
measured| / measured; ratio: median of simulated over measured"
    return _table_of("Simulated against measured seconds", note, cells)


def _table_of(title: str, note: str, cells: list[dict[str, str]]) -> list[TextTable]:
    return [TextTable(title=title, note=note, cells=pd.DataFrame(cells))] if cells else []


def _by_gap(rows: pd.DataFrame) -> list[str]:
    """Labels of methods, the smallest mean gap first; those that lack problems come last.

    If no bound is known, the gap is that to the best method.
    """
    best_s = rows.groupby("problem")["makespan_s"].transform("min")
    over_best = rows["makespan_s"] / best_s.where(best_s > 0, 1.0) - 1.0
    gap = rows["gap"].where(rows["lower_bound_s"] > 0, over_best)
    gaps = gap.groupby(rows["label"], sort=False).agg(["size", "mean"])
    return gaps.sort_values(["size", "mean"], ascending=[False, True], kind="stable").index.tolist()


def _short(problems: Iterable[str], labels: Mapping[str, str]) -> list[str]:
    """Short labels for problems of one machine, which the title names."""
    words = [labels[problem].split(", ") for problem in problems]
    return [", ".join([first.split(" on ")[0], *more[1:]]) for first, *more in words]


def _ratio(one_s: float, other_s: float | None) -> str:
    return f"{one_s / other_s:.2f}" if other_s else "-"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%" if np.isfinite(share) else "-"
