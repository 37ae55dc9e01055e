"""What pyproject.toml cannot say: conf/ and workloads/ travel inside the package.

They stay at the top level of the repository. An editable install finds them there. With
DOPPLER_PREBUILT=1 the wheel also has machine code, with which the first run need not compile
(doppler/prebuild.py); it is then a wheel for this Python and kind of machine.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

RESOURCES = ("conf", "workloads")
# 1, or names of parts to compile, separated by commas.
PREBUILT = os.environ.get("DOPPLER_PREBUILT", "")


class BuildWithResources(build_py):
    """Copies the folders into the wheel as doppler/conf and doppler/workloads."""

    def run(self) -> None:
        """Build, then copy; what an earlier build left and is gone since goes too."""
        super().run()
        if self.editable_mode:
            return
        for name in RESOURCES:
            target = Path(self.build_lib, "doppler", name)
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(name, target)
        if PREBUILT:
            folder = Path(self.build_lib, "doppler", "machine_code").absolute()
            shutil.rmtree(folder, ignore_errors=True)
            parts = [] if PREBUILT == "1" else PREBUILT.split(",")
            words = [sys.executable, "-m", "doppler.prebuild", str(folder), *parts]
            path = str(Path(self.build_lib).absolute())
            subprocess.run(words, check=True, env=os.environ | {"PYTHONPATH": path})

    def get_source_files(self) -> list[str]:
        """For the source distribution, from which a wheel can be built again."""
        files = [path for name in RESOURCES for path in sorted(Path(name).rglob("*.*"))]
        return [*super().get_source_files(), *map(str, files)]


class PerhapsForOneMachine(Distribution):
    """A wheel with machine code is for one kind of machine."""

    def has_ext_modules(self) -> bool:
        """Say so."""
        return bool(PREBUILT)


setup(cmdclass={"build_py": BuildWithResources}, distclass=PerhapsForOneMachine)
