"""One HTML file with tables and pictures inside: no reference leads out of it."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from doppler.report.finished import FinishedRun
from doppler.report.rendering import to_html
from doppler.report.schedules import Picture
from doppler.report.tables import Table

_STYLE = """
:root { --ink: #1f2430; --soft: #5d6675; --line: #dfe3e8; --back: #ffffff; --band: #f5f7f9; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e7eaf0; --soft: #a3adbb; --line: #353c48; --back: #171b22; --band: #1f252e; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back);
  max-width: 1180px; margin: 0 auto; padding: 24px 20px 80px; }
h1 { font-size: 26px; margin: 0 0 4px; }
h2 { font-size: 20px; margin: 44px 0 8px; padding-top: 12px; border-top: 2px solid var(--line); }
h3 { font-size: 15px; margin: 26px 0 8px; }
p.note, figcaption, dl.facts { color: var(--soft); font-size: 13px; }
nav { display: flex; flex-wrap: wrap; gap: 4px 14px; }
a { color: #2f6db5; }
dl.facts { display: grid; grid-template-columns: max-content 1fr; gap: 2px 14px; }
dl.facts dt { font-weight: 600; } dl.facts dd { margin: 0; }
div.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13.5px; }
th, td { padding: 4px 12px 4px 0; text-align: left; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th { color: var(--soft); font-weight: 600; white-space: normal; vertical-align: bottom; }
.number { text-align: right; } tbody tr:hover { background: var(--band); }
figure { margin: 18px 0 26px; }
img { max-width: 100%; height: auto; background: #ffffff; border: 1px solid var(--line);
  border-radius: 6px; padding: 6px; }
"""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading, and tables and pictures below it."""

    title: str
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()


def to_page(title: str, runs: Sequence[FinishedRun], sections: Sequence[Section]) -> str:
    """The page; pictures are read from their files and embedded."""
    links = "".join(
        f'<a href="#s{i}">{escape(section.title)}</a>' for i, section in enumerate(sections)
    )
    body = "".join(_section(f"s{i}", section) for i, section in enumerate(sections))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Without an icon of its own a browser asks the server for one.
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n{_facts(runs)}\n<nav>{links}</nav>\n{body}</body>\n</html>\n"
    )


def facts(runs: Sequence[FinishedRun]) -> dict[str, str]:
    """What was run, by which code, on what."""
    summaries = [run.summary for run in runs]

    def listed(values: Sequence[object]) -> str:
        return ", ".join(sorted({str(value) for value in values}))

    versions: dict[str, set[str]] = {}
    for summary in summaries:
        for name, version in summary["versions"].items():
            versions.setdefault(name, set()).add(version)
    return {
        "runs": f"{len(runs)}, seeds {listed([one['seed'] for one in summaries])}",
        "times": listed([one["system_kind"] for one in summaries]),
        "versions": ", ".join(
            f"{name} {' and '.join(sorted(versions[name]))}" for name in versions
        ),
        "commit": listed([one["git_commit"] or "unknown" for one in summaries]),
        "machine": listed([f"{one['host']['cpus']} cores" for one in summaries]),
    }


def _facts(runs: Sequence[FinishedRun]) -> str:
    rows = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in facts(runs).items())
    return f'<dl class="facts">{rows}</dl>'


def _section(anchor: str, section: Section) -> str:
    tables = "".join(map(to_html, section.tables))
    pictures = "".join(map(_figure, section.pictures))
    return f'<h2 id="{anchor}">{escape(section.title)}</h2>\n{tables}{pictures}'


def _figure(picture: Picture) -> str:
    data = base64.b64encode(picture.path.read_bytes()).decode("ascii")
    caption = escape(picture.caption)
    return (
        f'<figure><img alt="{caption}" src="data:image/png;base64,{data}">\n'
        f"<figcaption>{caption}</figcaption></figure>\n"
    )
