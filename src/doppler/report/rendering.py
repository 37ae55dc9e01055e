"""Tables as markdown, LaTeX and HTML."""

from collections.abc import Sequence
from html import escape

from doppler.report.tables import Table

_LATEX = {"_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "±": r"$\pm$"}
_LEFT = ("method", "order", "problem")  # columns of words; numbers stand at the right


def to_markdown(tables: Sequence[Table]) -> str:
    """One heading, table and note each."""
    parts = []
    for table in tables:
        marks = ["---" if name in _LEFT else "---:" for name in table.columns]
        lines = [table.columns, marks]
        for i, row in enumerate(table.rows):
            lines.append(
                [f"**{cell}**" if (i, j) in table.bold else cell for j, cell in enumerate(row)]
            )
        body = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        parts.append(f"### {table.title}\n\n{body}\n{table.note}.\n")
    return "\n".join(parts)


def to_latex(tables: Sequence[Table]) -> str:
    """One ``table`` environment each."""
    return "\n".join(_latex(table) for table in tables)


def _latex(table: Table) -> str:
    def text(cell: str) -> str:
        return "".join(_LATEX.get(character, character) for character in cell)

    lines = []
    for i, row in enumerate(table.rows):
        cells = [
            rf"\textbf{{{text(cell)}}}" if (i, j) in table.bold else text(cell)
            for j, cell in enumerate(row)
        ]
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{text(table.title)}. {text(table.note)}.}}",
            r"\begin{tabular}{" + "".join("l" if c in _LEFT else "r" for c in table.columns) + "}",
            r"\hline",
            " & ".join(map(text, table.columns)) + r" \\",
            r"\hline",
            *lines,
            r"\hline",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def to_html(table: Table) -> str:
    """A figure with caption, table and note."""

    def cell(tag: str, text: str, column: int, *, bold: bool = False) -> str:
        side = "" if table.columns[column] in _LEFT else ' class="number"'
        shown = f"<strong>{escape(text)}</strong>" if bold else escape(text)
        return f"<{tag}{side}>{shown}</{tag}>"

    head = "".join(cell("th", name, j) for j, name in enumerate(table.columns))
    body = "\n".join(
        "<tr>"
        + "".join(cell("td", text, j, bold=(i, j) in table.bold) for j, text in enumerate(row))
        + "</tr>"
        for i, row in enumerate(table.rows)
    )
    return (
        f'<section class="table"><h3>{escape(table.title)}</h3>\n<div class="scroll"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>\n"
        f'<p class="note">{escape(table.note)}.</p></section>\n'
    )
