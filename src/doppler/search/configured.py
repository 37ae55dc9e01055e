"""Builds the searches described in conf/ without composing a configuration.

`doppler run` composes one, and instantiates the same files through Hydra.
"""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from hydra.utils import get_class, instantiate
from omegaconf import DictConfig, OmegaConf

from doppler.baselines import Annealing
from doppler.env import MANY_OPS, ProblemView
from doppler.hooks import contributed
from doppler.policies import Policy
from doppler.policies.weights import PRETRAINED, load_policy_weights
from doppler.search.combined import suited
from doppler.search.engine import SearchStep
from doppler.search.estimating import Episodes
from doppler.search.greedy import GreedyEpisode
from doppler.search.steps import PlaceAgain, PlaceOnce
from doppler.support.errors import InputError
from doppler.support.resources import resource

# A checkpoint does not say which class its weights belong to, nor could that be imported unasked.
_OF_ANOTHER = "weights of another policy"
_REMEDY = (
    "a path is for policy=doppler as conf/policy has it. In Python, build yours, call "
    "doppler.policies.weights.load_policy_weights(yours, path), and give policy=yours; or use "
    "doppler run stage=inference policy=NAME stage.init_from=PATH"
)
# The baseline that method="auto" selects.
_AUTO = "portfolio"


def search_settings() -> DictConfig:
    """Read conf/search/default.yaml."""
    settings = OmegaConf.load(resource("conf") / "search" / "default.yaml")
    assert isinstance(settings, DictConfig)
    return settings


def methods() -> list[str]:
    """Return the names that `steps_of` accepts: auto, and the baselines of conf/ and of plugins."""
    return ["auto", *sorted(_files())]


def _files() -> dict[str, Path]:
    """The files of conf/baseline, and of plugins' conf/baseline, by name."""
    folders = [resource("conf"), *chain(*contributed("config_folders"))]
    files = chain(*((folder / "baseline").glob("*.yaml") for folder in folders))
    return {file.stem: file for file in files}


def steps_of(name: str) -> list[SearchStep]:
    """Return the steps of a method by its name.

    A baseline with an option ``evaluations`` gets those that its step gets in a search; others use
    as many as they need.

    Args:
        name: of the method.

    Raises:
        InputError: no such method.
    """
    if name not in methods():
        raise InputError(f"method: {name!r} is not one of policy, {', '.join(methods())}")
    name = _AUTO if name == "auto" else name
    cfg = OmegaConf.create({"search": search_settings(), "method": _baseline(name)})
    method = cfg.method
    if "steps" in method:
        return instantiate(method.steps, _convert_="all")
    if "evaluations" not in method:
        return [PlaceOnce(baseline=instantiate(method))]
    del method.evaluations
    if get_class(method._target_) is Annealing and method.order and method.get("draws", 1) == 1:
        return [instantiate(cfg.search.anneal)]
    return [PlaceAgain(make=instantiate(method, _partial_=True))]


def _baseline(name: str) -> DictConfig:
    cfg = OmegaConf.load(_files()[name])
    assert isinstance(cfg, DictConfig)
    for other in cfg.pop("defaults", []):
        if other != "_self_":
            cfg = OmegaConf.merge(_baseline(other.removesuffix("@_here_")), cfg)
    assert isinstance(cfg, DictConfig)
    return cfg


def policy_steps(
    settings: DictConfig, policy: Policy, view: ProblemView, then: Sequence[SearchStep] = ()
) -> Sequence[SearchStep]:
    """Return the steps that place with a policy, whether or not it was trained on the problem.

    First comes the greedy placement, on the way of merging ops that estimates rank best; it is
    skipped if only one execution is allowed. Then the best of several drafts by the policy and by
    list schedulers, annealed on estimates before it is executed (docs/pretrained.md). Then
    annealing from the best placement; a large graph is first searched in windows.

    Args:
        settings: conf/search.
        policy: makes the placements.
        view: of the problem.
        then: replaces the annealing at the end.
    """
    greedy = GreedyEpisode.of(policy, view, least=2)
    then = then or [instantiate(settings.anneal)]
    rest = [estimates_step(settings, policy, view, greedy), *then]
    return [greedy, *suited(rest, view.problem)]


def estimates_step(
    settings: DictConfig, policy: Policy, view: ProblemView, greedy: GreedyEpisode | None = None
) -> SearchStep:
    """Return the second of `policy_steps`, which needs only one execution.

    On large graphs a greedy episode on the best groups is better than several sampled ones, and
    faster.

    Args:
        settings: conf/search.
        policy: makes the drafts.
        view: of the problem.
        greedy: the greedy episode for large graphs; None: it is made here.
    """
    episodes = [Episodes(policy=policy, view=view, merged=merged) for merged in (False, True)]
    drafts = [*episodes, *instantiate(settings.drafts, _convert_="all")]
    if view.problem.num_ops <= MANY_OPS:
        return instantiate(settings.estimates)(drafts=drafts)
    greedy = greedy or GreedyEpisode.of(policy, view)
    return instantiate(settings.estimates)(drafts=drafts, greedy=greedy)


def load_policy(weights: str | Path | None = PRETRAINED) -> Policy:
    """Load DOPPLER's policy as conf/ describes it.

    Args:
        weights: path of a checkpoint, or ``pretrained``. None: new weights, with which the policy
            decides as its list scheduler does. That is the control which shows what training is
            worth.

    Raises:
        InputError: the weights cannot be loaded.
    """
    cfg = OmegaConf.load(resource("conf") / "policy" / "doppler.yaml")
    policy = instantiate(cfg.build)
    if weights is not None:
        try:
            load_policy_weights(policy, weights)
        except InputError as error:
            if _OF_ANOTHER not in str(error):
                raise
            raise InputError(f"{weights}: {_OF_ANOTHER}: {_REMEDY}") from None
    return policy
