"""Builds many problems from a few lines of configuration, and trains on them.

``stage.problems`` lists the problems to train on. Each line is written as on the command line and
may sweep values: ``workload=synthetic workload.family=layered,tree workload.seed=range(0,9)
cluster=p100x4``. ``stage.held_out`` lists problems that are placed from time to time to see what
was learned. The run's own problem is not trained on; it is placed with the last weights.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import product
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import OverrideType
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from doppler.env import make_view
from doppler.experiment.configuration import check_configuration
from doppler.experiment.failures import users_cause
from doppler.experiment.overrides import quoted
from doppler.experiment.policy_training import fit_in_run, make_policy
from doppler.experiment.run import Run
from doppler.experiment.specification import instantiated
from doppler.problem import Problem, build
from doppler.search import NO_EFFORT, Evaluator
from doppler.support.compute import chosen
from doppler.support.errors import InputError
from doppler.support.resources import resource
from doppler.training import BEST, LAST, Reinforcement, TrainingProblem, effort_of, save_checkpoint

# Groups that a line may choose. The system is always that of the run.
_GROUPS = ("workload", "decomposition", "cluster")


def train_on_set(
    run: Run,
    problems: Sequence[str],
    held_out: Sequence[str],
    num_updates: int,
    weights: str | Path | None,
) -> Path:
    """Train on many problems.

    Args:
        run: gives policy, system and directory.
        problems: lines that describe the problems to train on.
        held_out: lines that describe the problems to test on from time to time.
        num_updates: of the training.
        weights: a checkpoint to start from; None: new weights.

    Returns:
        The checkpoint of the last weights. The weights with the best trial result are no better:
        the noise of a trial is larger than what 50 updates teach.

    Raises:
        InputError: a line does not describe a problem.
    """
    compute, spec = chosen(), run.spec
    options = instantiate(spec.cfg.algorithm.reinforcement)
    with ExitStack() as stack:

        def tasks(key: str, lines: Sequence[str]) -> list[TrainingProblem]:
            found = list(problems_of(lines, f"stage.{key}"))
            run.say(f"{key}: {len(found)} problems, {_sizes(found)} ops")
            sessions = [stack.enter_context(spec.system.open(problem)) for problem in found]
            bests = [Evaluator(session=one, confirmations=0, seed=spec.seed) for one in sessions]
            return [TrainingProblem(make_view(best.session.problem), best) for best in bests]

        trials, learned = tasks("held_out", held_out), tasks("problems", problems)
        policy, spread = make_policy(run, weights, serves_many=True), None
        if compute is not None:
            several = [[one.view.problem for one in each] for each in (learned, trials)]
            given = policy, spec.system, *several, options, num_updates, spec.seed
            spread = stack.enter_context(compute.training(*given))
        module: Reinforcement = Reinforcement(
            policy=policy,
            problems=learned,
            trials=trials,
            options=options,
            num_updates=num_updates,
            seed=spec.seed,
            title="stage II on many problems",
            on_best=lambda: save_checkpoint(module.trainer, run.directory.path / BEST),
            inherited=NO_EFFORT if weights is None else effort_of(weights),
            spread=spread,
        )
        fit_in_run(run, module)
        module.try_greedy()
    return run.directory.path / LAST


def problems_of(lines: Iterable[str], key: str) -> Iterator[Problem]:
    """Yield the problems that lines of configuration describe.

    Args:
        lines: as ``stage.problems``.
        key: of the configuration, for messages.

    Raises:
        InputError: names the line and says what is wrong with it.
    """
    composed: dict[tuple[str, ...], DictConfig] = {}
    for number, line in enumerate(lines):
        try:
            for overrides in _swept(str(line)):
                cfg = _configuration(overrides, composed)
                check_configuration(cfg)
                yield build(instantiated(cfg.workload), instantiated(cfg.cluster))
        except Exception as error:
            said = users_cause(error)
            if said is None:
                raise
            raise InputError(f"{key}[{number}]: {line}: {said}") from None


def _configuration(
    overrides: Sequence[str], composed: dict[tuple[str, ...], DictConfig]
) -> DictConfig:
    """Compose a configuration; if its choices are in ``composed``, only the values are set anew.

    Composing takes a fifth of a second, and a set has hundreds of problems.
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    chosen = [one for one in parsed if "." not in one.key_or_group]
    values = [one for one in parsed if "." in one.key_or_group]
    choices = tuple(one.input_line or "" for one in chosen)
    with _hydra():
        if any(one.type is not OverrideType.CHANGE for one in chosen) or any(
            one.type not in (OverrideType.CHANGE, OverrideType.FORCE_ADD) for one in values
        ):
            return compose("config", overrides=list(overrides))
        if choices not in composed:
            composed[choices] = compose("config", overrides=list(choices))
        cfg = composed[choices].copy()
        try:
            for one in values:
                OmegaConf.update(cfg, one.key_or_group, one.value(), force_add=one.is_force_add())
        except OmegaConfBaseException:  # Hydra has the better message
            return compose("config", overrides=list(overrides))
    return cfg


def _hydra() -> AbstractContextManager[object]:
    """Hydra as the command line has initialised it, or initialised here."""
    if GlobalHydra.instance().is_initialized():
        return nullcontext()
    return initialize_config_dir(str(resource("conf")), version_base="1.3")


def _swept(line: str) -> Iterator[list[str]]:
    """All combinations of the swept values of a line."""
    choices = []
    words = [quoted(word) if "=" in word else word for word in line.split()]
    for override in OverridesParser.create().parse_overrides(words):
        name = override.get_key_element().lstrip("+")
        if name.split(".")[0] not in _GROUPS:
            raise InputError(f"{name} is not of {', '.join(_GROUPS)}")
        if override.is_sweep_override():
            key = f"++{name}" if "." in name else name  # see `quoted`
            choices.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        else:
            choices.append([override.input_line])
    yield from (list(one) for one in product(*choices))


def _sizes(problems: list[Problem]) -> str:
    sizes = [problem.num_ops for problem in problems]
    return f"{min(sizes)} to {max(sizes)}" if sizes else "no"
