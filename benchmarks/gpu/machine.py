"""What there is to run on: python, torch, GPUs, packages."""

import os
import platform
import subprocess
import sys
import zlib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from benchmarks.gpu.parts import EXECUTING, NUM_DEVICES, PROJECT, Part

LEAST_TORCH = (2, 11)
SHARED = (
    f"{NUM_DEVICES}, several of them streams of one GPU: they share its processors and memory, as "
    "the simulator knows (contention=shared)"
)
DISTRIBUTIONS = {
    "antlr4": "antlr4-python3-runtime",
    "hydra": "hydra-core",
    "pynvml": "nvidia-ml-py",
    "pytorch_lightning": "pytorch-lightning",
    "torch_geometric": "torch-geometric",
}


def fault_of(executor: str) -> str | None:
    """Why nothing can run here, in one line."""
    python = f"{sys.executable} (Python {platform.python_version()})"
    if find_spec("torch") is None:
        return f"there is no torch in {python}; PYTHON=... chooses another one"
    import torch

    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < LEAST_TORCH:
        return f"torch {torch.__version__} of {python} is older than 2.11; PYTHON=... chooses"
    if executor == "cuda" and not torch.cuda.is_available():
        return f"there is no GPU for torch {torch.__version__} of {python}"
    return None


def missing(parts: Sequence[Part], executor: str) -> dict[str, list[str]]:
    """By distribution that is not installed, the names of the parts that need it."""
    lacking: dict[str, list[str]] = {}
    for part in parts:
        for module in (
            *EXECUTING,
            *part.needs,
            *(part.needs_on_gpus if executor == "cuda" else ()),
        ):
            if find_spec(module) is None:
                lacking.setdefault(DISTRIBUTIONS.get(module, module), []).append(part.name)
    return lacking


def facts(executor: str) -> dict[str, str]:
    """What a table must say of where its figures come from."""
    import torch

    cores = f"{len(os.sched_getaffinity(0))} cores"
    names = []
    if executor == "cuda":
        gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        names = [f"{one.name} ({one.total_memory / 2**30:.0f} GiB)" for one in gpus]
    counted = [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    versions = [f"python {platform.python_version()}", f"CUDA {torch.version.cuda}"]
    for distribution in ("doppler", "torch", "numba", "numpy", "pytorch-lightning"):
        try:
            versions.append(f"{distribution} {version(distribution)}")
        except PackageNotFoundError:  # ours is found by its folder
            continue
    shared = {"devices": SHARED} if 0 < len(names) < NUM_DEVICES else {}
    return {
        "machine": ", ".join([*counted, cores]),
        "versions": ", ".join(versions),
        "commit": _commit(),
        **shared,
    }


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.check_output(
            command, cwd=PROJECT, text=True, stderr=subprocess.DEVNULL, encoding="utf-8"
        ).strip()
    except (OSError, subprocess.CalledProcessError):
        # Two calls at different sources must not share their results.
        files = sorted(
            one for top in ("src", "benchmarks") for one in PROJECT.joinpath(top).rglob("*.py")
        )
        state = zlib.crc32(b"".join(one.read_bytes() for one in files))
        return f"unknown (no git here; sources {state:08x})"
