"""A table as text, to be written as markdown, LaTeX or HTML."""

from dataclasses import dataclass

import pandas as pd

# More problems than these have a row each in one table, and no table or picture of their own.
MANY = 16


@dataclass(frozen=True, eq=False, kw_only=True)
class TextTable:
    """A table as text.

    Attributes:
        title: above it.
        note: below it, without its last full stop.
        cells: a column per heading.
        bold: (row, column) of cells.
        marked: rows of the method that the runs are about.
    """

    title: str
    note: str
    cells: pd.DataFrame
    bold: frozenset[tuple[int, int]] = frozenset()
    marked: frozenset[int] = frozenset()
