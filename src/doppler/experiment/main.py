"""The command ``doppler run``: compose the configuration, run it, report what went wrong.

    doppler run stage=train workload=chainmm -m seed=1,2,3
    doppler run -m experiment=main_4dev budget=quick

Overrides may stand on both sides of ``-m``. Bad input ends in one line and exit code 1. A failing
run does not end a sweep: failed runs are listed at the end, with any launcher. Starting a sweep
again runs only what is not finished.
"""

import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from doppler.experiment import failures
from doppler.experiment.checking import unknown
from doppler.experiment.overrides import hydra_arguments
from doppler.experiment.sweeps import BASIC_SWEEPER
from doppler.hooks import plugins
from doppler.support.errors import InputError
from doppler.support.resources import resource
from doppler.support.stopping import ending_children, going_on, stoppable

_USAGE = 2
# Flags and options by which a command line can name the user's own classes.
_OWN = ("--config-dir", "-cd")
# Stages that train need much code compiled.
_TRAINING = ("Train", "SimulatedReinforcement", "RealReinforcement", "Inference")
# Groups without a class: the file that lists all of their options, and the key in it.
_PLAIN = {"budget": ("budget/default.yaml", ""), "measure": ("config.yaml", "measure")}


def run(arguments: list[str]) -> int:
    """Run a command line, either one configuration or a sweep; return the exit code.

    Args:
        arguments: the words of the command line, without the program.
    """
    if (code := plugins().hook.run_process(arguments=arguments)) is not None:
        return code
    _find_own_modules(arguments)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # composition errors are reported here, not by Hydra
    conf = str(resource("conf"))
    entry = hydra.main(version_base="1.3", config_path=conf, config_name="config")(main)
    failed, elsewhere = False, []
    with failures.collected() as lines, ExitStack() as stack:
        try:
            sys.argv[1:] = taken = hydra_arguments(arguments)
            if taken[:1] in (["-m"], ["--multirun"]):
                stack.enter_context(_sweep())
            entry()
        except failures.RunError as error:  # in `lines` already if a folder is shared
            failed, elsewhere = True, [str(error)]
        except SystemExit as end:  # Hydra's parser of flags ends with 2
            if end.code != _USAGE:
                raise
            failed = True
        except Exception as error:
            failed = True
            failures.tell(error)
    if shown := lines or elsewhere:
        print(f"{len(shown)} of the sweep's runs failed:", file=sys.stderr)
        for line in shown:
            print(f"  {line}", file=sys.stderr)
    return 1 if failed or shown else 0


def _find_own_modules(arguments: list[str]) -> None:
    """Let the configuration name classes in modules of the working directory.

    This happens only if the command line names such classes, by a config folder or a ``_target_``:
    starting a command somewhere must not import files from there. The directory goes last on the
    path, so that its files hide no installed module.
    """
    names_own = any(word.startswith(_OWN) or "_target_=" in word for word in arguments)
    if names_own and (here := os.getcwd()) not in sys.path:
        sys.path.append(here)


def _check_plain_options(overrides: list[str]) -> None:
    """Refuse unknown options of groups without a class, before slow imports.

    Raises:
        InputError: names the option, and a known one that is spelled similarly.
    """
    for word in overrides:
        group, dot, name = word.partition("=")[0].partition(".")
        if not dot or group not in _PLAIN or "." in name:
            continue
        path, key = _PLAIN[group]
        settings = OmegaConf.load(resource("conf") / path)
        known = OmegaConf.select(settings, key) if key else settings
        if name not in known:
            raise InputError(unknown(f"{group}.{name}", map(str, known)))


@contextmanager
def _sweep() -> Iterator[None]:
    """End all runs of a sweep on a signal, in whichever processes its launcher runs them."""
    rest = "the same command runs what is not finished"
    with going_on(lambda inner: f"the sweep ends; {inner or rest}"), ending_children():
        yield


def main(cfg: DictConfig) -> float | None:
    """Run one configuration; return the summary entry that ``optimized_metric`` names.

    A failed run of a sweep returns NaN to Hydra's own sweeper, which would start no further batch
    of runs after an error. Other sweepers get the error, which they count as a failed trial.

    Args:
        cfg: the composed configuration.
    """
    job = HydraConfig.get()
    words = OmegaConf.to_container(job.overrides.task) or ()
    overrides = [str(word).removeprefix("++") for word in words]  # added by hydra_arguments
    searches = job.mode == RunMode.MULTIRUN and job.sweeper["_target_"] != BASIC_SWEEPER
    try:
        _check_plain_options(overrides)
        from doppler.experiment import execute
        from doppler.report.rows import make_console

        with stoppable():  # also in processes that a launcher has started
            summary = execute(cfg, overrides, make_console(), before=_compile)
        return metric(summary, str(cfg.optimized_metric), required=searches)
    except (Exception, SystemExit) as error:  # reported here: Hydra would add its own lines
        if isinstance(error, SystemExit):
            error = InputError(f"code that the run calls called sys.exit({error.code!r})")
        line = f"{' '.join(overrides)}: {failures.tell(error)}"
        if job.mode != RunMode.MULTIRUN:
            sys.exit(1)
        if failures.keep(line, job.job.num) and not searches:
            return math.nan
        raise failures.RunError(line) from None


def _compile(run: Any) -> None:
    """Compile what a training run needs on all cores; other runs compile on first use."""
    from doppler.first_run import POLICIES, SEARCHES, compile_ahead

    stage = type(run.stage).__name__
    if stage not in _TRAINING:
        return
    policy = str(run.spec.cfg.policy.build["_target_"]).rpartition(".")[2]
    parts = [*SEARCHES, *([POLICIES[policy]] if policy in POLICIES else [])]
    compile_ahead(parts, run.console)


def metric(summary: Mapping[str, Any], name: str, *, required: bool) -> float | None:
    """Return a number of a run's summary by its name.

    Args:
        summary: of the run.
        name: of the entry.
        required: whether a sweeper needs the number.

    Returns:
        The number; None if there is none and it is not required.

    Raises:
        InputError: the number is required and missing.
    """
    value = summary.get(name)
    if isinstance(value, int | float):
        return float(value)
    if not required:
        return None
    numbers = ", ".join(key for key, each in summary.items() if isinstance(each, int | float))
    raise InputError(f"optimized_metric: the run has no number {name!r}, choose from {numbers}")
