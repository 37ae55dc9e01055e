"""Methods in turns: each once in every round, in ever new orders, on the system of its own."""

from types import SimpleNamespace

import numpy as np
import pytest
from problems import cluster_of, graph_of

from doppler.experiment.interleaved import Contender, measure_interleaved
from doppler.problem import Placement, build
from doppler.system import Measurement

PROBLEM = build(graph_of([1.0] * 3), cluster_of([1.0] * 3))


class Recorder:
    """A specification whose system takes as many seconds as its first op's device is called."""

    problem = PROBLEM

    def __init__(self, factor: float, log: list) -> None:
        self.factor, self.log, self.num_open = factor, log, 0

    @property
    def system(self):
        return self

    def open(self, problem):
        assert problem is PROBLEM
        self.num_open += 1
        return self

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.num_open -= 1

    def measure(self, device_BV, priority_BV, repeats=1, rng=None):
        assert self.num_open == 1 and device_BV.shape == (1, 3) and repeats == 1
        device = int(device_BV[0, 0])
        self.log.append((self.factor, device))
        return Measurement(
            seconds=np.array([[self.factor * device]]),
            peak_bytes=np.zeros((1, 3)),
            feasible=np.array([device < 2]),
        )


def contender(spec: Recorder, device: int) -> Contender:
    placement = Placement.make(PROBLEM, np.full(3, device))
    return Contender(spec, SimpleNamespace(placement=placement))  # type: ignore[arg-type]


def test_every_round_has_each_method_once_and_orders_change():
    log: list = []
    one, other = Recorder(10.0, log), Recorder(100.0, log)
    contenders = [contender(one, 1), contender(other, 1), contender(one, 0), contender(one, 2)]
    seconds_MR = measure_interleaved(contenders, 20, np.random.default_rng(0))
    assert seconds_MR.tolist() == [[10.0] * 20, [100.0] * 20, [0.0] * 20, [np.inf] * 20]
    rounds = [tuple(log[i : i + 4]) for i in range(0, 80, 4)]
    assert all(len(set(round_)) == 4 for round_ in rounds)
    assert len(set(rounds)) > 10
    assert one.num_open == other.num_open == 0


def test_methods_that_found_the_same_placement_share_its_executions():
    log: list = []
    spec = Recorder(10.0, log)
    contenders = [contender(spec, 1), contender(spec, 0), contender(spec, 1)]
    seconds_MR = measure_interleaved(contenders, 5, np.random.default_rng(0))
    assert seconds_MR.tolist() == [[10.0] * 5, [0.0] * 5, [10.0] * 5]
    assert len(log) == 2 * 5


def test_sessions_are_closed_when_a_method_fails():
    class Failing(Recorder):
        def measure(self, *args, **kwargs):
            raise RuntimeError("device lost")

    spec = Failing(1.0, [])
    with pytest.raises(RuntimeError, match="device lost"):
        measure_interleaved([contender(spec, 0)], 2, np.random.default_rng(0))
    assert spec.num_open == 0


class Fixed(Recorder):
    """Takes what it is told in each round, placement by placement."""

    def __init__(self, seconds_MR) -> None:
        super().__init__(1.0, [])
        self.seconds_MR = seconds_MR

    def measure(self, device_BV, priority_BV, repeats=1, rng=None):
        m, r = int(device_BV[0, 0]), len([one for one in self.log if one == int(device_BV[0, 0])])
        self.log.append(m)
        return Measurement(
            seconds=np.array([[self.seconds_MR[m, r]]]),
            peak_bytes=np.zeros((1, 3)),
            feasible=np.array([True]),
        )


@pytest.mark.parametrize(("spread", "is_early"), [(1e-4, True), (0.2, False)])
def test_rounds_end_early_where_all_ratios_are_known(spread, is_early):
    noise_MR = np.random.default_rng(1).lognormal(0.0, spread, (2, 41))
    spec = Fixed(noise_MR * np.array([[1.0], [1.3]]))
    contenders = [contender(spec, 0), contender(spec, 1)]
    found = measure_interleaved(contenders, 41, np.random.default_rng(0), tight=0.01)
    assert (found.shape[1] < 41) == is_early and found.shape[1] >= 15
    assert (found == spec.seconds_MR[:, : found.shape[1]]).all()
