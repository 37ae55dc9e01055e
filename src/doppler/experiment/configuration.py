"""The keys of a configuration and their types; all are checked before anything runs."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, Protocol, TypedDict

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue

from doppler.baselines import Baseline
from doppler.cluster import Cluster
from doppler.einsum import Decomposition
from doppler.experiment.checking import check_keys, check_names, check_part, resolved, target_of
from doppler.graph import DataflowGraph
from doppler.policies import Policy
from doppler.search import Drafts, SearchStep
from doppler.support.compute import Compute
from doppler.support.errors import InputError
from doppler.support.options import (
    BatchOrNone,
    Count,
    FilePath,
    Name,
    Positive,
    Seed,
    Share,
    check,
    parameters,
)
from doppler.system import MemoryMode, System


class _Stage(Protocol):
    def run(self, run: Any) -> Any: ...


class _Logger(Protocol):
    def log_metrics(self, metrics: dict[str, float]) -> None: ...


class _Training(Protocol):
    """The training of stage I or II; the two targets share no method."""


class Budgets(TypedDict):
    """The keys of conf/budget: episodes and executions that a method may use."""

    imitation_episodes: Count
    evaluations: Count
    measured_evaluations: Count


class SearchSettings(TypedDict):
    """The keys of conf/search."""

    confirmations: BatchOrNone
    share: Share
    lists: Sequence[SearchStep]
    estimates: SearchStep
    drafts: Sequence[Drafts]
    anneal: SearchStep


class Algorithm(TypedDict):
    """The keys of conf/algorithm."""

    imitation: _Training
    reinforcement: _Training
    imitate_best: bool
    gradient_clip: Positive | None
    confirmations: BatchOrNone
    search_share: Share


class PolicySettings(TypedDict):
    """The keys of conf/policy."""

    name: Name
    build: Policy


class MeasureOptions(TypedDict):
    """The key ``measure``.

    Attributes:
        force: continue although measurements are unreliable, and mark the rows.
    """

    force: bool


class Configuration(TypedDict):
    """All keys, in the order in which they are checked.

    Keys that others refer to come first. Otherwise a wrong budget would be reported at a key that
    refers to it.
    """

    budget: Budgets
    stage: _Stage
    seed: Seed
    output_dir: FilePath
    run_dir: FilePath | None
    costs: FilePath | None
    measure: MeasureOptions
    overwrite: bool
    optimized_metric: str
    compute: NotRequired[Compute]
    source_of: NotRequired[Mapping[str, str]]
    search: SearchSettings
    system: System
    memory: MemoryMode
    cluster: Cluster
    decomposition: Decomposition
    workload: DataflowGraph
    policy: PolicySettings
    baseline: NotRequired[Mapping[str, Baseline]]
    logger: NotRequired[Mapping[str, _Logger]]
    algorithm: Algorithm
    trainer: Mapping[str, Any]


# Keys whose check imports Lightning, which takes a second. A stage that does not train skips them,
# unless the command line mentions them.
_OF_TRAINING = ("algorithm", "trainer")


def check_configuration(cfg: DictConfig, overrides: Sequence[str] = ()) -> None:
    """Refuse a configuration that cannot be run.

    Args:
        cfg: the composed configuration.
        overrides: of the command line. Their keys are checked even if the stage does not use them.

    Raises:
        InputError: names the key and says what is wrong with it.
    """
    keys = parameters(Configuration)
    check_names("", keys, cfg)
    try:
        OmegaConf.to_container(cfg, throw_on_missing=True)
    except MissingMandatoryValue as error:
        raise InputError(f"{error.full_key}: is missing") from None
    stage = resolved(cfg, "stage")
    unused = getattr(target_of(stage, "stage"), "unused", ()) if "_target_" in stage else ()
    mentioned = {re.split("[.@=]", one.lstrip("+~"))[0] for one in overrides}
    skipped = {key for key in _OF_TRAINING if key in unused and key not in mentioned}
    for key, kind in keys.known.items():
        if key in cfg and key not in skipped:
            check_part(key, kind, resolved(cfg, key))
    for key in ("workload", "cluster"):
        check(f"{key}.name", Name, cfg[key].get("name"))
    if "trainer" not in skipped:
        from doppler.training.fit import TRAINER_OPTIONS, check_trainer, make_trainer

        check_trainer(resolved(cfg, "trainer"))
        check_keys("trainer", TRAINER_OPTIONS, resolved(cfg, "trainer"))
        make_trainer(cfg.trainer, logger=False)
