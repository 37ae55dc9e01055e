"""stage=evaluate: runs the configured baselines without any training."""

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
    """Run the configured baselines; the run is named after the best one."""

    name: ClassVar[str] = "evaluate"
    unused: ClassVar[tuple[str, ...]] = (
        *("policy", "algorithm", "search", "trainer", "budget.imitation_episodes"),
        # The one that the system uses counts all the same (see Run.directory).
        *("budget.evaluations", "budget.measured_evaluations"),
    )

    def method(self, spec: Specification) -> str:
        """Return the baseline's name if there is one, else a name for the group of baselines."""
        names = list(spec.cfg.get("baseline") or {})
        return str(names[0]) if len(names) == 1 else "baselines"

    def run(self, run: Run) -> Summary:
        if not run.spec.baselines:
            raise InputError("baseline: none is configured")
        methods = compare_baselines(run.spec, run.say)
        if not methods:
            names = ", ".join(run.spec.baselines)
            raise InputError(
                f"baseline: nothing to compare ({names}): no placement that fits in memory was "
                "found, or what is searched for is an order of ops, which this system ignores"
            )
        methods.sort(key=lambda method: method.makespan_s)
        return finish(run, methods[0], methods[1:], {}, ranks=True)
