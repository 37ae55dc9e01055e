"""Pictures take any name: it is shown as it is, and nothing of a run is lost."""

import dataclasses

import numpy as np
import pytest
from matplotlib.image import imread
from problems import cluster_of, graph_of

from doppler.baselines import SingleDevice
from doppler.problem import build
from doppler.report.cluster_picture import save_cluster_picture
from doppler.report.graph_picture import save_graph_picture
from doppler.simulator import WorkConserving
from doppler.trace import save_gantt
from doppler.trace.pictures import new_figure, save_figure

NAMES = [
    *(r"$\frac{$", "$$", "a$b$c", r"\$x$", "$\\", "%", "{", "_hidden", "__", "\n", "\t\x1b[31m"),
    *("", " ", "中文", "\U0001f600", "‮", "a" * 5_000, "\\" * 300, "<b>&", "=HYPERLINK(1)"),
]


def trace_of(name: str):
    graph = graph_of([1, 2, 3], [(0, 1, 1.0), (1, 2, 1.0)])
    ops = dataclasses.replace(graph.ops, names=(name, name, name), kinds=(name, f"{name}b", "c"))
    cluster = cluster_of([1.0, 1.0])
    devices = tuple(
        dataclasses.replace(d, name=f"{name}:{i}") for i, d in enumerate(cluster.devices)
    )
    graph = dataclasses.replace(graph, name=name or "x", ops=ops)
    problem = build(graph, dataclasses.replace(cluster, name=name, devices=devices))
    session = WorkConserving().open(problem)
    return session.trace(SingleDevice().place(session, np.random.default_rng(0)).placement)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_every_picture_takes_every_name(name, tmp_path):
    trace = trace_of(name)
    save_gantt(trace, tmp_path / "gantt.png", title=name)
    save_graph_picture(trace.problem.graph, tmp_path / "graph.png")
    save_cluster_picture(trace.problem.cluster, tmp_path / "cluster.png")
    for path in tmp_path.iterdir():
        height, width, _ = imread(path).shape
        assert min(height, width) > 100 and height * width < 2**23


def test_names_are_no_formulas_but_powers_of_ten_are(tmp_path):
    figure = new_figure(3, 3, dpi=50)
    axes = figure.add_subplot()
    axes.set(yscale="log", ylim=(1, 1e6), title="$a$")
    text = axes.text(0, 10, "$b$")
    save_figure(figure, tmp_path / "x.png")
    assert not text.get_parse_math() and not axes.title.get_parse_math()
    assert all(one.label1.get_parse_math() for one in axes.yaxis.get_major_ticks())
