"""The figures of docs/results, each from the rows in docs/results/data."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import matplotlib as mpl
from benchmarks.page_rows import read, result_row
from benchmarks.page_tables import SETTINGS, WORKLOADS
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1")
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
    """``1.012 (1.002 to 1.022)``, or a ratio alone."""
    ratio, _, rest = text.partition(" (")
    low, high = rest.rstrip(")").split(" to ") if rest else (ratio, ratio)
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
    """Methods over DOPPLER: the paper's milliseconds, and ours."""
    published = read("published").set_index("workload")
    ours = {
        "critical path": ("main_4dev", "critical_path"),
        "EnumOpt": ("main_4dev", "enumerative"),
        "GDP": ("training_curves", "gdp greedy"),
        "Placeto": ("training_curves", "placeto greedy"),
    }
    figure, axes = _axes(3.4)
    labels = []
    for label, (file, method) in ours.items():
        for name in WORKLOADS:
            base = result_row("training_curves", name, "doppler_paper greedy")["makespan_s"]
            here = result_row(file, name, method)["makespan_s"] / base
            told = published.loc[name]
            theirs = float(told[label]) / float(told["DOPPLER-SIM"])
            axes.plot(theirs, len(labels), "D", color=COLOURS[1], markersize=4)
            axes.plot(here, len(labels), "o", color=COLOURS[0], markersize=5)
            labels.append(f"{label}, {name}")
    axes.plot([], [], "D", color=COLOURS[1], label="paper", markersize=4)
    axes.plot([], [], "o", color=COLOURS[0], label="here", markersize=5)
    axes.axvline(1.0, color="#333333", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xticks((1, 2, 4, 8), ("1", "2", "4", "8"))
    axes.minorticks_off()
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.legend(frameon=False)
    axes.set_xlabel("makespan over DOPPLER's")
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


def transfer(path: Path) -> None:
    """Weights of another workload or machine, before and after a search."""
    kinds = {
        "other workload": ("transfer", "doppler_zero_shot", ()),
        "8 V100 to 4 P100": ("transfer_machines", "doppler_zero_shot_machine", ("num_devices=4",)),
        "4 P100 to 8 V100": ("transfer_machines", "doppler_zero_shot_machine", ("num_devices=8",)),
    }
    labels, once, searched = [], [], []
    for kind, (file, method, more) in kinds.items():
        for name in WORKLOADS:
            labels.append(f"{kind}, {name}")
            once.append(_mark(result_row(file, name, f"{method} at once", *more)))
            searched.append(_mark(result_row(file, name, method, *more)))
    series = {"as they are": once, "then search": searched}
    _intervals(path, labels, series, "makespan over the best method without learning")


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
    "transfer": transfer,
    "machines": machines,
    "host": host,
    "parts": parts,
    "whole_models": whole_models,
    "memory": memory,
}
