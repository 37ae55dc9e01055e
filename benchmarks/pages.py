"""Fill numbers, tables and figures of README.md and docs/results from docs/results/data.

    python -m benchmarks.pages            # write pages and figures
    python -m benchmarks.pages --check    # write nothing; exit code 1 if a page is out of date

A page marks what comes from rows with comments, which no reader sees:

    <!-- table paper -->            the table of that name (`TABLES` in benchmarks/page_tables.py)
    <!-- sources main_8dev -->      command, date and commit of these rows
    ...
    <!-- end -->

    takes <!-- = ms main_8dev llama_block doppler -->10.2<!-- end --> ms

What a number may be: ``ms FILE WORKLOAD METHOD``, ``over FILE WORKLOAD METHOD`` (the ratio to the
best method without learning), ``behind FILE WORKLOAD METHOD`` (the same as a percentage), ``ratio
FILE WORKLOAD METHOD METHOD`` (one makespan over another; a condition ``COLUMN=VALUE`` for each may
follow), ``cell FILE COLUMN KEY=VALUE ...`` (the cell of the one row that has these values), and
``span FILE COLUMN KEY=VALUE ...`` (the least and the largest of these cells). A figure is an SVG
file in docs/results/figures (`FIGURES` in benchmarks/page_figures.py).
"""

import argparse
import re
import shlex
import sys
from pathlib import Path

from benchmarks.page_figures import FIGURES
from benchmarks.page_rows import (
    PROJECT,
    markdown_table,
    one_row,
    read,
    result_row,
    rows_with,
)
from benchmarks.page_tables import TABLES

PAGES = (PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md")))
DRAWN = PROJECT / "docs/results/figures"
_BLOCK = re.compile(r"(<!-- (table|sources) (.*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_NUMBER = re.compile(r"(<!-- = (.*?) -->)(.*?)(<!-- end -->)", re.DOTALL)


def main() -> int:
    """Fill or check all pages; returns the exit code."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, name what differs")
    check = parser.parse_args().check
    texts = {path: path.read_text(encoding="utf-8") for path in PAGES}
    new = {path: filled(text) for path, text in texts.items() if filled(text) != text}
    for path, text in new.items():
        print(f"{'differs from its rows' if check else 'written'}: {path.relative_to(PROJECT)}")
        if not check:
            path.write_text(text, encoding="utf-8")
    if not check:
        draw(DRAWN)
    return int(check and bool(new))


def filled(page: str) -> str:
    """The page with every marked table and number taken from the rows."""

    def block(match: re.Match) -> str:
        opening, kind, words, _, end = match.groups()
        table = TABLES[words]() if kind == "table" else sources(words.split())
        return f"{opening}\n{table}\n{end}"

    def number(match: re.Match) -> str:
        opening, words, _, end = match.groups()
        return f"{opening}{value(words)}{end}"

    return _NUMBER.sub(number, _BLOCK.sub(block, page))


def value(words: str) -> str:
    """The number that a marker asks for.

    Args:
        words: such as ``behind main_8dev llama_block "doppler greedy"``.

    Raises:
        ValueError: another kind of number, or not exactly one row has it.
    """
    kind, file, *rest = shlex.split(words)
    if kind in ("cell", "span"):
        column, *conditions = rest
        keys = dict(condition.split("=", 1) for condition in conditions)
        if kind == "cell":
            return str(one_row(read(file), **keys)[column])
        cells = sorted(
            (cell.split()[0] for cell in rows_with(read(file), **keys)[column]), key=float
        )
        return f"{cells[0]} to {cells[-1]}"
    if kind == "ratio":
        workload, *methods, rules, over_rules = [*rest, "", ""][:5]
        pair = [
            result_row(file, workload, method, *filter(None, (condition,)))
            for method, condition in zip(methods, (rules, over_rules), strict=True)
        ]
        return f"{pair[0]['makespan_s'] / pair[1]['makespan_s']:.3f}"
    row = result_row(file, *rest)
    if kind == "ms":
        return f"{row['makespan_s'] * 1e3:#.3g}"
    if kind == "over":
        return f"{row['over_control']:.3f}"
    if kind == "behind":
        return f"{100 * (row['over_control'] - 1):.0f}%"
    raise ValueError(f"{words}: no number of kind {kind!r}")


def sources(files: list[str]) -> str:
    """A table of where rows are from: file, command, date and commit."""
    known = read("sources").set_index("rows")
    lines = [
        (f"[{file}](data/{file}.csv)", f"`{row.command}`", row.date, row.commit)
        for file in files
        for row in known.loc[[file]].itertuples()
    ]
    return markdown_table(("rows", "command", "date", "commit"), lines, words=4)


def draw(folder: Path) -> None:
    """Write all figures into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in FIGURES.items():
        figure(folder / f"{name}.svg")


if __name__ == "__main__":
    sys.exit(main())
