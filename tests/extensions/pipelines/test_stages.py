"""A pipeline as a graph: seconds and memory as a plain account has them."""

import numpy as np
import pytest
from extensions.pipelines.pipelines import (
    pipeline_of,
    plain_account,
    problem_of,
    random_orders,
)

from doppler.baselines import lower_bound
from doppler.extensions.pipelines import (
    Action,
    judged,
    load_orders,
    placement_of_orders,
    save_orders,
)
from doppler.extensions.pipelines.assigning import assignment_bound_s, check_room, good_assignments
from doppler.extensions.pipelines.stages import arranged, with_stages_divided
from doppler.simulator import WorkConserving, open_estimates
from doppler.support.errors import InputError
from doppler.trace.checks import check

STRICT = WorkConserving(queue="strict")


@pytest.mark.parametrize("seed", range(12))
def test_seconds_and_memory_are_those_of_a_plain_account(seed):
    rng = np.random.default_rng(seed)
    devices = int(rng.integers(2, 5))
    stages = devices * int(rng.integers(1, 3))
    pipeline = pipeline_of(
        rng.integers(1, 9, size=stages) / 4,
        int(rng.integers(1, 6)),
        devices=devices,
        arrangement=("loop", "v")[seed % 2],
        left=0.25 * (seed % 3),
        transfer=0.5 * (seed % 2),
        fused=seed % 4 == 3,
    )
    problem = problem_of(pipeline)
    orders = random_orders(pipeline, pipeline.devices(), rng)
    placement = placement_of_orders(problem, orders)
    seconds, peaks = plain_account(pipeline, orders)
    with WorkConserving(queue="strict", contention="none").open(problem) as session:
        measured = session.measure(placement.device[None], placement.priority[None])
        check(session.trace(placement))
    assert measured.seconds[0, 0] == pytest.approx(seconds, rel=1e-12)
    np.testing.assert_allclose(measured.peak_bytes[0], peaks, rtol=1e-12)
    with open_estimates(problem, "none") as estimates:
        estimated = estimates.measure(placement.device[None], placement.priority[None])
    assert estimated.seconds[0, 0] == pytest.approx(seconds, rel=1e-12)
    assert lower_bound(problem).seconds <= seconds * (1 + 1e-12)
    for memory_D in (None, np.array(peaks)):
        bound_s = assignment_bound_s(pipeline, pipeline.devices(), memory_D)
        assert bound_s <= seconds * (1 + 1e-12)


def test_what_w_needs_beyond_the_activation_counts_from_the_start_of_i():
    pipeline = pipeline_of([1.0], 1, left=3.0)
    placement = placement_of_orders(problem_of(pipeline), [[Action(0, k, 0) for k in "FIW"]])
    with STRICT.open(problem_of(pipeline)) as session:
        assert session.measure(placement.device[None]).peak_bytes[0, 0] == 3.0
    assert pipeline.needed_bytes(np.zeros(1, int)) == 3.0


def test_arrangements():
    assert arranged("loop", 6, 3).tolist() == [0, 1, 2, 0, 1, 2]
    assert arranged("v", 9, 3).tolist() == [0, 1, 2, 2, 1, 0, 0, 1, 2]
    halves = with_stages_divided(pipeline_of([1, 2], 3, transfer=0.5), 2, "v")
    assert halves.forward_s.tolist() == [0.5, 0.5, 1, 1]
    assert halves.activation_bytes.sum() == 2


def test_orders_are_written_as_torch_reads_them(tmp_path):
    pipeline = pipeline_of([1, 1], 2)
    orders = random_orders(pipeline, pipeline.devices(), np.random.default_rng(0))
    save_orders(orders, tmp_path / "schedule.csv")
    assert load_orders(tmp_path / "schedule.csv") == orders
    (tmp_path / "schedule.csv").write_text("0F0,,0I0,0W0\n1F0,1X0\n")
    with pytest.raises(InputError, match=r"schedule.csv: row 1: '1X0' is not an action"):
        load_orders(tmp_path / "schedule.csv")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda o: [o[0][:-1], o[1]], "is on no device"),
        (lambda o: [*o, []], "3 ranks are too many for 2 devices"),
        (lambda o: [[*o[0], o[0][0]], o[1]], "is there twice"),
        (lambda o: [[*o[0], Action(7, "F", 0)], o[1]], "is not an action of the pipeline"),
        (lambda o: [o[0][::-1], o[1]], "wait for each other"),
    ],
)
def test_orders_that_are_none_are_refused(change, said):
    pipeline = pipeline_of([1, 1], 2)
    orders = random_orders(pipeline, pipeline.devices(), np.random.default_rng(0))
    with pytest.raises(InputError, match=said):
        judged(problem_of(pipeline), STRICT, change(orders))


def test_memory_in_which_nothing_fits_is_refused_with_what_would():
    pipeline = pipeline_of([1, 1, 1, 1], 4, devices=2, arrangement="v")
    with pytest.raises(InputError, match=r"1.5 on device 0 .* takes 2 there; 2 on every"):
        check_room(pipeline, np.full(2, 1.5))
    check_room(pipeline, np.full(2, 2.0))
    whole = pipeline_of([1, 1], 4, activation=1234564.0, left=0.0)
    with pytest.raises(InputError, match="; 1234564 on every"):  # not 1.23456e+06, which is less
        check_room(whole, np.full(2, 1.0))
    free = pipeline_of([1, 1, 1, 1], 4, devices=2, arrangement="free")
    check_room(free, np.array([3.0, 1.0]))
    with pytest.raises(InputError, match="too small for any schedule"):
        check_room(free, np.array([2.0, 1.0]))


def test_free_stages_go_where_least_is_to_do():
    pipeline = pipeline_of([3, 1, 1, 1], 4, devices=2, arrangement="free")
    best = good_assignments(pipeline, np.full(2, np.inf), np.random.default_rng(0), most=1)[0]
    assert len(set(best[1:].tolist())) == 1 and best[0] != best[1]
