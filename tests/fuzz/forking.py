"""Commands in processes of their own, forked off one that has imported what they need.

Importing takes seconds, most commands that nobody meant take none.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from importlib import import_module
from pathlib import Path

_IMPORTS = ("doppler.api", "doppler.report.page", "doppler.experiment.main")
_STAGES = ("evaluate", "train", "rl_sim", "rl_real", "calibrate", "describe", "inference")
_IMPORTS += tuple(f"doppler.experiment.{name}" for name in _STAGES)


class Commands:
    """Runs command lines, each in a process that begins with everything imported.

    folder: where they run. limit_s: of each; one that takes longer is killed.
    """

    def __init__(self, folder: Path, limit_s: float) -> None:
        self._server = subprocess.Popen(
            [sys.executable, __file__, str(limit_s)],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, words: list[str]) -> tuple[int, str]:
        """Exit code, minus the signal for one that was killed, and what it wrote to stderr."""
        assert self._server.stdin is not None and self._server.stdout is not None
        print(json.dumps(words), file=self._server.stdin, flush=True)
        code, error = json.loads(self._server.stdout.readline())
        return code, error

    def close(self) -> None:
        """End the process that forks."""
        self._server.communicate()


def _serve(limit_s: float) -> None:
    for name in _IMPORTS:
        import_module(name)
    for line in sys.stdin:
        with tempfile.TemporaryFile() as error:
            if (child := os.fork()) == 0:
                _become(json.loads(line), error.fileno())
            code = _end_of(child, limit_s)
            error.seek(0)
            print(json.dumps([code, error.read().decode(errors="replace")]), flush=True)


def _become(words: list[str], error: int) -> None:
    """What the interpreter does with a command line; it never returns."""
    code = 1
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for stream, file in ((0, null), (1, null), (2, error)):
            os.dup2(file, stream)
        import_module("doppler.cli").program(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _end_of(child: int, limit_s: float) -> int:
    until_s = time.monotonic() + limit_s
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > until_s:
            os.kill(child, 9)
            ended = os.waitpid(child, 0)
            break
        time.sleep(0.002)
    return os.waitstatus_to_exitcode(ended[1])


if __name__ == "__main__":
    _serve(float(sys.argv[1]))
