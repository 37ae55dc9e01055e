"""What the search finds: never behind torch's schedules, and what is proven where it is."""

import numpy as np
import pytest
from extensions.pipelines.pipelines import pipeline_of, plain_account, problem_of
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from problems import REPOSITORY

from doppler.extensions.pipelines import ListSchedules, TorchSchedules, judged_schedules
from doppler.extensions.pipelines.listing import MANNERS, list_schedule
from doppler.extensions.pipelines.searching import found_orders
from doppler.extensions.pipelines.stages import with_stages_divided
from doppler.simulator import WorkConserving

STRICT = WorkConserving(queue="strict")


@pytest.fixture(scope="module")
def search():
    with initialize_config_dir(str(REPOSITORY / "conf"), version_base="1.3"):
        cfg = compose("config", ["workload=pipeline_parallel", "budget.evaluations=300"])
        cfg.baseline.pipeline.steps[2].steps = 1000
        cfg.baseline.pipeline.steps[2].at_most = 4
        return instantiate(cfg.baseline.pipeline)


@pytest.mark.parametrize("parts", [(1, "loop"), (2, "loop"), (2, "v"), (2, "free")])
def test_never_behind_torchs_schedules_that_fit(search, parts):
    num, arrangement = parts
    pipeline = pipeline_of([1.3, 1, 1, 1.6], 8)
    if num > 1:
        pipeline = with_stages_divided(pipeline, num, arrangement)
    problem = problem_of(pipeline, 4.0)
    theirs = [one.seconds for one in judged_schedules(problem, STRICT).values() if one.fits]
    with STRICT.open(problem) as session:
        result = search.place(session, np.random.default_rng(0))
    orders = found_orders(problem, STRICT, result.placement)
    seconds, peaks = plain_account(pipeline, orders)
    assert seconds == pytest.approx(result.makespan_s)
    assert max(peaks) <= 4.0 * (1 + 1e-12)
    assert result.makespan_s <= min(theirs) * (1 + 1e-12)


def test_the_proven_optimum_of_uneven_stages_is_found_in_the_memory_of_1f1b(search):
    problem = problem_of(pipeline_of([1, 1.2, 1.5, 1], 8), 4.0)
    with STRICT.open(problem) as session:
        result = search.place(session, np.random.default_rng(0))
    assert result.makespan_s == pytest.approx(38.2)


@pytest.mark.parametrize("manner", MANNERS)
def test_list_schedules_keep_to_the_memory(manner):
    for seed in range(6):
        rng = np.random.default_rng(seed)
        arrangement = ("loop", "v", "free")[seed % 3]
        pipeline = pipeline_of(
            rng.uniform(0.5, 2, 6), 5, devices=3, arrangement=arrangement, left=rng.uniform(0, 2)
        )
        device_S = pipeline.devices()
        if device_S is None:
            device_S = np.array([0, 1, 2, *rng.integers(3, size=3)])
        memory_D = pipeline.needed_bytes(device_S) + rng.uniform(0, 3, 3)
        listed = list_schedule(pipeline, device_S, memory_D, manner)
        assert listed is not None, "one microbatch always fits"
        seconds, peaks = plain_account(pipeline, listed.orders)
        assert listed.seconds == pytest.approx(seconds)
        assert (np.array(peaks) <= memory_D * (1 + 1e-9)).all()


def test_drafts_are_placements():
    problem = problem_of(pipeline_of([1, 2, 1, 1], 4, devices=2, arrangement="free"))
    rng = np.random.default_rng(0)
    for drafts in (TorchSchedules(), ListSchedules()):
        device_BV, priority_BV = drafts.draw(problem, 3, rng)
        assert problem.allows(device_BV).all()
        with STRICT.open(problem) as session:
            assert np.isfinite(session.measure(device_BV, priority_BV).seconds).all()
