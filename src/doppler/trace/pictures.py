"""Writes pictures to disk, with names of graphs, ops and methods as literal text."""

import warnings
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from doppler.graph.formats import replaced
from doppler.support.errors import printable

# Longest text that is drawn.
_MAX_CHARACTERS = 200


def new_figure(width_in: float, height_in: float, *, dpi: int, **options: Any) -> Figure:
    """Make a white figure that needs no window.

    Args:
        width_in: width in inches.
        height_in: height in inches.
        dpi: dots per inch.
        options: of matplotlib's Figure.
    """
    figure = Figure(figsize=(width_in, height_in), dpi=dpi, facecolor="white", **options)
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure to a file atomically, in the format of its suffix.

    Names between dollar signs are kept as text; matplotlib would read them as formulas.

    Args:
        figure: to write.
        path: of the file.
    """
    axes = [axis for each in figure.axes for axis in (each.xaxis, each.yaxis)]
    numbers = {id(text) for axis in axes for text in axis.findobj(Text)}  # 10^3 is a formula
    for text in figure.findobj(Text):
        if isinstance(text, Text) and id(text) not in numbers:
            text.set_parse_math(False)
            text.set_text(shorten(printable(text.get_text()), _MAX_CHARACTERS))
    suffix = Path(path).suffix[1:] or "png"
    with replaced(path) as partial, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(partial, format=suffix, metadata={"Software": None})


def legend_label(name: str) -> str:
    """Return a name for a matplotlib legend, which hides names that begin with an underscore."""
    return f" {name}" if name.startswith("_") else name


def shorten(text: str, length: int) -> str:
    """Shorten a text to a number of characters, with an ellipsis if any are left out."""
    return text if len(text) <= length else text[: length - 1] + "…"
