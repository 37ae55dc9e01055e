"""Tests run on one copy of the repository, in a process forked off this one."""

import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import pytest

_LIBRARIES = ("hydra", "hypothesis", "numba", "ortools.sat.python.cp_model", "pandas", "plotly")
_LIBRARIES += ("networkx", "pytorch_lightning", "scipy.sparse", "torch", "torch_geometric")
# A test may take this much longer than without the mutation: code may have to be compiled.
_GRACE_S, _FACTOR = 90, 4
_MEMORY_BYTES, _FILE_BYTES = 16 * 2**30, 2**30


@dataclass(frozen=True)
class Trial:
    """What came of the tests: killed, timed out, survived; why; seconds of each test that ran."""

    outcome: str
    why: str
    total_s: float
    tests: Mapping[str, float] = field(default_factory=dict)


def prepare() -> None:
    """Import the libraries, but nothing of the package: most of what pytest costs at first."""
    for name in _LIBRARIES:
        import_module(name)


def try_tests(
    tree: Path, files: Sequence[str], usual: Mapping[str, float], likely: Container[str] = ()
) -> Trial:
    """Run the tests of a tree until one fails.

    usual: seconds of each test, which says when it is late; none: it never is. The quickest are
    run first; those of ``likely`` files as if they took a fifth of it.
    """
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        output, noted = Path(folder) / "output", Path(folder) / "noted"
        if (child := os.fork()) == 0:
            _run(tree, files, _Watch(usual, likely, noted), output)
        try:
            _, status = os.waitpid(child, 0)
        finally:  # whether it has ended, or Ctrl-C ends this
            _end_group(child)
        tests = json.loads(noted.read_text(encoding="utf-8")) if noted.exists() else {}
        text = output.read_text(errors="replace", encoding="utf-8")
    total_s = time.monotonic() - begin
    if os.WIFSIGNALED(status):
        late = os.WTERMSIG(status) == signal.SIGALRM
        return Trial("timed out" if late else "killed", f"signal {os.WTERMSIG(status)}", total_s)
    if os.waitstatus_to_exitcode(status) == 0:
        return Trial("survived", "", total_s, tests)
    said = [one for one in text.splitlines() if one.startswith(("FAILED", "ERROR"))]
    return Trial("killed", (said or text.splitlines()[-1:] or [""])[0][:200], total_s, tests)


def _run(tree: Path, files: Sequence[str], watch: "_Watch", output: Path) -> None:
    """In the forked process: it never returns."""
    code = 99
    try:
        os.setsid()
        where = os.open(output, os.O_WRONLY | os.O_CREAT)
        os.dup2(where, 1)
        os.dup2(where, 2)
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
        os.chdir(tree)
        sys.path[:] = [str(tree / "src"), str(tree), *(p for p in sys.path if p)]
        for name in [one for one in sys.modules if one.partition(".")[0] == "benchmarks"]:
            del sys.modules[name]
        os.environ["PYTHONPATH"] = f"{tree / 'src'}{os.pathsep}{tree}"
        arguments = ["-x", "-q", "--tb=line", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
        code = pytest.main([*arguments, *files], plugins=[watch])
        watch.save()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _end_group(leader: int) -> None:
    """Whatever the tests have started and left."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass


class _Watch:
    """Notes the seconds of each test and ends the process where one takes far too long."""

    def __init__(self, usual: Mapping[str, float], likely: Container[str], noted: Path) -> None:
        self.usual, self.likely, self.noted = usual, likely, noted
        self.seconds: dict[str, float] = defaultdict(float)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=self._rank)

    def _rank(self, item: pytest.Item) -> float:
        seconds = self.usual.get(item.nodeid, 0.0)
        return seconds / 5 if item.nodeid.partition("::")[0] in self.likely else seconds

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if self.usual:
            signal.alarm(_GRACE_S + int(_FACTOR * self.usual.get(nodeid, 0.0)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration

    def save(self) -> None:
        """For the process that asked."""
        signal.alarm(0)
        self.noted.write_text(json.dumps(self.seconds), encoding="utf-8")
