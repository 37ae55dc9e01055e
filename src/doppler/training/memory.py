"""The largest memory that the process held since a moment; Linux keeps count, others do not.

Source: proc(5): writing 5 to ``clear_refs`` resets the mark, ``VmHWM`` in ``status`` is the mark.
"""

from pathlib import Path

_PROCESS = Path("/proc/self")


def reset_peak() -> None:
    """Begin to count anew."""
    try:
        (_PROCESS / "clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        return


def peak_bytes() -> int | None:
    """Largest resident memory of the whole process since then; None where nobody counts."""
    try:
        lines = (_PROCESS / "status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    marks = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return marks[0] if marks else None
