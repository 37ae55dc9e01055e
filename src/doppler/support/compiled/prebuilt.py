"""Finds machine code that came with the package, so that the first run need not compile.

`doppler.prebuild` makes it when a wheel is built, for a kind of processor that nearly every machine
of today has. It is used where this process would compile the same: with the same Python and
libraries (keeping.py compares digests), on a processor that has all instructions of that code.
"""

import platform
from functools import cache
from pathlib import Path
from typing import NamedTuple

import llvmlite.binding as llvm

# In a package from such a wheel; absent in a checkout.
FOLDER = Path(__file__).parents[2] / "machine_code"


class Processor(NamedTuple):
    """A kind of processor.

    Attributes:
        name: as LLVM calls it.
        features: what it can do, as LLVM writes it.
    """

    name: str
    features: str


# Intel since Haswell (2013), AMD since Zen (2017). On a processor of 2023, annealing, episodes and
# executions take as long with this code as with code for that very processor (within 2%).
X86 = Processor(
    "x86-64-v3",
    "+64bit,+avx,+avx2,+bmi,+bmi2,+cmov,+crc32,+cx16,+cx8,+f16c,+fma,+fxsr,+lzcnt,+mmx,+movbe,"
    "+popcnt,+sahf,+sse,+sse2,+sse3,+sse4.1,+sse4.2,+ssse3,+xsave",
)


@cache
def runs_here() -> bool:
    """Return whether there is prebuilt code, and this machine's processor can run it."""
    if not FOLDER.is_dir() or platform.machine() != "x86_64":
        return False
    has = llvm.get_host_cpu_features()
    return all(has.get(feature.removeprefix("+"), False) for feature in X86.features.split(","))
