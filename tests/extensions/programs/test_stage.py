"""stage=stream from the command line's configuration."""

import json

import numpy as np
import pytest
from recorded_answers import write_answers

from doppler.report.page import write_report
from doppler.support.errors import InputError

pytest.importorskip("sklearn")


@pytest.fixture
def answers(tmp_path):
    path = write_answers(tmp_path / "answers.csv.gz", num=160)
    return ["stage=stream", "workload=answers", f"workload.path={path}"]


def test_a_router_runs_and_its_summary_says_accuracy_and_cost(run, answers):
    summary, told = run(*answers, "method=router")
    assert abs(summary["cost"] - 0.5) < 0.08
    assert summary["accuracy"] > summary["controls"]["random_mixture"]["accuracy"] + 0.05
    assert (summary["stage"], summary["method"], summary["num_inputs"]) == ("stream", "router", 160)
    assert "random_mixture" in told and "router" in told


def test_a_finished_stream_is_shown_again_and_not_run(run, answers):
    first, _ = run(*answers, "method=router")
    again, told = run(*answers, "method=router")
    assert again == first and "finished already" in told


@pytest.mark.parametrize("method", ["always_small", "always_large", "random_mixture", "oracle"])
def test_controls_are_methods_too(run, answers, method):
    summary, _ = run(*answers, f"method={method}")
    assert summary["method"] == method
    if method in summary["controls"] and method != "random_mixture":
        own = {key: summary[key] for key in ("accuracy", "cost")}
        assert own == summary["controls"][method]


def test_another_file_under_the_same_name_is_another_run(run, answers, tmp_path):
    first, _ = run(*answers, "method=always_small")
    write_answers(tmp_path / "answers.csv.gz", num=160, seed=5)
    second, told = run(*answers, "method=always_small")
    assert "finished already" not in told
    assert first["accuracy"] != second["accuracy"]


def test_what_was_played_is_left_input_by_input(run, answers, tmp_path):
    summary, _ = run(*answers, "method=router")
    (path,) = tmp_path.rglob("stream.csv")
    rows = np.genfromtxt(path, delimiter=",", names=True)
    assert np.isclose(rows["right"].mean(), summary["accuracy"])
    assert np.isclose(rows["cost"].mean(), summary["cost"])
    assert sorted(rows["input"]) == list(range(160))
    kept = json.loads(path.with_name("summary.json").read_text())
    assert kept["accuracy"] == summary["accuracy"]


def test_a_graph_is_no_stream(run):
    with pytest.raises(InputError, match="workload=chainmm: is a graph, not a stream"):
        run("stage=stream", "method=router")


def test_a_share_that_is_none_is_refused(run, answers):
    with pytest.raises(InputError, match=r"stage.allocator.share: must be a number from 0 to 1"):
        run(*answers, "method=router", "stage.allocator.share=1.5")


def test_a_report_says_what_streams_came_to(run, answers, tmp_path):
    for seed in (0, 1):
        run(*answers, "method=random_mixture", f"seed={seed}")
    run(*answers, "method=always_large")
    markdown, damaged = write_report([tmp_path / "stream"], tmp_path / "report")
    assert not damaged
    (line,) = [line for line in markdown.splitlines() if "random_mixture" in line]
    assert "share 0.5" in line and "±" in line and line.rstrip(" |").endswith("2")
    assert "always_large" in markdown
    assert (tmp_path / "report/report.html").exists()
    damage = next(tmp_path.glob("stream/answers/*/always_large/*/summary.json"))
    summary = json.loads(damage.read_text())
    damage.write_text(json.dumps({**summary, "controls": 3}))
    with pytest.raises(InputError, match="not the summary of a stream"):
        write_report([tmp_path / "stream"], tmp_path / "report")


def test_workloads_of_one_name_are_told_apart_in_reports(run, answers, tmp_path):
    program = [*answers[:1], "workload=answers_program", answers[2], "method=always_large"]
    run(*program, "workload.outcome=all")
    run(*program, "workload.outcome=mean", "seed=1")
    markdown, _ = write_report([tmp_path / "stream"], tmp_path / "report")
    lines = [line for line in markdown.splitlines() if "always_large" in line]
    assert len(lines) == 2
    assert ["outcome=all" in lines[0], "outcome=mean" in lines[1]] == [True, True]


def test_controls_that_try_all_combinations_are_left_out_if_these_are_too_many(run, answers):
    program = [*answers[:1], "workload=answers_program", answers[2]]
    summary, _ = run(*program, "workload.modules=14", "method=always_small")
    assert "always_large" in summary["controls"] and "oracle" not in summary["controls"]
