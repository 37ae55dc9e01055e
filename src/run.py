"""The entry: compose the configuration, seed, instantiate, run, return metrics.

    python src/run.py stage=pipeline workload=chainmm -m seed=1,2,3
    python src/run.py -m experiment=main_4dev budget=quick

Overrides may stand on both sides of ``-m``. Bad input ends in one line and exit code 1. A run of a
sweep that fails does not end the sweep: what failed is named at the end. Started again, a sweep
runs what is not finished.
"""

import os
import sys
import traceback
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, InstantiationException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from doppler.errors import InputError
from doppler.report.rows import make_console
from doppler.stages import execute

failures: list[str] = []  # of the runs of a sweep, which Hydra starts one after the other


@hydra.main(version_base="1.3", config_path="../conf", config_name="config")
def main(cfg: DictConfig) -> dict[str, Any]:
    """Run one configuration and return its summary."""
    job = HydraConfig.get()
    overrides = list(job.overrides.task)
    try:
        return execute(cfg, overrides, make_console())
    except Exception as error:  # told here: Hydra would add lines of its own
        if job.mode == RunMode.MULTIRUN:
            failures.append(f"{' '.join(overrides)}: {tell(error)}")
            return {}
        exit_if_users(error)
        raise


def hydra_arguments(arguments: list[str]) -> list[str]:
    """The command line in a form that Hydra 1.3 takes.

    ``-m`` goes first: Hydra rejects overrides that stand behind it (its issue 3053). Values with
    an equals sign are quoted: our run directories have one (``stage.init_from=.../seed=0-...``).
    ``stage.teacher=NAME`` chooses from a group: Hydra says ``baseline@stage.teacher=NAME``.
    """
    flags = [argument for argument in arguments if argument in ("-m", "--multirun")]
    overrides = [
        f"baseline@{argument}" if argument.startswith("stage.teacher=") else argument
        for argument in arguments
        if argument not in flags
    ]
    return flags[:1] + [_quoted(override) for override in overrides]


def _quoted(argument: str) -> str:
    key, _, value = argument.partition("=")
    plain = not argument.startswith("-") and not set(value) & set("'\"{}[]()$,")
    return f"{key}='{value}'" if plain and "=" in value else argument


def one_line(error: BaseException) -> str:
    """What went wrong, without line breaks and without what only maintainers of Hydra need."""
    if isinstance(error, MissingConfigException) and error.options is not None:
        return f"{error.missing_cfg_file!r} does not exist, choose from {', '.join(error.options)}"
    lines = [part.strip() for part in str(error).splitlines() if part.strip()]
    if isinstance(error, InstantiationException):
        return "; ".join(lines)
    return lines[0]


def users_cause(error: BaseException) -> BaseException | None:
    """What the user can mend of an error; None for a defect of ours."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, InputError):
        cause = cause.__cause__ or cause.__context__
    if cause is None and isinstance(error, HydraException | OmegaConfBaseException):
        return error
    return cause


def tell(error: BaseException) -> str:
    """Print one line, a defect of ours with its traceback; return the line."""
    cause = users_cause(error)
    if cause is None:
        traceback.print_exception(error)
    line = one_line(cause or error) if cause or str(error) else repr(error)
    print(f"error: {line}", file=sys.stderr)
    return line


def exit_if_users(error: BaseException) -> None:
    """End with one line if the user can mend it; a defect of ours keeps its traceback."""
    if users_cause(error) is not None:
        tell(error)
        sys.exit(1)


if __name__ == "__main__":
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors of composition through, to be told here
    sys.argv[1:] = hydra_arguments(sys.argv[1:])
    try:
        main()
    except Exception as error:
        exit_if_users(error)
        raise
    if failures:
        print(f"{len(failures)} of the sweep's runs failed:", file=sys.stderr)
        for failure in failures:
            print(f"  {failure}", file=sys.stderr)
        sys.exit(1)
