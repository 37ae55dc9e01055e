"""Cases are counted."""

import pytest
from fuzz.outcomes import cases


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many there were."""
    if cases:
        counted = ", ".join(f"{num:,} {kind}" for kind, num in sorted(cases.items()))
        terminalreporter.write_line(f"fuzz: {cases.total():,} cases: {counted}")
