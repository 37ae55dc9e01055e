"""What every level finds on many problems, recorded once and replayed in many orders."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from doppler.baselines import lower_bound
from doppler.errors import InputError
from doppler.files import parse_json, read_text
from doppler.files.values import read_list, read_number, read_object
from doppler.files.values import read_text as text_of
from doppler.placer.features import FEATURES, problem_features
from doppler.placer.ladder import LEVELS, Climb
from doppler.placer.stopping import Climbed, LearnedStopping, WhenToGoOn, climb
from doppler.policies import Policy
from doppler.problem import Problem
from doppler.search import BestSoFar
from doppler.system import System

FloatArray = NDArray[np.float64]
_KEYS = ("name", "bound_s", "known_s", "before_s", "features", "found_s", "took_s")


@dataclass(frozen=True, kw_only=True)
class LadderRecord:
    """One problem and all levels.

    bound_s: what no placement undercuts, as a placer knows it. known_s: the optimum, or a better
    bound that others know; else bound_s. before_s: seconds of bound and features. features: see
    features.FEATURES. found_s, took_s: makespan and seconds of each level.
    """

    name: str
    bound_s: float
    known_s: float
    before_s: float
    features: tuple[float, ...]
    found_s: tuple[float, ...]
    took_s: tuple[float, ...]


def record(
    name: str,
    problem: Problem,
    system: System,
    policy: Policy,
    *,
    known_s: float = 0.0,
    seed: int = 0,
    clock: Callable[[], float],
) -> LadderRecord:
    """All levels of one problem.

    Args:
        name: of the problem.
        problem: what is placed.
        system: what executes.
        policy: of the ladder.
        known_s: what others have proven that no placement undercuts.
        seed: of the search.
        clock: seconds, of the process or of the wall.
    """
    begin_s = clock()
    feature_F, bound = problem_features(problem), lower_bound(problem, streams=system.streams)
    before_s = clock() - begin_s
    with system.open(problem) as session:
        best = BestSoFar(session=session, confirmations=0, seed=seed)
        rung = Climb(best, policy, np.random.default_rng(seed), clock=clock)
        for _ in LEVELS:
            rung.go_on()
    return LadderRecord(
        name=name,
        bound_s=bound.seconds,
        known_s=max(bound.seconds, known_s),
        before_s=before_s,
        features=tuple(feature_F.tolist()),
        found_s=tuple(rung.found_s),
        took_s=tuple(rung.took_s),
    )


def to_line(one: LadderRecord) -> str:
    """A line of a file of records."""
    return json.dumps(asdict(one)) + "\n"


def read_records(path: str | Path) -> list[LadderRecord]:
    """The records of a file, a line each.

    Raises:
        InputError: names the file and the line at fault.
    """
    lines = [line for line in read_text(path).split("\n") if line.strip()]
    return [_read(line, f"{path}:{number}") for number, line in enumerate(lines, 1)]


def _read(line: str, where: str) -> LadderRecord:
    row = read_object(parse_json(line, where), where, _KEYS)
    lists = {
        key: read_list(row[key], f"{where}: {key}", read_number)
        for key in ("features", "found_s", "took_s")
    }
    lengths = {"features": len(FEATURES), "found_s": len(LEVELS), "took_s": len(LEVELS)}
    for key, length in lengths.items():
        if len(lists[key]) != length or (key != "features" and min(lists[key]) <= 0):
            raise InputError(f"{where}: {key}: expected {length} numbers above 0")
    bound_s, known_s, before_s = (
        read_number(row[key], f"{where}: {key}") for key in ("bound_s", "known_s", "before_s")
    )
    return LadderRecord(
        name=text_of(row["name"], f"{where}: name"),
        bound_s=bound_s,
        known_s=known_s,
        before_s=before_s,
        features=lists["features"],
        found_s=lists["found_s"],
        took_s=lists["took_s"],
    )


class _Replayed:
    """A recorded problem, as if its levels were run."""

    def __init__(self, one: LadderRecord) -> None:
        self.found_s: list[float] = []
        self.took_s: list[float] = []
        self._record = one

    def go_on(self) -> None:
        """See stopping.Rung."""
        at = len(self.found_s)
        self.found_s.append(self._record.found_s[at])
        self.took_s.append(self._record.took_s[at])


def replay(
    records: Iterable[LadderRecord], rules: WhenToGoOn, rng: np.random.Generator
) -> list[Climbed]:
    """A placer on recorded problems, in this order: it sees what the levels that it runs found."""
    stopping = LearnedStopping(rules, len(LEVELS), len(FEATURES), rng)
    return [climb(stopping, _Replayed(one), np.array(one.features), one.bound_s) for one in records]


@dataclass(frozen=True, kw_only=True)
class StreamCost:
    """What a way to place many problems came to.

    seconds: of all searches. ratio: mean makespan over the optimum or bound. loss: mean makespan
    over that of the deepest level, less 1. levels: problems that ended at each level.
    """

    name: str
    seconds: float
    ratio: float
    loss: float
    levels: tuple[int, ...]


def cost_of(name: str, records: Sequence[LadderRecord], height: Sequence[int]) -> StreamCost:
    """Of going up to a level each: ``height`` levels, 1 at least."""
    every = list(zip(records, height, strict=True))
    counts = np.bincount([at - 1 for at in height], minlength=len(LEVELS))
    return StreamCost(
        name=name,
        seconds=sum(one.before_s + sum(one.took_s[:at]) for one, at in every),
        ratio=float(np.mean([one.found_s[at - 1] / one.known_s for one, at in every])),
        loss=float(np.mean([one.found_s[at - 1] / one.found_s[-1] for one, at in every])) - 1.0,
        levels=tuple(counts.tolist()),
    )


def fixed_costs(records: Sequence[LadderRecord]) -> list[StreamCost]:
    """Of each level for all problems."""
    return [
        cost_of(f"always {level.name}", records, [at + 1] * len(records))
        for at, level in enumerate(LEVELS)
    ]


def hindsight_cost(records: Sequence[LadderRecord], price: float) -> StreamCost:
    """Of the best level for each problem at a price of a second, known in advance."""
    height = []
    for one in records:
        seconds_L = np.cumsum(one.took_s)
        cost_L = np.array(one.found_s) / one.found_s[-1] + price * seconds_L
        height.append(int(cost_L.argmin()) + 1)
    return cost_of("in hindsight", records, height)
