"""Further files that plugins leave in the directory of a finished run (hooks.leave_artifacts)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """What a plugin says of the files that it has written.

    Attributes:
        summary: entries that summary.json gets.
        lines: what explanation.txt and the console say, a line each.
    """

    summary: Mapping[str, Any] = field(default_factory=dict)
    lines: Sequence[str] = ()
