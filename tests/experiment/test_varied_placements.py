"""The placements of a fidelity report: legal, and of different quality."""

import numpy as np
import pytest
from problems import cluster_of, graph_of, random_problem

from doppler.experiment.varied_placements import varied_placements
from doppler.problem import build
from doppler.simulator import WorkConserving

KINDS = {"random", "annealing", "heuristic"}


@pytest.mark.parametrize("num", [3, 10, 60])
def test_placements_are_as_many_as_wanted_and_of_three_kinds(num):
    problem = random_problem(1, num_ops=24, num_devices=3, costs="distinct")
    rng = np.random.default_rng(0)
    placements, groups = varied_placements(WorkConserving(), problem, num, rng)
    assert len(placements) == len(groups) == num
    assert set(groups) == KINDS
    assert max(groups.count(kind) for kind in KINDS) - min(map(groups.count, KINDS)) <= 1


def test_their_makespans_spread_from_good_to_bad():
    problem = random_problem(2, num_ops=60, num_devices=3, costs="distinct")
    placements, groups = varied_placements(WorkConserving(), problem, 60, np.random.default_rng(0))
    with WorkConserving().open(problem) as session:
        seconds_B = session.measure(
            np.stack([one.device for one in placements]),
            np.stack([one.priority for one in placements]),
        ).seconds[:, 0]
    assert seconds_B.max() > 1.5 * seconds_B.min()
    assert len(np.unique(seconds_B)) > 45
    mean_s = {kind: seconds_B[np.array(groups) == kind].mean() for kind in KINDS}
    assert mean_s["annealing"] < mean_s["random"]
    alone = [one for one, kind in zip(placements, groups, strict=True) if kind == "random"][-1]
    assert len(set(alone.device.tolist())) == 1, "the last random one is all on one device"


def test_ops_stay_off_devices_that_cannot_run_them():
    cluster = cluster_of([1.0] * 3, unsupported_kinds=[["a"], ["b"], []])
    problem = build(graph_of([1.0] * 20, kinds=list("ab") * 10), cluster)
    placements, _ = varied_placements(WorkConserving(), problem, 12, np.random.default_rng(0))
    for placement in placements:  # making them refuses others
        assert np.isfinite(problem.arrays.op_seconds[np.arange(20), placement.device]).all()
