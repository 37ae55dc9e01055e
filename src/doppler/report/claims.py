"""Compares the paper's claims with results: a ratio for each setting, and a verdict for each claim.

A *setting* is a workload on one machine and system. In each, a claim says which of two makespans
is smaller, and the paper often says by how much. The *outcome* of a setting is ``agree`` if our
ratio and the paper's are both below 1, or both above; ``against`` if one is below and the other
above; and ``level`` if ours or the paper's is too close to 1 to tell. Ours is below or above 1 if
its whole 95% interval is. One seed has no interval; then it must differ from 1 by 1%, as the
paper's numbers must, whose spread is not known. Where the paper prints no number, its sentence says
whether the ratio is below 1.

Claims are tested under up to four *rules*:

* ``paper's``: the critical path heuristic is the best of 50 runs, learned methods have no search;
* ``equal``: all methods have the same number of executions, learned methods have no search;
* ``search``: the same, and learned methods spend half of their executions on our search;
* ``measured``: executed on the devices of this machine, which are not the paper's GPUs.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

from doppler.report.intervals import Ratio, ratio_of
from doppler.report.published_figures import (
    PAPER_EPISODE_S,
    PAPER_POLICIES_MS,
    PAPER_SYNCHRONOUS_MS,
    paper_ms,
)

RULES = ("paper's", "equal", "search", "measured")
OUTCOMES = ("agree", "level", "against")
_LEVEL = 0.01  # without an interval, ratios this near to 1 are on neither side
_SAME_ORDER = 0.6  # Kendall's tau of five methods: at most two of ten pairs are swapped
_ALONE = {"paper's": "_unaided", "equal": "_unaided", "search": ""}
_GREEDY = {"equal": " greedy", "search": ""}
_HEURISTIC = {"paper's": "critical_path_50", "equal": "critical_path", "search": "critical_path"}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A claim in one setting, under one of the rules.

    Attributes:
        rules: one of RULES.
        setting: workload, machine and system in words.
        paper: the paper's number; nan if it prints none.
        ours: our number and its interval.
        outcome: ``agree``, ``level`` or ``against``.
    """

    rules: str
    setting: str
    paper: float
    ours: Ratio
    outcome: str


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What the paper says, and the settings in which results here can be compared with it.

    Attributes:
        text: the claim, one sentence.
        quantity: what the numbers are.
        paper: the paper's number in words.
        cells: the comparisons; empty if nothing was run.
    """

    text: str
    quantity: str
    paper: str
    cells: tuple[Cell, ...]

    def verdict(self, rules: str) -> str:
        """Return a verdict, its outcomes and the mean ratio; ``-`` without results.

        ``partly: 5 of 8 agree, 2 level, 1 against; 0.61``. Yes: all agree. No: none agrees, or more
        are against than agree.

        Args:
            rules: one of RULES.
        """
        cells = [cell for cell in self.cells if cell.rules == rules]
        if not cells:
            return "-"
        counts = Counter(cell.outcome for cell in cells)
        agree = counts["agree"]
        if agree == len(cells):
            word = "yes"
        else:
            word = "partly" if agree and agree >= counts["against"] else "no"
        told = [f"{agree} of {len(cells)} agree"]
        told += [f"{counts[outcome]} {outcome}" for outcome in OUTCOMES[1:] if counts[outcome]]
        return f"{word}: {', '.join(told)}; {_mean([cell.ours.value for cell in cells]):.2f}"


def _mean(values: Sequence[float]) -> float:
    """The geometric mean, or the arithmetic one if a value is not positive, as tau can be."""
    numbers = np.array(values)
    return float(np.exp(np.log(numbers).mean()) if (numbers > 0).all() else numbers.mean())


Tables = Mapping[str, pd.DataFrame]
Cells = Iterator[Cell]


def claims_of(tables: Tables) -> list[Claim]:
    """Compare all claims with the results that there are.

    Args:
        tables: summaries of experiments by the name of their folder in outputs/, with the columns
            of `summarise`; ``log_mean`` and ``log_spread`` may be missing.
    """
    known = {name: _prepared(table) for name, table in tables.items()}
    return [
        Claim(text=text, quantity=quantity, paper=paper, cells=tuple(cells(known)))
        for text, quantity, paper, cells in _CLAIMS
    ]


def claims_table(claims: Sequence[Claim]) -> pd.DataFrame:
    """Return a row for each comparison, with columns of numbers.

    Args:
        claims: numbered from 1 in this order.
    """
    rows = [
        {
            **{"claim": number, "rules": cell.rules, "setting": cell.setting},
            **{"quantity": claim.quantity, "paper": cell.paper, "ours": cell.ours.value},
            **{"low": cell.ours.low, "high": cell.ours.high, "outcome": cell.outcome},
        }
        for number, claim in enumerate(claims, 1)
        for cell in claim.cells
    ]
    columns = ["claim", "rules", "setting", "quantity", "paper", "ours", "low", "high", "outcome"]
    return pd.DataFrame(rows, columns=columns)


def _prepared(table: pd.DataFrame) -> pd.DataFrame:
    """A table with what ratios need; of several budgets of a method the largest."""
    table = table.assign(method=table["method"].str.replace(r", [\d,]+$", "", regex=True))
    numbers = ["makespan_s", "spread_s", "seeds", "evaluations", "wall_s"]
    table[numbers] = table[numbers].apply(pd.to_numeric)
    if "log_mean" not in table:
        makespan_s = table["makespan_s"]
        table = table.assign(log_mean=np.log(makespan_s), log_spread=table["spread_s"] / makespan_s)
    table = table.sort_values("evaluations", kind="stable")
    return table.drop_duplicates([*_setting_columns(table), "method"], keep="last")


def _setting_columns(table: pd.DataFrame) -> list[str]:
    known = ("system_kind", "system", "rules", "workload", "cluster", "num_devices")
    return [name for name in (*known, "memory_bytes", "problem") if name in table]


def _settings(tables: Tables, name: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each setting of a table, if there is one: in words, its workload, its rows by method."""
    table = tables.get(name)
    if table is None:
        return
    columns = _setting_columns(table)
    for _, group in table.groupby(columns, sort=False):
        rows = {row.method: row for row in cast(Any, group.itertuples())}
        first = group.iloc[0]
        words = f"{first['workload']}, {first['num_devices']} {first['cluster']}, {first['system']}"
        if "memory_bytes" in table:
            words += f", {float(first['memory_bytes']) / 1e9:g} GB"
        yield words, str(first["workload"]), rows


def _side(value: float, low: float = math.nan, high: float = math.nan) -> int:
    """-1 below 1, 1 above, 0 if that is not sure."""
    if math.isnan(low):
        low, high = value * (1.0 - _LEVEL), value * (1.0 + _LEVEL)
    return int(low > 1.0) - int(high < 1.0)


def _compared(rules: str, setting: str, ours: Ratio, paper: float = math.nan) -> Cell:
    """A cell for a ratio; below 1 if the paper prints no number."""
    said = -1 if math.isnan(paper) else _side(paper)
    found = _side(ours.value, ours.low, ours.high)
    outcome = "agree" if found == said else "against" if found == -said else "level"
    return Cell(rules=rules, setting=setting, paper=paper, ours=ours, outcome=outcome)


def _fastest(rows: Mapping[str, Any], methods: Sequence[str]) -> Any:
    return min((rows[name] for name in methods if name in rows), key=lambda row: row.makespan_s)


def _beats_baselines(tables: Tables) -> Cells:
    """DOPPLER over the best of critical path, Placeto and GDP; critical path alone if measured."""
    for setting, workload, rows in _settings(tables, "paper"):
        told = paper_ms(workload)
        paper = told["doppler"] / min(told[name] for name in ("critical_path", "placeto", "gdp"))
        for rules, alone in _ALONE.items():
            ours = f"doppler{alone}"
            others = (_HEURISTIC[rules], f"placeto{alone}", f"gdp{alone}")
            if ours in rows and all(name in rows for name in others):
                ratio = ratio_of(rows[ours], _fastest(rows, others))
                yield _compared(rules, setting, ratio, paper)
    yield from _measured(tables, "critical_path", "critical_path")


def _measured(tables: Tables, method: str, paper_method: str) -> Cells:
    """Measured seconds of DOPPLER, all three stages, over those of another method."""
    for setting, workload, rows in _settings(tables, "main_host"):
        if {"doppler", method} <= rows.keys():
            told = paper_ms(workload)
            ratio = ratio_of(rows["doppler"], rows[method])
            yield _compared("measured", setting, ratio, told["doppler_real"] / told[paper_method])


def _beats_enumerative(tables: Tables) -> Cells:
    """DOPPLER over EnumOpt."""
    for setting, workload, rows in _settings(tables, "paper"):
        told = paper_ms(workload)
        for rules, alone in _ALONE.items():
            if {f"doppler{alone}", "enumerative"} <= rows.keys():
                ratio = ratio_of(rows[f"doppler{alone}"], rows["enumerative"])
                paper = told["doppler"] / told["enumerative"]
                yield _compared(rules, setting, ratio, paper)


def _order(tables: Tables) -> Cells:
    """Kendall's tau between the paper's order of five methods and ours."""
    for setting, workload, rows in _settings(tables, "paper"):
        told = paper_ms(workload)
        for rules, alone in _ALONE.items():
            names = {
                "critical_path": _HEURISTIC[rules],
                "enumerative": "enumerative",
                **{name: f"{name}{alone}" for name in ("placeto", "gdp", "doppler")},
            }
            if all(name in rows for name in names.values()):
                ours = [rows[name].makespan_s for name in names.values()]
                tau = float(cast(Any, kendalltau([told[name] for name in names], ours)).statistic)
                number = Ratio(value=tau, low=math.nan, high=math.nan)
                outcome = "agree" if tau > _SAME_ORDER - 1e-9 else "level" if tau > 0 else "against"
                yield Cell(rules=rules, setting=setting, paper=1.0, ours=number, outcome=outcome)


def _work_conserving(tables: Tables) -> Cells:
    """Work-conserving over bulk-synchronous makespan, of EnumOpt and of a strong search."""
    methods = {"equal": "enumerative", "search": "cluster_then_anneal"}
    by_workload: dict[str, dict[str, Mapping[str, Any]]] = {}
    for setting, workload, rows in _settings(tables, "wc_vs_sync"):
        by_workload.setdefault(workload, {})[setting.rsplit(", ", 1)[-1]] = rows
    for workload, systems in by_workload.items():
        for rules, method in methods.items():
            found = [systems.get(name, {}) for name in ("work_conserving", "bulk_synchronous")]
            if all(method in rows for rows in found):
                barriers, free = PAPER_SYNCHRONOUS_MS.get(workload, (math.nan, math.nan))
                ratio = ratio_of(*(rows[method] for rows in found))
                yield _compared(rules, f"{workload}, {method}", ratio, free / barriers)


def _both_policies(tables: Tables) -> Cells:
    """Both policies learned over one of them learned."""
    for setting, workload, rows in _settings(tables, "ablation_policies"):
        both, *single = PAPER_POLICIES_MS[workload]
        for rules, ending in _GREEDY.items():
            names = [f"doppler{ending}", f"doppler_sel_only{ending}", f"doppler_plc_only{ending}"]
            if all(name in rows for name in names):
                for name, paper, what in zip(names[1:], single, ("SEL", "PLC"), strict=True):
                    ratio = ratio_of(rows[names[0]], rows[name])
                    yield _compared(rules, f"{setting}, only {what}", ratio, both / paper)


def _stages(tables: Tables) -> Cells:
    """Both simulated stages over one of them; measured: all three over the first two."""
    for setting, _, rows in _settings(tables, "ablation_stages"):
        for rules, ending in _GREEDY.items():
            pairs = {"only stage II": f"doppler_stage_two{ending}"}
            if rules == "equal":
                pairs["only stage I"] = "doppler imitation"
            for what, name in pairs.items():
                if {f"doppler{ending}", name} <= rows.keys():
                    ratio = ratio_of(rows[f"doppler{ending}"], rows[name])
                    yield _compared(rules, f"{setting}, {what}", ratio)
    yield from _measured(tables, "doppler stage II", "doppler")


def _encoded_once(tables: Tables) -> Cells:
    """The graph encoded once per episode over encoded at every step; up to 1% more agrees."""
    for setting, _, rows in _settings(tables, "ablation_message_passing"):
        for rules, ending in _GREEDY.items():
            once, always = f"doppler{ending}", f"doppler_per_step{ending}"
            if {once, always} <= rows.keys():
                ours = ratio_of(rows[once], rows[always])
                outcome = "agree" if ours.value <= 1.0 + _LEVEL else "against"
                yield Cell(rules=rules, setting=setting, paper=1.01, ours=ours, outcome=outcome)


def _cheap_episodes(tables: Tables) -> Cells:
    """Seconds of training for each execution: DOPPLER over Placeto, and over GDP."""
    for setting, workload, rows in _settings(tables, "paper"):
        ours, placeto = PAPER_EPISODE_S[workload]
        for other, paper in (("placeto", ours / placeto), ("gdp", math.nan)):
            if {"doppler_unaided", f"{other}_unaided"} <= rows.keys():
                one, two = (
                    rows[name].wall_s / rows[name].evaluations
                    for name in ("doppler_unaided", f"{other}_unaided")
                )
                number = Ratio(value=one / two, low=math.nan, high=math.nan)
                yield _compared("equal", f"{setting}, {other}", number, paper)


def _other_machines(tables: Tables) -> Cells:
    """DOPPLER over the best of critical path, Placeto, GDP and EnumOpt on other machines."""
    for name in ("main_8dev", "fewer_devices", "memory_limits"):
        for setting, _, rows in _settings(tables, name):
            if setting.split(", ")[1].startswith("1 "):
                continue  # nothing to place on one device
            if name == "memory_limits" and "16 GB" in setting:
                continue  # no limit
            for rules, ending in _GREEDY.items():
                learned = (f"placeto{ending}", f"gdp{ending}")
                others = [one for one in ("critical_path", "enumerative", *learned) if one in rows]
                if f"doppler{ending}" in rows and others:
                    ratio = ratio_of(rows[f"doppler{ending}"], _fastest(rows, others))
                    yield _compared(rules, setting, ratio)


def _transfer(tables: Tables) -> Cells:
    """A policy of another workload or machine after a few episodes, over a list scheduler."""
    for name, method, source in (
        ("transfer", "doppler_few_shot", "from another workload"),
        ("transfer_machines", "doppler_few_shot_machine", "from another machine"),
    ):
        for setting, _, rows in _settings(tables, name):
            for rules, ending in _GREEDY.items():
                if {f"{method}{ending}", "etf"} <= rows.keys():
                    ratio = ratio_of(rows[f"{method}{ending}"], rows["etf"])
                    yield _compared(rules, f"{setting}, {source}", ratio)


# Text, what the numbers are, what the paper prints, and the comparisons.
_CLAIMS: tuple[tuple[str, str, str, Callable[[Tables], Cells]], ...] = (
    (
        "DOPPLER is faster than critical path, Placeto and GDP",
        "DOPPLER / best of the three",
        "as low as 0.47 on GPUs",
        _beats_baselines,
    ),
    (
        "DOPPLER is faster than EnumOpt",
        "DOPPLER / EnumOpt",
        "as low as 0.86 on GPUs",
        _beats_enumerative,
    ),
    (
        "The methods come in the paper's order",
        "Kendall's tau (1: the same order, 0: unrelated, -1: reversed) of "
        "DOPPLER, critical path, Placeto, GDP and EnumOpt",
        "1",
        _order,
    ),
    (
        "Work-conserving execution is faster than bulk-synchronous",
        "work-conserving / bulk-synchronous",
        "0.75 on chainmm, 0.65 on ffnn",
        _work_conserving,
    ),
    (
        "SEL and PLC both have to be learned",
        "both learned / one learned, the other replaced by the critical path heuristic",
        "0.75 to 1.01",
        _both_policies,
    ),
    (
        "Each stage improves the policy",
        "all stages / one stage less",
        "0.84 to 1.01 for stage III",
        _stages,
    ),
    (
        "Encoding the graph once per episode costs less than 1% of quality",
        "encoded once / encoded at every step",
        "at most 1.01",
        _encoded_once,
    ),
    (
        "Episodes cost DOPPLER less than Placeto and GDP",
        "DOPPLER's training seconds per episode / the other's",
        "0.39 to 0.50 for Placeto",
        _cheap_episodes,
    ),
    (
        "The lead holds on 8 V100s, on fewer devices and with less memory",
        "DOPPLER / best of critical path, Placeto, GDP and EnumOpt",
        "said, no table known to us",
        _other_machines,
    ),
    (
        "A trained policy needs few episodes on another workload or machine",
        "DOPPLER after 256 episodes there / ETF, a list scheduler",
        "said, for 2,000 episodes",
        _transfer,
    ),
)
