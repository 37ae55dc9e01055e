"""Programs of several modules, streams whose best policy is known, and streams under load."""

import numpy as np
import pytest
from recorded_answers import write_answers

from doppler.extensions.programs.streams import (
    Always,
    RandomMixture,
    Router,
    Stream,
    StructuredReinforce,
    StructuredThompson,
    answers_program,
    play,
    synthetic_stream,
)
from doppler.extensions.programs.streams.load import Servers, UnderLoad, arrivals, simulated_latency
from doppler.support.errors import InputError


def two_kinds(num=3000) -> Stream:
    """Two modules: the dear backend is right only where the first feature is positive."""
    rng = np.random.default_rng(0)
    features = rng.choice([-1.0, 1.0], size=(num, 2, 1))
    right = np.full((num, 2, 2), 0.0)
    right[:, :, 0] = rng.random((num, 2)) < 0.5
    right[:, :, 1] = rng.random((num, 2)) < np.where(features[:, :, 0] > 0, 1.0, 0.5)
    return Stream(
        backends=("small", "large"),
        right=right,
        cost=np.array([0.0, 1.0]),
        features=features.reshape(num, -1),
        group=np.zeros(num, np.int64),
        by_module=True,
        outcome="mean",
    )


@pytest.mark.parametrize("make", [StructuredReinforce, StructuredThompson])
def test_each_module_learns_its_own_backend_from_the_reward_of_all(make):
    stream, rng = two_kinds(), np.random.default_rng(1)
    played = play(stream, np.arange(len(stream)), make(price=0.2), rng)
    late = slice(2000, None)
    positive = stream.features[late] > 0
    assert played.choice[late][positive].mean() > 0.85
    assert played.choice[late][~positive].mean() < 0.15
    mixed = play(stream, np.arange(len(stream)), RandomMixture(share=0.5), rng)
    assert played.accuracy > mixed.accuracy + 0.05


def test_programs_are_questions_of_one_subject_each_used_once(tmp_path):
    path = str(write_answers(tmp_path / "a.csv"))
    for outcome, expected in (("mean", (0.5, 1.0)), ("all", (0.5, 1.0))):
        stream = answers_program(path=path, repeats=1, outcome=outcome).stream
        assert (len(stream), stream.num_modules) == (80, 3)
        assert stream.features.shape == (80, 3 * 6)
        rng = np.random.default_rng(0)
        small, large = (
            play(stream, np.arange(80), Always(which=w), rng) for w in ("cheapest", "dearest")
        )
        assert small.accuracy < expected[0] and 0.8 < large.accuracy <= expected[1]
    assert len(answers_program(path=path).stream) == 3 * 80
    with pytest.raises(InputError, match="no subject has 500 questions"):
        answers_program(path=path, modules=500)


def test_a_router_comes_near_the_best_policy_of_a_synthetic_stream():
    pytest.importorskip("sklearn")
    stream = synthetic_stream(num_inputs=3000, seed=4).stream
    gain = stream.expected[:, 0, 1] - stream.expected[:, 0, 0] - 0.1
    rng = np.random.default_rng(0)

    def regret(allocator):
        played = play(stream, np.arange(3000), allocator, rng)
        return float((np.maximum(gain, 0.0) - np.where(played.choice[:, 0] == 1, gain, 0.0)).sum())

    learned = regret(Router(price=0.1))
    fixed = min(regret(Always(which=w)) for w in ("cheapest", "dearest"))
    assert 0.0 <= learned < 0.6 * fixed


def test_latencies_are_those_of_first_come_first_served():
    rng = np.random.default_rng(0)
    seconds_D = np.array([1.0, 1.0, 2.0])
    for num in (1, 40):
        arrival_N, device_N = arrivals(num, 2.0, rng), rng.integers(3, size=num)
        free_D, expected = np.zeros(3), []
        for at, d in zip(arrival_N, device_N, strict=True):
            free_D[d] = max(free_D[d], at) + seconds_D[d]
            expected.append(free_D[d] - at)
        assert np.allclose(simulated_latency(arrival_N, device_N, seconds_D), expected)


def test_who_sees_queues_waits_less():
    pytest.importorskip("sklearn")
    stream, servers = synthetic_stream(num_inputs=1500, seed=1).stream, Servers()
    assert (servers.capacity_per_s, servers.share) == (2.5, 0.2)
    order = np.arange(len(stream))
    latency = {}
    for sees in (False, True):
        rng = np.random.default_rng(0)
        arrival_N = arrivals(len(stream), 0.95 * servers.capacity_per_s, rng)
        served = UnderLoad(servers=servers, sees_queues=sees).serve(stream, order, arrival_N, rng)
        assert served.latency_s.min() >= 1.0 - 1e-9
        latency[sees] = served.latency_s.mean()
    assert latency[True] < latency[False]
