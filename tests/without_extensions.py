"""The core alone: its tests and the demo, in a copy of the repository without any extension.

python tests/without_extensions.py                       # all tests of the core
python tests/without_extensions.py tests/graph -k cycle  # other arguments of pytest
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
COPIED = ("conf", "src", "tests", "workloads", "pyproject.toml")
# tests/project tests what stands on the core and on all extensions: pages, examples, the wheel.
LEFT_OUT = ("src/doppler/extensions", "tests/extensions", "tests/project")

IMPORT_ALL = """
import importlib, pathlib, pkgutil, doppler
assert pathlib.Path(doppler.__file__).is_relative_to(pathlib.Path.cwd()), doppler.__file__
for module in pkgutil.walk_packages(doppler.__path__, "doppler."):
    importlib.import_module(module.name)
"""
DEMO = ["src/run.py", "budget=quick"]
TESTS = ["-m", "pytest", "--numprocesses", "2", "--dist", "loadfile"]


def copy_core(to: Path) -> None:
    """Copy the repository; compiled code goes along, so that it need not be made again."""
    for name in COPIED:
        if (REPOSITORY / name).is_dir():
            shutil.copytree(REPOSITORY / name, to / name)
        else:
            shutil.copy2(REPOSITORY / name, to / name)
    for name in LEFT_OUT:
        shutil.rmtree(to / name)


def main(arguments: list[str]) -> int:
    """Import, run and test the core; the exit code of the first that fails."""
    with tempfile.TemporaryDirectory(prefix="core-") as name:
        core = Path(name)
        copy_core(core)
        environment = {**os.environ, "PYTHONPATH": str(core / "src")}
        for command in (["-c", IMPORT_ALL], DEMO, [*TESTS, *arguments]):
            begin = time.perf_counter()
            done = subprocess.run([sys.executable, *command], cwd=core, env=environment)
            shown = "import of every module" if command[0] == "-c" else " ".join(command)
            print(f"without extensions, {shown}: {time.perf_counter() - begin:.0f} s", flush=True)
            if done.returncode:
                return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
