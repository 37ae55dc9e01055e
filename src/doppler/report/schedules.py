"""Pictures of schedules: a baseline's and a learned one, Gantt charts, utilisation, placement.

What runs keep is placements; simulated ones are executed again for their traces.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hydra.utils import instantiate
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from doppler.graph import load_graph
from doppler.problem import Placement, Problem, build
from doppler.report.finished import FinishedRun
from doppler.report.graph_picture import save_graph_picture
from doppler.report.rows import PLACEMENTS
from doppler.trace import Trace, explain, save_gantt

BEFORE = "critical_path"
_MAX_LINKS = 12
_COLOURS = ("#9aa3ad", "#4e79a7")


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture on disk, and what it shows."""

    path: Path
    caption: str


def schedule_pictures(runs: Sequence[FinishedRun], folder: Path, *, name: str) -> list[Picture]:
    """Before (critical path) and after (the best run): schedules, utilisation, placement.

    runs: of one problem and system. name: what the names of files begin with. Measured runs show
    the schedule that they recorded.
    """
    learned = [run for run in runs if run.is_learned] or list(runs)
    best = min(learned, key=lambda run: run.rows[0].makespan_s)
    after = f"{best.rows[0].method}, seed {best.rows[0].seed}"
    problem = _problem(best)
    if problem is None:
        return [Picture(path=best.directory / "schedule.png", caption=f"After: {after}")]
    traces = {}
    for run in runs:
        path = run.directory / PLACEMENTS / f"{BEFORE}.json"
        if path.exists() and best.rows[0].method != BEFORE:
            traces[f"Before: {BEFORE}, seed {run.rows[0].seed}"] = _trace(run, problem, path)
            break
    traces[f"After: {after}"] = _trace(best, problem, best.directory / "placement.json")
    pictures = []
    for caption, trace in traces.items():
        path = folder / f"{name}-{caption.split(':')[0].lower()}.png"
        save_gantt(trace, path, title=f"{caption}: {best.rows[0].workload}")
        facts = "; ".join(explain(trace).lines()[:2])
        pictures.append(Picture(path=path, caption=f"{caption}. {facts}"))
    path = folder / f"{name}-utilisation.png"
    save_utilisation(traces, path)
    pictures.append(Picture(path=path, caption="Busy share of devices and of the busiest links"))
    path = folder / f"{name}-placement.png"
    placement = list(traces.values())[-1].placement
    names = [device.name for device in problem.cluster.devices]
    save_graph_picture(
        problem.graph,
        path,
        group_V=[names[d] for d in placement.device],
        title=f"{after}: who runs what",
    )
    pictures.append(Picture(path=path, caption=f"The placement of {after}, drawn on the graph"))
    return pictures


def save_utilisation(traces: dict[str, Trace], path: Path) -> None:
    """Bars of busy shares, one colour a trace."""
    explained = {caption: explain(trace) for caption, trace in traces.items()}
    links = {
        caption: {f"{use.src} → {use.dst}": use.utilisation for use in one.links}
        for caption, one in explained.items()
    }
    largest: dict[str, float] = {}
    for of_trace in links.values():
        for link, share in of_trace.items():
            largest[link] = max(largest.get(link, 0.0), share)
    busiest = sorted(largest, key=lambda link: -largest[link])[:_MAX_LINKS]
    devices = next(iter(explained.values())).device_names
    rows = max(len(devices), len(busiest))
    figure = Figure(figsize=(11, 0.9 + 0.3 * rows), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    height = 0.8 / len(traces)
    for i, (caption, one) in enumerate(explained.items()):
        colour = _COLOURS[(i + len(_COLOURS) - len(traces)) % len(_COLOURS)]
        for axes, names, shares in (
            (left, devices, one.device_utilisation),
            (right, busiest, [links[caption].get(link, 0.0) for link in busiest]),
        ):
            y = np.arange(len(names)) + (i - (len(traces) - 1) / 2) * height
            axes.barh(y, 100 * np.asarray(shares), height, color=colour, label=caption)
            axes.set_yticks(range(len(names)), labels=list(names), fontsize=8)
    for axes, what in ((left, "devices"), (right, "links")):
        axes.invert_yaxis()
        axes.set_xlabel(f"{what}: busy share of the makespan (%)", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", alpha=0.25)
    left.set_xlim(0, 100)
    left.legend(fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _problem(run: FinishedRun) -> Problem | None:
    """The run's problem, where it can be built again and was executed by a simulator."""
    row = run.rows[0]
    if row.system_kind != "simulated":
        return None
    problem = build(load_graph(run.directory / "graph.json"), instantiate(run.config["cluster"]))
    return problem if problem.hash == row.problem else None


def _trace(run: FinishedRun, problem: Problem, placement: Path) -> Trace:
    with instantiate(run.config["simulator"]).open(problem) as session:
        return session.trace(Placement.load(placement, problem))
