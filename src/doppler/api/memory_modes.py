"""What is done about memory, by name; the modes that plan come from the memory extension."""

from doppler.hooks import extension
from doppler.support.errors import InputError
from doppler.system import MemoryMode, Refuse

REFUSE = "refuse"


def memory_mode(name: str) -> MemoryMode:
    """The mode of a name: ``refuse``, ``offload`` or ``offload_or_recompute``.

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
