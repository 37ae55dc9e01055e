"""A placer: levels, what is learned of them, and doppler.Placer."""

import json
from dataclasses import replace

import numpy as np
import pytest

import doppler
from doppler.cluster import preset
from doppler.errors import InputError
from doppler.graph import synthetic
from doppler.placer import (
    LEVELS,
    LadderRecord,
    WhenToGoOn,
    cost_of,
    fixed_costs,
    hindsight_cost,
    read_records,
    record,
    replay,
    to_line,
)
from doppler.placer.features import FEATURES, problem_features, progress_features
from doppler.placer.stopping import Regression
from doppler.problem import build
from doppler.search import load_policy
from doppler.simulator import WorkConserving

NUM = len(LEVELS)


def graph_of(seed=0, num_ops=30, family="layered"):
    return synthetic(family=family, num_ops=num_ops, transfer_ratio=1.0, seed=seed)


@pytest.fixture(scope="module")
def recorded() -> LadderRecord:
    ticks = iter(range(10**9))
    problem = build(graph_of(), preset(name="p100x4"))
    policy, system = load_policy(), WorkConserving()
    return record("one", problem, system, policy, clock=lambda: float(next(ticks)))


def test_no_level_is_worse_than_the_one_below(recorded):
    assert all(np.diff(recorded.found_s) <= 0)
    assert recorded.bound_s <= recorded.found_s[-1]
    assert recorded.took_s == (1.0,) * NUM  # of a clock that counts how often it is asked


def test_records_are_read_as_they_were_written(recorded, tmp_path):
    path = tmp_path / "levels.jsonl"
    path.write_text(to_line(recorded) * 2)
    assert read_records(path) == [recorded, recorded]
    damaged = json.loads(to_line(recorded))
    damaged["took_s"] = damaged["took_s"][:2]
    path.write_text(to_line(recorded) + json.dumps(damaged))
    with pytest.raises(InputError, match=f"2: took_s: expected {NUM} numbers above 0"):
        read_records(path)


def test_features_do_not_depend_on_the_unit_of_seconds():
    problem = build(graph_of(), preset(name="mixed"))
    given = problem.arrays._replace(
        op_seconds=problem.arrays.op_seconds * 7,
        latency_s=problem.arrays.latency_s * 7,
        seconds_per_size=problem.arrays.seconds_per_size * 7,
    )
    slower = replace(problem, arrays=given)
    assert np.allclose(problem_features(problem), problem_features(slower))
    assert len(problem_features(problem)) == len(FEATURES)


def test_progress_knows_no_level_above():
    found_s = [4.0, 3.0, 2.0, 1.5, 1.2, 1.0]
    for at in range(NUM):
        changed = [*found_s[: at + 1], *(0.5,) * (NUM - at - 1)]
        assert np.array_equal(
            progress_features(found_s, 1.0, at), progress_features(changed, 1.0, at)
        )


def test_regression_is_that_of_all_examples_at_once():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 4)), rng.normal(size=30)
    one = Regression(4, ridge=0.5)
    for row, target in zip(x, y, strict=True):
        one.learn(row, target)
    at_once = np.linalg.solve(x.T @ x + 0.5 * np.eye(4), x.T @ y)
    assert np.isclose(one.foretell(x[0]), x[0] @ at_once)


def made_up(worth_it: bool, number: int) -> LadderRecord:
    """Wide graphs gain by the deepest level; narrow ones gain nothing after the first."""
    features = np.zeros(len(FEATURES))
    features[4] = 3.0 if worth_it else 0.0
    found = (2.0, 1.9, 1.8, 1.7, 1.6, 1.0) if worth_it else (2.0,) * NUM
    return LadderRecord(
        name=str(number),
        bound_s=0.5,
        known_s=0.5,
        before_s=0.0,
        features=tuple(features),
        found_s=found,
        took_s=(0.001, 0.01, 0.1, 0.3, 1.0, 10.0),
    )


def test_it_learns_which_problems_deserve_the_deepest_level():
    records = [made_up(number % 2 == 0, number) for number in range(200)]
    climbed = replay(records, WhenToGoOn(price=0.01), np.random.default_rng(0))
    late = [one for one in climbed[100:] if not one.was_asked]
    deserving = [one.is_whole for one in late if one.found_s[0] == 2.0 and len(one.found_s) > 1]
    height = [len(one.found_s) for one in climbed]
    own, deepest = cost_of("own", records, height), fixed_costs(records)[-1]
    assert all(deserving) and len(deserving) > 20
    assert own.loss < 0.01 and own.seconds < 0.75 * deepest.seconds
    asked = [one.was_asked for one in climbed]
    assert all(asked[:20]) and 0 < sum(asked[20:]) < 60
    assert sum(asked[20:110]) > sum(asked[110:])


def test_a_certificate_ends_it_even_where_the_deepest_is_asked():
    records = [replace(made_up(True, n), bound_s=1.9, known_s=1.9) for n in range(5)]
    climbed = replay(records, WhenToGoOn(), np.random.default_rng(0))
    assert [len(one.found_s) for one in climbed] == [2] * 5
    assert all(one.is_certain and not one.is_whole for one in climbed)


def test_hindsight_is_no_dearer_than_any_level():
    rng = np.random.default_rng(1)
    records = []
    for number in range(40):
        found = np.sort(1.0 + rng.random(NUM))[::-1]
        one = made_up(True, number)
        records.append(replace(one, found_s=tuple(found), took_s=tuple(rng.random(NUM) + 0.01)))
    for price in (0.003, 0.1, 1.0):

        def total(cost, price=price):
            return cost.loss * len(records) + price * cost.seconds

        best = total(hindsight_cost(records, price))
        assert all(best <= total(one) + 1e-9 for one in fixed_costs(records))


@pytest.fixture(scope="module")
def used():
    placer = doppler.Placer(price=0.05, seed=1)
    return placer, [placer.place(graph_of(seed), cluster="p100x4") for seed in range(2)]


def test_placer_places_as_place_does(used):
    placer, placed = used
    for one in placed:
        assert one.lower_bound_s <= one.makespan_s
        assert np.isclose(one.trace.makespan_s, one.makespan_s)
        assert one.problem.cluster.name == "p100x4"
        assert one.evaluations <= 100_000
    assert [climbed.was_asked for climbed in placer.history] == [True, True]
    assert placer.history[0].found_s[-1] == placed[0].makespan_s


def test_what_a_placer_knows_is_kept(used, tmp_path):
    placer, _ = used
    placer.save(tmp_path / "known.json")
    other = doppler.Placer()
    other.load(tmp_path / "known.json")
    other.save(tmp_path / "again.json")
    assert (tmp_path / "known.json").read_text() == (tmp_path / "again.json").read_text()
    (tmp_path / "bad.json").write_text('{"format": "doppler-placer", "version": 1, "problems": 1}')
    for bad, said in (("bad.json", "is missing|expected"), ("none.json", "No such file")):
        with pytest.raises(InputError, match=said):
            doppler.Placer().load(tmp_path / bad)
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(InputError, match="not a doppler-placer file"):
        doppler.Placer().load(tmp_path / "other.json")


def test_bad_prices_are_refused():
    with pytest.raises(InputError, match="price: must be a number above 0"):
        doppler.Placer(price=0.0)
    with pytest.raises(InputError, match="cluster 'nowhere': unknown"):
        doppler.Placer().place(graph_of(), cluster="nowhere")
