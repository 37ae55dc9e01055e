"""Graphs of thousands of ops: which candidates are seen, and gradients of sampled steps."""

import numpy as np
import pytest
import torch
from problems import cluster_of, random_problem
from test_dual import SMALL, assert_possible, make_policy, replayed

from doppler.cluster import preset
from doppler.env import make_episode, make_view, merged
from doppler.env.episode import NUM_CANDIDATES
from doppler.env.episode_kernels import place, queued_start, reset
from doppler.env.problem_view import LARGE
from doppler.graph.synthetic import synthetic
from doppler.policies import Decisions, DualPolicy
from doppler.policies.dual_rollout import MAX_CANDIDATES_IN_LARGE
from doppler.problem import Problem, build
from doppler.simulator.link_kernels import try_start

MOST_STEPS = DualPolicy.most_steps


def large_problem(family: str, num_ops: int = 1300) -> Problem:
    """Devices of two speeds, the last of which is slower to reach."""
    graph = synthetic(family=family, num_ops=num_ops, transfer_ratio=1.0, seed=3)
    rate = np.array([[1, 2, 1], [2, 1, 1], [1, 1, 1]]) * 1e9
    problem = build(graph, cluster_of([1e12, 1e12, 2e12], bytes_per_s=rate))
    assert problem.num_ops > LARGE
    return problem


class PlainProcess:
    """When candidates could start, without contention, in plain numpy."""

    def __init__(self, view) -> None:
        self.p, self.w = view.problem.arrays, view.arrays
        num_ops, num_devices = self.p.op_seconds.shape
        self.free = np.zeros(num_devices)
        self.ready = np.zeros((num_ops, num_devices))
        self.left = np.diff(self.p.read_ptr)
        self.home = np.full(num_ops, -1)
        self.candidates = set(np.flatnonzero(self.left == 0).tolist())

    def first(self, num: int) -> set[int]:
        """The candidates that can start earliest."""
        ops = np.array(sorted(self.candidates))
        start = np.maximum(self.free, self.ready[ops])
        home = self.home[self.w.group[ops]]
        elsewhere = (home[:, None] >= 0) & (home[:, None] != np.arange(len(self.free)))
        earliest = np.where(elsewhere, np.inf, start).min(axis=1)
        return set(ops[np.lexsort((ops, -self.w.b_level[ops], earliest))][:num].tolist())

    def place(self, v: int, d: int) -> None:
        """Op v starts on device d as early as it can."""
        p = self.p
        self.candidates.remove(v)
        self.free[d] = max(self.free[d], self.ready[v, d]) + p.op_seconds[v, d]
        self.home[self.w.group[v]] = d
        for r in range(p.region_ptr[v], p.region_ptr[v + 1]):
            move = p.latency_s[d] + p.size[r] * p.seconds_per_size[d]
            move[d] = 0.0
            for c in p.consumers[p.consumer_ptr[r] : p.consumer_ptr[r + 1]].tolist():
                self.ready[c] = np.maximum(self.ready[c], self.free[d] + move)
                self.left[c] -= 1
                if self.left[c] == 0:
                    self.candidates.add(c)


@pytest.mark.parametrize("family", ["tree", "butterfly", "elimination"])
@pytest.mark.parametrize("grouped", [False, True])
def test_the_candidates_that_can_start_earliest_are_seen(family, grouped):
    problem = large_problem(family)
    view = make_view(problem)
    if grouped:
        view = merged(view, least_weight_s=0.0, cap_s=5 * view.arrays.mean_op_s)
    decisions = make_policy().rollout(view, 1, 0.2, np.random.default_rng(0))
    assert_possible(problem, decisions)
    record, process, wide = decisions.record, PlainProcess(view), 0
    recorded = dict(zip(record.step[0].tolist(), range(MOST_STEPS), strict=True))
    steps = zip(decisions.op[0].tolist(), decisions.device[0].tolist(), strict=True)
    for t, (v, d) in enumerate(steps):
        if t in recorded:
            first, end = record.candidate_ptr[0, recorded[t] : recorded[t] + 2]
            expected = process.first(MAX_CANDIDATES_IN_LARGE)
            assert set(record.candidate_op[0, first:end].tolist()) == expected
            wide += len(process.candidates) > MAX_CANDIDATES_IN_LARGE
        process.place(v, d)
    assert wide > 100


def test_a_followed_op_that_would_not_have_been_seen_takes_the_place_of_the_last():
    problem = large_problem("tree")
    view, policy = make_view(problem), make_policy()
    by_number = np.argsort(view.arrays.depth, kind="stable")[None]
    followed = policy.follow(view, by_number, np.zeros_like(by_number))
    record = followed.record
    assert followed.op.tolist() == by_number.tolist()
    assert np.diff(record.candidate_ptr[0, : MOST_STEPS + 1]).max() == MAX_CANDIDATES_IN_LARGE
    chosen = record.candidate_op[0, record.chosen[0, :MOST_STEPS]]
    assert chosen.tolist() == by_number[0, record.step[0]].tolist()


@pytest.mark.parametrize("name", ["h100x8", "ethernet_4x1"])
def test_remembered_starts_are_those_asked_anew(name):
    graph = synthetic(family="butterfly", num_ops=60, transfer_ratio=3.0, seed=1)
    problem = build(graph, preset(name=name))
    p, w, rng = problem.arrays, make_view(problem).arrays, np.random.default_rng(0)
    episode, remembered = make_episode(p, w), 0
    reset(p, episode)
    for _ in range(problem.num_ops):
        num = episode.status[NUM_CANDIDATES]
        for v in episode.candidates[:num].tolist():
            for d in rng.permutation(problem.num_devices)[: rng.integers(3)].tolist():
                is_known = episode.on_device[v, d]["asked"] >= episode.queues.changed[d]
                remembered += bool(is_known)
                expected = try_start(p, episode.queues, v, d)
                assert queued_start(p, episode, v, d) == expected
        place(p, w, episode, int(rng.integers(num)), int(rng.integers(problem.num_devices)))
    assert name != "h100x8" or remembered > 20


# --- Sampled steps ------------------------------------------------------------------------------


class Sampling(DualPolicy):
    """It records six steps of an episode."""

    most_steps = 6


def sampled_and_exact(view, seed: int) -> tuple[Decisions, Decisions, DualPolicy, DualPolicy]:
    """An episode, recorded in part and as a whole, and the policies that recorded it so."""
    exact = make_policy(sharpness=10.0)
    policy = Sampling(**SMALL)
    policy.load_state_dict(exact.state_dict())
    played = policy.rollout(view, 4, None, np.random.default_rng(seed))
    return played, exact.follow(view, played.op, played.device), policy, exact


def gradients(policy: DualPolicy, view, decisions: Decisions) -> np.ndarray:
    """Of log-probabilities and entropies, in a row."""
    policy.zero_grad()
    log_prob_B, entropy_B = policy.log_prob(view, decisions)
    (log_prob_B.sum() + 0.5 * entropy_B.sum()).backward()
    found = [p.grad.flatten().numpy() for p in policy.parameters() if p.grad is not None]
    return np.concatenate(found)


@pytest.mark.slow
def test_sampled_steps_have_the_gradient_of_all_steps_in_the_mean():
    view = make_view(random_problem(2, num_ops=20, num_devices=3))
    differences, values = [], []
    for seed in range(300):
        sampled, whole, policy, exact = sampled_and_exact(view, seed)
        np.testing.assert_array_equal(sampled.log_prob, whole.log_prob)
        assert sampled.record.device_x.shape[1] == 7
        differences.append(gradients(policy, view, sampled) - gradients(exact, view, whole))
        values.append((replayed(policy, view, sampled) - whole.log_prob).mean())
    for sample in (np.stack(differences), np.array(values)[:, None]):
        error = sample.std(axis=0) / np.sqrt(len(sample))
        assert error.max() > 1e-3, "it is a sample"
        z = sample.mean(axis=0)[error > 1e-6] / error[error > 1e-6]
        assert (z**2).mean() < 2.0
        assert np.abs(z).max() < 5.0


def test_every_step_is_sampled_and_others_with_other_weights():
    view = make_view(random_problem(2, num_ops=20, num_devices=3))
    steps = {
        int(t) for seed in range(20) for t in sampled_and_exact(view, seed)[0].record.step.flat
    }
    assert steps == set(range(20))
    played, _, policy, _ = sampled_and_exact(view, 0)
    followed = [policy.follow(view, played.op, played.device).record.step for _ in range(2)]
    np.testing.assert_array_equal(*followed)
    with torch.no_grad():
        policy.plc_out.weight.mul_(2.0)
    later = policy.follow(view, played.op, played.device).record.step
    assert (later != followed[0]).any()


def test_what_is_recorded_of_an_episode_has_a_largest_size():
    view = make_view(large_problem("layered", 4000))
    policy = make_policy()
    record = policy.rollout(view, 1, None, np.random.default_rng(0)).record
    assert record.step.shape == (1, MOST_STEPS)
    assert record.device_x.shape[1] == MOST_STEPS + 1
    assert record.candidate_x.shape[1] <= 64 * (MOST_STEPS + 1)
    assert policy.rollout(view, 1, 0.0, np.random.default_rng(0)).record.device_x.shape[1] == 1


def test_greedy_episodes_are_recorded_when_someone_asks():
    view, policy = make_view(random_problem(2, num_ops=20, num_devices=3)), make_policy()
    greedy = policy.rollout(view, 2, 0.0, np.random.default_rng(0))
    assert greedy.record.step.size == 0
    np.testing.assert_allclose(replayed(policy, view, greedy), greedy.log_prob, atol=1e-4)
