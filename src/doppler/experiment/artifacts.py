"""Extra files that plugins write into the directory of a finished run (hooks.leave_artifacts)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """What a plugin reports about the files that it has written.

    Attributes:
        summary: entries to add to summary.json.
        lines: lines for explanation.txt and the console.
    """

    summary: Mapping[str, Any] = field(default_factory=dict)
    lines: Sequence[str] = ()
