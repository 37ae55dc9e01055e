"""Where a run lives, and whether it is new, interrupted or finished.

``<output_dir>/<stage>/<workload>/<cluster>/<method>/seed=<n>-<hash of the resolved conf>/``
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from doppler.errors import InputError
from doppler.graph.formats import write_atomically

SUMMARY_FILE = "summary.json"
CONFIG_FILE = ".hydra/config.yaml"
OVERRIDES_FILE = ".hydra/overrides.yaml"
# Keys that say where and how to run, not what: equal results for any value.
_NOT_HASHED = ("output_dir", "run_dir", "overwrite")


def config_hash(cfg: DictConfig) -> str:
    """Eight hex digits of the resolved configuration."""
    resolved = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(resolved, dict)
    for key in _NOT_HASHED:
        resolved.pop(key, None)
    text = json.dumps(resolved, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def run_directory(cfg: DictConfig, method: str) -> Path:
    """``run_dir`` where it is given, else the place that the configuration determines."""
    if cfg.run_dir is not None:
        return Path(cfg.run_dir)
    return Path(
        cfg.output_dir,
        cfg.stage.name,
        cfg.workload.name,
        cfg.cluster.name,
        method,
        f"seed={cfg.seed}-{config_hash(cfg)}",
    )


def is_finished(directory: Path) -> bool:
    """The summary is written last: its presence means that the run is complete."""
    return (directory / SUMMARY_FILE).exists()


@contextmanager
def claimed(directory: Path, cfg: DictConfig, overrides: Sequence[str]) -> Iterator[None]:
    """Hold a run directory: write its configuration, keep other processes out.

    With ``overwrite`` an earlier run of the same directory is removed first.

    Raises:
        InputError: the directory holds another run or something that is no run, or another
            process runs in it. Nothing is changed then.
    """
    config = directory / CONFIG_FILE
    if config.exists():
        stored = OmegaConf.load(config)
        assert isinstance(stored, DictConfig)
        if config_hash(stored) != config_hash(cfg):
            raise InputError(
                f"{directory}: holds a run of another configuration "
                f"({config_hash(stored)}, this one is {config_hash(cfg)})"
            )
    elif directory.exists() and any(directory.iterdir()):
        raise InputError(f"{directory}: is not empty and holds no run")
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{directory}: another process runs here") from None
        if cfg.overwrite:
            _clear(directory)
        write_atomically(config, OmegaConf.to_yaml(cfg, resolve=True))
        write_atomically(
            directory / OVERRIDES_FILE,
            "".join(f"- {override}\n" for override in overrides) or "[]\n",
        )
        yield


def _clear(directory: Path) -> None:
    for entry in os.scandir(directory):
        if entry.name == ".lock":
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
