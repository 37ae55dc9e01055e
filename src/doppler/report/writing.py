"""Everything a report consists of, written into one folder."""

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from doppler.graph.formats import write_atomically
from doppler.report.curves import save_curves
from doppler.report.effort import save_effort
from doppler.report.finished import FinishedRun, find_runs
from doppler.report.measured_tables import fidelity_tables, turns_tables
from doppler.report.page import Section, to_page
from doppler.report.records import to_csv
from doppler.report.rendering import to_latex, to_markdown
from doppler.report.report import SummaryRow, summarise
from doppler.report.schedules import Picture, schedule_pictures
from doppler.report.tables import problem_labels, result_tables, section_of, training_tables

FIGURES = "figures"


def write_report(folders: Sequence[Path], out: Path) -> str:
    """Write table.md, table.csv, table.tex, figures and report.html; returns the markdown.

    Raises:
        InputError: a folder that does not exist, no finished run in any of them, files of a run
            that no run wrote, or runs of one seed that disagree.
    """
    found = find_runs(folders)
    runs = [run for run in found if run.rows]
    rows = summarise([row for run in runs for row in run.rows])
    labels = problem_labels(runs)
    results = [*result_tables(rows, labels), *turns_tables(runs, labels)]
    training, fidelity = training_tables(runs, labels), fidelity_tables(found)
    sections = [Section(title="Results", tables=results)]
    systems = {section_of(row) for row in rows}
    for (problem, system), members in _groups(runs).items():
        title = f"{labels[problem]}, {system}"
        name = f"{len(sections)}-{re.sub(r'[^a-z0-9]+', '-', labels[problem].lower())}"
        own = [row for row in rows if (row.problem, section_of(row)) == (problem, system)]
        pictures = _pictures(members, own, out / FIGURES, name, title)
        heading = labels[problem] if len(systems) == 1 else title
        sections.append(Section(title=heading, pictures=pictures))
    if training:
        sections.append(Section(title="Cost of training", tables=training))
    if fidelity:
        pictures = [
            Picture(path=path, caption=f"{run.summary['workload']} on {run.summary['cluster']}")
            for run in found
            if (path := run.directory / "fidelity.png").exists()
        ]
        sections.append(Section(title="Fidelity", tables=fidelity, pictures=pictures))
    title = "Doppler: " + ", ".join(dict.fromkeys(folder.resolve().name for folder in folders))
    page = to_page(title, found, sections)
    tables = [*results, *training, *fidelity]
    markdown = to_markdown(tables)
    for name, text in (
        ("table.md", markdown),
        ("table.csv", to_csv(SummaryRow, rows)),
        ("table.tex", to_latex(tables)),
        ("report.html", page),
    ):
        write_atomically(out / name, text)
    return markdown


def _groups(runs: Sequence[FinishedRun]) -> dict[tuple[str, str], list[FinishedRun]]:
    """Runs by problem and system."""
    groups: dict[tuple[str, str], list[FinishedRun]] = defaultdict(list)
    for run in runs:
        groups[run.rows[0].problem, section_of(run.rows[0])].append(run)
    return groups


def _pictures(
    runs: Sequence[FinishedRun], rows: Sequence[SummaryRow], folder: Path, name: str, title: str
) -> list[Picture]:
    curves = folder / f"{name}-curves.png"
    pictures = []
    if save_curves(runs, rows, curves, title=title):
        caption = f"Learning curves, {title}: mean over seeds, band from lowest to highest"
        pictures.append(Picture(path=curves, caption=caption))
    effort = folder / f"{name}-evaluations.png"
    if save_effort(rows, effort, title=title):
        caption = f"Makespan over evaluations, {title}: mean and standard deviation over seeds"
        pictures.append(Picture(path=effort, caption=caption))
    return [*pictures, *schedule_pictures(runs, folder, name=name)]
