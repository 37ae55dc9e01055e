"""Where a run lives, and whether it is new, interrupted or finished.

``<output_dir>/<stage>/<workload>/<cluster>/<method>/seed=<n>-<hash of the resolved conf>/``
"""

import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from doppler.errors import InputError
from doppler.graph.formats import write_atomically
from doppler.report.rows import SUMMARY_FILE

CONFIG_FILE = ".hydra/config.yaml"
OVERRIDES_FILE = ".hydra/overrides.yaml"
IDENTITY_FILE = ".hydra/run_hash"
LOCK_FILE = ".lock"
# Keys that say where and how to run, not what: equal results for any value. What a table of costs
# says is in the problem's hash.
_NOT_HASHED = ("output_dir", "run_dir", "overwrite", "costs", "logger", "optimized_metric")


def run_hash(cfg: DictConfig, problem_hash: str) -> str:
    """Eight hex digits of the resolved configuration and of the problem that it led to.

    The problem counts too: the same configuration may name a file whose content has changed.
    """
    resolved = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(resolved, dict)
    for key in _NOT_HASHED:
        resolved.pop(key, None)
    text = json.dumps([resolved, problem_hash], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def run_directory(cfg: DictConfig, method: str, problem_hash: str) -> Path:
    """``run_dir`` where it is given, else the place that configuration and problem determine."""
    if cfg.run_dir is not None:
        return Path(str(cfg.run_dir))
    return Path(
        str(cfg.output_dir),
        cfg.stage.name,
        cfg.workload.name,
        cfg.cluster.name,
        method,
        f"seed={cfg.seed}-{run_hash(cfg, problem_hash)}",
    )


def is_finished(directory: Path) -> bool:
    """The summary is written last: its presence means that the run is complete."""
    return (directory / SUMMARY_FILE).exists()


@contextmanager
def claimed(
    directory: Path, cfg: DictConfig, problem_hash: str, overrides: Sequence[str], *, wait: bool
) -> Iterator[None]:
    """Hold a run directory: write its configuration, keep other processes out.

    With ``overwrite`` an earlier run of the same directory is removed first. wait: until another
    process that runs there is done.

    Raises:
        InputError: the directory holds another run or something that is no run, another process
            runs in it, or it cannot be written. Nothing is changed then.
    """
    identity = run_hash(cfg, problem_hash)
    _check_holder(directory, identity)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / LOCK_FILE).open("w")
    except OSError as error:
        raise InputError(f"{directory}: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            raise InputError(f"{directory}: another process runs here") from None
        if cfg.overwrite:
            _clear(directory)
        write_atomically(directory / IDENTITY_FILE, identity + "\n")
        write_atomically(directory / CONFIG_FILE, OmegaConf.to_yaml(cfg, resolve=True))
        listed = "".join(f"- {override}\n" for override in overrides)
        write_atomically(directory / OVERRIDES_FILE, listed or "[]\n")
        yield


def _check_holder(directory: Path, identity: str) -> None:
    """A directory without results is free, whoever began there."""
    if not directory.is_dir() or not _results(directory):
        return
    file = directory / IDENTITY_FILE
    holder = file.read_text().strip() if file.exists() else None
    if holder is None:
        raise InputError(f"{directory}: is not empty and holds no run")
    if holder != identity:
        raise InputError(
            f"{directory}: holds a run of another configuration ({holder}, this one is {identity})"
        )


def _results(directory: Path) -> list[Path]:
    """What a run has left in its directory beside its claim; the summary first."""
    found = [
        path
        for path in directory.iterdir()
        if path.name not in (LOCK_FILE, ".hydra") and not path.name.endswith(".partial")
    ]
    return sorted(found, key=lambda path: path.name != SUMMARY_FILE)


def _clear(directory: Path) -> None:
    """Remove the results; the claim stays, so that a kill in between leaves a run to resume."""
    for path in _results(directory):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
