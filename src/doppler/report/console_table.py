"""Tables for a terminal: columns that do not fit its width are left out; words are not broken."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from doppler.support.errors import printable


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table.

    Attributes:
        name: its heading.
        cells: a text for each row.
        is_number: whether it is right-aligned.
        rank: columns with a higher rank are left out first; 0 is never left out.
        is_bold: rows whose cell is bold.
    """

    name: str
    cells: Sequence[str]
    is_number: bool = True
    rank: int = 0
    is_bold: Sequence[bool] = ()


def print_table(
    console: Console,
    title: str,
    columns: Sequence[Column],
    *,
    note: str = "",
    elsewhere: str = "",
) -> None:
    """Print a table without the columns that the terminal is too narrow for.

    Args:
        console: where to print.
        title: above the table.
        columns: from left to right, all with the same number of cells.
        note: below the table.
        elsewhere: the file that contains the columns which are left out.
    """
    shown = list(columns)
    while _width(console, shown) > console.width and any(one.rank for one in shown):
        shown.remove(max(shown, key=lambda one: one.rank))
    console.print(Text(printable(title)), soft_wrap=False)
    console.print(_table(shown))
    left_out = [one.name for one in columns if one not in shown]
    notes = [note] if note else []
    if left_out:
        where = f"; {elsewhere} has them" if elsewhere else ""
        notes.append(f"too wide for this terminal: {', '.join(left_out)}{where}")
    for line in notes:
        console.print(Text(printable(line), "italic"))


def _width(console: Console, columns: Sequence[Column]) -> int:
    wide = console.options.update(width=10_000)
    return Measurement.get(console, wide, _table(columns)).maximum


def _table(columns: Sequence[Column]) -> Table:
    table = Table()
    for column in columns:
        justify = "right" if column.is_number else "left"
        table.add_column(Text(column.name), justify=justify)
    for i in range(len(columns[0].cells)):
        table.add_row(
            *(
                Text(
                    printable(column.cells[i]),
                    "bold" if column.is_bold and column.is_bold[i] else "",
                )
                for column in columns
            )
        )
    return table
