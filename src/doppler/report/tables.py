"""Tables over many runs: what is comparable stands together, what is not stands apart.

A *section* is one kind of system under one set of rules: simulated and measured times, and queues,
never meet in a table.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from doppler.report.finished import FinishedRun, differences
from doppler.report.paper import REFERENCE, ratio_to_reference, synchronous_ratio
from doppler.report.report import SummaryRow
from doppler.report.rows import ResultRow
from doppler.report.table import format_seconds, order_of

Row = SummaryRow | ResultRow
_SPREAD = "mean ± standard deviation over n seeds"
_BOLD = "bold: the best, where it leads by more than the spread"
SIMULATED_CAPTION = (
    f"{_SPREAD}; gap: over the lower bound; "
    f"jitter: 1,000 fresh draws of 5% lognormal noise; {_BOLD}"
)
MEASURED_CAPTION = (
    f"makespan: median over executions in turns, {_SPREAD}; mean, p95: of these executions; {_BOLD}"
)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table as text. bold: (row, column) of cells."""

    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    bold: frozenset[tuple[int, int]] = frozenset()


def section_of(row: Row) -> str:
    """The section that a row belongs to, in words."""
    return f"{row.system_kind} by {row.system} ({row.rules})"


def problem_labels(runs: Sequence[FinishedRun]) -> dict[str, str]:
    """Words for every problem hash; problems of one name are told apart by their settings."""
    named: dict[str, dict[str, FinishedRun]] = defaultdict(dict)
    for run in runs:
        row = run.rows[0]
        devices = "1 device" if row.num_devices == 1 else f"{row.num_devices} devices"
        named[f"{row.workload} on {row.cluster}, {devices}"].setdefault(row.problem, run)
    labels = {}
    for name, of_problem in named.items():
        parts = [
            {key: run.config.get(key, {}) for key in ("workload", "cluster")}
            for run in of_problem.values()
        ]
        for problem, text in zip(of_problem, differences(parts), strict=True):
            labels[problem] = f"{name}, {text}" if text else name
    return labels


def result_tables(table: Sequence[SummaryRow], labels: Mapping[str, str]) -> list[Table]:
    """Per section: an overview where it has several problems, then one table a problem."""
    found = []
    for section, rows in _grouped(table, section_of).items():
        for machine, group in _grouped(rows, lambda row: (row.cluster, row.num_devices)).items():
            problems = _grouped(group, lambda row: row.problem)
            if len(problems) > 1:
                where = f"{machine[0]}, {machine[1]} devices, {section}"
                found.append(_overview(where, problems, labels))
                found.extend(_against_the_paper(where, problems, labels))
        for problem, group in _grouped(rows, lambda row: row.problem).items():
            found.append(_details(f"{labels[problem]}, {section}", group))
    return [*found, *_synchronous(table, labels)]


def leader(rows: Sequence[SummaryRow]) -> SummaryRow | None:
    """The best row, if it leads the best of the other methods by more than either's spread.

    Rows of one training, as ``doppler`` and ``doppler greedy``, are one method here. One seed has
    no spread, and so no leader.
    """
    best = min(rows, key=lambda row: row.makespan_s)
    others = [row for row in rows if row.method.split()[0] != best.method.split()[0]]
    if not others or best.seeds < 2:
        return None
    rival = min(others, key=lambda row: row.makespan_s)
    margin = max(best.spread_s, rival.spread_s, 1e-9 * best.makespan_s)
    return best if rival.makespan_s - best.makespan_s > margin else None


def method_labels(rows: Sequence[SummaryRow]) -> list[str]:
    """Names; settings that differ under one name are told apart by their evaluations, or a hash."""
    settings: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for row in rows:
        settings[row.method].add((row.variant, row.evaluations))

    def label(row: SummaryRow) -> str:
        variants, budgets = map(set, zip(*settings[row.method], strict=True))
        if len(variants) == 1:
            return row.method
        is_told = len(budgets) == len(settings[row.method])
        return f"{row.method}, {row.evaluations:,}" if is_told else f"{row.method} #{row.variant}"

    return [label(row) for row in rows]


def makespan_text(row: SummaryRow) -> str:
    """``41.2 ± 0.3 ms``: mean and spread in one unit."""
    number, unit = format_seconds(row.makespan_s).split()
    if row.seeds < 2:
        return f"{number} {unit}"
    scale = {"s": 1.0, "ms": 1e-3, "us": 1e-6}[unit]
    # Sums in another order differ in their last digits.
    spread_s = row.spread_s if row.spread_s > 1e-9 * row.makespan_s else 0.0
    return f"{number} ± {spread_s / scale:.2g} {unit}"


def _grouped(rows: Sequence[SummaryRow], key: Callable) -> dict:
    groups = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return dict(groups)


def _details(title: str, rows: Sequence[SummaryRow]) -> Table:
    rows = sorted(rows, key=lambda row: row.makespan_s)
    best, reference = leader(rows), next((row for row in rows if row.method == REFERENCE), None)
    is_measured = rows[0].system_kind == "measured"  # and no bound is known
    about = ["mean", "p95"] if is_measured else ["gap", "jitter mean", "jitter p95"]
    columns = ["method", "order", "n", "makespan", *about, "evaluations", "seconds"]
    has_papers = any(_papers(row) for row in rows if row.method != REFERENCE)
    if reference is not None:
        columns += [f"over {REFERENCE}", *(["paper"] if has_papers else [])]
    lines = []
    for row, label in zip(rows, method_labels(rows), strict=True):
        cells = [
            *(label, order_of(row), str(row.seeds), makespan_text(row)),
            *([] if is_measured else [f"{100 * row.gap:.1f}%"]),
            *(format_seconds(row.jitter_mean_s), format_seconds(row.jitter_p95_s)),
            *(f"{row.evaluations:,}", f"{row.wall_s:.1f}"),
        ]
        if reference is not None:
            cells += [_ratio(row, reference), *([_papers(row)] if has_papers else [])]
        lines.append(tuple(cells))
    bound = f"lower bound {format_seconds(rows[0].lower_bound_s)} ({rows[0].bound})"
    return Table(
        title=title,
        note=MEASURED_CAPTION if is_measured else f"{bound}; {SIMULATED_CAPTION}",
        columns=tuple(columns),
        rows=tuple(lines),
        bold=frozenset() if best is None else frozenset({(rows.index(best), 3)}),
    )


def _overview(
    where: str, problems: dict[str, list[SummaryRow]], labels: Mapping[str, str]
) -> Table:
    rows, bold = [], set()
    for i, name in enumerate(_by_gap(problems)):
        cells, orders = [], set()
        for j, group in enumerate(problems.values()):
            row = dict(zip(method_labels(group), group, strict=True)).get(name)
            cells.append("-" if row is None else makespan_text(row))
            if row is not None:
                orders.add(order_of(row))
            if row is not None and row is leader(group):
                bold.add((i, j + 2))
        rows.append((name, ", ".join(sorted(orders)), *cells))
    is_measured = any(row.system_kind == "measured" for group in problems.values() for row in group)
    return Table(
        title=f"Overview: {where}",
        note=MEASURED_CAPTION if is_measured else SIMULATED_CAPTION,
        columns=("method", "order", *_short(problems, labels)),
        rows=tuple(rows),
        bold=frozenset(bold),
    )


def _against_the_paper(
    where: str, problems: dict[str, list[SummaryRow]], labels: Mapping[str, str]
) -> list[Table]:
    """Ratios over the reference method, the paper's beside; none where the paper tells none."""
    references = {
        problem: row
        for problem, group in problems.items()
        for row in group
        if row.method == REFERENCE
    }
    rows = []
    for name in _by_gap(problems):
        cells, known = [name], False
        for problem, group in problems.items():
            row = next((row for row in group if row.method == name), None)
            reference = references.get(problem)
            cells.append("-" if row is None or reference is None else _ratio(row, reference))
            cells.append("-" if row is None else _papers(row) or "-")
            known = known or cells[-1] != "-"
        if known:
            rows.append(tuple(cells))
    if not references or all(row[0] == REFERENCE for row in rows):
        return []
    short = _short(problems, labels)
    return [
        Table(
            title=f"Makespan over that of {REFERENCE}, and the paper's: {where}",
            note="the paper's: measured milliseconds on 4 P100 over those of DOPPLER-SIM",
            columns=("method", *(text for name in short for text in (name, f"{name}, paper"))),
            rows=tuple(rows),
        )
    ]


def _synchronous(table: Sequence[SummaryRow], labels: Mapping[str, str]) -> list[Table]:
    """Bulk-synchronous over work-conserving, for methods that ran on both."""
    systems: dict[tuple, dict[str, SummaryRow]] = defaultdict(dict)
    for row in table:
        if row.system_kind == "simulated":
            systems[row.problem, row.method, row.variant][row.system] = row
    rows = []
    for (problem, method, _), of_system in systems.items():
        if {"bulk_synchronous", "work_conserving"} <= of_system.keys():
            slow, fast = of_system["bulk_synchronous"], of_system["work_conserving"]
            paper = synchronous_ratio(fast.workload, fast.cluster, fast.num_devices, method)
            rows.append(
                (
                    *(labels[problem], method, makespan_text(slow), makespan_text(fast)),
                    f"{slow.makespan_s / fast.makespan_s:.2f}",
                    "-" if paper is None else f"{paper:.2f}",
                )
            )
    if not rows:
        return []
    return [
        Table(
            title="Bulk-synchronous over work-conserving execution",
            note="each method searches for each system; the paper's placements are EnumOpt's",
            columns=("problem", "method", "synchronous", "work-conserving", "ratio", "paper"),
            rows=tuple(rows),
        )
    ]


def training_tables(runs: Sequence[FinishedRun], labels: Mapping[str, str]) -> list[Table]:
    """What an episode of training takes, by graph and method, for each kind of system."""
    kinds: dict[str, dict[tuple[str, int, str], list[FinishedRun]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for run in runs:
        if run.summary.get("episodes_per_s"):
            row = run.rows[0]
            key = labels[row.problem], run.summary["num_ops"], row.method
            kinds[row.system_kind][key].append(run)
    return [
        Table(
            title=f"What an episode of training takes, {kind}",
            note="wall time and memory, medians over runs; memory: the process's largest, all "
            "libraries included",
            columns=("problem", "ops", "method", "runs", "time per episode", "peak memory"),
            rows=tuple(_training_row(key, groups[key]) for key in sorted(groups)),
        )
        for kind, groups in kinds.items()
    ]


def _training_row(key: tuple[str, int, str], runs: Sequence[FinishedRun]) -> tuple[str, ...]:
    label, num_ops, method = key
    seconds = median(1.0 / run.summary["episodes_per_s"] for run in runs)
    peaks = [peak for run in runs if (peak := run.summary.get("peak_memory_bytes"))]
    memory = f"{median(peaks) / 1e6:,.0f} MB" if peaks else "-"
    return (label, f"{num_ops:,}", method, str(len(runs)), format_seconds(seconds), memory)


def _by_gap(problems: dict[str, list[SummaryRow]]) -> list[str]:
    """Names of methods, the smallest mean gap first; those that lack problems come last.

    Over the best method where no bound is known.
    """
    gaps = defaultdict(list)
    for group in problems.values():
        best_s = min(row.makespan_s for row in group)
        for row, label in zip(group, method_labels(group), strict=True):
            gap = row.gap if row.lower_bound_s > 0 else row.makespan_s / best_s - 1.0
            gaps[label].append(gap)
    return sorted(gaps, key=lambda name: (-len(gaps[name]), fmean(gaps[name])))


def _short(problems: Mapping[str, list[SummaryRow]], labels: Mapping[str, str]) -> list[str]:
    """Labels for problems of one machine, which the title names."""
    words = [labels[problem].split(", ") for problem in problems]
    return [", ".join([first.split(" on ")[0], *more[1:]]) for first, *more in words]


def _ratio(row: SummaryRow, reference: SummaryRow) -> str:
    return f"{row.makespan_s / reference.makespan_s:.2f}"


def _papers(row: SummaryRow) -> str:
    """The paper's ratio of a method over the reference; empty where it tells none."""
    ratio = ratio_to_reference(row.workload, row.cluster, row.num_devices, row.method)
    return "" if ratio is None else f"{ratio:.2f}"
