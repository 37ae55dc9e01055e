"""Turns names that somebody else chose into file names."""

import re

_MAX_CHARACTERS = 100


def as_file_name(name: str) -> str:
    """Return a name as one part of a path: ``../etc/x`` becomes ``etc-x``.

    Letters, digits and a few other characters stay; everything else becomes a dash.

    Args:
        name: any text.
    """
    kept = re.sub(r"[^\w.+=@,]+", "-", name)[:_MAX_CHARACTERS]
    return kept.strip("-.") or "unnamed"
