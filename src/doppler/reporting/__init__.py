"""Rows, tables, metrics and progress: how results are kept and shown."""

from doppler.reporting.metrics import CsvMetrics
from doppler.reporting.progress import TrainingProgress
from doppler.reporting.rows import ResultRow, read_results, write_results
from doppler.reporting.table import format_seconds, make_console, print_results

__all__ = [
    "CsvMetrics",
    "ResultRow",
    "TrainingProgress",
    "format_seconds",
    "make_console",
    "print_results",
    "read_results",
    "write_results",
]
