"""Cases are counted."""

from collections.abc import Iterator

import pytest
from fuzz.outcomes import cases

from doppler.api import placing


@pytest.fixture(scope="session", autouse=True)
def short_searches() -> Iterator[None]:
    """Who says no budget asks for a minute of search, which would look like no end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placing, "_SECONDS", 0.05)
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many there were."""
    if cases:
        counted = ", ".join(f"{num:,} {kind}" for kind, num in sorted(cases.items()))
        terminalreporter.write_line(f"fuzz: {cases.total():,} cases: {counted}")
