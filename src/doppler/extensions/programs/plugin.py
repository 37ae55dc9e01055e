"""Adds streams of inputs, programs that choose models for them, and their tables."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from doppler.hooks import implements

if TYPE_CHECKING:
    from doppler.report.finished import FinishedRun
    from doppler.report.text_table import TextTable


@implements
def config_folders() -> list[Path]:
    """Return the folders of conf/ that this extension adds."""
    return [Path(__file__).parent / "conf"]


@implements
def report_tables(runs: "Sequence[FinishedRun]") -> "list[TextTable]":
    """Return a table with the accuracy and cost of every allocator.

    Args:
        runs: all finished runs.
    """
    from doppler.extensions.programs.report import stream_tables

    return stream_tables(runs)
