"""Methods by name, and the control: clustering, then annealing from its best."""

import math

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from problems import cluster_of, graph_of, random_problem

from doppler.baselines import Annealing, Clustering
from doppler.episode import heavy_merged, make_view
from doppler.errors import InputError
from doppler.problem import build
from doppler.resources import resource
from doppler.search import (
    AnnealFromBest,
    BestSoFar,
    Budget,
    Combined,
    GreedyEpisode,
    PlaceAgain,
    PlaceOnce,
    SampleEpisodes,
    load_policy,
    methods,
    policy_steps,
    search,
    search_settings,
    steps_of,
)
from doppler.simulator import BulkSynchronous, WorkConserving

PROBLEM = random_problem(3, num_ops=30, num_devices=4, costs="distinct")


@pytest.fixture(scope="module")
def configured():
    """The configuration as the command line composes it, with all baselines."""
    names = sorted(file.stem for file in (resource("conf") / "baseline").glob("*.yaml"))
    with initialize_config_dir(str(resource("conf")), version_base="1.3"):
        yield compose("config", [f"baseline=[{','.join(names)}]", "budget.evaluations=500"])


@pytest.fixture
def control(configured) -> Combined:
    return instantiate(configured.baseline.cluster_then_anneal)


@pytest.mark.parametrize(
    "system", [WorkConserving(), WorkConserving(queue="fifo"), BulkSynchronous()], ids=str
)
def test_the_control_is_its_parts_one_after_another(control, system):
    with system.open(PROBLEM) as session:
        found = control.place(session, np.random.default_rng(7))
        assert found.evaluations == session.evaluations == 500
    rng = np.random.default_rng(7)
    rng.integers(2**62)
    with system.open(PROBLEM) as session:
        clustered = Clustering(evaluations=100).place(session, rng)
        annealing = Annealing(
            evaluations=400,
            order=session.honours_order,
            starts=1,
            draws=1,
            **{key: search_settings().anneal[key] for key in ("hot", "cold")},
        )
        annealed = annealing.place(session, rng, initial=clustered.placement)
    assert annealed.makespan_s < clustered.makespan_s
    assert found.makespan_s == annealed.makespan_s
    assert found.placement.device.tolist() == annealed.placement.device.tolist()
    assert found.placement.priority.tolist() == annealed.placement.priority.tolist()


def test_the_control_of_a_problem_that_fits_nowhere_is_infeasible():
    four_results = graph_of([1.0] * 4, output_bytes=[1.0] * 4)
    small = build(four_results, cluster_of([1.0, 1.0], memory_bytes=1.5))
    method = Combined(
        evaluations=20,
        confirmations=0,
        steps=[PlaceAgain(make=Clustering, share=0.5), AnnealFromBest(hot=0.02, cold=0.001)],
    )
    with WorkConserving().open(small) as session:
        found = method.place(session, np.random.default_rng(0))
    assert math.isinf(found.makespan_s) and found.evaluations == 20
    assert found.placement.problem_hash == small.hash


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"evaluations": 0}, "Combined.evaluations: must be a whole number of at least 1, got 0"),
        ({"confirmations": None}, "Combined.confirmations: must be a whole number"),
        ({"steps": []}, "baseline.steps: there is none"),
    ],
)
def test_a_combination_that_makes_no_sense_is_refused(changes, line):
    good = {"evaluations": 5, "confirmations": 0, "steps": [AnnealFromBest(hot=1, cold=1)]}
    with pytest.raises(InputError) as error:
        Combined(**{**good, **changes})
    assert str(error.value).startswith(line)


# --- By name: what doppler.place uses is what the command line composes ---------------------------


def test_settings_are_those_that_the_command_line_composes(configured):
    assert search_settings() == configured.search
    assert methods() == ["auto", *sorted(configured.baseline)]


@pytest.mark.parametrize("budget", [Budget(evaluations=500), Budget(seconds=1.0)], ids=str)
def test_every_method_by_name_is_that_of_the_command_line(configured, budget):
    for name, cfg in configured.baseline.items():
        baseline, steps = instantiate(cfg), steps_of(name, budget)
        if isinstance(baseline, Combined):
            assert [type(step) for step in steps] == [type(step) for step in baseline.steps]
            assert [step.share for step in steps] == [step.share for step in baseline.steps]
            assert steps[-1] == baseline.steps[-1]
            continue
        (step,) = steps
        if isinstance(step, PlaceOnce):
            assert step.baseline == baseline
        elif isinstance(step, PlaceAgain):
            assert step.make(evaluations=500) == baseline
        else:
            assert isinstance(baseline, Annealing)
            assert (step.hot, step.cold) == (baseline.hot, baseline.cold)
    assert [type(step) for step in steps_of("auto", budget)] == [PlaceAgain, AnnealFromBest]


def test_a_list_scheduler_runs_no_more_often_than_the_budget_allows():
    for evaluations, runs in ((7, 7), (1000, 50)):
        (step,) = steps_of("etf", Budget(evaluations=evaluations))
        assert step.baseline.runs == runs


def test_an_unknown_method_is_told_what_there_is():
    with pytest.raises(InputError, match=r"^method: 'magic' is not one of policy, auto, annealing"):
        steps_of("magic", Budget(seconds=1.0))


def test_a_policy_that_has_not_trained_is_asked_for_its_greedy_placement_of_merged_ops_first():
    policy, view = load_policy(), make_view(PROBLEM)
    settings = search_settings()
    trained = policy_steps(settings, policy, view, trained=True)
    unseen = policy_steps(settings, policy, view, trained=False)
    assert [type(step) for step in trained] == [SampleEpisodes, AnnealFromBest]
    assert [type(step) for step in unseen] == [GreedyEpisode, SampleEpisodes, AnnealFromBest]
    assert trained[0].view is view
    merged = heavy_merged(view).arrays
    for step in unseen[:2]:
        for one, other in zip(step.view.arrays, merged, strict=True):
            np.testing.assert_array_equal(one, other)
    with WorkConserving().open(PROBLEM) as session:
        best = BestSoFar(session=session, confirmations=0, seed=0)
        search(unseen, best, Budget(evaluations=400), np.random.default_rng(0))
        assert best.evaluations == session.evaluations == 400
