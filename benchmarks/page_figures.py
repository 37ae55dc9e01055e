"""The figures of docs/results, each from the rows in docs/results/data."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import matplotlib as mpl
from benchmarks.page_rows import read, result_row
from benchmarks.page_tables import SETTINGS, WORKLOADS
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#767676", "#e15759")
# Equal rows make equal files.
_RC = {"svg.fonttype": "none", "svg.hashsalt": "doppler", "font.size": 9}
Mark = tuple[float, float, float]  # a ratio, and the ends of its interval


def _save(figure: Figure, path: Path) -> None:
    with mpl.rc_context(_RC):
        figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")


def _axes(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.2, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def _intervals(
    path: Path, labels: Sequence[str], series: dict[str, Sequence[Mark]], text: str
) -> None:
    """Ratios with intervals, a line for each label and a colour for each series."""
    figure, axes = _axes(0.8 + 0.3 * len(labels) + 0.08 * len(labels) * len(series))
    for number, (name, marks) in enumerate(series.items()):
        shift = 0.16 * (number - (len(series) - 1) / 2)
        for place, (ratio, low, high) in enumerate(marks):
            y = place + shift
            axes.plot((low, high), (y, y), color=COLOURS[number], linewidth=1.4)
            axes.plot(ratio, y, "o", color=COLOURS[number], markersize=4)
        axes.plot([], [], "o-", color=COLOURS[number], label=name, markersize=4)
    axes.axvline(1.0, color="#333333", linewidth=0.8)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel(text)
    if len(series) > 1:
        axes.legend(frameon=False, fontsize=8)
    _save(figure, path)


def _mark(row) -> Mark:
    return row["over_control"], row["over_control_low"], row["over_control_high"]


def _told(text: str) -> Mark:
    """``1.012 (1.002 to 1.022)``, or a ratio alone; what follows the bracket does not matter."""
    ratio, _, rest = text.partition(" (")
    low, high = rest.partition(")")[0].split(" to ") if rest else (ratio, ratio)
    return float(ratio), float(low), float(high)


def search(path: Path) -> None:
    """Methods on eight GPUs over the best one that learns nothing."""
    methods = {
        "DOPPLER": "doppler",
        "search on estimates": "estimates_then_anneal",
        "GDP": "gdp",
        "portfolio": "portfolio",
        "clusterings, annealing": "cluster_then_anneal",
        "ETF": "etf",
        "DOPPLER, training alone": "doppler trained",
    }
    series = {
        name: [_mark(result_row("main_8dev", name, method)) for method in methods.values()]
        for name in WORKLOADS
    }
    _intervals(path, list(methods), series, "makespan over the best method without learning")


def machines(path: Path) -> None:
    """DOPPLER over the best method that learns nothing, by setting."""
    marks = [
        _mark(result_row(file, name, "doppler", *more)) for file, name, more in SETTINGS.values()
    ]
    text = "DOPPLER's makespan over that of the best method without learning"
    _intervals(path, list(SETTINGS), {"DOPPLER": marks}, text)


def parts(path: Path) -> None:
    """The policy trained without each of its parts."""
    table = read("parts").iloc[1:]
    series = {
        "what the policy decides": list(map(_told, table["policy"])),
        "after one search step": list(map(_told, table["at once"])),
    }
    _intervals(path, list(table["without"]), series, "makespan over the whole policy's")


def host(path: Path) -> None:
    """All three stages on cores, paired with what was measured in the same turns."""
    table = read("main_host_pooled")
    series = {
        f"{budget} measured executions": [
            (float(row["ratio"]), float(row["low"]), float(row["high"]))
            for _, row in table[table["measured_evaluations"] == budget].iterrows()
        ]
        for budget in ("16", "64", "250")
    }
    labels = [
        "search on estimates,\nmeasured",
        "search on estimates,\nsimulated only",
        "DOPPLER without\nstage III",
    ]
    _intervals(path, labels, series, "measured seconds of DOPPLER over those of")


def paper(path: Path) -> None:
    """Methods over the critical path's best of 50: the paper's milliseconds, and ours."""
    published = read("published").set_index("workload")
    methods = {
        "EnumOpt": ("EnumOpt", "enumerative"),
        "Placeto": ("Placeto", "placeto_unaided"),
        "GDP": ("GDP", "gdp_unaided"),
        "DOPPLER": ("DOPPLER-SIM", "doppler_unaided"),
    }
    figure, axes = _axes(3.4)
    labels = []
    for label, (column, method) in methods.items():
        for name in WORKLOADS:
            here, base = (
                result_row("paper", name, each, "system=work_conserving")["makespan_s"]
                for each in (method, "critical_path_50")
            )
            told = published.loc[name]
            theirs = float(told[column]) / float(told["critical path"])
            axes.plot(theirs, len(labels), "D", color=COLOURS[1], markersize=4)
            axes.plot(here / base, len(labels), "o", color=COLOURS[0], markersize=5)
            labels.append(f"{label}, {name}")
    axes.plot([], [], "D", color=COLOURS[1], label="paper", markersize=4)
    axes.plot([], [], "o", color=COLOURS[0], label="here", markersize=5)
    axes.axvline(1.0, color="#333333", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xticks((0.25, 0.5, 1, 2, 4), ("0.25", "0.5", "1", "2", "4"))
    axes.minorticks_off()
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.legend(frameon=False)
    axes.set_xlabel("makespan over that of the critical path heuristic")
    _save(figure, path)


def _lines(path: Path, lines: dict[str, Iterable[tuple[float, float]]], x: str, y: str) -> None:
    figure, axes = _axes(3.0)
    for number, (name, points) in enumerate(lines.items()):
        across, up = zip(*points, strict=True)
        axes.plot(across, up, "o-", color=COLOURS[number], label=name, markersize=4)
    axes.legend(frameon=False, fontsize=8)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    _save(figure, path)


def optima(path: Path) -> None:
    """Mean distance to the proven optimum by executions."""
    table = read("optima")
    table = table[(table["set"] == "auckland") & (table["queue"] == "priority")]
    figure, axes = _axes(3.0)
    budgets = ("1", "64", "1000", "4000")
    for number, name in enumerate(
        ("doppler", "estimates_then_anneal", "cluster_then_anneal", "etf")
    ):
        rows = table[table["method"] == name].set_index("budget")
        found = [
            (int(n), 100 * (float(rows.loc[n, "mean"]) - 1)) for n in budgets if n in rows.index
        ]
        axes.plot(*zip(*found, strict=True), "o-", color=COLOURS[number], label=name, markersize=4)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.legend(frameon=False, fontsize=8)
    axes.set_xlabel("executions")
    axes.set_ylabel("% above the optimum, mean of 242 graphs")
    _save(figure, path)


def memory(path: Path) -> None:
    """Makespan of memory plans by the memory they may use."""
    table = read("memory")
    lines = {}
    for problem in ("chainmm", "ffnn", "llama_block training", "llama_layer training"):
        rows = table[
            (table["problem"] == f"{problem}, p100x4") & table["memory"].str.fullmatch(r"\d+%")
        ]
        lines[problem] = [
            (float(row["memory"].rstrip("%")), float(row["ours"])) for _, row in rows.iterrows()
        ]
    _lines(
        path, lines, "memory, % of what the run without limits takes", "makespan over that run's"
    )


def families(path: Path) -> None:
    """One execution by the policy over the best of 35 by heuristics, by size and ratio."""
    table = read("families")
    table = table[table["problems"].str.startswith("ratio") & (table["set"] != "several hosts")]
    ratio = table["problems"].str.extract(r"ratio (\S+),", expand=False).astype(float)
    table = table.loc[ratio.sort_values(kind="stable").index]
    methods = {
        "policy alone": "trained alone",
        "untrained policy alone": "untrained alone",
        "policy and search on estimates": "trained at once",
        "search on estimates without policy": "without policy",
    }
    series = {
        name: [_told(cell) for cell in table[column]]
        for name, column in methods.items()
        if table[column].all()
    }
    text = "makespan of one execution over the best of 35 by heuristics"
    _intervals(path, list(table["problems"]), series, text)


def anytime(path: Path) -> None:
    """What searches have found after so many seconds, for four sets of problems."""
    methods = {
        "doppler": "policy, then search",
        "estimates_then_anneal": "search on estimates",
        "cluster_then_anneal": "clusterings, then annealing",
        "portfolio": "portfolio of heuristics",
        "etf": "ETF",
        "doppler untrained": "untrained policy, then search",
    }
    table = read("anytime")
    table = table[table["unit"] == "seconds"]
    methods = {method: label for method, label in methods.items() if any(table["method"] == method)}
    figure = Figure(figsize=(7.2, 5.0), layout="constrained")
    sets = ("four workloads", "51 problems", "10,000 ops, two graphs", "100,000 ops, two graphs")
    for axes, name in zip(figure.subplots(2, 2).flat, sets, strict=True):
        for number, (method, label) in enumerate(methods.items()):
            rows = table[(table["problems"] == name) & (table["method"] == method)]
            seconds = rows["took_s"].where(rows["took_s"] != "", rows["budget"]).astype(float)
            ratios = rows["ratio"].astype(float)
            axes.plot(seconds, ratios, "o-", color=COLOURS[number], label=label, markersize=4)
        axes.set(title=name, xscale="log", ylim=(0.99, 1.25))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes.minorticks_off()
    figure.supxlabel("seconds on one core")
    figure.supylabel("makespan over the best that is known")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    _save(figure, path)


def whole_models(path: Path) -> None:
    """Torch modules in one second: how many times faster than one device."""
    table = read("torch_modules")
    figure, axes = _axes(2.8)
    for number, cluster in enumerate(dict.fromkeys(table["cluster"])):
        rows = table[table["cluster"] == cluster]
        places = [place + 0.18 * number for place in range(len(rows))]
        axes.barh(
            places, rows["speed-up"].astype(float), 0.16, color=COLOURS[number], label=cluster
        )
        axes.set_yticks([place + 0.27 for place in range(len(rows))], list(rows["module"]))
    axes.legend(frameon=False, fontsize=8)
    axes.set_xlabel("times faster than one device")
    _save(figure, path)


FIGURES: dict[str, Callable[[Path], None]] = {
    "paper": paper,
    "search": search,
    "optima": optima,
    "families": families,
    "anytime": anytime,
    "machines": machines,
    "host": host,
    "parts": parts,
    "whole_models": whole_models,
    "memory": memory,
}
