"""The core alone: its demo and its tests, in a copy of the repository without any extension.

python tests/without_extensions.py                  # all tests of the core
python tests/without_extensions.py tests/graph -x   # other arguments of pytest
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
# tests/project is about what stands on the core and on all extensions: pages, examples, the wheel.
LEFT_OUT = ("src/doppler/extensions", "tests/extensions", "tests/project")
NOT_COPIED = shutil.ignore_patterns(".*", "build", "dist", "outputs", "*.egg-info")

IMPORT_ALL = """
import importlib, pathlib, pkgutil, doppler
assert pathlib.Path(doppler.__file__).is_relative_to(pathlib.Path.cwd()), doppler.__file__
for module in pkgutil.walk_packages(doppler.__path__, "doppler."):
    importlib.import_module(module.name)
"""


def copy_core(to: Path) -> None:
    """Copy the repository with its compiled code, which then need not be made again."""
    shutil.copytree(REPOSITORY, to, ignore=NOT_COPIED, dirs_exist_ok=True)
    for name in LEFT_OUT:
        shutil.rmtree(to / name)


def main(arguments: list[str]) -> int:
    """Import, run and test the core; the exit code of the first that fails."""
    commands = {
        "import of every module": ["-c", IMPORT_ALL],
        "demo": ["src/run.py", "budget=quick"],
        "tests": ["-m", "pytest", "--quiet", "--numprocesses", "2", "--dist", "worksteal"],
    }
    commands["tests"] += arguments
    with tempfile.TemporaryDirectory(prefix="core-") as name:
        core = Path(name).resolve()
        copy_core(core)
        # Others' problems lie beside the repository, not beside the copy.
        beside = {"DOPPLER_SHARED": str(REPOSITORY.parent / "shared")}
        environment = {**beside, **os.environ, "PYTHONPATH": str(core / "src")}
        for what, command in commands.items():
            begin_s = time.perf_counter()
            done = subprocess.run([sys.executable, *command], cwd=core, env=environment)
            spent_s = time.perf_counter() - begin_s
            print(f"without extensions: {what}, {spent_s:.0f} s", flush=True)
            if done.returncode:
                return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
