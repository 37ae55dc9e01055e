"""What a report says of finished runs."""

from pathlib import Path

from doppler.report.aggregate import frame_of, summarise
from doppler.report.finished import find_runs


def averages_of(*folders: Path) -> list:
    """Means over seeds of the runs below some folders, a row per method and problem."""
    runs, damaged = find_runs(folders)
    assert not damaged
    return list(summarise(frame_of(runs)).itertuples())
