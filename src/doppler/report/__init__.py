"""Rows, tables, metrics and progress: how results are kept and shown."""

from doppler.report.metrics import CsvMetrics
from doppler.report.progress import TrainingProgress
from doppler.report.rows import ResultRow, read_results, write_results
from doppler.report.table import format_seconds, make_console, print_results

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
