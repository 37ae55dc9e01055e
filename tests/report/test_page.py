"""Reports of real runs: one page that refers to nothing outside, its pictures and its schedules."""

import base64
import csv
import dataclasses
import gzip
import json
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from results import ROW, leave_run
from rich.console import Console

from doppler.cli import main
from doppler.experiment import execute
from doppler.report.finished import find_runs
from doppler.report.page import write_report
from doppler.report.rows import TRACES
from doppler.report.schedules import gantt_figure, read_timeline
from doppler.support.errors import InputError

PROJECT = Path(__file__).resolve().parents[2]
VOID = ("meta", "link", "img", "br")


class Page(HTMLParser):
    """What a page consists of; fails on tags that do not close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], ""
        self.scripts: dict[str, list[str]] = {}
        self.kind: str | None = None
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *attribute) for attribute in attrs]
        if tag not in VOID:
            self.open.append(tag)
        self.kind = dict(attrs).get("type", "code") if tag == "script" else None

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self.kind = None

    def handle_data(self, data):
        if self.kind:
            self.scripts.setdefault(self.kind, []).append(data)
        elif self.open and self.open[-1] != "style":
            self.text += data


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """Two seeds of a learned method and of baselines, on a small problem."""
    out = tmp_path_factory.mktemp("outputs")
    GlobalHydra.instance().clear()
    small = ("workload.params.n=64", "budget.imitation_episodes=16", "budget.evaluations=40")
    with initialize_config_dir(str(PROJECT / "conf"), version_base="1.3"):
        for seed in (0, 1):
            for method in ("doppler", "baselines"):
                overrides = [f"method={method}", f"seed={seed}", f"output_dir={out}", *small]
                execute(compose("config", overrides), overrides, Console(quiet=True))
    return out


@pytest.fixture(scope="module")
def report(outputs, tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    write_report([outputs], out)
    return out


def test_the_page_refers_to_nothing_outside(report):
    page = Page((report / "report.html").read_text())
    anchors = {value for _, key, value in page.attributes if key == "id"}
    for tag, key, value in page.attributes:
        if key in ("src", "href"):
            is_anchor = value.startswith("#") and value[1:] in anchors
            assert value.startswith("data:") or is_anchor, (tag, value)
    for word in ("http:", "https:", "url(", "@import"):
        assert word not in (report / "report.html").read_text()
    assert (report / "report.html").stat().st_size < 5e6


def test_the_first_line_of_page_and_markdown_says_what_won(report):
    first = (report / "table.md").read_text().splitlines()[0]
    page = (report / "report.html").read_text()
    assert f"<body>\n<h1>{first}</h1>" in page
    assert first.startswith("chainmm on p100x4, 4 devices: ")
    assert " is best (" in first or " are level" in first
    assert "n=2" in first


def test_pictures_are_embedded_whole_and_described(report):
    page = Page((report / "report.html").read_text())
    sources = {value for tag, key, value in page.attributes if (tag, key) == ("img", "src")}
    described = [value for tag, key, value in page.attributes if (tag, key) == ("img", "alt")]
    files = sorted((report / "figures").glob("*.png"))
    kinds = [file.stem.rsplit("-", 1)[-1] for file in files]
    assert sorted(kinds) == ["curves", "placement", "schedule"]
    assert sources == {
        "data:image/png;base64," + base64.b64encode(file.read_bytes()).decode() for file in files
    }
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
    assert any("Schedule of doppler" in text for text in described)


def test_the_schedule_on_the_page_is_that_of_the_best_run(report, outputs):
    page = Page((report / "report.html").read_text())
    (data,) = page.scripts["application/json"]
    learned = [run for run in find_runs([outputs])[0] if run.summary["stage"] != "evaluate"]
    best = min(learned, key=lambda run: run.rows[0].makespan_s)
    timeline = read_timeline(best.directory / "trace.json")
    figure = gantt_figure(timeline, best.rows[0].makespan_s)
    assert json.loads(data)["data"] == figure["data"]
    assert sum(len(bar["x"]) for bar in figure["data"][:-1]) == len(timeline)
    (packed,) = page.scripts["text/plain"]
    assert b"Plotly" in gzip.decompress(base64.b64decode(packed))


def test_the_page_has_the_tables_and_says_what_was_run(report):
    text = Page((report / "report.html").read_text()).text
    for word in ("doppler greedy", "doppler imitation", "annealing", "Lower bound", "cores"):
        assert word in text, word
    assert "seeds 0, 1" in text and "torch" in text
    markdown = (report / "table.md").read_text()
    assert "What an episode of training takes, simulated" in markdown
    assert r"\begin{tabular}" in (report / "table.tex").read_text()
    with (report / "table.csv").open(newline="") as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert {"doppler", "doppler greedy", "annealing", "clustering", "random"} <= rows.keys()
    assert {row["seeds"] for row in rows.values()} == {"2"}


def test_a_method_that_a_run_left_a_trace_of_is_shown_before_it(outputs, tmp_path):
    shutil.copytree(outputs, tmp_path / "runs")
    (best, *_) = [
        one for one in find_runs([tmp_path / "runs"])[0] if one.rows[0].method == "doppler"
    ]
    for run in find_runs([tmp_path / "runs"])[0]:
        shutil.rmtree(run.directory / TRACES, ignore_errors=True)
        (run.directory / TRACES).mkdir()
        shutil.copy(best.directory / "trace.json", run.directory / TRACES / "critical_path.json")
    write_report([tmp_path / "runs"], tmp_path / "report")
    page = Page((tmp_path / "report/report.html").read_text())
    assert page.text.index("Schedule of critical_path") < page.text.index("Schedule of doppler")
    before, after = map(json.loads, page.scripts["application/json"])
    assert before["layout"]["xaxis"]["range"] == after["layout"]["xaxis"]["range"]


def test_a_sentence_of_the_user_cannot_become_markup(outputs, tmp_path):
    folder = tmp_path / "<b>mine"
    folder.symlink_to(outputs, target_is_directory=True)
    write_report([folder], tmp_path / "report")
    Page((tmp_path / "report/report.html").read_text())


def test_a_run_of_baselines_alone_needs_no_curves(outputs, tmp_path):
    write_report([outputs / "evaluate"], tmp_path)
    kinds = {file.stem.rsplit("-", 1)[-1] for file in (tmp_path / "figures").glob("*.png")}
    assert kinds == {"placement", "schedule"}


def test_a_folder_without_finished_runs_is_refused(tmp_path):
    with pytest.raises(InputError, match="no finished run"):
        write_report([tmp_path], tmp_path / "report")
    with pytest.raises(InputError, match="no such directory"):
        write_report([tmp_path / "nowhere"], tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_the_command_writes_names_what_it_cannot_read_and_ends_well(outputs, tmp_path, capsys):
    shutil.copytree(outputs, tmp_path / "runs")
    broken = next((tmp_path / "runs").rglob("results.csv"))
    broken.write_text("")
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "report")]) == 0
    told = capsys.readouterr()
    assert told.err == f"not read: {broken}: empty\n"
    assert "| annealing |" in told.out
    assert f"not read: {broken}: empty" in (tmp_path / "report/report.html").read_text()
    assert main(["report", str(tmp_path / "nowhere")]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path / 'nowhere'}: no such directory\n"


def test_a_name_is_no_formula_of_a_spreadsheet(tmp_path):
    row = dataclasses.replace(ROW, method='=HYPERLINK("http://x")')
    leave_run(tmp_path / "run", [row], {"workload": {"name": "w"}}, makespan_s=0.1)
    write_report([tmp_path / "run"], tmp_path / "report")
    with (tmp_path / "report" / "table.csv").open(newline="", encoding="utf-8") as file:
        cells = [cell for line in csv.DictReader(file) for cell in line.values()]
    assert '\'=HYPERLINK("http://x")' in cells
    assert not [cell for cell in cells if cell.startswith(("=", "@", "+"))]
