"""Methods by name, and the control: clustering, then annealing from its best."""

import math
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from problems import cluster_of, graph_of, random_placement, random_problem

from doppler.baselines import Annealing, Clustering, NearETF
from doppler.env import MANY_OPS, make_view, mergings
from doppler.problem import build
from doppler.search import (
    AnnealFromBest,
    AnnealOnEstimates,
    Budget,
    Combined,
    Evaluator,
    GreedyEpisode,
    InParts,
    PlaceAgain,
    PlaceOnce,
    load_policy,
    methods,
    policy_steps,
    search,
    search_settings,
    steps_of,
)
from doppler.simulator import BulkSynchronous, WorkConserving
from doppler.support.errors import InputError
from doppler.support.resources import resource


@dataclass(frozen=True)
class Spied:
    """A baseline whose results are noted."""

    baseline: Any
    results: list

    def place(self, session, rng):
        self.results.append(self.baseline.place(session, rng))
        return self.results[-1]


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


@pytest.mark.parametrize("name", ["estimates_then_anneal", "cluster_then_anneal", "portfolio"])
@pytest.mark.parametrize("evaluations", [1, 2, 5, 16])
def test_a_control_finds_a_placement_however_few_executions_differ(configured, name, evaluations):
    conf = configured.baseline[name]
    with WorkConserving(noise=0.1).open(PROBLEM) as session:
        control = instantiate(conf, evaluations=evaluations)
        found = control.place(session, np.random.default_rng(0))
        assert math.isfinite(found.makespan_s)
        assert found.evaluations == session.evaluations <= evaluations


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"evaluations": 0}, "Combined.evaluations: must be a whole number of at least 1, got 0"),
        ({"confirmations": None}, "Combined.confirmations: must be a whole number"),
        ({"steps": []}, "baseline.steps: the list is empty"),
    ],
)
def test_a_combination_that_makes_no_sense_is_refused(changes, line):
    good = {"evaluations": 5, "confirmations": 0, "steps": [AnnealFromBest(hot=1, cold=1)]}
    with pytest.raises(InputError) as error:
        Combined(**{**good, **changes})
    assert str(error.value).startswith(line)


# --- Parts, and portfolios of them ----------------------------------------------------------------


@dataclass(frozen=True)
class Noting:
    """A step that notes what it is given."""

    share: float | None = None
    given: list = field(default_factory=list)
    repeats: ClassVar[bool] = True

    def search(self, best, evaluations, rng, *, walks=1):
        self.given.append((evaluations, int(rng.integers(2**62))))


@pytest.mark.parametrize(
    ("shares", "evaluations", "confirmations", "given"),
    [
        ([None, None], 10, 0, [5, 5]),
        ([None, None, None], 8, 0, [3, 3, 2]),
        ([0.5, None, None], 100, 0, [50, 25, 25]),
        ([None, 0.7], 10, 0, [3, 7]),
        ([0.2, 0.3], 10, 0, [2, 3]),
        ([None, None, None], 1, 0, [1, 0, 0]),
        ([None, None], 0, 0, [0, 0]),
        ([None, None, None], 14, 4, [7, 7, 0]),
        ([0.5, None, None, None], 22, 4, [12, 5, 5, 0]),
        ([None, None, None], 15, 4, [5, 5, 5]),
        ([None, None, None], 4, 4, [2, 1, 1]),
    ],
)
def test_parts_are_shares_and_equal_parts_of_what_these_leave(
    shares, evaluations, confirmations, given
):
    steps = [Noting(share) for share in shares]
    nothing: Any = SimpleNamespace(evaluations=0, confirmations=confirmations)
    InParts(steps=steps).search(nothing, evaluations, np.random.default_rng(0))
    assert [step.given[0][0] for step in steps] == given
    assert len({step.given[0][1] for step in steps}) == len(steps), "streams of their own"


@pytest.mark.parametrize("evaluations", [60, 100, 140])
def test_list_schedulers_run_where_each_has_to_be_confirmed(configured, evaluations):
    method = replace(instantiate(configured.baseline.list_then_anneal), evaluations=evaluations)
    ran = []
    for member in members(method.steps[:1]):
        make = member.make

        def noted(evaluations, make=make):
            return Spied(make(evaluations=evaluations), ran)

        object.__setattr__(member, "make", noted)
    with WorkConserving(noise=0.05).open(PROBLEM) as session:
        found = method.place(session, np.random.default_rng(0))
        assert found.evaluations == session.evaluations <= evaluations
    assert 0 < len(ran) <= evaluations // 25, "five executions each, of a fifth"


def test_a_baseline_for_which_too_few_are_left_is_left_out_unless_it_is_the_first():
    step = PlaceAgain(make=partial(Annealing, order=True, draws=4, hot=0.02, cold=1e-4))
    with WorkConserving().open(PROBLEM) as session:
        best = Evaluator(session=session, confirmations=0, seed=0)
        with pytest.raises(InputError, match="at least 4"):
            step.search(best, 3, np.random.default_rng(0))
        best.confirm(random_placement(PROBLEM, 0))
        step.search(best, 3, np.random.default_rng(0))
        assert best.evaluations == session.evaluations == 1


@pytest.mark.parametrize(
    ("steps", "line"),
    [([], "steps: the list is empty"), ([Noting(0.6), Noting(0.7)], "share: of one budget")],
)
def test_parts_that_make_no_sense_are_refused(steps, line):
    with pytest.raises(InputError, match=f"^{line}"):
        InParts(steps=steps)


def members(steps) -> list:
    return [
        one for step in steps for one in (members(step.steps) if hasattr(step, "steps") else [step])
    ]


@pytest.mark.parametrize("name", ["list_then_anneal", "portfolio"])
@pytest.mark.parametrize("evaluations", [1, 7, 500])
def test_a_portfolio_is_no_worse_than_any_member_with_its_evaluations(
    configured, name, evaluations
):
    """Of each member, what it finds alone with the evaluations and the stream that it has there."""
    method = replace(instantiate(configured.baseline[name]), evaluations=evaluations)
    kinds, alone = set(), []

    def noted(make):
        def making(evaluations):
            baseline = make(evaluations=evaluations)
            return Spied(baseline, alone)

        return making

    for member in members(method.steps[:1]):
        kinds.add(type(member.make(evaluations=1)).__name__)
        object.__setattr__(member, "make", noted(member.make))
    assert kinds >= {"ETF", "HEFT", "PEFT", "CPOP", "CriticalPath"}
    assert ("Clustering" in kinds) == (name == "portfolio")
    with WorkConserving(queue="priority").open(PROBLEM) as session:
        found = method.place(session, np.random.default_rng(3))
        assert found.evaluations == session.evaluations <= evaluations
        assert sum(result.evaluations for result in alone) == max(1, evaluations // 5)
        again = session.measure(found.placement.device[None], found.placement.priority[None])
    assert found.makespan_s <= min(result.makespan_s for result in alone)
    assert found.makespan_s == again.cost_s()[0]


def test_what_a_member_finds_does_not_depend_on_the_others(configured):
    lists = instantiate(configured.search.lists, _convert_="all")

    def found(steps, place: int) -> list:
        alone = []
        make = steps[place].make
        kept = [*steps]
        kept[place] = PlaceAgain(
            make=lambda evaluations: Spied(make(evaluations=evaluations), alone)
        )
        with WorkConserving().open(PROBLEM) as session:
            best = Evaluator(session=session, confirmations=0, seed=0)
            InParts(steps=kept).search(best, 8 * len(kept), np.random.default_rng(5))
        return [result.placement.device.tolist() for result in alone]

    assert found(lists, 2) == found([lists[3], lists[0], lists[2]], 2) != []


@pytest.mark.parametrize(
    "name", ["list_then_anneal", "portfolio", "etf", "etf_near", "etf_queued", "peft"]
)
def test_equal_seeds_find_equal_placements(configured, name):
    rows = []
    for seed in (1, 1, 2):
        with WorkConserving().open(PROBLEM) as session:
            method = instantiate(configured.baseline[name])
            found = method.place(session, np.random.default_rng(seed))
            assert found.evaluations == session.evaluations == 500
        rows.append(
            (found.makespan_s, found.placement.device.tolist(), found.placement.priority.tolist())
        )
    assert rows[0] == rows[1] != rows[2]


def test_the_share_before_annealing_is_an_option(configured):
    names = "cluster_then_anneal,list_then_anneal,portfolio"
    cfg = compose("config", [f"baseline=[{names}]", "search.share=0.5"])
    for method in cfg.baseline.values():
        assert instantiate(method).steps[0].share == 0.5


# --- By name: what doppler.place uses is what the command line composes ---------------------------


def test_settings_are_those_that_the_command_line_composes(configured):
    assert search_settings() == configured.search
    assert methods() == ["auto", *sorted(configured.baseline)]


@pytest.mark.parametrize("budget", [Budget(evaluations=500), Budget(seconds=1.0)], ids=str)
def test_every_method_by_name_is_that_of_the_command_line(configured, budget):
    for name, cfg in configured.baseline.items():
        baseline, steps = instantiate(cfg), steps_of(name)
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
    assert [type(step) for step in steps_of("auto")] == [InParts, AnnealFromBest]


def test_a_list_scheduler_runs_as_often_as_the_budget_allows():
    for evaluations in (7, 150):
        with WorkConserving().open(PROBLEM) as session:
            best = Evaluator(session=session, confirmations=0, seed=0)
            budget = Budget(evaluations=evaluations)
            search(steps_of("etf"), best, budget, np.random.default_rng(0))
            assert best.evaluations == session.evaluations == evaluations


def test_an_unknown_method_is_told_what_there_is():
    with pytest.raises(InputError, match=r"^method: 'magic' is not one of policy, auto, annealing"):
        steps_of("magic")


def test_a_policy_is_asked_for_its_greedy_placements_first():
    policy, view = load_policy(), make_view(PROBLEM)
    settings = search_settings()
    unseen = policy_steps(settings, policy, view)
    assert [type(step) for step in unseen] == [GreedyEpisode, AnnealOnEstimates, AnnealFromBest]
    assert [kind.merged for kind in unseen[1].drafts[:2]] == [False, True]
    others = ["clustering", "etf_queued", "etf"]
    assert [kind.name for kind in unseen[1].drafts[2:]] == others
    for seen, expected in zip(unseen[0].views, mergings(view), strict=True):
        for one, other in zip(seen.arrays, expected.arrays, strict=True):
            np.testing.assert_array_equal(one, other)
    with WorkConserving().open(PROBLEM) as session:
        best = Evaluator(session=session, confirmations=0, seed=0)
        search(unseen, best, Budget(evaluations=400), np.random.default_rng(0))
        assert best.evaluations == session.evaluations == 400


def test_of_many_ops_the_greedy_episode_is_a_draft():
    problem = random_problem(0, num_ops=MANY_OPS + 1, num_devices=3)
    steps = policy_steps(search_settings(), load_policy(), make_view(problem))
    assert steps[1].greedy is steps[0]
    assert policy_steps(search_settings(), load_policy(), make_view(PROBLEM))[1].greedy is None


def test_the_only_execution_is_of_what_estimates_choose():
    steps, sources = policy_steps(search_settings(), load_policy(), make_view(PROBLEM)), []
    for evaluations in (1, 2):
        with WorkConserving().open(PROBLEM) as session:
            best = Evaluator(session=session, confirmations=0, seed=0)
            after: list[str] = []
            search(
                steps,
                best,
                Budget(evaluations=evaluations),
                np.random.default_rng(0),
                after=lambda step, told=after, now=best: told.append(now.found.source),
            )
            assert best.evaluations == session.evaluations == evaluations
        sources.append(after[:2])
    assert sources[0][0] == "" and sources[0][1].endswith(", estimates")
    assert sources[1][0] == "greedy episode"


def test_what_is_slow_on_large_graphs_is_left_out_once_anything_was_executed(monkeypatch):
    monkeypatch.setattr(NearETF, "most_ops", 10)
    step = InParts(steps=[PlaceAgain(make=partial(NearETF))])
    with WorkConserving().open(PROBLEM) as session:
        best = Evaluator(session=session, confirmations=0, seed=0)
        step.search(best, 2, np.random.default_rng(0))
        assert best.evaluations == 2
        step.search(best, 2, np.random.default_rng(0))
        assert best.evaluations == 2
        monkeypatch.setattr(NearETF, "most_ops", PROBLEM.num_ops)
        step.search(best, 2, np.random.default_rng(0))
        assert best.evaluations == 4
