"""run.log: what a run printed, what was warned of, how it ended."""

import io
import logging
import warnings

import pytest
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from doppler.experiment.log import LOG_FILE, logged
from doppler.support.errors import InputError


@pytest.fixture
def console():
    """A terminal, as far as rich can tell."""
    return Console(file=io.StringIO(), force_terminal=True, width=60)


def test_what_is_printed_is_in_the_log_without_colours_and_bars(console, tmp_path):
    table = Table("method", "makespan")
    table.add_row("annealing", "147.0 ms")
    with logged(tmp_path, console):
        console.print("[bold]stage I[/bold] begins " + "x" * 200)
        with Progress(console=console) as progress:
            task = progress.add_task("episodes", total=3)
            for _ in range(3):
                progress.update(task, advance=1, refresh=True)
            progress.console.print("half way")
        console.print(table)
    console.print("after the run")
    text = (tmp_path / LOG_FILE).read_text()
    assert "stage I begins " + "x" * 200 + "\n" in text, "lines are not broken"
    assert "half way\n" in text and "147.0 ms" in text
    assert "\x1b" not in text and "after the run" not in text
    assert text.count("episodes") <= 1


def test_warnings_are_in_the_log(console, tmp_path):
    shown = warnings.showwarning
    with logged(tmp_path, console), warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("a small batch", stacklevel=1)
        logging.getLogger("anything").warning("a slow disk")
    assert warnings.showwarning is shown
    text = (tmp_path / LOG_FILE).read_text()
    assert "UserWarning: a small batch" in text and "a slow disk" in text


def test_a_resumed_run_goes_on_in_the_same_log(console, tmp_path):
    with pytest.raises(InputError), logged(tmp_path, console):
        console.print("first")
        raise InputError("seed: bad")
    with pytest.raises(ZeroDivisionError), logged(tmp_path, console):
        console.print("second")
        _ = 1 / 0
    text = (tmp_path / LOG_FILE).read_text()
    first, second = text.index("first\nerror: seed: bad\n"), text.index("second\nTraceback")
    assert first < second and "ZeroDivisionError" in text
