"""What is refused of a baseline that somebody else has written."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from doppler.baselines import SearchResult
from doppler.experiment.comparison import search_with
from doppler.experiment.specification import Specification
from doppler.problem import Placement
from doppler.support.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Miscounting:
    """Executes three placements and says that it was one."""

    uses_order: ClassVar[bool] = False
    needs_order: ClassVar[bool] = False

    def place(self, session, rng):
        problem = session.problem
        session.measure(np.zeros((3, problem.num_ops), np.int64))
        placement = Placement.make(problem, np.zeros(problem.num_ops, np.int64))
        return SearchResult(placement=placement, makespan_s=1.0, evaluations=1)


def test_a_baseline_that_miscounts_its_executions_is_refused_in_one_line(configure):
    spec = Specification(configure("workload.params.n=64"))
    told = r"^mine: place\(\) of Miscounting returned evaluations=1, but executed 3 placements$"
    with pytest.raises(InputError, match=told):
        search_with(spec, Miscounting(), "mine")
