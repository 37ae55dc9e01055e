"""Compiles what a first run needs ahead of time; setup.py calls it when it builds a wheel.

    python -m doppler.prebuild FOLDER [PART ...]

The machine code goes into the folder, which belongs into the package that it was compiled from.
Parts are those of `doppler.precompile`; without any, those that every run needs, and the policy.
"""

import os
import platform
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from doppler.first_run import POLICIES, SEARCHES, stamp_name
from doppler.precompile import compile_part, part_names
from doppler.support.compiled.prebuilt import X86
from doppler.support.compute.threads import num_threads


def prebuild(folder: Path, parts: Sequence[str]) -> None:
    """Compile for the processor of wheels.

    Args:
        folder: receives the machine code, and an empty file for each part.
        parts: names of `doppler.precompile`.
    """
    with TemporaryDirectory() as made:
        # numba reads these when it is imported, so they count in processes that start now.
        os.environ["NUMBA_CPU_NAME"], os.environ["NUMBA_CPU_FEATURES"] = X86
        os.environ["NUMBA_CACHE_DIR"] = made
        with ProcessPoolExecutor(num_threads(), get_context("spawn")) as pool:
            for line in pool.map(compile_part, parts):
                print(line)
        folder.mkdir(parents=True, exist_ok=True)
        for file in Path(made).rglob("*.nbc"):
            if not file.name.endswith(".piece.nbc"):  # only compilers need those
                shutil.copy(file, folder)
    for part in parts:
        (folder / stamp_name(part)).touch()


if __name__ == "__main__":
    if platform.machine() != "x86_64":
        sys.exit(f"prebuilt code is for x86_64, and this machine is {platform.machine()}")
    if len(sys.argv) < 2:
        sys.exit("usage: python -m doppler.prebuild FOLDER [PART ...]")
    target, *chosen = sys.argv[1:]
    if unknown := [part for part in chosen if part not in part_names()]:
        sys.exit(f"no part {unknown[0]!r}, choose from {', '.join(part_names())}")
    prebuild(Path(target), chosen or [*SEARCHES, POLICIES["DualPolicy"]])
