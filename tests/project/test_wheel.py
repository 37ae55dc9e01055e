"""The wheel holds all that a run needs, and works from any directory."""

import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

PROJECT = Path(__file__).resolve().parents[2]
BUILT_FROM = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "src", "conf", "workloads")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The wheel's files, as an installation has them."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in BUILT_FROM:
        copy = shutil.copy if (PROJECT / name).is_file() else shutil.copytree
        copy(PROJECT / name, source / name, **({} if copy is shutil.copy else {"ignore": ignored}))
    code = f"from setuptools.build_meta import build_wheel; build_wheel({str(out)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True)
    (wheel,) = out.glob("*.whl")
    ZipFile(wheel).extractall(out / "installed")
    return out / "installed"


def test_it_holds_configurations_programs_weights_and_types(unpacked):
    package = unpacked / "doppler"
    for folder in ("conf", "workloads"):
        kept = {path.relative_to(PROJECT) for path in (PROJECT / folder).rglob("*.*")}
        assert kept == {path.relative_to(package) for path in (package / folder).rglob("*.*")}
    source = PROJECT / "src/doppler"
    of_extensions = {path.relative_to(source) for path in source.glob("extensions/*/conf/**/*.*")}
    assert of_extensions == {
        path.relative_to(package) for path in package.glob("extensions/*/conf/**/*.*")
    }
    assert (package / "pretrained/doppler.ckpt").is_file()
    assert (package / "py.typed").is_file()


MODULE = """
from torch import empty, nn

def layers():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU()), (empty(8, 64),)
"""


@pytest.mark.parametrize(
    ("workload", "shown"),
    [
        (["workload=chainmm"], "chainmm"),
        # The choice torch, and the module that reads it, are an extension's.
        (["workload=torch", "workload.module=module.py:layers"], "addmm"),
    ],
)
def test_it_runs_where_there_is_no_checkout(workload, shown, unpacked, tmp_path):
    (tmp_path / "module.py").write_text(MODULE)
    words = ["run", "stage=describe", *workload]
    code = f"import sys; from doppler.cli import main; sys.exit(main({words}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(unpacked), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout
    assert list(tmp_path.glob("outputs/describe/*/**/summary.json"))
