"""Streams: what is told of them, controls on them, and a router that learns."""

from dataclasses import replace

import numpy as np
import pytest
from recorded_answers import write_answers

from doppler.extensions.programs.streams import (
    Always,
    BestFixed,
    Oracle,
    RandomMixture,
    Router,
    Stream,
    StreamSession,
    answers,
    play,
)
from doppler.support.errors import InputError


def stream_of(right, cost=(0.0, 1.0), **given) -> Stream:
    right = np.array(right, float)
    return Stream(
        backends=tuple(f"b{k}" for k in range(right.shape[2])),
        right=right,
        cost=np.array(cost),
        features=np.zeros((len(right), 0)),
        group=np.zeros(len(right), np.int64),
        **given,
    )


def played_by(stream, allocator, seed=0, order="random"):
    rng = np.random.default_rng(seed)
    return play(stream, stream.in_order(order, rng), allocator, rng)


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    return answers(path=str(write_answers(tmp_path_factory.mktemp("a") / "a.csv.gz"))).stream


# Right of (small, large): 00, 01, 10, 11.
TABLE = stream_of([[[0, 0]], [[0, 1]], [[1, 0]], [[1, 1]]])


def test_a_session_tells_the_outcome_of_what_was_run_and_of_nothing_else():
    session = StreamSession(TABLE, np.array([1, 2]))
    told = [(one.number, session.run(k)) for one, k in zip(session, (1, 1), strict=True)]
    assert told == [(0, 1.0), (1, 0.0)]
    played = session.played()
    assert (played.accuracy, played.mean_cost) == (0.5, 1.0)
    # What an allocator may look at: no array of outcomes is among it.
    public = [name for name in vars(session) if not name.startswith("_")]
    assert not any(getattr(session, name) is TABLE.right for name in public)


def test_an_input_is_run_once():
    session = StreamSession(TABLE, np.arange(4))
    next(iter(session))
    session.run(0)
    with pytest.raises(AssertionError):
        session.run(1)


@pytest.mark.parametrize(
    ("allocator", "accuracy", "cost"),
    [
        (Always(which="cheapest"), 0.5, 0.0),
        (Always(which="dearest"), 0.5, 1.0),
        (RandomMixture(share=0.0), 0.5, 0.0),
        (RandomMixture(share=1.0), 0.5, 1.0),
        (BestFixed(price=0.1), 0.5, 0.0),  # of equal ones the cheaper
        (Oracle(), 0.75, 0.25),
        (Oracle(price=2.0), 0.5, 0.0),
        (Oracle(share=0.2), 0.5, 0.0),
    ],
)
def test_controls_on_a_table_that_can_be_counted(allocator, accuracy, cost):
    played = played_by(TABLE, allocator)
    assert (played.accuracy, played.mean_cost) == (accuracy, cost)
    assert sorted(played.order) == [0, 1, 2, 3]


def test_modules_rely_on_each_other():
    # Two modules: the second is right only where it runs on backend 1.
    stream = stream_of([[[1, 1], [0, 1]]] * 3)
    assert played_by(stream, Always(which="cheapest")).accuracy == 0.0
    fixed = played_by(stream, BestFixed(price=0.1))
    assert fixed.choice.tolist() == [[0, 1]] * 3
    assert (fixed.accuracy, fixed.mean_cost) == (1.0, 0.5)


def test_no_program_beats_the_oracle_at_its_cost():
    rng = np.random.default_rng(3)
    for _ in range(20):
        stream = stream_of(rng.random((30, 2, 3)) < 0.5, cost=(0.0, 0.3, 1.0))
        for share in (0.1, 0.4, 1.0):
            known = played_by(stream, Oracle(share=share))
            assert known.mean_cost <= share + 1e-12
        best = played_by(stream, Oracle())
        for _ in range(20):
            choice_NM = rng.integers(0, 3, size=(30, 2))
            assert stream.program_right(choice_NM).mean() <= best.accuracy


def test_orders_are_those_of_the_seed_and_groups_stay_together(questions):
    one, other = (questions.in_order("by_group", np.random.default_rng(s)) for s in (0, 0))
    assert np.array_equal(one, other)
    assert len(np.flatnonzero(np.diff(questions.group[one]))) == 1
    assert np.array_equal(questions.in_order("as_recorded", np.random.default_rng(0)), range(240))
    mixed = questions.in_order("random", np.random.default_rng(0))
    assert len(np.flatnonzero(np.diff(questions.group[mixed]))) > 50


def test_a_router_learns_whom_to_ask(questions):
    pytest.importorskip("sklearn")
    for seed in range(3):
        played = played_by(questions, Router(share=0.5), seed)
        late = slice(120, None)
        is_sum = questions.group[played.order] == 1
        assert abs(played.mean_cost - 0.5) < 0.06
        assert played.choice[late, 0][is_sum[late]].mean() > 0.8
        assert played.choice[late, 0][~is_sum[late]].mean() < 0.2


def test_a_router_keeps_its_share_and_repeats_itself(questions):
    pytest.importorskip("sklearn")
    for share in (0.0, 0.25, 1.0):
        one, again = (played_by(questions, Router(share=share), 1) for _ in range(2))
        assert abs(one.mean_cost - share) <= (0.06 if 0 < share < 1 else 0.0)
        assert np.array_equal(one.choice, again.choice)


def test_a_router_knows_no_outcome_that_was_not_run(questions):
    """What the other model would have said may be anything: the choices are the same."""
    pytest.importorskip("sklearn")
    played = played_by(questions, Router(), 2)
    hidden = questions.right.copy()
    n, chosen = played.order, played.choice[:, 0]
    hidden[n, 0, 1 - chosen] = np.random.default_rng(0).random(len(n))
    again = played_by(replace(questions, right=hidden), Router(), 2)
    assert np.array_equal(again.choice, played.choice)


def test_a_router_needs_scikit_learn(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"scikit-learn is not installed \(pip install '\.\["):
        Router()


def test_a_router_is_for_two_models():
    pytest.importorskip("sklearn")
    with pytest.raises(InputError, match="between two backends of one module"):
        played_by(stream_of([[[0, 1, 1]]], cost=(0.0, 0.5, 1.0)), Router())


BAD = {
    "prompt,small_right\nx,1\n": "no column large_right",
    "": "no questions",
    "prompt,small_right,large_right\n": "no questions",
    "prompt,small_right,large_right\nx,1,2\n": "question 1: large_right: expected 0 or 1, got '2'",
    "prompt,small_right,large_right\nx,1\n": "question 1: large_right: expected 0 or 1, got None",
    'prompt,small_right,large_right\n"x,1,1\n': "unexpected end of data",
    "small_right,large_right,prompt\n0,1,a, b\n": "question 1: more cells than there are columns",
    "prompt;small_right;large_right\na, b;0;1\n": "question 1: more cells than there are columns",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_file_is_refused_in_one_line(text, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=BAD[text]) as caught:
        answers(path=str(path))
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_damaged_compression_is_refused(tmp_path):
    path = write_answers(tmp_path / "a.csv.gz")
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InputError, match="damaged"):
        answers(path=str(path))
    with pytest.raises(InputError, match="No such file"):
        answers(path=str(tmp_path / "none.csv"))


def test_streams_that_count_outcomes_otherwise_are_not_equal():
    one = stream_of(np.ones((2, 2, 2)))
    digests = {one.digest, *(replace(one, **it).digest for it in ({"outcome": "mean"}, {}))}
    assert len({*digests, replace(one, by_module=True).digest}) == 3


def test_a_stream_of_nothing_is_refused():
    with pytest.raises(InputError, match="no inputs"):
        StreamSession(stream_of(np.zeros((0, 1, 2))), np.arange(0))
