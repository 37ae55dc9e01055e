"""Known best makespans of stored graphs: ``optimal.csv`` in their folder.

Columns: name (of a graph's file, without suffix), processors, optimal (seconds) and, if some optima
are not proven, lower_bound and proven (True or False). A graph has one line per number of
processors.
"""

import csv
import io
import math
import re
from pathlib import Path
from typing import NamedTuple

from doppler.support.errors import InputError
from doppler.support.files import read_text

OPTIMA_FILE = "optimal.csv"
_NEEDED = ("name", "processors", "optimal")
_TRUTH = {"True": True, "False": False}


class Optimum(NamedTuple):
    """The smallest makespan of a graph on a number of processors, or a bound on it.

    Attributes:
        processors: number of processors.
        seconds: the optimum, or the bound.
        is_proven: whether it is the optimum.
    """

    processors: int
    seconds: float
    is_proven: bool


def known_optima(path: str | Path) -> list[Optimum]:
    """Read what is known about a graph, for each number of processors; empty if nothing is known.

    Args:
        path: of the graph's file.

    Raises:
        InputError: names the table, and the line at fault.
    """
    path = Path(path)
    table = path.with_name(OPTIMA_FILE)
    if not table.exists():
        return []
    try:
        lines = list(csv.DictReader(io.StringIO(read_text(table))))
    except csv.Error as error:
        raise InputError(f"{table}: {error}") from None
    if lines and (missing := [name for name in _NEEDED if name not in lines[0]]):
        raise InputError(f"{table}: no column {missing[0]}")
    return [
        _optimum(line, f"{table}:{number}")
        for number, line in enumerate(lines, 2)
        if line["name"] == path.stem
    ]


def _optimum(line: dict[str, str], where: str) -> Optimum:
    try:
        is_proven = _TRUTH[line["proven"]] if "proven" in line else True
        seconds = float(line["optimal"] if is_proven else line["lower_bound"])
        processors = int(line["processors"])
        if not (0 <= seconds < math.inf and processors >= 1):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f"{where}: expected processors, optimal, and lower_bound where proven is False"
        ) from None
    return Optimum(processors, seconds, is_proven)


def num_processors(path: str | Path | None) -> int | None:
    """Return the number of processors that a stored graph is for, by its table or name (``16p_``).

    Args:
        path: of the graph's file.

    Raises:
        InputError: the table has several numbers.
    """
    if path is None:
        return None
    numbers = sorted({one.processors for one in known_optima(path)})
    if len(numbers) > 1:
        choices = ",".join(map(str, numbers))
        raise InputError(
            f"{path}: {OPTIMA_FILE} has optima for several numbers of processors: give "
            f"cluster.num_devices={choices} (all: with -m)"
        )
    named = re.match(r"([1-9][0-9]{0,3})p_", Path(path).name)
    return numbers[0] if numbers else int(named[1]) if named else None
