"""How often simulated and measured seconds rank placements differently."""

from types import SimpleNamespace

import pytest

from doppler.experiment import disagreement
from doppler.experiment.disagreement import disagreements
from doppler.experiment.interleaved import Contender
from doppler.report.paired import PairedRatio


class Spec(SimpleNamespace):
    """A specification that names its simulator, and nothing else."""

    def on(self, system):
        return Spec(system=system)


def ratio(other: str, low: float, high: float) -> PairedRatio:
    middle = (low + high) / 2
    return PairedRatio(
        method="first",
        other=other,
        method_s=middle,
        other_s=1.0,
        ratio=middle,
        low=low,
        high=high,
        rounds=5,
    )


@pytest.fixture
def told(monkeypatch):
    """Simulated seconds by placement, which is its name here."""
    seconds = {"first": 1.0, "slower": 2.0, "faster": 0.5, "same": 1.0}
    monkeypatch.setattr(disagreement, "nominal_s", lambda spec, name: seconds[name])
    spec = Spec(simulator=None)

    def make(*others: str) -> tuple[Spec, list[Contender]]:
        names = ["first", *others]
        methods = [SimpleNamespace(name=name, placement=name) for name in names]
        return spec, [Contender(spec, method) for method in methods]  # type: ignore[arg-type]

    return make


def test_only_what_is_surely_different_counts(told):
    spec, contenders = told("slower", "faster", "same")
    # Executions agree on the slower one, say the opposite of the faster one; the third is unsure.
    ratios = [ratio("slower", 0.4, 0.6), ratio("faster", 0.7, 0.9), ratio("same", 0.9, 1.1)]
    assert disagreements(spec, contenders, ratios) == "1 of 2"


def test_a_difference_that_the_simulator_does_not_see_is_a_disagreement(told):
    spec, contenders = told("same")
    assert disagreements(spec, contenders, [ratio("same", 1.2, 1.4)]) == "1 of 1"


def test_placements_of_other_systems_are_left_out(told):
    spec, contenders = told("slower")
    other = Contender(Spec(simulator=None), contenders[1].method)  # type: ignore[arg-type]
    assert disagreements(spec, [contenders[0], other], [ratio("slower", 1.2, 1.4)]) == "0 of 0"
