"""The tables of README.md and docs/results, each from the rows in docs/results/data."""

from collections.abc import Callable, Mapping

from benchmarks.page_rows import markdown_table, one_row, read, result_row

WORKLOADS = ("chainmm", "ffnn", "llama_block", "llama_layer")
_FIFO = "rules=queue fifo, contention fifo, streams 1, noise 0.0"
_PRIORITY = "rules=queue priority, contention fifo, streams 1, noise 0.0"
_RELEASED = {"system": "published", "rules": "queue fifo, streams 1, noise 0.0"}
_NAMES = {
    "DOPPLER, trained on the problem": "doppler",
    "DOPPLER, from the weights of the package": "doppler_pretrained",
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


def paper() -> str:
    """The paper's methods over its DOPPLER; here over DOPPLER with the paper's rules."""
    published = {row["workload"]: row for _, row in read("published").iterrows()}
    ours = {
        "critical path": ("main_4dev", "critical_path"),
        "EnumOpt": ("main_4dev", "enumerative"),
        "GDP": ("training_curves", "gdp greedy"),
        "Placeto": ("training_curves", "placeto greedy"),
    }
    rows = []
    for label, (file, method) in ours.items():
        cells = [label]
        for name in WORKLOADS:
            theirs = float(published[name][label]) / float(published[name]["DOPPLER-SIM"])
            base = result_row("training_curves", name, "doppler_paper greedy")["makespan_s"]
            cells += [f"{theirs:.2f}", f"{result_row(file, name, method)['makespan_s'] / base:.2f}"]
        rows.append(cells)
    head = [f"{name}, {whose}" for name in WORKLOADS for whose in ("paper", "here")]
    return markdown_table(("over DOPPLER", *head), rows)


def released() -> str:
    """The released simulator and costs, 4 devices, 4,000 executions."""
    table = read("equal_evaluations")
    methods = {
        "DOPPLER, what training alone found": "doppler trained, 1,988",
        "DOPPLER, with its search": "doppler, 4,000",
        "search on estimates, no learning": "estimates_then_anneal, 4,000",
        "annealing": "annealing, 4,000",
        "ETF": "etf, 4,000",
    }
    rows = []
    for label, method in methods.items():
        found = [
            one_row(table, **_RELEASED, num_devices="4", workload=name, method=method)
            for name in WORKLOADS
        ]
        rows.append((label, *(f"{row['makespan_s']:.4g}" for row in found)))
    return markdown_table(("seconds of the released costs", *WORKLOADS), rows)


def barriers() -> str:
    """Levels with barriers over work-conserving execution."""
    rows = [
        (row["problem"].split(" on ")[0], row["method"], row["ratio"], row["paper"])
        for _, row in read("wc_vs_sync_ratio").iterrows()
        if row["method"] in ("cluster_then_anneal", "enumerative")
    ]
    return markdown_table(("workload", "method", "here", "paper"), rows, words=2)


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


def transfer() -> str:
    """Weights of another workload or machine: at once, after few episodes, and after a search."""
    kinds = {
        "another workload, as they are": ("transfer", "doppler_zero_shot at once", ()),
        "another workload, after 256 executions": ("transfer", "doppler_few_shot greedy", ()),
        "another workload, then search": ("transfer", "doppler_zero_shot", ()),
        "8 V100 to 4 P100, as they are": (
            "transfer_machines",
            "doppler_zero_shot_machine at once",
            ("num_devices=4",),
        ),
        "8 V100 to 4 P100, then search": (
            "transfer_machines",
            "doppler_zero_shot_machine",
            ("num_devices=4",),
        ),
        "4 P100 to 8 V100, as they are": (
            "transfer_machines",
            "doppler_zero_shot_machine at once",
            ("num_devices=8",),
        ),
        "4 P100 to 8 V100, then search": (
            "transfer_machines",
            "doppler_zero_shot_machine",
            ("num_devices=8",),
        ),
        "trained on the problem itself, as it decides": ("transfer", "doppler greedy", ()),
    }
    rows = [
        (
            label,
            *(f"{result_row(file, name, method, *more)['over_control']:.3f}" for name in WORKLOADS),
        )
        for label, (file, method, more) in kinds.items()
    ]
    return markdown_table(("weights of", *WORKLOADS), rows)


SETTINGS = {
    "4 P100": ("main_4dev", "llama_layer", ()),
    "8 V100": ("main_8dev", "llama_layer", ()),
    "2 P100": ("fewer_devices", "llama_layer", ("num_devices=2",)),
    "3 P100": ("fewer_devices", "llama_layer", ("num_devices=3",)),
    "two generations of GPU": ("heterogeneous", "llama_layer", ()),
    "1.6 GB a device": ("memory_limits", "llama_layer", ("memory_bytes=1600000000.0",)),
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
    """Simulated against measured seconds of 60 placements, seed 0, measured costs."""
    rows = [
        (row["problem"].split(" on ")[0], row["Spearman"], row["split-half"], row["error"])
        for _, row in read("fidelity").iterrows()
        if row["simulated with"] == "measured costs" and row["seed"] == "0"
    ]
    return markdown_table(("workload", "Spearman", "split-half", "mean error"), rows)


def parts() -> str:
    """The policy trained without each of its parts, over the whole policy."""
    rows = [(row["without"], row["policy"], row["at once"]) for _, row in read("parts").iterrows()]
    return markdown_table(
        ("trained without", "what the policy decides", "after one search step"), rows
    )


def order() -> str:
    """First in, first out over the order of the placement."""
    rows = []
    for label, method in (
        ("DOPPLER", "doppler"),
        ("search on estimates, no learning", "estimates_then_anneal"),
        ("portfolio", "portfolio"),
    ):
        pairs = [
            (result_row("order", name, method, _FIFO), result_row("order", name, method, _PRIORITY))
            for name in WORKLOADS
        ]
        rows.append((label, *(f"{a['makespan_s'] / b['makespan_s']:.3f}" for a, b in pairs)))
    return markdown_table(("first in, first out over own order", *WORKLOADS), rows)


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
        return markdown_table(names, found[list(names)].itertuples(index=False), words=words)

    return table


TABLES: dict[str, Callable[[], str]] = {
    "readme": readme,
    "search": search,
    "controls": controls,
    "paper": paper,
    "released": released,
    "barriers": barriers,
    "optima": optima,
    "profiled": profiled,
    "transfer": transfer,
    "machines": machines,
    "host": host,
    "fidelity": fidelity,
    "parts": parts,
    "order": order,
    "whole_models": whole_models,
    "modules": modules,
    "pipelines": _whole("pipelines"),
    "router": _whole("streams_router"),
    "slow_host": _whole("hosts_slow_host"),
    "killing": _whole("killing"),
    "mutations": _whole("mutations"),
}
