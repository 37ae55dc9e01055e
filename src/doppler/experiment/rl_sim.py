"""``stage=rl_sim``: stage II alone, on one problem or on a training set."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from doppler.experiment.comparison import compare_baselines
from doppler.experiment.directory import Summary
from doppler.experiment.inference import apply_policy
from doppler.experiment.judging import Method
from doppler.experiment.problem_set import train_on_set
from doppler.experiment.run import Run
from doppler.experiment.specification import AUTO, Specification
from doppler.experiment.train import Train
from doppler.support.errors import InputError
from doppler.support.options import Count, Natural, check


@dataclass(frozen=True, kw_only=True)
class SimulatedReinforcement(Train):
    """REINFORCE in the simulator without baselines; its weights are meant for other runs.

    Attributes:
        problems: lines that describe the problems to train on (`problem_set`). If there are any,
            the run's own problem is only placed with the last weights.
        held_out: lines that describe problems to test the weights on.
        updates: of a training on several problems.
    """

    problems: Sequence[str] = ()
    held_out: Sequence[str] = ()
    updates: Natural = 0
    name: ClassVar[str] = "rl_sim"

    def __post_init__(self) -> None:
        super().__post_init__()
        # On a training set there is no stage I, and the placement at the end is compared.
        key = "stage.teacher" if self.problems else "baseline"
        object.__setattr__(self, "unused", (*self.unused, key))

    def check(self, spec: Specification) -> None:
        if bool(self.problems) != bool(self.held_out):
            raise InputError("stage.problems, stage.held_out: training on a set needs both")
        if self.problems:
            check("stage.updates", Count, self.updates)
            if "batch_problems" not in spec.cfg.algorithm.reinforcement:
                raise InputError("stage.problems: training on a set needs algorithm=problem_set")
        super().check(spec)

    def check_budget(self, spec: Specification) -> None:
        """Check the budget, except of a training set, which sets its own number of updates."""
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
        """Return no methods: stage II serves other runs, which compare."""
        return []
