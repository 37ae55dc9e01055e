"""Averages the rows of finished runs over seeds, and sums up what they show.

Only rows that agree in all columns of COMPARABLE may be compared: simulated and measured seconds,
queues and problems are never mixed. Means are over rows that agree in all columns of SETTINGS.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from doppler.report.finished import FinishedRun, find_runs
from doppler.report.intervals import Ratio, ratio_of
from doppler.report.rows import format_seconds, gap_over, order_of
from doppler.report.sources import found_by_seeds
from doppler.report.units import unit_of
from doppler.support.errors import InputError

COMPARABLE = ["system_kind", "system", "rules", "queue"]
COMPARABLE += ["workload", "cluster", "num_devices", "problem"]
SETTINGS = [*COMPARABLE, "method", "variant", "uses_order", "budget"]
# Columns of `frame_of` that are the same in all rows of a problem.
_OF_PROBLEMS = ("problem_settings", "optimum_s", "optimum_is_proven")
_NAMED = 4  # problems that a sentence on many problems names


def collect(folders: Iterable[Path]) -> pd.DataFrame:
    """Return all result rows of the readable runs in some folders.

    Args:
        folders: searched recursively.

    Returns:
        A table as `frame_of` makes it.

    Raises:
        InputError: a folder does not exist, or no run can be read.
    """
    return frame_of(find_runs(folders)[0])


def frame_of(runs: Iterable[FinishedRun]) -> pd.DataFrame:
    """Return all result rows of some runs.

    Args:
        runs: whose rows are collected.

    Returns:
        A column per field of `ResultRow`, and more from the runs. ``is_control``: the method learns
        nothing (`FinishedRun.controls`). ``run_budget``: executions that the run allowed each
        method, 0 if unknown. ``optimum_s``: the known optimum, a bound if ``optimum_is_proven`` is
        false, NaN if unknown. ``problem_settings``: the settings in which problems of one name
        differ (``memory_bytes=2000000000.0``), empty if no other has its name. ``directory``: of
        the run.
    """
    runs = list(runs)
    settings = _settings_of_problems(runs)
    return pd.DataFrame(
        [
            {
                **vars(row),
                "problem_settings": settings[row.problem][1],
                "is_control": row.method in run.controls,
                "run_budget": run.budget,
                "optimum_s": run.summary.get("optimum_s", math.nan),
                "optimum_is_proven": run.summary.get("optimum_is_proven", False),
                "directory": str(run.directory),
            }
            for run in runs
            for row in run.rows
        ]
    )


def _over(makespan_s: pd.Series, optimum_s: pd.Series) -> pd.Series:
    """Ratios, NaN if unknown; differences by rounding are ignored."""
    ratio = (makespan_s + 1e-300) / (optimum_s + 1e-300)
    return ratio.mask((ratio - 1.0).abs() <= 1e-9, 1.0)


def summarise(rows: pd.DataFrame) -> pd.DataFrame:
    """Average over seeds; a seed that occurs in several runs counts once.

    Args:
        rows: as `frame_of` makes them.

    Returns:
        A row per combination of SETTINGS, sorted by COMPARABLE and makespan. Besides means it has
        ``seeds`` (their number), ``evaluations`` (their mean), ``spread_s`` (standard deviation
        over seeds, 0 for one), mean and standard deviation of the logarithm, the largest lower
        bound known to any run of the same problem and system, the gap to it, the known optimum,
        ``over_optimum`` (makespan over it, NaN if unknown), ``found_by`` (the steps that found the
        placements, in words), ``placements`` (a text per seed that identifies its placement) and
        ``doubt`` (why measurements cannot be trusted).

    Raises:
        InputError: two simulated runs of one seed disagree; measured ones may.
    """
    rows = rows.assign(budget=budgets_of(rows))
    once = rows.drop_duplicates([*SETTINGS, "seed", "makespan_s"])
    again = once.duplicated([*SETTINGS, "seed"]) & (once["system_kind"] == "simulated")
    if again.any():
        row = once[again].iloc[0]
        same = (once[[*SETTINGS, "seed"]] == row[[*SETTINGS, "seed"]]).all(axis=1)
        texts = [f"{seconds:g} s" for seconds in once[same]["makespan_s"]]
        if "directory" in once:
            texts = [f"{a} ({b})" for a, b in zip(texts, once[same]["directory"], strict=True)]
        raise InputError(
            f"{row['method']} on {row['workload']}, seed {row['seed']}: runs that a report cannot "
            f"tell apart give {' and '.join(texts)}"
        )
    once = once.drop_duplicates([*SETTINGS, "seed"])
    once = once.assign(
        log_s=np.log(once["makespan_s"].where(once["makespan_s"] > 0)),
        key=once["seed"].astype(str) + ":" + once["placement"],
        is_control=once["is_control"] if "is_control" in once else False,
    )
    means = {name: (name, "mean") for name in ("jitter_mean_s", "jitter_p95_s", "wall_s")}
    table = once.groupby(SETTINGS, sort=False, as_index=False).agg(
        seeds=("seed", "size"),
        evaluations=("evaluations", lambda numbers: round(numbers.mean())),
        makespan_s=("makespan_s", "mean"),
        spread_s=("makespan_s", "std"),
        log_mean=("log_s", "mean"),
        log_spread=("log_s", "std"),
        is_control=("is_control", "any"),
        found_by=("source", found_by_seeds),
        placements=("key", lambda keys: frozenset(key for key in keys if not key.endswith(":"))),
        doubt=("doubt", lambda doubts: ", ".join(dict.fromkeys(filter(None, doubts)))),
        **means,
        **{name: (name, "first") for name in _OF_PROBLEMS if name in once},
    )
    spreads = ["spread_s", "log_spread"]
    table[spreads] = table[spreads].fillna(0.0)
    bounds = once.sort_values("lower_bound_s").drop_duplicates(COMPARABLE, keep="last")
    table = table.merge(bounds[[*COMPARABLE, "lower_bound_s", "bound"]], on=COMPARABLE)
    table["gap"] = list(map(gap_over, table["lower_bound_s"], table["makespan_s"]))
    if "optimum_s" in table:
        table["over_optimum"] = _over(table["makespan_s"], table["optimum_s"])
    table = table.sort_values([*COMPARABLE, "makespan_s"], kind="stable", ignore_index=True)
    sections = map(section_of, table.itertuples())
    order = map(order_of, table["queue"], table["uses_order"])
    return table.assign(section=list(sections), order=list(order))


def budgets_of(rows: pd.DataFrame) -> pd.Series:
    """Return the executions that each row was allowed.

    Args:
        rows: as `frame_of` makes them.
    """
    return rows["budget"].where(rows["budget"] > 0, rows["evaluations"])


def section_of(row: Any) -> str:
    """Say which kind of system a row is from and under which rules it executes.

    Args:
        row: of a run or of a summary.
    """
    return f"{row.system_kind} by {row.system} ({row.rules})"


def over_controls(rows: pd.DataFrame) -> list[Ratio | None]:
    """Compare each row of one problem and system with its strongest control.

    If a control has several budgets, the largest one that does not exceed the row's counts, else
    the smallest. The strongest control is chosen by its mean, which flatters it a little.

    Args:
        rows: as `summarise` makes them.

    Returns:
        The ratio to the control for each row; None for controls.
    """
    by = "budget" if "budget" in rows else "evaluations"  # rows of earlier versions
    controls = rows[rows["is_control"]].sort_values(by)

    def strongest(budget: int) -> pd.Series:
        fair = controls[controls[by] <= budget].drop_duplicates("method", keep="last")
        least = controls.drop_duplicates("method")
        fair = pd.concat([fair, least[~least["method"].isin(fair["method"])]])
        return fair.iloc[int(fair["makespan_s"].to_numpy().argmin())]

    if controls.empty:
        return [None] * len(rows)
    return [ratio_of(row, strongest(getattr(row, by))) for row in cast(Any, rows.itertuples())]


@dataclass(frozen=True, eq=False, kw_only=True)
class Lead:
    """The best row of a problem and system, and the best row of another method.

    Rows of one training, such as ``doppler`` and ``doppler greedy``, count as one method here.

    Attributes:
        best: the best row.
        rival: the best row of another method; None if there is none.
        ratio: of the rival's makespan over the best.
        is_level: whether both makespans are equal, except for rounding.
    """

    best: pd.Series
    rival: pd.Series | None
    ratio: Ratio | None = None
    is_level: bool = False

    @property
    def is_beyond(self) -> bool:
        """Whether the 95% interval of the ratio excludes 1; with one seed there is no interval."""
        return self.ratio is not None and self.ratio.is_above_one

    def won_by(self, method: str) -> bool:
        """Whether the method leads, by however little."""
        return family(self.best.method) == method and not self.is_level

    @property
    def rival_name(self) -> str:
        """Name of the rival."""
        return "nothing" if self.rival is None else str(self.rival.method)

    @property
    def longer(self) -> str:
        """By how much the rival takes longer: ``1.3%``."""
        if self.rival is None or self.best.makespan_s <= 0:
            return "-"
        share = self.rival.makespan_s / self.best.makespan_s - 1.0
        return f"{100 * share:.1f}%" if share >= 0.001 else "less than 0.1%"


def leader(rows: pd.DataFrame) -> Lead:
    """Find the best row and its rival.

    Args:
        rows: of one problem and system, as `summarise` makes them.
    """
    rows = rows.sort_values("makespan_s", kind="stable")
    best = rows.iloc[0]
    others = rows[rows["method"].map(family) != family(best.method)]
    if others.empty:
        return Lead(best=best, rival=None)
    rival = others.iloc[0]
    ahead_s, rounding_s = rival.makespan_s - best.makespan_s, 1e-9 * best.makespan_s
    is_level = not ahead_s > rounding_s
    return Lead(best=best, rival=rival, ratio=ratio_of(rival, best), is_level=is_level)


def family(method: str) -> str:
    """Return the method that a row belongs to: ``doppler`` for ``doppler greedy``.

    Args:
        method: name in the row.
    """
    return method.split(" ")[0]


def verdict(rows: pd.DataFrame) -> str:
    """Say in one sentence which method is best, by how much and how surely.

    Args:
        rows: of one problem and system, as `summarise` makes them.
    """
    lead = leader(rows)
    best, rival = lead.best, lead.rival
    ours = _told(best)
    if rival is None:
        return f"{best.method} takes {ours}; there is no other method to compare it with"
    against = _told(rival)
    if lead.is_level:
        return f"{best.method} ({ours}) and {rival.method} ({against}) are level"
    sure = f"95% interval of the ratio {lead.ratio}"
    if min(best.seeds, rival.seeds) < 2:
        sure = "one seed tells no interval"
    elif not lead.is_beyond:
        sure += ", so no lead is shown"
    return (
        f"{best.method} is best ({ours}); the strongest other method, {rival.method}, takes "
        f"{lead.longer} longer ({against}): {sure}"
    )


def verdicts(table: pd.DataFrame, labels: dict[str, str]) -> str:
    """Say in one sentence which methods are best on which problems, and how surely.

    Args:
        table: as `summarise` makes it.
        labels: words for every problem hash.
    """
    groups = list(table.groupby(COMPARABLE, sort=False))
    if len(groups) == 1:
        rows = groups[0][1]
        return f"{labels[rows['problem'].iloc[0]]}: {verdict(rows)}."
    leads = [leader(rows) for _, rows in groups]
    what = "problems" if len({key[-1] for key, _ in groups}) == len(groups) else "comparisons"
    firsts = Counter(family(lead.best.method) for lead in leads if not lead.is_level)
    parts = [
        f"{method} is best on {count}{_sureness([x for x in leads if x.won_by(method)])}"
        for method, count in firsts.most_common()
    ]
    if level := sum(lead.is_level for lead in leads):
        parts.append(f"the best two methods are level on {level}")
    low, high = int(table["seeds"].min()), int(table["seeds"].max())
    seeds = f"{low} to {high} seeds" if low < high else f"{low} seed" + "s" * (low > 1)
    return (
        f"Of {len(groups)} {what}, each against the strongest other method, with {seeds}: "
        f"{'; '.join(parts)}."
    )


def _sureness(leads: Sequence[Lead]) -> str:
    """Words for how sure the leads of one method are."""
    sure = [lead for lead in leads if lead.is_beyond]
    if not sure:
        seeds = any(lead.best.seeds > 1 for lead in leads)
        return ", nowhere surely" if seeds else ", by one seed, without an interval"
    shown = [f"{x.best.workload} by {x.longer} over {x.rival_name}" for x in sure[:_NAMED]]
    more = f", and {len(sure) - _NAMED} more" if len(sure) > _NAMED else ""
    return f", surely on {len(sure)} ({', '.join(shown)}{more})"


def _told(row: pd.Series) -> str:
    return f"{makespan_text(row)}, {row.evaluations:,} evaluations, n={row.seeds}"


def makespan_text(row: Any) -> str:
    """Write the makespan of a row: ``41.20 ± 0.31 ms``, mean and spread in one unit.

    Args:
        row: of a summary.
    """
    if row.seeds < 2:
        return format_seconds(row.makespan_s)
    unit = unit_of([row.makespan_s])
    return f"{unit.text_with_spread(row.makespan_s, row.spread_s)} {unit.name}"


def problem_labels(runs: Sequence[FinishedRun]) -> dict[str, str]:
    """Return words for every problem hash; problems with one name are told apart by settings.

    Args:
        runs: on the problems.
    """
    return {
        problem: ", ".join(filter(None, words))
        for problem, words in _settings_of_problems(runs).items()
    }


def _settings_of_problems(runs: Sequence[FinishedRun]) -> dict[str, tuple[str, str]]:
    """The name of every problem, and the settings that tell it from others of this name."""
    named: dict[str, dict[str, dict[str, Any]]] = {}
    for run in runs:
        for row in run.rows[:1]:
            devices = "1 device" if row.num_devices == 1 else f"{row.num_devices} devices"
            name = f"{row.workload} on {row.cluster}, {devices}"
            settings = {key: run.config.get(key, {}) for key in ("workload", "cluster")}
            settings["costs"] = run.config.get("costs")
            named.setdefault(name, {}).setdefault(row.problem, settings)
    found = {}
    for name, of_problem in named.items():
        texts = differences(list(of_problem.values()))
        times = Counter(texts)
        for problem, text in zip(of_problem, texts, strict=True):
            if times[text] > 1:  # such as a file of costs that has changed
                text = ", ".join(filter(None, (text, f"problem={problem}")))
            found[problem] = (name, text)
    return found


def differences(configs: Sequence[dict[str, Any]]) -> list[str]:
    """Return the settings in which configurations differ: ``memory_bytes=1e9``, with short keys.

    Args:
        configs: to compare.

    Returns:
        A text per configuration.
    """
    flat = [_flatten(config) for config in configs]
    keys = dict.fromkeys(key for one in flat for key in one)
    differing = [key for key in keys if len({repr(one.get(key)) for one in flat}) > 1]
    return [
        ", ".join(f"{key.rsplit('.', 1)[-1]}={one[key]}" for key in differing if key in one)
        for one in flat
    ]


def _flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        inside = isinstance(value, dict)
        flat |= _flatten(value, f"{prefix}{key}.") if inside else {f"{prefix}{key}": value}
    return flat
