"""Writes finished runs into one folder: table.md, table.csv, table.tex, figures and report.html."""

import argparse
import base64
import gzip
import json
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import pandas as pd
from rich.console import Console
from rich.markdown import Markdown

from doppler.graph.formats import write_atomically
from doppler.hooks import contributed
from doppler.report.aggregate import frame_of, problem_labels, summarise, verdicts
from doppler.report.figures import save_curves, save_effort
from doppler.report.finished import FinishedRun, find_runs, unfinished_runs
from doppler.report.rendering import to_html, to_latex, to_markdown
from doppler.report.schedules import Schedule, best_run, best_schedules, save_placement
from doppler.report.tables import fidelity_tables, result_tables, training_tables, turns_tables
from doppler.report.text_table import MANY, TextTable
from doppler.support.errors import InputError, printable, printable_lines
from doppler.support.waiting import on_terminal, waiting

FIGURES = "figures"
# Spreadsheets read cells with these first characters as formulas.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading with tables, pictures and schedules below it.

    Attributes:
        title: the heading.
        tables: in order.
        pictures: files and captions.
        schedules: that one can zoom into.
    """

    title: str
    tables: Sequence[TextTable] = ()
    pictures: Sequence[tuple[Path, str]] = ()
    schedules: Sequence[Schedule] = ()


def main(argv: Sequence[str] | None = None) -> int:
    """Make tables (Markdown, CSV, LaTeX), figures and one page from finished runs.

    Rows are averaged over seeds, with spread and n. Simulated and measured rows, queues, systems
    and clusters are kept apart.

    Args:
        argv: arguments; None: those of the command line.

    Returns:
        The exit code.

    Raises:
        InputError: as in `write_report`.
        OSError: a file cannot be written.
    """
    parser = _Parser(prog="report", description=str(main.__doc__).splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="run directories, or folders of them")
    parser.add_argument("--out", type=Path, default=Path("outputs/report"), help="where to write")
    arguments = parser.parse_args(argv)
    with waiting(on_terminal, "reading and drawing"):
        markdown, damaged = write_report(arguments.runs, arguments.out)
    console = Console(markup=False, emoji=False)
    markdown = printable_lines(markdown)
    console.print(Markdown(markdown) if console.is_terminal else markdown, soft_wrap=True)
    for line in damaged:
        print(f"not read: {printable(line)}", file=sys.stderr)
    print(f"written: {arguments.out}/report.html, table.md, table.csv, table.tex, figures")
    return 0


class _Parser(argparse.ArgumentParser):
    """Raises an InputError like all other code, instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"report: {message}")


def write_report(folders: Sequence[Path], out: Path) -> tuple[str, list[str]]:
    """Write table.md, table.csv, table.tex, figures and report.html.

    Args:
        folders: with finished runs.
        out: folder of the report.

    Returns:
        The Markdown text, and a line for each file that could not be read and for each run that is
        not finished; the page lists them too.

    Raises:
        InputError: a folder does not exist, no run can be read, or simulated runs of one seed
            disagree.
    """
    found, damaged = find_runs(folders)
    damaged += unfinished_runs(folders)
    runs = [run for run in found if run.rows]
    table = summarise(frame_of(runs)) if runs else pd.DataFrame()
    labels = problem_labels(runs)
    first = verdicts(table, labels) if runs else "No methods are compared here."
    results = [*result_tables(table, labels), *turns_tables(runs, labels)] if runs else []
    training, fidelity = training_tables(runs, labels), fidelity_tables(found)
    sections = []
    compared = _problems(runs, table, labels)
    for number, problem in enumerate(compared if len(compared) <= MANY else (), 1):
        sections.append(_pictures(problem, out / FIGURES, number, damaged))
    if results:
        sections.append(Section(title="Results", tables=results))
    if training:
        sections.append(Section(title="Cost of training", tables=training))
    if fidelity:
        sections.append(Section(title="Fidelity", tables=fidelity, pictures=_fidelity(found)))
    if added := list(chain(*contributed("report_tables", runs=found))):
        sections.append(Section(title="Further tables", tables=added))
    tables = [*results, *training, *fidelity, *added]
    name = ", ".join(dict.fromkeys(folder.resolve().name for folder in folders))
    markdown = to_markdown(first, tables, damaged)
    columns = table.drop(columns=["section", "order", "placements"], errors="ignore")
    for file, text in (
        ("table.md", markdown),
        ("table.csv", columns.map(_as_cell).to_csv(index=False)),
        ("table.tex", to_latex(first, tables)),
        ("report.html", to_page(f"Doppler: {name}", first, found, sections, damaged)),
    ):
        write_atomically(out / file, text)
    return markdown, damaged


def _as_cell(value: Any) -> Any:
    """Prefix a name that a spreadsheet would read as a formula with an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _fidelity(runs: Sequence[FinishedRun]) -> list[tuple[Path, str]]:
    pictures = [
        (run.directory / "fidelity.png", f"{run.summary['workload']} on {run.summary['cluster']}")
        for run in runs
        if "fidelity" in run.summary
    ]
    return [(path, caption) for path, caption in pictures if path.is_file()]


@dataclass(frozen=True, eq=False, kw_only=True)
class _Compared:
    """The runs and averaged rows of one problem and system, with its label and title."""

    runs: list[FinishedRun]
    table: pd.DataFrame
    label: str
    title: str


def _problems(
    runs: Sequence[FinishedRun], table: pd.DataFrame, labels: dict[str, str]
) -> list[_Compared]:
    found = []
    one_system = len(table) == 0 or table["section"].nunique() == 1
    rules = ["system_kind", "system", "rules", "problem"]
    for key, rows in table.groupby(rules, sort=False) if len(table) else ():
        own = [run for run in runs if tuple(getattr(run.rows[0], one) for one in rules) == key]
        label = labels[rows["problem"].iloc[0]]
        title = label if one_system else f"{label}, {rows['section'].iloc[0]}"
        if own:
            found.append(_Compared(runs=own, table=rows, label=label, title=title))
    return found


def _pictures(problem: _Compared, folder: Path, number: int, damaged: list[str]) -> Section:
    """Curves, effort, schedules and the best placement; adds unreadable files to ``damaged``."""
    name = f"{number}-{re.sub(r'[^a-z0-9]+', '-', problem.label.lower())}"[:80]
    folder.mkdir(parents=True, exist_ok=True)
    pictures = []
    path = folder / f"{name}-curves.png"
    if save_curves(problem.runs, problem.table, path, title=f"Learning curves, {problem.label}"):
        pictures.append((path, "Learning curves: mean over seeds, band from lowest to highest"))
    path = folder / f"{name}-evaluations.png"
    if save_effort(problem.table, path, title=f"Makespan over evaluations, {problem.label}"):
        pictures.append((path, "Makespan over evaluations: mean and standard deviation over seeds"))
    best = best_run(problem.runs)
    path = folder / f"{name}-placement.png"
    try:
        save_placement(best, path)
        pictures.append((path, f"Who runs what: {best.rows[0].method}, seed {best.rows[0].seed}"))
    except InputError as error:
        damaged.append(str(error))
    still = best.directory / "schedule.png"
    if still.is_file():
        shutil.copyfile(still, folder / f"{name}-schedule.png")
    schedules, unread = best_schedules(problem.runs)
    damaged += [line for line in unread if line not in damaged]
    return Section(title=problem.title, pictures=pictures, schedules=schedules)


def to_page(
    title: str,
    first: str,
    runs: Sequence[FinishedRun],
    sections: Sequence[Section],
    damaged: Sequence[str],
) -> str:
    """Return one self-contained HTML file.

    Args:
        title: of the page.
        first: sentence at its top.
        runs: whose facts are listed.
        sections: of the page.
        damaged: a line for each file that could not be read.
    """
    links = "".join(f'<a href="#s{i}">{escape(one.title)}</a>' for i, one in enumerate(sections))
    unread = "".join(f"<p class='damaged'>not read: {escape(line)}</p>\n" for line in damaged)
    body = "".join(_section(f"s{i}", section) for i, section in enumerate(sections))
    scripts = f"<script>{_asset('sorting.js')}</script>\n"
    if any(section.schedules for section in sections):
        from plotly.offline import get_plotlyjs  # half a second

        packed = base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()
        scripts += f'<script type="text/plain" id="plotly">{packed}</script>\n'
        scripts += f"<script>{_asset('page.js')}</script>\n"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Without an icon of its own a browser asks the server for one.
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{_asset('page.css')}</style>\n</head>\n<body>\n"
        f'<h1>{escape(first)}</h1>\n<p class="name">{escape(title)}</p>\n{unread}'
        f"<nav>{links}</nav>\n{body}{_facts(runs)}\n{scripts}</body>\n</html>\n"
    )


def _asset(name: str) -> str:
    return (files("doppler.report") / name).read_text(encoding="utf-8")


def facts(runs: Sequence[FinishedRun]) -> dict[str, str]:
    """Return what was run, with which versions and on which machines.

    Args:
        runs: to describe.
    """
    summaries = [run.summary for run in runs]

    def listed(values: Sequence[object]) -> str:
        return ", ".join(sorted({str(value) for value in values}))

    versions: dict[str, list[str]] = {}
    for summary in summaries:
        for name, version in summary.get("versions", {}).items():
            versions.setdefault(name, []).append(version)
    return {
        "runs": f"{len(runs)}, seeds {listed([one['seed'] for one in summaries])}",
        "times": listed([one.get("system_kind", "measured") for one in summaries]),
        "versions": ", ".join(
            f"{name} {' and '.join(sorted(set(found)))}" for name, found in versions.items()
        ),
        "commit": listed([one.get("git_commit") or "unknown" for one in summaries]),
        "machine": listed([f"{one.get('host', {}).get('cpus', '?')} cores" for one in summaries]),
    }


def _facts(runs: Sequence[FinishedRun]) -> str:
    rows = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in facts(runs).items())
    return f'<dl class="facts">{rows}</dl>'


def _section(anchor: str, section: Section) -> str:
    tables = "".join(map(to_html, section.tables))
    schedules = "".join(map(_schedule, section.schedules))
    pictures = "".join(
        f'<figure><div class="scroll">{_image(path, caption)}</div>\n'
        f"<figcaption>{escape(caption)}</figcaption></figure>\n"
        for path, caption in section.pictures
    )
    title = escape(section.title)
    return f'<h2 id="{anchor}">{title}</h2>\n{tables}{schedules}{pictures}'


def _schedule(schedule: Schedule) -> str:
    # "<" would end the script that holds the data.
    data = json.dumps(schedule.figure, separators=(",", ":")).replace("<", "\\u003c")
    still = _image(schedule.still, schedule.caption) if schedule.still else ""
    return (
        f'<figure><div class="schedule">{still}'
        f'<script type="application/json">{data}</script></div>\n'
        f"<figcaption>{escape(schedule.caption)}</figcaption></figure>\n"
    )


def _image(path: Path, caption: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f'<img alt="{escape(caption)}" src="data:image/png;base64,{data}">'
