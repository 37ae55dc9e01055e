"""File names made of names that somebody else chose."""

import re

_MAX_CHARACTERS = 100


def as_file_name(name: str) -> str:
    """The name as one part of a path: ``../etc/x`` becomes ``etc-x``.

    Letters, digits and a few signs stay; whatever else stands between them becomes a dash.
    """
    kept = re.sub(r"[^\w.+=@,]+", "-", name)[:_MAX_CHARACTERS]
    return kept.strip("-.") or "unnamed"
