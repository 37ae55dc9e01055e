"""Placer: places one problem after another, and learns which of them deserves more search."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from doppler.baselines import lower_bound
from doppler.errors import InputError
from doppler.files import read_json
from doppler.graph.formats import write_atomically
from doppler.options import Seed
from doppler.placer.features import FEATURES, problem_features
from doppler.placer.ladder import LEVELS, Climb
from doppler.placer.stopping import Climbed, LearnedStopping, WhenToGoOn, climb
from doppler.policies import Policy
from doppler.search import BestSoFar, load_policy, seeded_generator
from doppler.simulator import SimulatorSession

FORMAT = "doppler-placer"


class ProblemPlacer:
    """Climbs a ladder of searches on each problem, as far as it has learned that it pays.

    rules: how it weighs seconds against quality. policy: of the ladder; that of the package by
    default. seed: of the questions to the deepest level. climbed: what became of the problems.
    """

    def __init__(
        self, rules: WhenToGoOn | None = None, *, policy: Policy | None = None, seed: Seed = 0
    ) -> None:
        self.climbed: list[Climbed] = []
        self._given = policy
        rules = WhenToGoOn() if rules is None else rules
        rng = seeded_generator(seed, "placer")
        self._stopping = LearnedStopping(rules, len(LEVELS), len(FEATURES), rng)

    @cached_property
    def policy(self) -> Policy:
        """Of the second level and the third."""
        return load_policy() if self._given is None else self._given

    def climb(self, best: BestSoFar, rng: np.random.Generator) -> Climbed:
        """Search a placement of the session's problem, and learn from it.

        The bound is a certificate on simulators without jitter alone: seconds of others wander.
        """
        session, bound_s = best.session, 0.0
        if isinstance(session, SimulatorSession) and not session.is_random:
            bound_s = lower_bound(session.problem, streams=session.execution.streams).seconds
        rung = Climb(best, self.policy, rng)
        climbed = climb(self._stopping, rung, problem_features(session.problem), bound_s)
        self.climbed.append(climbed)
        return climbed

    @property
    def step(self) -> "ClimbStep":
        """As a step of a search (doppler.search), which takes what it takes."""
        return ClimbStep(placer=self)

    def save(self, path: str | Path) -> None:
        """Write what was learned, as JSON."""
        state = {"format": FORMAT, "version": 1, **self._stopping.state()}
        write_atomically(path, json.dumps(state) + "\n")

    def load(self, path: str | Path) -> None:
        """Go on with what `save` wrote.

        Raises:
            InputError: the file is no such thing.
        """
        data = read_json(path)
        if not isinstance(data, dict) or (data.get("format"), data.get("version")) != (FORMAT, 1):
            raise InputError(f"{path}: not a {FORMAT} file of version 1")
        state = {key: value for key, value in data.items() if key not in ("format", "version")}
        try:
            self._stopping.restore(state)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None


@dataclass(frozen=True, eq=False, kw_only=True)
class ClimbStep:
    """A placer as a step of a search."""

    placer: ProblemPlacer
    share: float | None = None
    repeats: ClassVar[bool] = False

    def search(
        self, best: BestSoFar, evaluations: int, rng: np.random.Generator, *, walks: int = 1
    ) -> None:
        """See engine.SearchStep; ``evaluations`` are not asked for."""
        self.placer.climb(best, rng)
