"""The entry: compose the configuration, seed, instantiate, run, return metrics.

    python src/run.py stage=pipeline workload=chainmm -m seed=1,2,3

Overrides may stand on both sides of ``-m``. Bad input ends in one line and exit code 1.
"""

import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from doppler.errors import InputError
from doppler.stages import execute

PROJECT = Path(__file__).resolve().parents[1]


def _project_path(path: str) -> str:
    """A path below the project, as seen from where the command runs, if it can be seen."""
    return os.path.relpath(PROJECT / path)


OmegaConf.register_new_resolver("project", _project_path)
OmegaConf.register_new_resolver("stem", lambda path: Path(path).stem)


@hydra.main(version_base="1.3", config_path="../conf", config_name="config")
def main(cfg: DictConfig) -> dict[str, Any]:
    """Run one configuration and return its summary."""
    try:
        return execute(cfg, list(HydraConfig.get().overrides.task), Console())
    except Exception as error:  # told here: Hydra would add lines of its own
        exit_if_users(error)
        raise


def sort_multirun_flag(arguments: list[str]) -> list[str]:
    """Put ``-m`` first: Hydra 1.3 rejects overrides that stand behind it (its issue 3053)."""
    flags = [argument for argument in arguments if argument in ("-m", "--multirun")]
    return flags[:1] + [argument for argument in arguments if argument not in flags]


def one_line(error: BaseException) -> str:
    """What went wrong, without line breaks."""
    return "; ".join(part.strip() for part in str(error).splitlines() if part.strip())


def exit_if_users(error: BaseException) -> None:
    """End with one line if the user can mend it; a defect of ours keeps its traceback."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, InputError):
        cause = cause.__cause__ or cause.__context__
    if cause is None and isinstance(error, HydraException | OmegaConfBaseException):
        cause = error
    if cause is not None:
        print(f"error: {one_line(cause)}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    # Lightning's advice on data loader workers and devices does not concern these runs.
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors of composition through, to be told here
    sys.argv[1:] = sort_multirun_flag(sys.argv[1:])
    try:
        main()
    except Exception as error:
        exit_if_users(error)
        raise
