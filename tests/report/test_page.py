"""Reports of real runs: one page that refers to nothing outside, and its pictures."""

import base64
import csv
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from rich.console import Console

from doppler.errors import InputError
from doppler.report.curves import band
from doppler.report.writing import write_report
from doppler.stages import execute

PROJECT = Path(__file__).resolve().parents[2]
VOID = ("meta", "link", "img", "br")


class Page(HTMLParser):
    """What a page consists of; fails on tags that do not close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *attribute) for attribute in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
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


def test_the_page_refers_to_nothing_outside_and_needs_no_script(report):
    page = Page((report / "report.html").read_text())
    assert "script" not in page.tags
    anchors = {value for _, key, value in page.attributes if key == "id"}
    for tag, key, value in page.attributes:
        if key in ("src", "href"):
            is_anchor = value.startswith("#") and value[1:] in anchors
            assert value.startswith("data:") or is_anchor, (tag, value)
    for word in ("http:", "https:", "url(", "@import"):
        assert word not in (report / "report.html").read_text()


def test_pictures_are_embedded_whole_and_described(report):
    page = Page((report / "report.html").read_text())
    sources = [value for tag, key, value in page.attributes if (tag, key) == ("img", "src")]
    described = [value for tag, key, value in page.attributes if (tag, key) == ("img", "alt")]
    files = sorted((report / "figures").glob("*.png"))
    kinds = [file.stem.rsplit("-", 1)[-1] for file in files]
    assert sorted(kinds) == ["after", "before", "curves", "placement", "utilisation"]
    assert sorted(sources) == sorted(
        "data:image/png;base64," + base64.b64encode(file.read_bytes()).decode() for file in files
    )
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
    assert any("Before: critical_path" in text for text in described)
    assert any("After: doppler" in text for text in described)


def test_the_page_has_the_tables_and_says_what_was_run(report):
    text = Page((report / "report.html").read_text()).text
    for word in ("doppler greedy", "doppler imitation", "annealing", "lower bound", "cores"):
        assert word in text, word
    assert "seeds 0, 1" in text and "torch" in text
    markdown = (report / "table.md").read_text()
    assert "What an episode of training takes, simulated" in markdown
    assert r"\begin{tabular}" in (report / "table.tex").read_text()
    with (report / "table.csv").open(newline="") as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert {"doppler", "doppler greedy", "annealing", "clustering", "random"} <= rows.keys()
    assert {row["seeds"] for row in rows.values()} == {"2"}


def test_a_sentence_of_the_user_cannot_become_markup(outputs, tmp_path):
    folder = tmp_path / "<b>mine"
    folder.symlink_to(outputs, target_is_directory=True)
    write_report([folder], tmp_path / "report")
    Page((tmp_path / "report/report.html").read_text())


def test_a_run_of_baselines_alone_needs_no_curves(outputs, tmp_path):
    write_report([outputs / "evaluate"], tmp_path)
    kinds = {file.stem.rsplit("-", 1)[-1] for file in (tmp_path / "figures").glob("*.png")}
    assert "curves" not in kinds and {"after", "placement"} <= kinds


def test_a_folder_without_finished_runs_is_refused(tmp_path):
    with pytest.raises(InputError, match="no finished run"):
        write_report([tmp_path], tmp_path / "report")
    with pytest.raises(InputError, match="no such directory"):
        write_report([tmp_path / "nowhere"], tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_a_band_holds_all_seeds_where_all_have_values():
    curves = [
        [{"episodes": 1.0, "best_s": 4.0}, {"episodes": 3.0, "best_s": 2.0}],
        [{"episodes": 1.0, "best_s": 8.0}, {"episodes": 2.0, "best_s": 6.0}],
    ]
    x_X, low_X, mean_X, high_X = band(curves, "best_s")
    np.testing.assert_array_equal(x_X, [1.0, 2.0])
    np.testing.assert_array_equal(low_X, [4.0, 3.0])
    np.testing.assert_array_equal(mean_X, [6.0, 4.5])
    np.testing.assert_array_equal(high_X, [8.0, 6.0])
