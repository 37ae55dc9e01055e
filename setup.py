"""What pyproject.toml cannot say: conf/ and workloads/ travel inside the package.

They stay at the top level of the repository. An editable install finds them there.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

RESOURCES = ("conf", "workloads")


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

    def get_source_files(self) -> list[str]:
        """For the source distribution, from which a wheel can be built again."""
        files = [path for name in RESOURCES for path in sorted(Path(name).rglob("*.*"))]
        return [*super().get_source_files(), *map(str, files)]


setup(cmdclass={"build_py": BuildWithResources})
