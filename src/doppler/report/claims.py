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
* ``equal``: no method has more executions than another; learned methods have no search, or what
  the policy decides before it counts, after half of the executions;
* ``search``: the same, and learned methods spend half of their executions on our search;
* ``measured``: executed on the devices of this machine, which are not the paper's GPUs.
"""

import math
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

from doppler.report.intervals import Ratio, ratio_of
from doppler.report.published_figures import (
    PAPER_EPISODE_S,
    PAPER_MS,
    PAPER_POLICIES_MS,
    PAPER_SYNCHRONOUS_MS,
    paper_ms,
)

RULES = ("paper's", "equal", "search", "measured")
OUTCOMES = ("agree", "level", "against")
_LEVEL = 0.01  # without an interval, ratios this near to 1 are on neither side
_SAME_ORDER = 0.6  # Kendall's tau of five methods: at most two of ten pairs are swapped
_ALL_MEMORY = "memory_bytes=16000000000.0"  # of the paper's GPUs
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
        lacking: by the rules under which it can be tested: the experiments that would do, with
            those methods of each that have no rows.
    """

    text: str
    quantity: str
    paper: str
    cells: tuple[Cell, ...]
    lacking: Mapping[str, Mapping[str, Sequence[str]]]

    def verdict(self, rules: str) -> str:
        """Return a verdict, its outcomes and the mean ratio; without results what is missing.

        ``partly: 5 of 8 agree, 2 level, 1 against; 0.61``. Yes: all agree. No: none agrees, or more
        are against than agree. ``needs experiment=paper``: it was not run; ``needs gdp, placeto in
        experiment=paper``: these methods were not. ``-``: nothing tests the claim by these rules.

        Args:
            rules: one of RULES.
        """
        cells = [cell for cell in self.cells if cell.rules == rules]
        if not cells:
            ways = [
                f"{', '.join(methods)} in experiment={name}" if methods else f"experiment={name}"
                for name, methods in self.lacking.get(rules, {}).items()
            ]
            return f"needs {' or '.join(ways)}" if ways else "-"
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


class _Results:
    """Summaries of experiments, which note for one claim what was looked for in vain.

    Attributes:
        lacking: see `Claim`.
    """

    def __init__(self, tables: Mapping[str, pd.DataFrame]) -> None:
        self._tables = tables
        self.lacking: dict[str, dict[str, list[str]]] = {}

    def at_common_budgets(self, name: str, method: str) -> "_Results":
        """The same without rows of a method whose budget it did not have on all systems.

        Args:
            name: of the experiment.
            method: of the rows.
        """
        table = self._tables.get(name)
        if table is None or "run_budget" not in table:
            return self
        table = table.reset_index(drop=True)
        rows = table[table["method"] == method]
        systems = rows.groupby(["workload", "run_budget"])["system"].transform("nunique")
        of_all = rows.groupby("workload")["system"].transform("nunique")
        kept = table.drop(index=rows.index[systems < of_all])
        found = _Results({**self._tables, name: kept})
        found.lacking = self.lacking
        return found

    def settings(
        self,
        rules: str,
        name: str,
        methods: Sequence[str],
        printed: Container[str] | None = None,
        *,
        wanted: Sequence[str] = (),
        one_budget: bool = True,
    ) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Each setting that has rows of all methods: in words, its workload, its rows by method.

        Where methods were run with several budgets, the rows are those of the largest budget with
        which all of them were run.

        Args:
            rules: one of RULES.
            name: of the experiment.
            methods: that are needed.
            printed: workloads for which the paper prints a number; others are left out. None: all.
            wanted: further methods. The budget with which most of them were run counts, of several
                such budgets the largest.
            one_budget: false if the experiment gives these methods different budgets on purpose;
                then the largest of each counts.
        """
        table = self._tables.get(name)
        known = set() if table is None else set(table["method"])
        # Of an experiment that was not run all methods are missing, which need no names.
        missing = [method for method in methods if method not in known] if known else []
        noted = self.lacking.setdefault(rules, {}).setdefault(name, [])
        noted += [method for method in missing if method not in noted]
        if table is None or missing:
            return
        for _, group in table.groupby(_setting_columns(table), sort=False):
            rows = _rows_of(group, methods, wanted, one_budget=one_budget)
            first = group.iloc[0]
            is_printed = printed is None or first["workload"] in printed
            if not is_printed or rows is None:
                continue
            words = f"{first['workload']}, {first['num_devices']} {first['cluster']}"
            words += f", {first['system']}"
            if settings := first.get("problem_settings"):
                words += f", {settings}"
            yield words, str(first["workload"]), rows


def _rows_of(
    group: pd.DataFrame, methods: Sequence[str], wanted: Sequence[str], *, one_budget: bool
) -> dict[str, Any] | None:
    """The rows of a setting by method, of one budget; None if some of the methods have none."""
    parts = [group]
    if one_budget and "run_budget" in group:
        parts = [part for _, part in group.groupby("run_budget")][::-1]  # the largest first
    of_budgets = [{row.method: row for row in cast(Any, part.itertuples())} for part in parts]
    complete = [rows for rows in of_budgets if rows.keys() >= set(methods)]
    return max(complete, key=lambda rows: len(rows.keys() & set(wanted)), default=None)


Cells = Iterator[Cell]


def claims_of(tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Compare all claims with the results that there are.

    Args:
        tables: summaries by the name of the experiment, with the columns of `summarise`;
            ``log_mean`` and ``log_spread`` may be missing.
    """
    known = {name: _prepared(table) for name, table in tables.items()}
    claims = []
    for text, quantity, paper, cells in _CLAIMS:
        results = _Results(known)
        found = tuple(cells(results))
        claims.append(
            Claim(text=text, quantity=quantity, paper=paper, cells=found, lacking=results.lacking)
        )
    return claims


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
    """A table with what ratios need; of a method's rows in runs of one budget the largest one."""
    table = table.assign(method=table["method"].str.replace(r", [\d,]+$", "", regex=True))
    numbers = ["makespan_s", "spread_s", "seeds", "evaluations", "wall_s"]
    table[numbers] = table[numbers].apply(pd.to_numeric)
    if "log_mean" not in table:
        makespan_s = table["makespan_s"]
        table = table.assign(log_mean=np.log(makespan_s), log_spread=table["spread_s"] / makespan_s)
    known = [name for name in ("run_budget", "evaluations") if name in table]
    table = table.sort_values(known, kind="stable")
    return table.drop_duplicates([*_setting_columns(table), *known[:-1], "method"], keep="last")


def _setting_columns(table: pd.DataFrame) -> list[str]:
    known = ("system_kind", "system", "rules", "workload", "cluster", "num_devices")
    return [name for name in (*known, "problem") if name in table]


def _side(value: float, low: float = math.nan, high: float = math.nan) -> int:
    """-1 below 1, 1 above, 0 if that is not sure."""
    if math.isnan(low):
        low, high = value * (1.0 - _LEVEL), value * (1.0 + _LEVEL)
    return int(low > 1.0) - int(high < 1.0)


def _compared(rules: str, setting: str, ours: Ratio, paper: float = math.nan) -> Cell:
    """A cell for a ratio; below 1 if the paper prints no number."""
    said = -1 if math.isnan(paper) else _side(paper)
    found = _side(ours.value, ours.low, ours.high)
    outcome = {1: "agree", 0: "level", -1: "against"}[found * said]
    return Cell(rules=rules, setting=setting, paper=paper, ours=ours, outcome=outcome)


def _fastest(rows: Mapping[str, Any], methods: Sequence[str]) -> Any:
    return min((rows[name] for name in methods if name in rows), key=lambda row: row.makespan_s)


def _beats_baselines(results: _Results) -> Cells:
    """DOPPLER over the best of critical path, Placeto and GDP; critical path alone if measured."""
    for rules, alone in _ALONE.items():
        ours, others = f"doppler{alone}", (_HEURISTIC[rules], f"placeto{alone}", f"gdp{alone}")
        for setting, workload, rows in results.settings(rules, "paper", (ours, *others), PAPER_MS):
            told = paper_ms(workload)
            best = min(told[name] for name in ("critical_path", "placeto", "gdp"))
            ratio = ratio_of(rows[ours], _fastest(rows, others))
            yield _compared(rules, setting, ratio, told["doppler"] / best)
    yield from _measured(results, "critical_path", "critical_path")


def _measured(results: _Results, method: str, paper_method: str) -> Cells:
    """Measured seconds of DOPPLER, all three stages, over those of another method."""
    needed = ("doppler", method)
    for setting, workload, rows in results.settings("measured", "main_host", needed, PAPER_MS):
        told = paper_ms(workload)
        ratio = ratio_of(rows["doppler"], rows[method])
        yield _compared("measured", setting, ratio, told["doppler_real"] / told[paper_method])


def _beats_enumerative(results: _Results) -> Cells:
    """DOPPLER over EnumOpt."""
    for rules, alone in _ALONE.items():
        names = (f"doppler{alone}", "enumerative")
        for setting, workload, rows in results.settings(rules, "paper", names, PAPER_MS):
            told = paper_ms(workload)
            ratio = ratio_of(*(rows[name] for name in names))
            yield _compared(rules, setting, ratio, told["doppler"] / told["enumerative"])


def _order(results: _Results) -> Cells:
    """Kendall's tau between the paper's order of five methods and ours."""
    for rules, alone in _ALONE.items():
        names = {
            "critical_path": _HEURISTIC[rules],
            "enumerative": "enumerative",
            **{name: f"{name}{alone}" for name in ("placeto", "gdp", "doppler")},
        }
        needed = tuple(names.values())
        for setting, workload, rows in results.settings(rules, "paper", needed, PAPER_MS):
            told = [paper_ms(workload)[name] for name in names]
            ours = [rows[name].makespan_s for name in names.values()]
            tau = float(cast(Any, kendalltau(told, ours)).statistic)
            number = Ratio(value=tau, low=math.nan, high=math.nan)
            outcome = "agree" if tau > _SAME_ORDER - 1e-9 else "level" if tau > 0 else "against"
            yield Cell(rules=rules, setting=setting, paper=1.0, ours=number, outcome=outcome)


def _work_conserving(results: _Results) -> Cells:
    """Work-conserving over bulk-synchronous makespan, of EnumOpt and of a strong search."""
    for rules, method in {"equal": "enumerative", "search": "cluster_then_anneal"}.items():
        by_workload: dict[str, dict[str, Any]] = {}
        both = results.at_common_budgets("wc_vs_sync", method)
        for _, workload, rows in both.settings(rules, "wc_vs_sync", (method,)):
            by_workload.setdefault(workload, {})[rows[method].system] = rows[method]
        for workload, row in by_workload.items():
            if {"work_conserving", "bulk_synchronous"} <= row.keys():
                barriers, free = PAPER_SYNCHRONOUS_MS.get(workload, (math.nan, math.nan))
                ratio = ratio_of(row["work_conserving"], row["bulk_synchronous"])
                yield _compared(rules, f"{workload}, {method}", ratio, free / barriers)


def _both_policies(results: _Results) -> Cells:
    """Both policies learned over one of them learned."""
    for rules, ending in _GREEDY.items():
        names = [f"doppler{ending}", f"doppler_sel_only{ending}", f"doppler_plc_only{ending}"]
        of_policies = results.settings(rules, "ablation/policies", names, PAPER_POLICIES_MS)
        for setting, workload, rows in of_policies:
            both, *single = PAPER_POLICIES_MS[workload]
            for name, paper, what in zip(names[1:], single, ("SEL", "PLC"), strict=True):
                ratio = ratio_of(rows[names[0]], rows[name])
                yield _compared(rules, f"{setting}, only {what}", ratio, both / paper)


def _stages(results: _Results) -> Cells:
    """Both simulated stages over one of them; measured: all three over the first two."""
    for rules, ours, other, what in (
        ("equal", "doppler greedy", "doppler_stage_two greedy", "only stage II"),
        ("equal", "doppler greedy", "doppler imitation", "only stage I"),
        ("search", "doppler", "doppler_stage_two", "only stage II"),
    ):
        for setting, _, rows in results.settings(rules, "ablation/stages", (ours, other)):
            yield _compared(rules, f"{setting}, {what}", ratio_of(rows[ours], rows[other]))
    yield from _measured(results, "doppler stage II", "doppler")


def _encoded_once(results: _Results) -> Cells:
    """The graph encoded once per episode over encoded at every step; up to 1% more agrees.

    Both networks have the same size. With an interval, all of it must be on one side.
    """
    most = 1.0 + _LEVEL
    for rules, ending in _GREEDY.items():
        names = (f"doppler_per_episode{ending}", f"doppler_per_step{ending}")
        for setting, _, rows in results.settings(rules, "ablation/message_passing", names):
            ours = ratio_of(*(rows[name] for name in names))
            low, high = ((ours.value if math.isnan(end) else end) for end in (ours.low, ours.high))
            outcome = "agree" if high <= most else "against" if low > most else "level"
            yield Cell(rules=rules, setting=setting, paper=1.01, ours=ours, outcome=outcome)


def _cheap_episodes(results: _Results) -> Cells:
    """Seconds of training for each execution: DOPPLER over Placeto, and over GDP."""
    for other in ("placeto", "gdp"):
        names = ("doppler_unaided", f"{other}_unaided")
        of_times = results.settings("equal", "paper", names, PAPER_EPISODE_S)
        for setting, workload, rows in of_times:
            ours, placeto = PAPER_EPISODE_S[workload]
            one, two = (rows[name].wall_s / rows[name].evaluations for name in names)
            number = Ratio(value=one / two, low=math.nan, high=math.nan)
            paper = ours / placeto if other == "placeto" else math.nan
            yield _compared("equal", f"{setting}, {other}", number, paper)


def _other_machines(results: _Results) -> Cells:
    """DOPPLER over the best of critical path, Placeto, GDP and EnumOpt on other machines."""
    for rules, ending in _GREEDY.items():
        ours = f"doppler{ending}"
        known = ("critical_path", "enumerative", f"placeto{ending}", f"gdp{ending}")
        for name in ("main_8dev", "fewer_devices", "memory_limits"):
            for setting, _, rows in results.settings(rules, name, (ours,), wanted=known):
                if setting.split(", ")[1].startswith("1 "):
                    continue  # nothing to place on one device
                if name == "memory_limits" and setting.endswith(_ALL_MEMORY):
                    continue  # no limit
                if others := [one for one in known if one in rows]:
                    ratio = ratio_of(rows[ours], _fastest(rows, others))
                    yield _compared(rules, setting, ratio)


def _transfer(results: _Results) -> Cells:
    """A policy of another workload or machine after a few episodes, over a list scheduler."""
    for name, method, source in (
        ("transfer", "doppler_few_shot", "from another workload"),
        ("transfer_machines", "doppler_few_shot_machine", "from another machine"),
    ):
        for rules, ending in _GREEDY.items():
            names = (f"{method}{ending}", "etf")
            few = results.settings(rules, name, names, one_budget=False)
            for setting, _, rows in few:
                ratio = ratio_of(*(rows[one] for one in names))
                yield _compared(rules, f"{setting}, {source}", ratio)


# Text, what the numbers are, what the paper prints, and the comparisons.
_CLAIMS: tuple[tuple[str, str, str, Callable[[_Results], Cells]], ...] = (
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
        "seconds of all training (stage I too) per execution: DOPPLER's / the other's",
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
        "DOPPLER after at most 256 executions there / ETF, a list scheduler",
        "said, for 2,000 episodes",
        _transfer,
    ),
)
