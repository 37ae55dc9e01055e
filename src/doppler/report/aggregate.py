"""Rows of finished runs -> means over seeds, and what they say.

Only rows that agree in all of COMPARABLE may be held against each other: simulated and measured
seconds, queues and problems never meet. Means are over rows that agree in all of SETTINGS.
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
SETTINGS = [*COMPARABLE, "method", "variant", "uses_order", "evaluations"]
_NAMED = 4  # problems that a verdict on many names


def collect(folders: Iterable[Path]) -> pd.DataFrame:
    """All result rows of the readable runs below some folders, as `frame_of` makes them.

    Raises:
        InputError: a folder that does not exist, or no readable run in any of them.
    """
    return frame_of(find_runs(folders)[0])


def frame_of(runs: Iterable[FinishedRun]) -> pd.DataFrame:
    """All result rows of some runs, a column per field of `ResultRow`, and what their runs know.

    ``is_control``: the method is a configured baseline, which learns nothing. ``optimum_s`` is NaN
    where nothing is known, and a bound where ``optimum_is_proven`` is false.
    """
    return pd.DataFrame(
        [
            {
                **vars(row),
                "is_control": row.method in (run.config.get("baseline") or ()),
                "optimum_s": run.summary.get("optimum_s", math.nan),
                "optimum_is_proven": run.summary.get("optimum_is_proven", False),
            }
            for run in runs
            for row in run.rows
        ]
    )


def _over(makespan_s: pd.Series, optimum_s: pd.Series) -> pd.Series:
    """Ratios, NaN of what is not known; sums in another order differ in their last digits."""
    ratio = (makespan_s + 1e-300) / (optimum_s + 1e-300)
    return ratio.mask((ratio - 1.0).abs() <= 1e-9, 1.0)


def summarise(rows: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds; a seed that occurs in several runs counts once.

    Args:
        rows: as `frame_of` makes them.

    Returns:
        A row per combination of SETTINGS, sorted by COMPARABLE and makespan, with ``seeds`` (how
        many), means, ``spread_s`` (the standard deviation over seeds, 0 of one), mean and standard
        deviation of the logarithm, the largest lower bound that any run of the same problem and
        system knew, the gap to it, the known optimum, ``over_optimum``, the makespan over it, NaN
        where none is known, ``found_by``: what found the placements, in words, ``placements``: what
        tells them apart, a text per seed, and ``doubt``: why what was measured cannot be trusted.

    Raises:
        InputError: two simulated runs of one seed disagree; measured ones may.
    """
    once = rows.drop_duplicates([*SETTINGS, "seed", "makespan_s"])
    again = once.duplicated([*SETTINGS, "seed"]) & (once["system_kind"] == "simulated")
    if again.any():
        row = once[again].iloc[0]
        same = (once[[*SETTINGS, "seed"]] == row[[*SETTINGS, "seed"]]).all(axis=1)
        texts = " and ".join(f"{seconds:g} s" for seconds in once[same]["makespan_s"])
        raise InputError(
            f"{row['method']} on {row['workload']}, seed {row['seed']}: two runs of the same "
            f"settings give {texts}"
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
        makespan_s=("makespan_s", "mean"),
        spread_s=("makespan_s", "std"),
        log_mean=("log_s", "mean"),
        log_spread=("log_s", "std"),
        is_control=("is_control", "any"),
        found_by=("source", found_by_seeds),
        placements=("key", lambda keys: frozenset(key for key in keys if not key.endswith(":"))),
        doubt=("doubt", lambda doubts: ", ".join(dict.fromkeys(filter(None, doubts)))),
        **means,
        **{name: (name, "first") for name in ("optimum_s", "optimum_is_proven") if name in once},
    )
    spreads = ["spread_s", "log_spread"]
    table[spreads] = table[spreads].fillna(0.0)
    bounds = once.sort_values("lower_bound_s").drop_duplicates(COMPARABLE, keep="last")
    table = table.merge(bounds[[*COMPARABLE, "lower_bound_s", "bound"]], on=COMPARABLE)
    table["gap"] = list(map(gap_over, table["lower_bound_s"], table["makespan_s"]))
    if "optimum_s" in table:
        table["over_optimum"] = _over(table["makespan_s"], table["optimum_s"])
    table = table.sort_values([*COMPARABLE, "makespan_s"], kind="stable", ignore_index=True)
    texts = table["system_kind"] + " by " + table["system"] + " (" + table["rules"] + ")"
    order = map(order_of, table["queue"], table["uses_order"])
    return table.assign(section=texts, order=list(order))


def over_controls(rows: pd.DataFrame) -> list[Ratio | None]:
    """Each row of one problem and system, as `summarise` makes them, over its strongest control.

    Of a control with several budgets the one counts that is largest without being larger than the
    row's, else the smallest. The strongest is picked by its mean, which flatters it a little.
    """
    controls = rows[rows["is_control"]].sort_values("evaluations")

    def strongest(evaluations: int) -> pd.Series:
        fair = controls[controls["evaluations"] <= evaluations].drop_duplicates(
            "method", keep="last"
        )
        least = controls.drop_duplicates("method")
        fair = pd.concat([fair, least[~least["method"].isin(fair["method"])]])
        return fair.iloc[int(fair["makespan_s"].to_numpy().argmin())]

    if controls.empty:
        return [None] * len(rows)
    return [ratio_of(row, strongest(row.evaluations)) for row in cast(Any, rows.itertuples())]


@dataclass(frozen=True, eq=False, kw_only=True)
class Lead:
    """The best row of a problem and system, and the best of the other methods.

    Rows of one training, as ``doppler`` and ``doppler greedy``, are one method here. ratio: of the
    rival over the best. is_level: to the last digits they take as long.
    """

    best: pd.Series
    rival: pd.Series | None
    ratio: Ratio | None = None
    is_level: bool = False

    @property
    def is_beyond(self) -> bool:
        """Whether the 95% interval of the ratio leaves no doubt; of one seed none is known."""
        return self.ratio is not None and self.ratio.is_above_one

    def won_by(self, method: str) -> bool:
        """Whether the method leads, by however little."""
        return family(self.best.method) == method and not self.is_level

    @property
    def rival_name(self) -> str:
        """Of the best other method."""
        return "nothing" if self.rival is None else str(self.rival.method)

    @property
    def longer(self) -> str:
        """By how much the rival takes longer: ``1.3%``."""
        if self.rival is None or self.best.makespan_s <= 0:
            return "-"
        share = self.rival.makespan_s / self.best.makespan_s - 1.0
        return f"{100 * share:.1f}%" if share >= 0.001 else "less than 0.1%"


def leader(rows: pd.DataFrame) -> Lead:
    """What is best of the rows of one problem and system, as `summarise` makes them."""
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
    """The method that a row belongs to: ``doppler`` of ``doppler greedy``."""
    return method.split(" ")[0]


def verdict(rows: pd.DataFrame) -> str:
    """One sentence on the rows of one problem and system: what is best, by how much, how surely."""
    lead = leader(rows)
    best, rival = lead.best, lead.rival
    ours = _told(best)
    if rival is None:
        return f"{best.method} takes {ours}; there is no other method to hold it against"
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
    """One sentence on all problems and systems of a summary: who is best where, and how surely.

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
    """What is known of the leads of one method."""
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
    """``41.20 ± 0.31 ms`` of a row of a summary: mean and spread in one unit."""
    if row.seeds < 2:
        return format_seconds(row.makespan_s)
    unit = unit_of([row.makespan_s])
    return f"{unit.text_with_spread(row.makespan_s, row.spread_s)} {unit.name}"


def problem_labels(runs: Sequence[FinishedRun]) -> dict[str, str]:
    """Words for every problem hash; problems of one name are told apart by their settings."""
    named: dict[str, dict[str, dict[str, Any]]] = {}
    for run in runs:
        row = run.rows[0]
        devices = "1 device" if row.num_devices == 1 else f"{row.num_devices} devices"
        name = f"{row.workload} on {row.cluster}, {devices}"
        settings = {key: run.config.get(key, {}) for key in ("workload", "cluster")}
        named.setdefault(name, {}).setdefault(row.problem, settings)
    labels = {}
    for name, of_problem in named.items():
        texts = differences(list(of_problem.values()))
        for problem, text in zip(of_problem, texts, strict=True):
            labels[problem] = f"{name}, {text}" if text else name
    return labels


def differences(configs: Sequence[dict[str, Any]]) -> list[str]:
    """What sets each of some configurations apart: ``memory_bytes=1e9``, by the shortest keys."""
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
