"""Schedules that one can zoom into: Plotly figures from the traces of finished runs.

Traces are read from run directories; nothing is executed again.
"""

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from doppler.graph import load_graph
from doppler.report.finished import FinishedRun
from doppler.report.graph_picture import save_graph_picture
from doppler.report.rows import TRACES
from doppler.support.errors import InputError
from doppler.support.files import read_json
from doppler.support.files.values import read_integer, read_number
from doppler.trace.gantt import CHAIN, GREY, INK, OTHERS, PALETTE, op_groups
from doppler.trace.perfetto import DEVICES, LINKS
from doppler.trace.pictures import shorten
from doppler.trace.usage import time_text, time_unit

_MAX_TASKS, _MAX_LINKS = 6000, 24  # of one schedule on the page
_DEVICE_PX, _LINK_PX = 34, 16


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A schedule to show.

    Attributes:
        figure: of Plotly.
        caption: what it shows.
        still: a picture for pages without scripts.
    """

    figure: dict[str, Any]
    caption: str
    still: Path | None


def best_schedules(runs: Sequence[FinishedRun]) -> tuple[list[Schedule], list[str]]:
    """Return the schedule of the best run, preceded by that of a method that it was compared with.

    Args:
        runs: of one problem and system.

    Returns:
        The schedules, and a line for each trace that cannot be read.
    """
    best = best_run(runs)
    paths = {f"{best.rows[0].method}, seed {best.rows[0].seed}": best.directory / "trace.json"}
    for path in sorted((best.directory / TRACES).glob("*.json"))[:1]:
        paths = {f"{path.stem}, seed {best.rows[0].seed}": path, **paths}
    read, damaged = [], []
    for caption, path in paths.items():
        try:
            read.append((caption, path, read_timeline(path)))
        except InputError as error:
            damaged.append(str(error))
    end_s = max((_end_s(timeline) for _, _, timeline in read), default=0.0)
    still = best.directory / "schedule.png"
    schedules = [
        Schedule(
            figure=gantt_figure(timeline, end_s),
            caption=f"Schedule of {caption}: {time_text(_end_s(timeline))}. "
            "Drag to zoom, double click to go back.",
            still=still if path.parent == still.parent and still.is_file() else None,
        )
        for caption, path, timeline in read
    ]
    return schedules, damaged


def best_run(runs: Sequence[FinishedRun]) -> FinishedRun:
    """Return the run with the shortest makespan, preferably of a learned method.

    Args:
        runs: of one problem and system.
    """
    learned = [run for run in runs if run.is_learned] or list(runs)
    return min(learned, key=lambda run: run.rows[0].makespan_s)


def save_placement(run: FinishedRun, path: Path) -> None:
    """Draw into a PNG file which device runs which part of the graph.

    Args:
        run: whose placement is drawn.
        path: of the file.

    Raises:
        InputError: the trace or the graph is damaged.
    """
    timeline, graph = (
        read_timeline(run.directory / "trace.json"),
        load_graph(run.directory / "graph.json"),
    )
    ops = timeline[timeline["is_op"]].drop_duplicates("id").set_index("id")
    if sorted(ops.index) != list(range(graph.num_ops)):
        raise InputError(f"{run.directory}: the trace is not of the graph")
    save_graph_picture(graph, path, device_V=ops["track"].sort_index().tolist())


def read_timeline(path: Path) -> pd.DataFrame:
    """Read the tasks of an execution from the trace.json that `save_perfetto` wrote.

    Args:
        path: of the file.

    Returns:
        A row per op and transfer: ``track`` (of a device or link), ``is_op``, ``id``, ``name``,
        ``kind``, ``node``, ``group`` (what it is a block of), ``start_s``, ``seconds``,
        ``critical``; tracks in the file's order.

    Raises:
        InputError: not such a trace.
    """
    data = read_json(path)
    try:
        events = data["traceEvents"]
        tracks = {e["tid"]: str(e["args"]["name"]) for e in events if e["name"] == "thread_name"}
        rows = [
            _task(event, tracks)
            for event in events
            if event["ph"] == "X" and event["pid"] in (DEVICES, LINKS)
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a trace ({type(error).__name__})") from None
    if not rows:
        raise InputError(f"{path}: has no ops")
    table = pd.DataFrame(rows)
    return table.assign(
        group=op_groups(*(table[name].tolist() for name in ("name", "kind", "node")))
    )


def _task(event: dict[str, Any], tracks: dict[Any, str]) -> dict[str, Any]:
    args, is_op = event["args"], event["pid"] == DEVICES
    start_s, seconds = (read_number(event[key], key) / 1e6 for key in ("ts", "dur"))
    if start_s < 0 or seconds < 0:
        raise ValueError("negative seconds")
    return {
        "track": re.sub(r"^device \d+: ", "", tracks[event["tid"]]),
        "is_op": is_op,
        "id": read_integer(args["op" if is_op else "transfer"], "id"),
        "name": str(event["name"]),
        "kind": str(args["kind"]),
        "node": read_integer(args["node"], "node"),
        "critical": bool(args["critical"]),
        "start_s": start_s,
        "seconds": seconds,
    }


def gantt_figure(timeline: pd.DataFrame, end_s: float) -> dict[str, Any]:
    """Return a schedule as a Plotly figure in JSON: a row per device, thinner ones per link below.

    Args:
        timeline: as `read_timeline` makes it.
        end_s: end of the time axis, so that two schedules can be compared.
    """
    busy_s = timeline.groupby("track", sort=False)["seconds"].sum()
    is_device = timeline.groupby("track", sort=False)["is_op"].first()
    links = busy_s[~is_device].nlargest(_MAX_LINKS).index
    tracks = [name for name in busy_s.index if is_device[name] or name in links]
    size = np.array([_DEVICE_PX if is_device[name] else _LINK_PX for name in tracks])
    middle = dict(zip(tracks, (np.cumsum(size) - size / 2).tolist(), strict=True))
    shown = timeline[timeline["track"].isin(tracks)].nlargest(_MAX_TASKS, "seconds")
    unit_s, symbol = time_unit(end_s)
    makespan_s = _end_s(timeline) or 1.0
    ticks = [f"{html.escape(shorten(name, 22))} {busy_s[name] / makespan_s:.0%}" for name in tracks]
    height = int(size.sum())
    boxes = [_bars(tasks, name, colour, middle, unit_s) for name, colour, tasks in _layers(shown)]
    chain = shown[shown["critical"].astype(bool)]
    return {
        "data": [*boxes, _outlines(chain, middle, unit_s, end_s)],
        "layout": {
            "barmode": "overlay",
            "height": height + 74,  # the page adds the height of the legend
            "margin": {"l": 8, "r": 12, "t": 30, "b": 44},
            "font": {"size": 12, "color": INK},
            "plot_bgcolor": "#f5f6f8",
            "hoverlabel": {"align": "left"},
            "legend": {"orientation": "h", "y": -46 / height, "yanchor": "top"},
            "xaxis": {
                **{"title": {"text": f"time ({symbol})", "standoff": 4}, "gridcolor": "#ffffff"},
                **{"range": [0, 1.005 * end_s / unit_s], "zeroline": False},
            },
            "yaxis": {
                **{"tickvals": list(middle.values()), "ticktext": ticks, "range": [height, 0]},
                **{"fixedrange": True, "automargin": True, "showgrid": False, "zeroline": False},
            },
        },
    }


def _layers(timeline: pd.DataFrame) -> Iterable[tuple[str, str, pd.DataFrame]]:
    """Legend entry, colour and tasks: the groups that take longest, other ops, transfers."""
    ops, transfers = timeline[timeline["is_op"]], timeline[~timeline["is_op"]]
    busy_s = ops.groupby("group")["seconds"].sum().sort_values(ascending=False, kind="stable")
    for name, colour in zip(busy_s.index, PALETTE, strict=False):
        yield str(name), colour, ops[ops["group"] == name]
    if len(rest := ops[ops["group"].isin(busy_s.index[len(PALETTE) :])]):
        yield f"{len(busy_s) - len(PALETTE)} smaller ones", OTHERS, rest
    if len(transfers):
        yield "transfer", GREY, transfers


def _bars(
    tasks: pd.DataFrame, name: str, colour: str, middle: dict[str, float], unit_s: float
) -> dict[str, Any]:
    """The boxes of one colour."""
    rows = tasks[["name", "track", "seconds", "start_s"]].itertuples(index=False, name=None)
    texts = [
        f"<b>{html.escape(shorten(task, 60))}</b> on {html.escape(shorten(track, 30))}"
        f"<br>{time_text(seconds)} from {time_text(start_s)}"
        for task, track, seconds, start_s in rows
    ]
    return {
        **_boxes(tasks, name, middle, unit_s),
        "hovertext": texts,
        "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {"color": colour, "line": {"color": "#ffffff", "width": 0.4}},
    }


def _outlines(
    chain: pd.DataFrame, middle: dict[str, float], unit_s: float, end_s: float
) -> dict[str, Any]:
    """Outlines of the critical chain, drawn so that short tasks stay visible."""
    is_short = chain["seconds"] < 0.006 * end_s
    line = {"color": CHAIN, "width": np.where(is_short, 0.5, 1.6).tolist()}
    return {
        **_boxes(chain, "critical chain", middle, unit_s),
        "hoverinfo": "skip",
        "marker": {"color": "rgba(0,0,0,0)", "line": line},
    }


def _boxes(
    tasks: pd.DataFrame, name: str, middle: dict[str, float], unit_s: float
) -> dict[str, Any]:
    thick = np.where(tasks["is_op"], 0.78 * _DEVICE_PX, 0.62 * _LINK_PX)
    return {
        "type": "bar",
        "orientation": "h",
        "name": html.escape(shorten(name, 22)),
        "y": [middle[track] for track in tasks["track"]],
        "base": [float(f"{start:.6g}") for start in tasks["start_s"] / unit_s],
        "x": [float(f"{length:.4g}") for length in tasks["seconds"] / unit_s],
        "width": thick.tolist(),
    }


def _end_s(timeline: pd.DataFrame) -> float:
    return float((timeline["start_s"] + timeline["seconds"]).max())
