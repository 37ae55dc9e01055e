"""Compile what a command is about to run on all cores, and say how long that takes.

numba compiles one function at a time in a process. On a machine where nothing is compiled yet,
processes side by side compile the parts that the command needs; it then finds them on disk.
"""

import hashlib
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import suppress
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from doppler.precompile import compile_part
from doppler.simulator.session_kernels import measure_batch
from doppler.support.compiled.keeping import COMPILER
from doppler.support.compiled.prebuilt import FOLDER, runs_here
from doppler.support.compute.threads import num_threads
from doppler.support.files import lock_file
from doppler.support.stopping import ending_children
from doppler.support.waiting import duration

# Seconds of one core that each part takes, for the time that is left; only their ratios count once
# one of them is done. Parts share functions, which whoever comes first compiles.
_CORE_S = {
    "policies": 27.0,
    "annealing on work_conserving": 23.0,
    "annealing on estimates": 8.0,
    "list schedulers": 14.0,
    "clustering": 4.0,
    "simulator work_conserving": 8.0,
}
# Of what every run needs; a run that learns also needs the part of its policy.
SEARCHES = (
    *("annealing on work_conserving", "list schedulers", "annealing on estimates"),
    *("simulator work_conserving", "clustering"),
)
POLICIES = {
    "DualPolicy": "policies",
    "StepwiseDualPolicy": "policies that see every step",
    "PaperPolicy": "the paper's policy",
}
_OTHER_S = 10.0
# Of the parts that are not done, what is compiled already on average.
_RUNNING = 0.5
# More processes compile what they share more often: 4 take 70 s on 16 cores, 13 take 87 s.
_MOST_PROCESSES = 4
_LIMIT_S = 600.0
_REFRESH_S = 0.5


def compile_ahead(parts: Sequence[str], console: Console) -> None:
    """Compile parts side by side, unless they have been compiled on this machine before.

    Args:
        parts: names of `doppler.precompile`.
        console: is told what is compiled and about how long that takes.
    """
    processes = min(_MOST_PROCESSES, num_threads())
    if processes < 2:
        return  # the command compiles as it goes
    todo = [part for part in parts if not _is_compiled(part)]
    if not todo:
        return
    try:
        lock = lock_file(_stamp("lock"), "the compiler", limit_s=_LIMIT_S)
    except OSError:  # nothing can be kept on disk: whoever runs compiles for itself
        return
    try:
        todo = [part for part in todo if not _is_compiled(part)]
        if todo:
            _compile(todo, processes, console)
    finally:
        os.close(lock)


def _compile(parts: list[str], processes: int, console: Console) -> None:
    parts.sort(key=_core_s, reverse=True)
    begin_s, done = time.monotonic(), []
    with (
        _Display(console, parts, processes) as display,
        ending_children(),
        ProcessPoolExecutor(processes, get_context("spawn")) as pool,
    ):
        running = {pool.submit(compile_part, part): part for part in parts}
        while running:
            ended, _ = wait(running, timeout=_REFRESH_S, return_when=FIRST_COMPLETED)
            for each in ended:
                each.result()
                done.append(running.pop(each))
                with suppress(OSError):
                    _stamp(done[-1]).touch()
            display.update(done, time.monotonic() - begin_s)


class _Display:
    """How far compiling is: a bar on a terminal, else one line at the beginning."""

    def __init__(self, console: Console, parts: Sequence[str], processes: int) -> None:
        self._parts, self._processes = parts, processes
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=1.0, left="")

    def __enter__(self) -> Self:
        if not self._console.is_terminal:
            took = duration(self._left_s([], 0.0))
            line = f"compiling, once on this machine, {len(self._parts)} parts: {took}"
            self._console.print(line, highlight=False)
        self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()

    def update(self, done: Sequence[str], elapsed_s: float) -> None:
        """Show which parts are done after so many seconds."""
        left_s = self._left_s(done, elapsed_s)
        self._bar.update(
            self._task,
            completed=elapsed_s / (elapsed_s + left_s),
            description=f"compiling, once on this machine: {len(done)} of {len(self._parts)} parts",
            left=f"{duration(left_s)} left",
        )

    def _left_s(self, done: Sequence[str], elapsed_s: float) -> float:
        """Seconds until all is compiled: what is expected, or what those that are done suggest."""
        longest_s = max(map(_core_s, self._parts))
        expected_s = max(longest_s, sum(map(_core_s, self._parts)) / self._processes)
        share = sum(map(_core_s, done)) / sum(map(_core_s, self._parts))
        if share > 0.0:
            expected_s = max(expected_s, elapsed_s / (share + _RUNNING * (1.0 - share)))
        return max(1.0, expected_s - elapsed_s)


def _core_s(part: str) -> float:
    return _CORE_S.get(part, _OTHER_S)


def _is_compiled(part: str) -> bool:
    """Whether a part has been compiled on this machine, or came with the package."""
    return _stamp(part).exists() or (runs_here() and (FOLDER / stamp_name(part)).exists())


def _stamp(part: str) -> Path:
    """The empty file that says that a part is compiled on this machine."""
    return Path(measure_batch.entry._cache.cache_path) / stamp_name(part)


def stamp_name(part: str) -> str:
    """Return the name of the empty file that says that a part is compiled.

    It changes when any compiled function does, or what compiles it.

    Args:
        part: a name of `doppler.precompile`.
    """
    return f"compiled-{part.replace(' ', '_')}-{_version()}"


@cache
def _version() -> str:
    digest = hashlib.sha256(f"{sys.implementation.cache_tag} {COMPILER}".encode())
    package = Path(__file__).parent
    for path in sorted(package.rglob("*.py")):
        if path.stem.endswith("_kernels") or "compiled" in path.parts:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
