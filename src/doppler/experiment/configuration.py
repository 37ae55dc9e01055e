"""All keys of a configuration, checked before anything runs."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, Protocol, TypedDict

from omegaconf import DictConfig

from doppler.baselines import Baseline
from doppler.cluster import Cluster
from doppler.einsum import Decomposition
from doppler.experiment.checking import check_keys, check_names, check_part, target_of, value_of
from doppler.graph import DataflowGraph
from doppler.policies import Policy
from doppler.search import Drafts, SearchStep
from doppler.support.compute import Compute
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
    """Stages I and II differ in what they make."""


class Budgets(TypedDict):
    """conf/budget."""

    imitation_episodes: Count
    evaluations: Count
    measured_evaluations: Count


class SearchSettings(TypedDict):
    """conf/search."""

    confirmations: BatchOrNone
    share: Share
    lists: Sequence[SearchStep]
    estimates: SearchStep
    drafts: Sequence[Drafts]
    anneal: SearchStep


class Algorithm(TypedDict):
    """conf/algorithm."""

    imitation: _Training
    reinforcement: _Training
    gradient_clip: Positive | None
    confirmations: BatchOrNone
    search_share: Share


class PolicySettings(TypedDict):
    """conf/policy."""

    name: Name
    build: Policy


class Configuration(TypedDict):
    """All keys; what others are taken from stands before them, to be named first."""

    seed: Seed
    output_dir: FilePath
    run_dir: FilePath | None
    costs: FilePath | None
    overwrite: bool
    optimized_metric: str
    compute: NotRequired[Compute]
    source_of: NotRequired[Mapping[str, str]]
    budget: Budgets
    search: SearchSettings
    system: System
    memory: MemoryMode
    stage: _Stage
    cluster: Cluster
    decomposition: Decomposition
    workload: DataflowGraph
    policy: PolicySettings
    baseline: NotRequired[Mapping[str, Baseline]]
    logger: NotRequired[Mapping[str, _Logger]]
    algorithm: Algorithm
    trainer: Mapping[str, Any]


# Lightning is imported to check these, which takes a second that who neither trains nor says
# anything of them can spare.
_OF_TRAINING = ("algorithm", "trainer")


def check_configuration(cfg: DictConfig, overrides: Sequence[str] = ()) -> None:
    """Refuse a configuration that cannot be run.

    Args:
        cfg: as composed.
        overrides: of the command line; what they name is checked, whether the stage uses it or not.

    Raises:
        InputError: names the key, and what is wrong with it.
    """
    keys = parameters(Configuration)
    check_names("", keys, cfg)
    for key in ("budget", "stage"):  # the first, since others take their numbers from it
        check_part(key, keys.known[key], value_of(cfg, key))
    unused = getattr(target_of(cfg.stage, "stage"), "unused", ())
    named = {re.split("[.@=]", one.lstrip("+~"))[0] for one in overrides}
    skipped = {key for key in _OF_TRAINING if key in unused and key not in named}
    present = set(cfg)
    for key, kind in keys.known.items():
        if key in present and key not in skipped:
            check_part(key, kind, value_of(cfg, key))
    for key in ("workload", "cluster"):
        check(f"{key}.name", Name, cfg[key].get("name"))
    if "trainer" not in skipped:
        from doppler.training.fit import TRAINER_OPTIONS, make_trainer

        check_keys("trainer", TRAINER_OPTIONS, cfg.trainer)
        make_trainer(cfg.trainer, logger=False)
