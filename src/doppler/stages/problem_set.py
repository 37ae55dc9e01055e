"""Many problems from a few lines of configuration, and training on them.

``problems`` lists what to train on, each line as on the command line; values may be swept:
``workload=synthetic workload.family=layered,tree workload.seed=range(0,9) cluster=p100x4``.
``held_out`` lists what tells which weights are best. The run's own problem is not trained on: it
is placed with the trained weights.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import product
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf.errors import OmegaConfBaseException

from doppler.episode import heavy_merged, make_view
from doppler.errors import InputError
from doppler.problem import Problem, build
from doppler.resources import resource
from doppler.stages.checkpoints import BEST, effort_of, load_policy_weights, save_checkpoint
from doppler.stages.optimisation import NO_EFFORT
from doppler.stages.run import Run
from doppler.stages.set_reinforcement import SetReinforcement
from doppler.stages.training import fit, make_policy

# What a line may choose; the system that executes is the run's.
_GROUPS = ("workload", "decomposition", "cluster")


def train_on_set(run: Run) -> Path:
    """Train on the run's ``problems``, from random weights or those of ``stage.init_from``.

    Returns the checkpoint of the best weights.

    Raises:
        InputError: a line that is no problem.
    """
    policy, inherited = make_policy(run), NO_EFFORT
    if run.cfg.stage.init_from not in (None, "auto"):
        load_policy_weights(policy, run.cfg.stage.init_from)  # type: ignore[arg-type]
        inherited = effort_of(run.cfg.stage.init_from)
    with ExitStack() as stack:
        opened = {}
        for key in ("problems", "held_out"):
            problems = list(problems_of(run.cfg[key], key))
            run.say(f"{key}: {len(problems)} problems, {_sizes(problems)} ops")
            sessions = [stack.enter_context(run.system.open(problem)) for problem in problems]
            opened[key] = [make_view(problem) for problem in problems], sessions
        module: SetReinforcement = instantiate(run.cfg.algorithm.problem_set)(
            policy=policy,
            views=opened["problems"][0],
            sessions=opened["problems"][1],
            held_out=[heavy_merged(view) for view in opened["held_out"][0]],  # as they are placed
            held_out_sessions=opened["held_out"][1],
            seed=run.cfg.seed,
            inherited=inherited,
            on_best=lambda: save_checkpoint(module.trainer, run.directory / BEST),
        )
        fit(run, module, module.num_updates)
        module.try_held_out()
    return run.directory / BEST


def problems_of(lines: Iterable[str], key: str) -> Iterator[Problem]:
    """The problems that lines of configuration describe.

    Raises:
        InputError: names the line and what is wrong with it.
    """
    for number, line in enumerate(lines):
        try:
            for overrides in _swept(str(line)):
                with _hydra():
                    cfg = compose("config", overrides=overrides)
                yield build(instantiate(cfg.workload), instantiate(cfg.cluster))
        except (InputError, HydraException, OmegaConfBaseException) as error:
            known = error.__cause__ if isinstance(error.__cause__, InputError) else error
            reason = str(known).strip().splitlines()[0]
            raise InputError(f"{key}[{number}]: {line}: {reason}") from None


def _hydra() -> AbstractContextManager[object]:
    """Hydra as the command line has set it up, or set up here where there is none."""
    if GlobalHydra.instance().is_initialized():
        return nullcontext()
    return initialize_config_dir(str(resource("conf")), version_base="1.3")


def _swept(line: str) -> Iterator[list[str]]:
    """All combinations of the values of a line."""
    choices = []
    for override in OverridesParser.create().parse_overrides(line.split()):
        name = override.get_key_element()
        if name.split(".")[0] not in _GROUPS:
            raise InputError(f"{name} is not of {', '.join(_GROUPS)}")
        if override.is_sweep_override():
            choices.append([f"{name}={value}" for value in override.sweep_string_iterator()])
        else:
            choices.append([override.input_line])
    yield from (list(one) for one in product(*choices))


def _sizes(problems: list[Problem]) -> str:
    sizes = [problem.num_ops for problem in problems]
    return f"{min(sizes)} to {max(sizes)}" if sizes else "no"
