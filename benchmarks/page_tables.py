"""The tables of README.md and docs/results, each from the rows in docs/results/data."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from statistics import geometric_mean

import pandas as pd
from benchmarks.page_rows import DATA, markdown_table, one_row, read, result_row, rows_with

from doppler.experiment.reproduce import verdicts
from doppler.report.claims import Cell, claims_of
from doppler.report.intervals import Ratio, ratio_of

WORKLOADS = ("chainmm", "ffnn", "llama_block", "llama_layer")
_NAMES = {
    "DOPPLER, trained on the problem": "doppler",
    "DOPPLER, from pretrained weights": "doppler_pretrained",
    "search on estimates, no learning": "estimates_then_anneal",
    "GDP": "gdp",
    "portfolio of heuristics, then annealing": "portfolio",
    "clusterings, then annealing": "cluster_then_anneal",
    "annealing from random placements": "annealing",
    "ETF, a list scheduler": "etf",
    "DOPPLER, what training alone found": "doppler trained",
    "DOPPLER, what the policy decides": "doppler greedy",
}


def _milliseconds(file: str, methods: Mapping[str, str], bound: str) -> str:
    """Makespans, a row for each method; below them the least that any placement can take."""
    rows = [
        (
            label,
            *(f"{result_row(file, name, method)['makespan_s'] * 1e3:#.3g}" for name in WORKLOADS),
        )
        for label, method in methods.items()
    ]
    least = [result_row(file, name, "doppler") for name in WORKLOADS]
    bounds = [f"{row['makespan_s'] / (1 + row['gap']) * 1e3:#.3g}" for row in least]
    return markdown_table(("", *WORKLOADS), [*rows, (bound, *bounds)])


def readme() -> str:
    """Eight GPUs: DOPPLER, its search alone, and two baselines."""
    labels = list(_NAMES)
    chosen = {label: _NAMES[label] for label in (*labels[:3], labels[5], labels[7])}
    return _milliseconds("main_8dev", chosen, "lower bound")


def _over_control(row) -> str:
    low, high = row["over_control_low"], row["over_control_high"]
    return f"{row['over_control']:.3f} ({low:.3f} to {high:.3f})"


def search() -> str:
    """Ten methods on eight GPUs, over the best one that learns nothing."""
    rows = [
        (
            label,
            *(f"{result_row('main_8dev', name, method)['over_control']:.3f}" for name in WORKLOADS),
        )
        for label, method in _NAMES.items()
    ]
    return markdown_table(("method", *WORKLOADS), rows)


def controls() -> str:
    """The ten best methods without learning over `cluster_then_anneal`."""
    columns = ("mean of these", "mean of 10 others", "worst")
    rows = read("controls").head(10)
    return markdown_table(
        ("method", "main workloads", "10 random graphs", "worst of these"),
        rows[["method", *columns]].itertuples(index=False),
    )


def claims() -> str:
    """The ten claims of the paper, with a verdict under each of the rules."""
    rows = pd.read_csv(DATA / "claims.csv")
    told = []
    for number, claim in enumerate(claims_of({}), 1):
        cells = tuple(
            Cell(
                rules=row.rules,
                setting=row.setting,
                paper=row.paper,
                ours=Ratio(value=row.ours, low=row.low, high=row.high),
                outcome=row.outcome,
            )
            for row in rows[rows["claim"] == number].itertuples()
        )
        told.append(replace(claim, cells=cells))
    return verdicts(told)


def paper() -> str:
    """The paper's main table over the critical path's best of 50: the paper's and ours."""
    published = {row["workload"]: row for _, row in read("published").iterrows()}
    columns = {
        "EnumOpt": "enumerative",
        "Placeto": "placeto_unaided",
        "GDP": "gdp_unaided",
        "DOPPLER": "doppler_unaided",
        "the paper's own model": "paper",
        "DOPPLER and search": "doppler",
        "ETF": "etf",
        "search": "estimates_then_anneal",
    }
    systems = {"authors' simulator": "published", "our simulator": "work_conserving"}
    rows = []
    for name in WORKLOADS:
        told = {**published[name], "DOPPLER": published[name]["DOPPLER-SIM"]}
        base = float(told["critical path"])
        theirs = [f"{float(told[one]) / base:.2f}" if one in told else "" for one in columns]
        rows.append((name, "paper, on GPUs", *theirs))
        for label, system in systems.items():
            here = rows_with(read("paper"), system=system, workload=name).set_index("method")
            base = here.loc["critical_path_50"]["makespan_s"]
            found = [
                f"{here.loc[method]['makespan_s'] / base:.2f}" if method in here.index else ""
                for method in columns.values()
            ]
            rows.append((name, label, *found))
    return markdown_table(("workload", "measured on", *columns), rows, words=2)


def paper_model() -> str:
    """What `policy=paper algorithm=paper budget=paper` reaches on the authors' simulator.

    In the seconds of the costs that they released.
    """
    found = rows_with(read("paper"), system="published").set_index(["method", "workload"])
    methods = {
        "the policy's own choice after stage I": "paper imitation",
        "after stage II": "paper greedy",
        "best placement of all its episodes": "paper",
        "critical path heuristic, best of 50": "critical_path_50",
        "critical path heuristic, 2,000 executions": "critical_path",
        "search": "estimates_then_anneal",
    }
    rows = [
        (label, *(f"{float(found.loc[method, name]['makespan_s']):.4g}" for name in WORKLOADS))
        for label, method in methods.items()
    ]
    return markdown_table(("", *WORKLOADS), rows)


def learning_alone() -> str:
    """What the policy learned, by its teacher, over list schedules and over a search."""
    table = read("learning_alone")
    table = table.assign(budget=(table["evaluations"].astype(int) / 1000).round().astype(int))
    chosen = read("list_schedules").astype({"executions": int, "makespan_s": float})
    chosen = chosen.groupby(["workload", "cluster", "executions"])["makespan_s"].mean()

    def over(found: pd.Series, method: str, *others: str) -> str:
        if method not in found:
            return ""
        return f"{found[method] / min(found[name] for name in others):.3f}"

    schedules = ("critical_path", "etf", "heft")
    rows = []
    for (workload, cluster), group in table.groupby(["workload", "cluster"], sort=True):
        at = {
            budget: group[group["budget"] == budget].set_index("method")["makespan_s"]
            for budget in (1, 8, 40)
        }
        chosen_s = chosen.loc[(workload, cluster, 8000)]
        rows.append(
            (
                workload,
                cluster,
                *(over(at[budget], "doppler_alone greedy", *schedules) for budget in at),
                f"{chosen_s / min(at[8][name] for name in schedules):.3f}",
                *(over(at[budget], "estimates_then_anneal", *schedules) for budget in (8, 40)),
                *(
                    over(at[budget], "doppler_alone_from_search greedy", "estimates_then_anneal")
                    for budget in (1, 8)
                ),
            )
        )
    heads = [f"policy, {budget}" for budget in ("1,000", "8,000", "40,000")]
    heads.append("ETF chosen by estimates, 8,000")
    heads += [f"search, {budget}" for budget in ("8,000", "40,000")]
    heads += [f"taught by a search, over it, {budget}" for budget in ("1,000", "8,000")]
    return markdown_table(("workload", "cluster", *heads), rows, words=2)


def network_many() -> str:
    """Held-out ratios of a training on many problems, with the graph network and without."""
    table = read("network_many")
    rows = []
    for name, one in table.groupby("network", sort=False):
        at = one.astype({"updates": int}).set_index("updates")["held_out_ratio"].astype(float)
        last = at.iloc[-10:]
        several = f"{last.mean():.3f} ({last.min():.3f} to {last.max():.3f})"
        rows.append((str(name), *(f"{at[num]:.3f}" for num in (0, 1000, 2000)), several))
    heads = ("untrained", "1,000 updates", "2,000 updates", "2,600 to 3,500 updates")
    return markdown_table(("graph network", *heads), rows)


_ARM = ("all_features", "scheduler", "network")
_FOUND = ("greedy", "sampled")


def _arms() -> pd.DataFrame:
    """Median makespans of eight arms by problem and number of updates, over the best of all."""
    table = read("network")
    table = table[table["problem"] != "tuning"]
    table = table.astype({**dict.fromkeys(_FOUND, float), "updates": int})
    best = table.groupby("problem", sort=False)[list(_FOUND)].min().min(axis=1)
    medians = table.groupby([*_ARM, "problem", "updates"], sort=False)[list(_FOUND)].median()
    return medians.div(best, axis=0, level="problem").reset_index()


def network() -> str:
    """Makespans of eight arms after 500 and 5,000 updates: greedy, best of 16."""
    table = _arms()
    columns = list(itertools.product(dict.fromkeys(table["problem"]), (500, 5000)))
    rows = []
    for flags, group in table.groupby(list(_ARM), sort=True):
        features, *parts = (flag == "True" for flag in flags)
        found = group.set_index(["problem", "updates"])
        cells = ("{greedy:.3f}, {sampled:.3f}".format(**found.loc[one]) for one in columns)
        told = ("with" if part else "without" for part in parts)
        rows.append(("all" if features else "published", *told, *cells))
    heads = (f"{name.partition(',')[0]}, {updates:,}" for name, updates in columns)
    return markdown_table(("features", "scheduler", "network", *heads), rows, words=3)


def network_parts() -> str:
    """What each part of the arms is worth: with it over without it, geometric means."""
    table = _arms()
    rows = []
    names = {"all_features": "all features", "scheduler": "list scheduler", "network": "network"}
    for part, name in names.items():
        rest = [*(one for one in _ARM if one != part), "problem", "updates"]
        given = {flag: one.set_index(rest)[list(_FOUND)] for flag, one in table.groupby(part)}
        ratios = given["True"] / given["False"]
        cells = []
        for updates in (50, 500, 5000):
            here = ratios.xs(updates, level="updates")
            for found in _FOUND:
                of_all = f"{(here[found] < 0.999).sum()} of {len(here)}"
                cells.append(f"{geometric_mean(here[found]):.3f} ({of_all})")
        rows.append((name, *cells))
    heads = (
        f"{found}, {updates}"
        for updates, found in itertools.product(("50", "500", "5,000"), ("greedy", "of 16"))
    )
    return markdown_table(("part", *heads), rows)


def optima() -> str:
    """Distance from proven optima, and how often they are reached."""
    table = read("optima")
    names = ("doppler", "estimates_then_anneal", "portfolio", "cluster_then_anneal", "etf", "heft")
    known = set(table[(table["set"] == "auckland") & (table["queue"] == "priority")]["method"])
    rows = []
    for name in (name for name in names if name in known):
        cells = [name]
        for budget in ("1", "64", "1000"):
            found = table[
                (table["set"] == "auckland")
                & (table["queue"] == "priority")
                & (table["budget"] == budget)
                & (table["method"] == name)
            ]
            cells += [f"{100 * (float(found['mean'].iloc[0]) - 1):.2f}%", found["optimal"].iloc[0]]
        rows.append(cells)
    head = [
        f"{n} execution{s}, {what}"
        for n, s in (("1", ""), ("64", "s"), ("1,000", "s"))
        for what in ("above", "optimal")
    ]
    return markdown_table(("method", *head), rows)


def profiled() -> str:
    """Networks that others profiled, with memory limits; milliseconds."""
    columns = ("etf", "cluster_then_anneal", "estimates_then_anneal", "doppler", "bound")
    rows = [
        (row["network"], *(row[name] for name in columns)) for _, row in read("profiled").iterrows()
    ]
    return markdown_table(("network", *columns), rows)


def pretrained() -> str:
    """Pretrained weights and heuristics on problems of no training set."""
    method = "makespan over annealing's with 100,000 evaluations"
    shown = {
        "HEFT, one run": "HEFT",
        "ETF, one run": "ETF",
        "clustering, 1,000 executions": "clustering, 1,000 tries",
        "annealing, 1,000 executions": "annealing, 1,000 evaluations",
        "clusterings, then annealing, 1,000 executions": (
            "clustering with 200, then annealing with 800"
        ),
        "annealing, 100,000 executions": "annealing, 100,000 evaluations",
        "search on estimates, 1 execution": (
            "list schedules and clusterings, 1 execution chosen on estimates"
        ),
        "search on estimates, 64 executions": "the same, 64 executions",
        "policy alone, 1 execution": "policy alone, one greedy episode",
        "the same, untrained weights": "untrained weights alone, one greedy episode",
        "policy and search on estimates, 1 execution": (
            "the policy's episodes too, 1 execution chosen on estimates"
        ),
        "the same, untrained weights, 1 execution": (
            "untrained weights' episodes too, 1 execution chosen on estimates"
        ),
        "policy and search on estimates, 65 executions": (
            "the same, 65 executions with the greedy one"
        ),
        "the same, untrained weights, 65 executions": (
            "untrained weights, 65 executions with the greedy one"
        ),
    }
    columns = ("mean", "median", "p90", "worst", "ms")
    found = {label: one_row(read("pretrained"), **{method: name}) for label, name in shown.items()}
    rows = [(label, *(row[name] for name in columns)) for label, row in found.items()]
    return markdown_table(("method", *columns[:-1], "CPU ms"), rows)


def scaling() -> str:
    """First placements by the policy, by the size of the graph; episodes of training a second."""
    sizes = (1_000, 10_000, 100_000, 1_000_000)
    training = read("scaling_training").set_index("ops")["episodes/s"].to_dict()
    table = read("scaling")
    exact = table["ops"].str.replace(",", "").astype(float)
    has_untrained = "over untrained" in table
    rows = []
    for size in sizes:
        near = table[exact.between(size / 3, size * 3)]
        seconds = near["CPU s"].astype(float)
        mib = near["peak MiB"].str.replace(",", "").astype(float)
        ratios = [_mean(near["over HEFT"])]
        ratios += [_mean(near["over untrained"])] if has_untrained else []
        cells = (f"{seconds.min():.2f} to {seconds.max():.2f}", f"{mib.max():,.0f}", *ratios)
        rows.append((f"{size:,}", len(near), *cells, training.get(f"{size:,}", "-")))
    over = ["over HEFT, mean", *(["over untrained weights, mean"] if has_untrained else [])]
    head = ("ops, about", "families", "CPU s", "peak MiB, at most", *over)
    return markdown_table((*head, "episodes of training/s"), rows)


def _mean(cells: Iterable[str]) -> str:
    """The geometric mean of the cells that hold a number."""
    found = [float(cell) for cell in cells if cell not in ("", "inf", "nan")]
    return f"{geometric_mean(found):.3f}"


_LITTLE = "problem_settings=memory_bytes=1600000000.0"
SETTINGS = {
    "4 P100": ("main_4dev", "llama_layer", ()),
    "8 V100": ("main_8dev", "llama_layer", ()),
    "2 P100": ("fewer_devices", "llama_layer", ("num_devices=2",)),
    "3 P100": ("fewer_devices", "llama_layer", ("num_devices=3",)),
    "two generations of GPU": ("heterogeneous", "llama_layer", ()),
    "1.6 GB a device": ("memory_limits", "llama_layer", (_LITTLE,)),
    "tiled Cholesky": ("non_ml", "cholesky", ()),
    "relational report": ("non_ml", "dataproc", ()),
}


def machines() -> str:
    """DOPPLER and list schedulers over the best method without learning, by setting."""
    rows = []
    for label, (file, workload, more) in SETTINGS.items():
        found = [result_row(file, workload, name, *more) for name in ("doppler", "etf", "heft")]
        rows.append(
            (
                label,
                workload,
                _over_control(found[0]),
                *(f"{row['over_control']:.3f}" for row in found[1:]),
            )
        )
    return markdown_table(("setting", "workload", "DOPPLER", "ETF", "HEFT"), rows, words=2)


def _from_to(texts: pd.Series) -> str:
    """The smallest and the largest of some numbers: ``0.971 to 0.992``, ``3.3% to 8.1%``."""
    ordered = sorted(texts, key=lambda text: float(text.rstrip("%")))
    return f"{ordered[0]} to {ordered[-1]}"


def host() -> str:
    """All three stages measured on cores, over what else was measured in the same turns."""
    names = {
        "estimates_then_anneal measured": "search on estimates, measured executions",
        "estimates_then_anneal": "search on estimates, simulated executions only",
        "doppler stage II": "DOPPLER without stage III",
    }
    table = read("main_host_pooled")
    rows = [
        (
            label,
            *(
                f"{row['ratio']} ({row['low']} to {row['high']})"
                for budget in ("16", "64", "250")
                for row in [one_row(table, measured_evaluations=budget, against=name)]
            ),
        )
        for name, label in names.items()
    ]
    return markdown_table(("DOPPLER, all stages, over", "16", "64", "250 executions"), rows)


def fidelity() -> str:
    """Simulated against measured seconds of 60 placements, measured costs; ranges over seeds."""
    table = rows_with(read("fidelity"), **{"simulated with": "measured costs"})
    rows = [
        (
            problem.split(" on ")[0],
            *(_from_to(of_seeds[name]) for name in ("Spearman", "split-half", "error")),
        )
        for problem, of_seeds in table.groupby("problem", sort=False)
    ]
    return markdown_table(("workload", "Spearman", "split-half", "mean error"), rows)


# For each part: rows, the method without it, and whether a search follows the training. A method
# with a space is a row of its own: imitation alone, or the best placement that it executed.
PARTS = {
    "list scheduler's terms": ("ablation_learning", "doppler_no_scheduler", True),
    "those, and look-ahead features": ("ablation_learning", "doppler_no_look_ahead", True),
    "learned SEL (longest path first instead)": ("ablation_policies", "doppler_plc_only", True),
    "learned PLC (earliest start instead)": ("ablation_policies", "doppler_sel_only", True),
    "stage I": ("ablation_stages", "doppler_stage_two", True),
    "stage II": ("ablation_stages", "doppler imitation", False),
    "our rules of training (the paper's instead)": ("ablation_learning", "doppler_paper", False),
    "list scheduler as teacher (clustering instead)": (
        *("ablation_learning", "doppler_taught_by_clustering", True),
    ),
    "training (random weights)": ("ablation_learning", "doppler_frozen", True),
    "training (random weights, best of as many placements)": (
        *("ablation_learning", "doppler_frozen trained", False),
    ),
}


def parts() -> str:
    """What the policy decides without each part, over what it decides with all of them.

    The whole policy decides the best placement that it has executed, because it has imitated it.
    """
    rows = []
    for part, (file, method, searches) in PARTS.items():
        greedy = method if " " in method else f"{method} greedy"
        decided = [_over(file, name, greedy, "doppler greedy") for name in WORKLOADS]
        searched = [_over(file, name, method, "doppler") for name in WORKLOADS] if searches else []
        rows.append(
            (
                part,
                *map(_bold_if_sure, decided),
                f"{max(one.value for one in searched):.3f}" if searches else "-",
            )
        )
    return markdown_table(("without", *WORKLOADS, "after the search, largest"), rows)


def _over(file: str, workload: str, method: str, other: str) -> Ratio:
    return ratio_of(*(result_row(file, workload, name) for name in (method, other)))


def _bold_if_sure(ratio: Ratio) -> str:
    """The ratio, bold where its interval does not contain 1."""
    text = f"{ratio.value:.3f}"
    return f"**{text}**" if ratio.low > 1 or ratio.high < 1 else text


def whole_models() -> str:
    """Llama-2, all layers: `doppler.place` and tensor parallelism; milliseconds."""
    table = read("whole_models")
    ways = {
        "auto": (("auto",), ("doppler.place, 10 s",)),
        "any": ((), ("doppler.place, 10 s",)),
        "tensor": ((), ("tensor parallel", "tensor parallel by hosts")),
    }
    rows = []
    for (model, machine), group in table.groupby(["model", "machine"], sort=False):
        cells = []
        for splits, methods in ways.values():
            taken = group["method"].isin(methods) & ~group["ms"].isin(("inf", "-", ""))
            if splits:
                taken &= group["splits"].isin(splits)
            least = group[taken]["ms"].str.replace(",", "").astype(float).min()
            cells.append("-" if least != least else f"{least:.1f}")
        shown = ("h100x8", "dgx_h100x32" if model == "70b" else "dgx_h100x16")
        if machine in shown and model != "70b, training":
            rows.append((model, machine, *cells))
    head = ("model", "machine", "split by *auto*", "best of all splits", "tensor parallelism")
    return markdown_table(head, rows, words=2)


def modules() -> str:
    """Torch modules: one device, what `doppler.place` finds in a second, the bound."""
    columns = ("one device", "makespan", "speed-up", "bound")
    rows = [
        (row["module"], row["cluster"], *(row[name] for name in columns))
        for _, row in read("torch_modules").iterrows()
        if row["cluster"] in ("p100x4", "h100x8")
    ]
    return markdown_table(("module", "cluster", *columns), rows, words=2)


def _whole(file: str, *columns: str, words: int = 1) -> Callable[[], str]:
    """The table of all rows of a file, or of some columns."""

    def table() -> str:
        found = read(file)
        names = columns or tuple(found.columns)
        head = [name.removesuffix(".1") for name in names]  # of a heading that occurs twice
        return markdown_table(head, found[list(names)].itertuples(index=False), words=words)

    return table


TABLES: dict[str, Callable[[], str]] = {
    "readme": readme,
    "search": search,
    "controls": controls,
    "claims": claims,
    "paper_model": paper_model,
    "paper": paper,
    "learning_alone": learning_alone,
    "network": network,
    "network_many": network_many,
    "network_parts": network_parts,
    "optima": optima,
    "profiled": profiled,
    "pretrained": pretrained,
    "scaling": scaling,
    "machines": machines,
    "host": host,
    "fidelity": fidelity,
    "parts": parts,
    "whole_models": whole_models,
    "modules": modules,
    "pipelines": _whole("pipelines"),
    "router": _whole("streams_router"),
    "slow_host": _whole("hosts_slow_host"),
    "killing": _whole("killing"),
    "mutations": _whole("mutations"),
}
