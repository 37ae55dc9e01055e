"""Peak memory of the process since a given moment; only Linux records it.

Source: proc(5): writing 5 to ``clear_refs`` resets the mark, ``VmHWM`` in ``status`` is the mark.
"""

from pathlib import Path

_PROCESS = Path("/proc/self")


def reset_peak() -> None:
    """Start a new measurement."""
    try:
        (_PROCESS / "clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        return


def peak_bytes() -> int | None:
    """Return the largest resident memory of the process since `reset_peak`; None if unknown."""
    try:
        lines = (_PROCESS / "status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    marks = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return marks[0] if marks else None
