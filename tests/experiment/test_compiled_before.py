"""What a training compiles before its clock starts is what its search will run."""

from types import SimpleNamespace
from typing import Any

from hydra.utils import instantiate
from omegaconf import OmegaConf

from doppler.experiment.policy_training import searches_of
from doppler.search import AnnealOnEstimates, Combined, search_settings
from doppler.simulator import WorkConserving


def test_all_kinds_of_drafts_are_compiled_before_the_clock_starts():
    settings = search_settings()
    spec = SimpleNamespace(system=WorkConserving(), cfg=OmegaConf.create({"search": settings}))
    run: Any = SimpleNamespace(spec=spec)
    (combined,) = [one for one in searches_of(run) if isinstance(one, Combined)]
    (step,) = combined.steps
    assert isinstance(step, AnnealOnEstimates)
    kinds = [type(one) for one in instantiate(settings.drafts, _convert_="all")]
    assert [type(one) for one in step.drafts] == kinds != []
