"""The wheel holds all that a run needs, and works from any directory."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

PROJECT = Path(__file__).resolve().parents[2]
BUILT_FROM = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "src", "conf", "workloads")


PART = "simulator work_conserving"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The files of a wheel with machine code of one part, as an installation has them."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in BUILT_FROM:
        copy = shutil.copy if (PROJECT / name).is_file() else shutil.copytree
        copy(PROJECT / name, source / name, **({} if copy is shutil.copy else {"ignore": ignored}))
    code = f"from setuptools.build_meta import build_wheel; build_wheel({str(out)!r})"
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=source,
        env=os.environ | {"DOPPLER_PREBUILT": PART},
        check=True,
        capture_output=True,
    )
    (wheel,) = out.glob("*.whl")
    assert not wheel.stem.endswith("-any"), "a wheel with machine code is for one kind of machine"
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


def compiled_again(unpacked, tmp_path) -> str:
    """Compile the part in a new process that has compiled nothing; what it says of that."""
    code = f"from doppler.precompile import compile_part; print(compile_part({PART!r}))"
    cache = tmp_path / "cache"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(unpacked), "NUMBA_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert any(cache.rglob("*.nbc")) == ("nothing to compile" not in done.stdout)
    return done.stdout


def test_a_first_run_finds_the_wheels_machine_code(unpacked, tmp_path):
    assert "nothing to compile" in compiled_again(unpacked, tmp_path)


def test_machine_code_of_another_version_is_compiled_anew(unpacked, tmp_path):
    copy = shutil.copytree(unpacked, tmp_path / "copy")
    for file in (copy / "doppler/machine_code").glob("*.nbc"):
        file.write_bytes(bytes(32) + file.read_bytes()[32:])
    assert "nothing to compile" not in compiled_again(copy, tmp_path)
