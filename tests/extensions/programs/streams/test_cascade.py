"""Cascades: models that learn online from an expert, and when each of them defers."""

import numpy as np
import pytest

from doppler.extensions.programs.streams import (
    Always,
    Cascade,
    LabelledStream,
    Oracle,
    Router,
    digits,
    play,
)
from doppler.extensions.programs.streams.online_models import OnlineLogistic, OnlineNet
from doppler.support.errors import InputError

COST = np.array([0.001, 0.01, 1.0])


def blobs(num=600, seed=0, classes=3) -> LabelledStream:
    """Points about the corners of a triangle, which any model learns."""
    rng = np.random.default_rng(seed)
    label = rng.integers(classes, size=num)
    corner = 3.0 * rng.normal(size=(classes, 4))
    points = corner[label] + 0.3 * rng.normal(size=(num, 4))
    return LabelledStream(features=points, label=label, expert=label, cost=COST)


def played_by(stream, cascade, seed=0, order="random"):
    rng = np.random.default_rng(seed)
    return play(stream, stream.in_order(order, rng), cascade, rng)


def test_a_cascade_learns_to_leave_its_expert_alone():
    played = played_by(blobs(), Cascade(price=0.2))
    late = slice(300, None)
    assert (played.choice[:20] == 2).mean() > 0.5
    assert (played.choice[late] == 2).mean() < 0.1
    assert played.right[late].mean() > 0.98


def test_what_ran_is_paid_for():
    played = played_by(blobs(), Cascade(price=0.2, asks=0.0, least=0.0))
    paid = np.array([0.001, 0.011, 1.011])[played.choice[:, 0]]
    assert np.allclose(played.cost, paid)
    outright = played_by(blobs(), Cascade(price=0.2, asks=1.0, decay=1.0))
    assert np.all(outright.cost == 1.0) and np.all(outright.choice == 2)


def test_who_never_trusts_a_model_is_as_right_as_the_expert():
    stream = blobs()
    wrong = stream.expert.copy()
    wrong[::7] = (wrong[::7] + 1) % 3
    stream = LabelledStream(features=stream.features, label=stream.label, expert=wrong, cost=COST)
    played = played_by(stream, Cascade(fixed=(1.0, 1.0), asks=1.0))
    assert (played.choice == 2).mean() > 0.9
    asked = played.choice[:, 0] == 2
    agrees = (wrong == stream.label)[played.order]
    assert np.array_equal(played.right[asked] == 1.0, agrees[asked])


def test_dear_experts_are_asked_less():
    cost = [played_by(blobs(), Cascade(price=price)).mean_cost for price in (0.02, 0.3, 3.0)]
    assert cost[0] > cost[1] >= cost[2]


def test_expert_answers_that_were_not_asked_for_change_nothing():
    stream = blobs()
    played = played_by(stream, Cascade(price=0.2), 1)
    hidden = stream.expert.copy()
    unasked = played.order[played.choice[:, 0] != 2]
    hidden[unasked] = (hidden[unasked] + 1) % 3
    other = LabelledStream(features=stream.features, label=stream.label, expert=hidden, cost=COST)
    again = played_by(other, Cascade(price=0.2), 1)
    assert len(unasked) > 100
    assert np.array_equal(again.choice, played.choice)
    assert np.array_equal(again.right, played.right)


@pytest.mark.parametrize("kind", ["logistic", "net"])
def test_models_learn_what_can_be_learned(kind):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40, 4))
    label = x[:, :3].argmax(axis=1)
    model = OnlineLogistic(4, 3) if kind == "logistic" else OnlineNet(4, 3, rng)

    def loss():
        return -np.mean([np.log(model.shares(row)[k]) for row, k in zip(x, label, strict=True)])

    before = loss()
    for _ in range(300):
        model.learn(x, label)
    assert loss() < 0.6 * before
    assert np.isclose(model.shares(x[0]).sum(), 1.0)


def test_net_gradients_are_those_of_differences():
    rng = np.random.default_rng(0)
    x, label = rng.normal(size=(5, 4)), rng.integers(3, size=5)

    def loss_of(net):
        return -np.mean([np.log(net.shares(row)[k]) for row, k in zip(x, label, strict=True)])

    for which in ("_into", "_out"):
        net = OnlineNet(4, 3, np.random.default_rng(2), hidden=6, rate=1e-6)
        weight = getattr(net, which)
        start = weight.weight.copy()
        net.learn(x, label)
        stepped = np.sign(start - weight.weight)  # AdaGrad's first step has the gradient's sign
        fresh = OnlineNet(4, 3, np.random.default_rng(2), hidden=6)
        for i, j in ((0, 0), (2, 1), (4, 2)):
            entry = getattr(fresh, which).weight
            low = loss_of(fresh)
            entry[i, j] += 1e-5
            slope = (loss_of(fresh) - low) / 1e-5
            entry[i, j] -= 1e-5
            if abs(slope) > 1e-3:
                assert stepped[i, j] == np.sign(slope)


def test_bad_thresholds_and_other_methods_are_refused():
    with pytest.raises(InputError, match="fixed: must be 2 numbers, got 1"):
        Cascade(fixed=(0.5,))
    pytest.importorskip("sklearn")
    for method in (Always(which="cheapest"), Oracle(), Router()):
        with pytest.raises(InputError, match=f"method={method.name}: cannot play"):
            played_by(blobs(), method)


def test_digits_are_those_of_scikit_learn():
    pytest.importorskip("sklearn")
    stream = digits().stream
    assert (len(stream), stream.num_classes) == (1258, 10)
    assert (stream.expert == stream.label).mean() > 0.97
    assert digits().digest == digits().digest != digits(taught=0.4).digest
