"""Searches as conf/ describes them, without composing a configuration.

Whoever composes one (`doppler run`) instantiates the same files through Hydra.
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
from doppler.search.engine import Budget, SearchStep
from doppler.search.estimating import Episodes
from doppler.search.greedy import GreedyEpisode
from doppler.search.steps import PlaceAgain, PlaceOnce
from doppler.support.errors import InputError
from doppler.support.resources import resource

# The baseline that method="auto" stands for.
_AUTO = "portfolio"


def search_settings() -> DictConfig:
    """conf/search/default.yaml."""
    settings = OmegaConf.load(resource("conf") / "search" / "default.yaml")
    assert isinstance(settings, DictConfig)
    return settings


def methods() -> list[str]:
    """What `steps_of` knows: auto, and the baselines of conf/ and of plugins."""
    return ["auto", *sorted(_files())]


def _files() -> dict[str, Path]:
    """The files of conf/baseline and of the same folder of plugins, by name."""
    folders = [resource("conf"), *chain(*contributed("config_folders"))]
    files = chain(*((folder / "baseline").glob("*.yaml") for folder in folders))
    return {file.stem: file for file in files}


def steps_of(name: str, budget: Budget) -> list[SearchStep]:
    """The steps of a method by its name.

    Whatever takes ``evaluations`` has the budget; the others take what they take.

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
    """What a policy places, whether it has trained on the problem or not.

    Its greedy placement of the merging that is best by estimates, unless there is one execution
    alone; then the best of what it and list schedulers draw, made better on estimates before it is
    executed (docs/pretrained.md), which is the better one; then annealing from the best of it, on a
    large graph of windows first.

    Args:
        settings: conf/search.
        policy: whose placements these are.
        view: of the problem.
        then: what searches after the estimates instead of annealing alone.
    """
    greedy = GreedyEpisode.of(policy, view, least=2)
    then = then or [instantiate(settings.anneal)]
    rest = [estimates_step(settings, policy, view, greedy), *then]
    return [greedy, *suited(rest, view.problem)]


def estimates_step(
    settings: DictConfig, policy: Policy, view: ProblemView, greedy: GreedyEpisode | None = None
) -> SearchStep:
    """The second of `policy_steps`, which one execution is enough for.

    Of many ops a greedy episode of the best groups is worth more than several that are drawn, and
    takes less time; it is made here where it is not given.
    """
    episodes = [Episodes(policy=policy, view=view, merged=merged) for merged in (False, True)]
    drafts = [*episodes, *instantiate(settings.drafts, _convert_="all")]
    if view.problem.num_ops <= MANY_OPS:
        return instantiate(settings.estimates)(drafts=drafts)
    greedy = greedy or GreedyEpisode.of(policy, view)
    return instantiate(settings.estimates)(drafts=drafts, greedy=greedy)


def load_policy(weights: str | Path | None = PRETRAINED) -> Policy:
    """DOPPLER's policy as conf/ describes it.

    Args:
        weights: path of a checkpoint, or ``pretrained``. None: new weights, with which the policy
            decides as its list scheduler does; the control that says what training is worth.

    Raises:
        InputError: see load_policy_weights.
    """
    cfg = OmegaConf.load(resource("conf") / "policy" / "doppler.yaml")
    policy = instantiate(cfg.build)
    if weights is not None:
        load_policy_weights(policy, weights)
    return policy
