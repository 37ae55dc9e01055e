"""stage=evaluate: the configured baselines alone."""

from dataclasses import dataclass
from typing import ClassVar

from doppler.experiment.comparison import compare_baselines
from doppler.experiment.directory import Summary
from doppler.experiment.results import finish
from doppler.experiment.run import Run, Stage
from doppler.experiment.specification import Specification
from doppler.support.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Evaluate(Stage):
    """What needs no training; the run is about the best of it."""

    name: ClassVar[str] = "evaluate"
    unused: ClassVar[tuple[str, ...]] = (*("policy", "algorithm", "search", "trainer", "budget"),)

    def method(self, spec: Specification) -> str:
        """One baseline by its name, several by what they are."""
        names = list(spec.cfg.get("baseline") or {})
        return str(names[0]) if len(names) == 1 else "baselines"

    def run(self, run: Run) -> Summary:
        methods = compare_baselines(run.spec, run.say)
        if not methods:
            raise InputError("baseline: none is configured, or none can run on this system")
        methods.sort(key=lambda method: method.makespan_s)
        return finish(run, methods[0], methods[1:], {}, ranks=True)
