"""Renders tables as Markdown, LaTeX and HTML; special characters in names are escaped."""

import re
from collections.abc import Sequence
from html import escape

from doppler.report.text_table import TextTable

_LATEX = {
    **{"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"},
    **{character: f"\\{character}" for character in "${}_%&#"},
    **{"±": r"$\pm$", "→": r"$\to$", "<": r"$<$", ">": r"$>$"},
}
_WORDS = ("method", "found by", "order", "problem", "simulated with")  # other columns are numbers


def markdown_text(text: str) -> str:
    """Escape all special characters of Markdown and HTML; `a_b` may stay.

    Args:
        text: to escape.
    """
    plain = escape(" ".join(text.split()), quote=False)
    return re.sub(r"[\\`*|\[\]~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\\g<0>", plain)


def latex_text(text: str) -> str:
    """Escape all special characters of LaTeX.

    Args:
        text: to escape.
    """
    return "".join(_LATEX.get(character, character) for character in text)


def to_markdown(first: str, tables: Sequence[TextTable], damaged: Sequence[str]) -> str:
    """Return a first line, the files that could not be read, and each table with heading and note.

    Args:
        first: the first line.
        tables: in order.
        damaged: a line for each file that could not be read.
    """
    parts = [f"{markdown_text(first)}\n"]
    if damaged:
        parts.append("".join(f"- not read: {markdown_text(line)}\n" for line in damaged))
    for table in tables:
        names = [str(name) for name in table.cells]
        lines = [
            [markdown_text(name) for name in names],
            ["---" if name in _WORDS else "---:" for name in names],
            *_marked(table, markdown_text, "**{}**"),
        ]
        body = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        title, note = markdown_text(table.title), markdown_text(table.note)
        parts.append(f"### {title}\n\n{body}\n{note}.\n")
    return "\n".join(parts)


def to_latex(first: str, tables: Sequence[TextTable]) -> str:
    r"""The first line as a comment, and one ``table`` environment each, of booktabs' rules."""
    head = ["% needs \\usepackage{booktabs}", f"% {' '.join(first.split())}\n"]
    return "\n".join([*head, *map(_latex, tables)])


def _latex(table: TextTable) -> str:
    names = [str(name) for name in table.cells]
    columns = "".join("l" if name in _WORDS else "r" for name in names)
    rows = [" & ".join(row) + r" \\" for row in _marked(table, latex_text, r"\textbf{{{}}}")]
    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{latex_text(table.title)}. {latex_text(table.note)}.}}",
            r"\centering",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            " & ".join(map(latex_text, names)) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def to_html(table: TextTable) -> str:
    """Return a heading, the table in a box that scrolls, and its note.

    Each cell has the heading of its column as ``data-head``, which narrow pages show beside it.

    Args:
        table: to render.
    """

    def line(tag: str, cells: Sequence[str]) -> str:
        parts = []
        for name, cell in zip(map(str, table.cells), cells, strict=True):
            side = "word" if name in _WORDS else "number"
            head = f' data-head="{escape(name)}"' if tag == "td" else ""
            parts.append(f'<{tag} class="{side}"{head}>{cell}</{tag}>')
        return f"<tr>{''.join(parts)}</tr>"

    head = line("th", [escape(str(name)) for name in table.cells])
    cells = _marked(table, escape, "<strong>{}</strong>")
    own = ('<tr class="own">' if i in table.marked else "<tr>" for i in range(len(cells)))
    rows = "\n".join(
        line("td", row).replace("<tr>", tag, 1) for row, tag in zip(cells, own, strict=True)
    )
    return (
        f'<section class="table"><h3>{escape(table.title)}</h3>\n<div class="scroll"><table>\n'
        f"<thead>{head}</thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>\n"
        f'<p class="note">{escape(table.note)}.</p></section>\n'
    )


def _marked(table: TextTable, escaped, bold: str) -> list[list[str]]:
    """The cells, escaped; bold ones inside their markup."""
    return [
        [
            bold.format(escaped(cell)) if (i, j) in table.bold else escaped(cell)
            for j, cell in enumerate(row)
        ]
        for i, row in enumerate(table.cells.itertuples(index=False, name=None))
    ]
