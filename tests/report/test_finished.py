"""Finished runs as users, kills and other programs leave them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from problems import cluster_of, graph_of
from results import ROW, leave_run, seeds, summary

from doppler.graph import DataflowGraph
from doppler.problem import Placement, build
from doppler.report.aggregate import collect
from doppler.report.figures import band, save_curves
from doppler.report.finished import find_runs, read_run
from doppler.report.page import write_report
from doppler.report.rows import make_console, read_results, write_results
from doppler.report.run_table import print_results
from doppler.report.schedules import best_schedules, gantt_figure, read_timeline
from doppler.simulator import WorkConserving
from doppler.support.errors import InputError
from doppler.trace import save_perfetto

BINARY = bytes(range(256))
DAMAGES = [
    *[("summary.json", content) for content in (b"", b"{}", b"[]", b"null", b'{"a', BINARY)],
    *[("results.csv", content) for content in (b"", b"method\n", BINARY, None)],
    *[(".hydra/config.yaml", content) for content in (b"", b"null", b"text", BINARY, None)],
    ("paired.csv", BINARY),
    ("summary.json", b'{"stage": "train", "seed": 0, "fidelity": {"a": 3}}'),
    ("summary.json", b'{"stage": "train", "seed": {}}'),
    ("summary.json", b'{"stage": "train", "seed": 0, "versions": null}'),
]


@pytest.mark.parametrize(("file", "content"), DAMAGES)
def test_a_run_that_cannot_be_read_is_named_and_the_others_are_shown(tmp_path, file, content):
    leave_run(tmp_path / "runs/good", [ROW], {}, makespan_s=0.1)
    damaged = leave_run(tmp_path / "runs/damaged", [ROW], {}, makespan_s=0.1) / file
    damaged.unlink(missing_ok=True)
    if content is not None:
        damaged.write_bytes(content)
    markdown, unread = write_report([tmp_path / "runs"], tmp_path / "report")
    assert [line for line in unread if line.startswith(f"{damaged}:")], unread
    assert "- not read: " in markdown and "| doppler |" in markdown
    assert damaged.name in (tmp_path / "report/report.html").read_text()
    with pytest.raises(InputError, match=f"no run that can be read: {damaged}"):
        write_report([tmp_path / "runs/damaged"], tmp_path / "report")


def test_a_run_that_is_not_finished_is_named(tmp_path):
    for name in ("good", "failed"):
        leave_run(tmp_path / "runs" / name, [ROW], {}, makespan_s=0.1)
    (tmp_path / "runs/failed/summary.json").unlink()
    markdown, unread = write_report([tmp_path / "runs"], tmp_path / "report")
    assert f"{tmp_path}/runs/failed: not finished" in unread
    assert not any(line.endswith("good: not finished") for line in unread)
    assert "failed: not finished" in markdown
    assert "failed: not finished" in (tmp_path / "report/report.html").read_text()


@pytest.mark.parametrize(("text", "why"), [("-1.0", "-1.0"), ("nan", "nan"), ("x", "line 2")])
def test_seconds_that_are_none_are_damaged(tmp_path, text, why):
    path = tmp_path / "results.csv"
    write_results(path, [ROW])
    assert read_results(path) == [ROW]
    path.write_text(path.read_text().replace(",0.1,", f",{text},"))
    with pytest.raises(InputError, match=why):
        read_results(path)


def test_rows_of_two_problems_are_no_run(tmp_path):
    rows = [ROW, *seeds([0.1], problem="p1")]
    with pytest.raises(InputError, match=r"results\.csv: rows of several problems or systems"):
        read_run(leave_run(tmp_path / "run", rows, {}))


def test_what_compares_nothing_is_left_out_and_not_named(tmp_path):
    leave_run(tmp_path / "run", [ROW], {})
    directory = leave_run(tmp_path / "describe", [ROW], {})
    (directory / "results.csv").unlink()
    found, damaged = find_runs([tmp_path])
    assert [run.directory.name for run in found] == ["run"] and damaged == []


def test_names_that_are_markup_are_printed_as_they_are(capsys):
    rows = seeds([0.1], method="[/b] :smile: [red]x", workload="[/b]")
    console = make_console()
    print_results(rows, console)
    console.print("[/b] :smile:")
    told = capsys.readouterr().out
    assert "[/b] :smile: [red]x" in told and "[/b] on p100x4" in told
    assert told.endswith("[/b] :smile:\n")


def metrics_of(tmp_path: Path, text: str, where: str = "metrics.csv") -> pd.DataFrame:
    directory = leave_run(tmp_path / "run", [ROW], {})
    (directory / where).parent.mkdir(parents=True, exist_ok=True)
    (directory / where).write_text(text)
    return read_run(directory).metrics


def test_metrics_of_an_interrupted_run_end_at_its_last_whole_row(tmp_path):
    found = metrics_of(tmp_path, "step,episodes,best_s\n0,16,0.5\n1,32,0.25\n2,4")
    assert found.loc[:1, "best_s"].tolist() == [0.5, 0.25]
    assert found.dropna().index.tolist() == [0, 1]


def test_metrics_of_lightning_with_blanks_become_one_row_a_step(tmp_path):
    text = "best_s,epoch,episodes,step\n0.5,0,16,0\n,0,,1\n0.25,,,1\n,0,32,1\n"
    found = metrics_of(tmp_path, text, "version_0/metrics.csv")
    assert found[["episodes", "best_s"]].values.tolist() == [[16, 0.5], [32, 0.25]]


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "step,episodes\n"])
def test_metrics_that_are_none_draw_nothing(tmp_path, text):
    assert metrics_of(tmp_path, text).empty
    run = read_run(tmp_path / "run")
    assert not save_curves([run], summary([ROW]), tmp_path / "curves.png", title="")


def test_a_band_holds_all_seeds_where_all_have_values():
    curves = [
        pd.DataFrame({"episodes": [1.0, 3.0], "best_s": [4.0, 2.0]}),
        pd.DataFrame({"episodes": [1.0, 2.0], "best_s": [8.0, 6.0]}),
    ]
    found = band(curves, "best_s")
    assert found.index.tolist() == [1.0, 2.0]
    assert found.values.tolist() == [[4.0, 6.0, 8.0], [3.0, 4.5, 6.0]]


def trace_file(tmp_path: Path, graph: DataflowGraph | None = None) -> Path:
    graph = graph or graph_of([2, 4], [(0, 1, 3.0)])
    problem = build(graph, cluster_of([1.0, 1.0]))
    trace = WorkConserving().open(problem).trace(Placement.make(problem, [0, 1]))
    save_perfetto(trace, tmp_path / "trace.json")
    return tmp_path / "trace.json"


def test_a_schedule_by_hand(tmp_path):
    timeline = read_timeline(trace_file(tmp_path))
    columns = ["track", "is_op", "name", "start_s", "seconds"]
    assert timeline[columns].values.tolist() == [
        ["device0", True, "op0", 0.0, 2.0],
        ["device1", True, "op1", 5.0, 4.0],
        ["0 -> 1", False, "op0", 2.0, 3.0],
    ]
    figure = gantt_figure(timeline, 9.0)
    boxes = {bar["name"]: (bar["base"], bar["x"], bar["y"]) for bar in figure["data"]}
    assert boxes == {
        "op": ([5.0, 0.0], [4.0, 2.0], [51.0, 17.0]),
        "transfer": ([2.0], [3.0], [76.0]),
        "critical chain": ([5.0, 2.0, 0.0], [4.0, 3.0, 2.0], [51.0, 76.0, 17.0]),
    }
    assert figure["layout"]["yaxis"]["ticktext"] == ["device0 22%", "device1 44%", "0 -&gt; 1 33%"]
    assert figure["layout"]["xaxis"]["title"]["text"] == "time (s)"


def test_many_kinds_of_ops_share_a_colour_and_many_tasks_are_cut(tmp_path):
    timeline = pd.concat([read_timeline(trace_file(tmp_path))] * 4000, ignore_index=True)
    timeline["group"] = [f"group {i % 40}" for i in range(len(timeline))]
    data = gantt_figure(timeline, 9.0)["data"]
    assert [bar["name"] for bar in data][-3:] == ["28 smaller ones", "transfer", "critical chain"]
    assert sum(len(bar["x"]) for bar in data[:-1]) == 6000


def test_an_op_of_no_time_and_one_called_like_markup(tmp_path):
    graph = graph_of([0.0, 0.0])
    timeline = read_timeline(trace_file(tmp_path, graph)).assign(name="</script><b>")
    text = json.dumps(gantt_figure(timeline, 0.0))
    assert "<b></script>" not in text and "&lt;b&gt;" in text
    assert not np.isnan(json.loads(text)["layout"]["xaxis"]["range"]).any()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"traceEvents": [{"ph": "X"}]}', "\x00"])
def test_a_damaged_trace_is_named(tmp_path, text):
    (tmp_path / "trace.json").write_text(text)
    with pytest.raises(InputError, match=r"trace.json:"):
        read_timeline(tmp_path / "trace.json")


def test_searches_on_the_real_system_are_controls(tmp_path):
    names = ("doppler", "heft", "annealing_order measured", "doppler stage II")
    rows = [replace(ROW, method=name, system_kind="measured") for name in names]
    config = {"baseline": {"heft": {}}, "stage": {"measured": {"annealing_order": {}}}}
    leave_run(tmp_path / "run", rows, config, makespan_s=0.1)
    table = collect([tmp_path])
    controls = table.loc[table["is_control"], "method"]
    assert controls.tolist() == ["heft", "annealing_order measured"]


def test_a_damaged_trace_takes_no_caption_from_another(tmp_path):
    run = leave_run(tmp_path / "run", [ROW], {}, makespan_s=0.1)
    trace_file(run)
    (run / "traces").mkdir()
    (run / "traces/heft.json").write_text("{}")
    schedules, damaged = best_schedules([read_run(run)])
    assert [one.caption.partition(":")[0] for one in schedules] == ["Schedule of doppler, seed 0"]
    assert ["traces/heft.json" in line for line in damaged] == [True]


def test_curves_of_parts_of_a_run_are_not_its_own(tmp_path):
    for part in ("imitation", "settling"):
        (tmp_path / "run" / part).mkdir(parents=True)
        (tmp_path / "run" / part / "metrics.csv").write_text("step,loss\n0,9\n7,9\n")
    own = metrics_of(tmp_path, "step,loss\n0,1\n1,2\n")
    assert own["loss"].to_dict() == {0: 1, 1: 2}
