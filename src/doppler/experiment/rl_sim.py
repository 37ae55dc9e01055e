"""``stage=rl_sim``: stage II by itself, on one problem or on a training set."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from doppler.experiment.comparison import compare_baselines
from doppler.experiment.directory import Summary
from doppler.experiment.inference import apply_policy
from doppler.experiment.judging import Method
from doppler.experiment.problem_set import train_on_set
from doppler.experiment.run import Run
from doppler.experiment.specification import Specification
from doppler.experiment.train import AUTO, Train
from doppler.support.errors import InputError
from doppler.support.options import Count, Natural, check


@dataclass(frozen=True, kw_only=True)
class SimulatedReinforcement(Train):
    """REINFORCE in the simulator, without baselines beside; its weights are for other runs.

    Attributes:
        problems: lines of configuration (training_set). If there are any, the training is on them,
            and the run's own problem is placed with the last weights.
        held_out: lines of problems on which the weights are tried.
        updates: of a training on several problems.
    """

    problems: Sequence[str] = ()
    held_out: Sequence[str] = ()
    updates: Natural = 0
    name: ClassVar[str] = "rl_sim"
    unused: ClassVar[tuple[str, ...]] = (*Train.unused, "baseline")

    def __post_init__(self) -> None:
        if self.problems:  # baselines stand beside what is placed in the end
            object.__setattr__(self, "unused", Train.unused)

    def check(self, spec: Specification) -> None:
        if bool(self.problems) != bool(self.held_out):
            raise InputError("stage.problems, stage.held_out: training on a set needs both")
        if self.problems:
            check("stage.updates", Count, self.updates)
            if "batch_problems" not in spec.cfg.algorithm.reinforcement:
                raise InputError("stage.problems: training on a set needs algorithm=problem_set")
        super().check(spec)

    def check_budget(self, spec: Specification) -> None:
        """A training set says itself how many updates it has."""
        if not self.problems:
            super().check_budget(spec)

    def run(self, run: Run) -> Summary:
        """Train on the run's problem, or on the training set."""
        if not self.problems:
            return super().run(run)
        weights = None if self.init_from == AUTO else self.init_from
        path = train_on_set(run, self.problems, self.held_out, self.updates, weights)
        return apply_policy(run, path, compare_baselines(run.spec, run.say))

    def compared(self, run: Run) -> list[Method]:
        """Nothing: stage II is for other runs to go on from."""
        return []
