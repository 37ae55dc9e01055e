"""Memory modes by name; the modes that plan memory come from the memory extension."""

from doppler.hooks import extension
from doppler.support.errors import InputError
from doppler.system import MemoryMode, Refuse

REFUSE = "refuse"


def memory_mode(name: str) -> MemoryMode:
    """Return the mode with a name: ``refuse``, ``offload`` or ``offload_or_recompute``.

    Args:
        name: of the mode.

    Raises:
        InputError: there is no such mode.
    """
    if name == REFUSE:
        return Refuse()
    modes = extension("memory", f"memory={name[:40]!r}").MODES
    if name not in modes:
        choices = ", ".join([REFUSE, *modes])
        raise InputError(f"memory: must be one of {choices}, got {name[:40]!r}")
    return modes[name]
