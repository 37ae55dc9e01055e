"""Stage I learns what its teacher decides, and keeps what the teacher used and found."""

from itertools import product

import numpy as np
import pytest
import torch
from problems import cluster_of, graph_of, problem_without_ties
from trainings import fit, greedy_s, make_policy, two_chains, weights_of

from doppler.baselines import CriticalPath, TaughtPlacement
from doppler.env import make_view
from doppler.policies import DualPolicy
from doppler.problem import Placement, Problem, build
from doppler.search import NO_PLACEMENT, Effort, ScoredPlacement
from doppler.simulator import WorkConserving
from doppler.support.errors import InputError
from doppler.training import Imitation, effort_of, found_of, save_checkpoint
from doppler.training.imitation import Plateau


def imitation(problem: Problem, **changes) -> Imitation:
    settings = {
        "policy": make_policy(0),
        "view": make_view(problem),
        "teacher": CriticalPath(evaluations=1),
        "episodes": 960,
        "batch_episodes": 16,
        "learning_rate": [1e-2, 1e-3],
        "network_rate": 0.2,
        "entropy": 1e-3,
        "seed": 0,
    }
    return Imitation(**{**settings, **changes})


def test_imitation_of_a_teacher_without_ties_ends_in_the_teachers_schedule(tmp_path):
    problem = problem_without_ties()
    rng = np.random.default_rng(0)
    op_BV, device_BV = CriticalPath(evaluations=1).decide(problem, 8, rng)
    assert (op_BV == op_BV[0]).all(), "the teacher has a choice"
    assert (device_BV == device_BV[0]).all(), "the teacher has a choice"
    assert len(np.unique(device_BV)) > 1, "all on one device shows nothing"
    module = imitation(problem)
    with WorkConserving().open(problem) as session:
        teacher_s = CriticalPath(evaluations=1).place(session, rng).makespan_s
    policy: DualPolicy = module.policy
    before = policy.follow(module.view, op_BV, device_BV).log_prob.mean()
    assert greedy_s(policy, problem) != teacher_s, "nothing is left to learn"
    fit(module, tmp_path)
    after = policy.follow(module.view, op_BV, device_BV).log_prob.mean()
    assert after > before + 3
    assert after > np.log(0.5)
    assert greedy_s(policy, problem) == teacher_s


def test_imitation_learns_a_teacher_that_draws_among_equal_devices(tmp_path):
    # Every partition of three equal ops is the same to the teacher: one decision, however named.
    problem = build(graph_of([1, 2, 3]), cluster_of([1.0] * 4))
    module = imitation(problem, episodes=480)
    fit(module, tmp_path)
    rng = np.random.default_rng(1)
    policy: DualPolicy = module.policy
    taught = policy.follow(module.view, *module.teacher.decide(problem, 16, rng))
    assert (taught.log_prob > np.log(0.5)).all()
    played = policy.rollout(module.view, 1, 0.0, rng)
    assert played.op.tolist() == [[2, 1, 0]]
    assert len(set(played.device[0].tolist())) == 3


def test_imitation_ends_when_nothing_more_is_learned_and_does_not_go_on(tmp_path):
    problem = problem_without_ties()
    last, ended = tmp_path / "last.ckpt", []
    for _ in range(2):  # the second one finds that the first one has ended
        module = imitation(problem, episodes=16_000, patience=5)
        fit(module, tmp_path, from_checkpoint=last if last.exists() else None)
        save_checkpoint(module.trainer, last)
        assert module.has_settled and module.plateau.mean > np.log(0.9)
        ended.append((module.global_step, weights_of(module)))
    (updates, weights), (again, same) = ended
    assert updates == again < module.num_updates / 2
    assert torch.equal(weights, same)


def test_imitation_is_sure_only_if_no_step_can_differ():
    """An episode whose probability is above a half takes the most likely choice in each step."""
    after = Plateau(mean=-5e-4)
    assert after.is_sure(300)
    assert not after.is_sure(10_000), "exp(-5): seven steps may be even"
    assert not Plateau(mean=-2e-3).is_sure(10)


def test_with_patience_rates_do_not_rise():
    with pytest.raises(InputError, match=r"first rate must not be less than the last, got \[0\.0"):
        imitation(two_chains(), patience=5, learning_rate=[0.001, 0.01])


def test_imitation_in_its_own_episodes_ends_in_the_teachers_schedule_too(tmp_path):
    problem = problem_without_ties()
    module = imitation(problem, exploration=1.0, episodes=960)
    explored = NotedExploration(module.policy)
    taught = module.teacher.decide(problem, 1, np.random.default_rng(0))
    before = module.policy.follow(module.view, *taught).log_prob
    fit(module, tmp_path)
    after = module.policy.follow(module.view, *taught).log_prob
    assert after > max(before + 3, np.log(0.5))
    steps = np.arange(module.num_updates) / module.num_updates
    assert explored.shares == pytest.approx(list(1.0 - steps)), "from 1 to 0"


def test_advice_that_the_policy_cannot_see_is_refused(tmp_path):
    """It sees ops that can start first: not those that wait for op 0, of the longest paths."""
    graph = graph_of([1, *[2] * 80, *[40] * 100], [(0, v, 10_000) for v in range(81, 181)])
    problem = build(graph, cluster_of([1.0, 1.0]))
    module = imitation(problem, exploration=1.0)
    with pytest.raises(InputError, match=r"^algorithm.imitation.exploration: .* too many ops are"):
        fit(module, tmp_path)


class NotedExploration:
    """Notes how much the episodes of a policy explore."""

    def __init__(self, policy: DualPolicy) -> None:
        self.shares, play = [], policy.rollout

        def rollout(view, num_episodes, explore, rng):
            self.shares.append(explore)
            return play(view, num_episodes, explore, rng)

        policy.rollout = rollout


def test_a_teacher_of_one_placement_cannot_advise_other_episodes():
    problem = problem_without_ties()
    placement = Placement.make(problem, [0, 1, 1, 2, 0, 2, 1, 0])
    with pytest.raises(InputError, match=r"^algorithm\.imitation\.exploration: only .*not Taught"):
        imitation(problem, exploration=1.0, teacher=TaughtPlacement.of(problem, placement))


def test_imitation_of_one_placement_makes_it_the_greedy_one(tmp_path):
    problem = problem_without_ties()
    # The last op has the smallest priority: it waits for its producers all the same.
    placement = Placement.make(problem, [0, 1, 1, 2, 0, 2, 1, 0], [1, 4, 2, 5, 3, 7, 6, 0])
    module = imitation(problem, teacher=TaughtPlacement.of(problem, placement), episodes=2880)
    policy: DualPolicy = module.policy
    rng = np.random.default_rng(0)
    taught = module.teacher.decide(problem, 1, rng)
    before = policy.follow(module.view, *taught).log_prob
    fit(module, tmp_path)
    assert policy.follow(module.view, *taught).log_prob > max(before + 3, np.log(0.5))
    played = policy.rollout(module.view, 1, 0.0, rng)
    assert played.op.tolist() == [[0, 2, 4, 1, 3, 6, 5, 7]]
    assert played.placements()[0].tolist() == [placement.device.tolist()]


def test_entropy_is_worth_less_and_less(tmp_path):
    problem = problem_without_ties()
    losses, changes = [], {"episodes": 96, "learning_rate": [1e-3, 1e-3]}
    for entropy, steps in product((0.0, 2.0), (0, 3)):
        module = imitation(problem, entropy=0.0, **changes)
        if steps:
            fit(module, tmp_path, steps=steps)
        module.entropy = entropy
        losses.append(module.training_step(0, 0).item())
        taught = module.policy.follow(module.view, *module.teacher.decide(problem, 1, module.rng))
        log_prob_B, entropy_B = module.policy.log_prob(module.view, taught)
        if entropy == 0:
            assert losses[-1] == pytest.approx(-log_prob_B.item() / problem.num_ops, rel=1e-5)
        else:
            bonus = 2.0 * (0.5 if steps else 1.0) * entropy_B.item() / problem.num_ops
            assert bonus > 0.01
            assert losses[-1] == pytest.approx(losses[-3] - bonus)


def test_what_the_teacher_used_is_counted_and_survives_the_checkpoint(tmp_path):
    problem = two_chains()
    found = ScoredPlacement(Placement.make(problem, [0, 1, 1, 0, 0, 0, 1, 1, 0]), 9.5)
    module = imitation(problem, episodes=32, inherited=(Effort(70, 1000.0), found))
    trainer = fit(module, tmp_path)
    assert 1000 < module.elapsed_s < 2000
    save_checkpoint(trainer, tmp_path / "last.ckpt")
    kept = found_of(tmp_path / "last.ckpt", problem)
    assert kept.placement is not None
    assert kept.placement.device.tolist() == found.placement.device.tolist()
    assert kept.seconds == module.best_s == 9.5
    assert found_of(tmp_path / "last.ckpt", problem_without_ties()) == NO_PLACEMENT
    effort = effort_of(tmp_path / "last.ckpt")
    assert (effort.evaluations, effort.seconds) == (70, module.elapsed_s)


def test_imitation_counts_whole_batches():
    module = imitation(two_chains(), episodes=100, batch_episodes=16)
    assert (module.num_updates, module.num_episodes) == (6, 96)
    assert imitation(two_chains(), episodes=3, batch_episodes=16).num_updates == 1


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("batch_episodes", 0, "must be a whole number of at least 1"),
        ("entropy", -1.0, "must be a number of at least 0"),
        ("exploration", -1.0, "must be a number from 0 to 1"),
        ("learning_rate", 1e-3, "must be two numbers"),
    ],
)
def test_what_imitation_cannot_do_is_refused_by_name(key, value, message):
    with pytest.raises(InputError, match=rf"^Imitation\.{key}: {message}"):
        imitation(two_chains(), **{key: value})


@pytest.mark.parametrize(
    ("state", "value", "patience", "expected"),
    [
        (Plateau(), -3.0, 2, Plateau(-3.0, -3.0, 0, 0)),  # the first one
        (Plateau(-3.0, -3.0, 1, 1), -1.0, 2, Plateau(-2.6, -2.6, 0, 1)),  # rises
        (Plateau(-2.0, -1.0, 0, 0), -2.0, 2, Plateau(-2.0, -1.0, 1, 0)),  # waits
        (Plateau(-2.0, -1.0, 1, 0), -2.0, 2, Plateau(-2.0, -1.0, 0, 1)),  # has waited: falls
        (Plateau(-1.0, -1.0, 0, 0), -0.9999, 5, Plateau(-0.99998, -1.0, 1, 0)),  # by too little
    ],
)
def test_a_likelihood_that_does_not_rise_for_long_lets_the_rate_fall(
    state, value, patience, expected
):
    assert state.after(value, patience) == pytest.approx(expected)
