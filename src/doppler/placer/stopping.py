"""When to go on: learned online, from what going on was worth on the problems so far.

Shape suffixes: F features, L levels.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from doppler.errors import InputError
from doppler.files.values import read_integer, read_list, read_number, read_object
from doppler.options import Amount, Natural, Positive, Share, checked
from doppler.placer.features import PROGRESS, progress_features

FloatArray = NDArray[np.float64]
# Of the regressions. What is known of a level before anything was learned: nothing, so the first
# problems go all the way.
_RIDGE = 0.3
_CROSSED = 4  # features that are products of others


@checked
@dataclass(frozen=True, kw_only=True)
class WhenToGoOn:
    """How a placer weighs seconds against quality, and how often it asks the deepest level.

    price: of a second, as a share of the makespan: at 0.01 a second has to make the placement 1%
    better. tolerance: a placement this close to the lower bound needs no level more. ask: of the
    first problems, the share that goes all the way whatever is foretold; it falls with the square
    root of their number, and the more the longer that would take. first: problems that all do.
    """

    price: Positive = 0.01
    tolerance: Amount = 1e-6
    ask: Share = 1.0
    first: Natural = 20


class Regression:
    """Ridge regression that takes one example at a time.

    Source: recursive least squares, which is the online Newton step (Hazan, Agarwal, Kale, 2007) of
    the squared loss.
    """

    def __init__(self, num_features: int, ridge: float = _RIDGE) -> None:
        self._inverse_FF = np.eye(num_features) / ridge
        self._weight_F = np.zeros(num_features)

    def learn(self, feature_F: FloatArray, target: float) -> None:
        """One example more."""
        along_F = self._inverse_FF @ feature_F
        along_F /= math.sqrt(1.0 + float(feature_F @ along_F))
        self._inverse_FF -= np.outer(along_F, along_F)
        error = target - float(feature_F @ self._weight_F)
        self._weight_F += self._inverse_FF @ feature_F * error

    def foretell(self, feature_F: FloatArray) -> float:
        """What it expects."""
        return float(feature_F @ self._weight_F)

    def state(self) -> dict[str, Any]:
        """As numbers and lists."""
        return {"weight": self._weight_F.tolist(), "inverse": self._inverse_FF.ravel().tolist()}

    def restore(self, state: object, where: str) -> None:
        """What `state` returned."""
        row = read_object(state, where, ("weight", "inverse"))
        for key, own in (("weight", self._weight_F), ("inverse", self._inverse_FF)):
            values = read_list(row[key], f"{where}.{key}", read_number)
            if len(values) != own.size:
                raise InputError(f"{where}.{key}: {len(values)} numbers, expected {own.size}")
            own.flat[:] = values


class LearnedStopping:
    """Foretells what each further level takes and is worth.

    num_levels: L. num_features: of a problem; levels add what they found. rng: of the questions to
    the deepest level.

    Source: imitation of the deepest level, asked with decaying probability, as in DAgger (Ross,
    Gordon, Bagnell, 2011) and online cascade learning (Nie and others, arXiv 2402.04513).
    Deviation: costs are seconds; who decides is greedy in foretold costs, regressions stand for its
    gradient.
    """

    def __init__(
        self, rules: WhenToGoOn, num_levels: int, num_features: int, rng: np.random.Generator
    ) -> None:
        self.rules = rules
        self.num_levels, self._rng = num_levels, rng
        self._num_problems, self._num_whole, self._mean_s = 0, 0, 0.0
        size = 1 + num_features + len(PROGRESS) + _CROSSED
        self._seconds = [Regression(1 + num_features, 1.0) for _ in range(num_levels)]
        self._rest = {
            (at, to): Regression(size) for at in range(num_levels) for to in range(at, num_levels)
        }

    def begin(self, problem_F: FloatArray) -> bool:
        """Whether this problem goes all the way, whatever is foretold."""
        self._num_problems += 1
        if self._num_problems <= self.rules.first:
            return True
        whole_s = sum(self.foretold_s(problem_F, to) for to in range(self.num_levels))
        often = self.rules.ask / math.sqrt(self._num_problems)
        return bool(self._rng.random() < often * min(1.0, self._mean_s / max(whole_s, 1e-9)))

    def foretold_s(self, problem_F: FloatArray, level: int) -> float:
        """Seconds that a level is expected to take."""
        log_s = self._seconds[level].foretell(np.append(1.0, problem_F))
        return math.exp(min(log_s, 20.0))

    def goes_on(self, problem_F: FloatArray, progress_F: FloatArray, at: int) -> bool:
        """Whether a level more is expected to be worth its seconds.

        progress_F: features.progress_features of what was found up to level ``at``.
        """
        gap = float(progress_F[0])
        feature_F = _joined(problem_F, progress_F)
        seconds, best, best_at = 0.0, math.inf, at
        for to in range(at, self.num_levels):
            seconds += self.foretold_s(problem_F, to) if to > at else 0.0
            rest = 0.0
            if to + 1 < self.num_levels:
                rest = min(max(self._rest[at, to].foretell(feature_F), 0.0), gap)
            cost = rest + self.rules.price * seconds
            if cost < best:
                best, best_at = cost, to
        return best_at > at

    def learn(self, problem_F: FloatArray, climbed: "Climbed") -> None:
        """What the levels of a problem took; if it is known, what the further ones were worth.

        That is known where all of them were gone, and where the bound was reached.
        """
        for level, took_s in enumerate(climbed.took_s):
            self._learn_seconds(problem_F, level, took_s)
        if not (climbed.is_whole or climbed.is_certain):
            return
        lacking = self.num_levels - len(climbed.found_s)
        found_L = [*climbed.found_s, *(climbed.found_s[-1],) * lacking]
        progress_LF = [
            progress_features(found_L, climbed.bound_s, at) for at in range(len(found_L))
        ]
        for (at, to), regression in self._rest.items():
            if to + 1 < self.num_levels:
                rest = math.log(max(found_L[to] / found_L[-1], 1.0))
                regression.learn(_joined(problem_F, progress_LF[at]), rest)
        if climbed.is_whole:
            self._num_whole += 1
            self._mean_s += (sum(climbed.took_s) - self._mean_s) / self._num_whole

    def _learn_seconds(self, problem_F: FloatArray, level: int, seconds: float) -> None:
        self._seconds[level].learn(np.append(1.0, problem_F), math.log(max(seconds, 1e-6)))

    def state(self) -> dict[str, Any]:
        """All that was learned, as numbers and lists."""
        return {
            "problems": self._num_problems,
            "whole": self._num_whole,
            "mean_s": self._mean_s,
            "seconds": [one.state() for one in self._seconds],
            "rest": [one.state() for one in self._rest.values()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """What `state` returned.

        Raises:
            InputError: it is of other levels or features.
        """
        read_object(state, "", ("problems", "whole", "mean_s", "seconds", "rest"))
        self._num_problems = read_integer(state["problems"], "problems")
        self._num_whole = read_integer(state["whole"], "whole")
        self._mean_s = read_number(state["mean_s"], "mean_s")
        for key, own in (("seconds", self._seconds), ("rest", [*self._rest.values()])):
            if not isinstance(state[key], list) or len(state[key]) != len(own):
                raise InputError(f"{key}: expected a list of {len(own)}")
            for i, (one, kept) in enumerate(zip(own, state[key], strict=True)):
                one.restore(kept, f"{key}[{i}]")


class Rung(Protocol):
    """Levels of one problem, run or recorded: `ladder.Climb` is one."""

    found_s: list[float]
    took_s: list[float]

    def go_on(self) -> None:
        """One level more."""
        ...


@dataclass(frozen=True, kw_only=True)
class Climbed:
    """How far a problem went.

    found_s, took_s: makespan and seconds of each level gone. bound_s: what no placement undercuts.
    is_whole: all levels were gone. is_certain: the bound was reached. was_asked: it went all the
    way to be learned from.
    """

    found_s: tuple[float, ...]
    took_s: tuple[float, ...]
    bound_s: float
    is_whole: bool
    is_certain: bool
    was_asked: bool


def climb(stopping: LearnedStopping, rung: Rung, problem_F: FloatArray, bound_s: float) -> Climbed:
    """Go up as long as it pays, and learn from it.

    Args:
        stopping: decides, and learns.
        rung: no level of it is gone yet.
        problem_F: features of the problem.
        bound_s: what no placement undercuts; 0 where that is not known.
    """
    was_asked, is_certain = stopping.begin(problem_F), False
    for at in range(stopping.num_levels):
        rung.go_on()
        is_certain = rung.found_s[at] <= bound_s * (1.0 + stopping.rules.tolerance)
        if is_certain or at + 1 == stopping.num_levels:
            break
        progress_F = progress_features(rung.found_s, bound_s, at)
        if not (was_asked or stopping.goes_on(problem_F, progress_F, at)):
            break
    climbed = Climbed(
        found_s=tuple(rung.found_s),
        took_s=tuple(rung.took_s),
        bound_s=bound_s,
        is_whole=len(rung.found_s) == stopping.num_levels,
        is_certain=is_certain,
        was_asked=was_asked,
    )
    stopping.learn(problem_F, climbed)
    return climbed


def _joined(problem_F: FloatArray, progress_F: FloatArray) -> FloatArray:
    """Also how far the bound is for the problem's size, width and price of transfers."""
    gap = progress_F[0]
    crossed = gap * np.array([problem_F[0] - 4.5, problem_F[4] - 1.5, problem_F[3], gap])
    return np.concatenate([[1.0], problem_F, progress_F, crossed])
