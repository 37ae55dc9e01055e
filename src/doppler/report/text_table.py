"""A table as text, to be rendered as Markdown, LaTeX or HTML."""

from dataclasses import dataclass

import pandas as pd

# If there are more problems, each is a row of one table and has no table or picture of its own.
MANY = 16


@dataclass(frozen=True, eq=False, kw_only=True)
class TextTable:
    """A table as text.

    Attributes:
        title: above it.
        note: below it, without the final full stop.
        cells: a column per heading.
        bold: (row, column) of bold cells.
        marked: rows of the runs' main method.
    """

    title: str
    note: str
    cells: pd.DataFrame
    bold: frozenset[tuple[int, int]] = frozenset()
    marked: frozenset[int] = frozenset()
