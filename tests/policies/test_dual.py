"""The dual policy: compiled rollouts against the batched replay, and what may be chosen."""

import copy
import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from new_weights import unlike_new
from plain_schedule import PlainQueues
from problems import cluster_of, graph_of, hosted_problem, random_problem
from scipy.stats import chi2

from doppler.env import make_view, merged
from doppler.env.scheduler_terms import SEL_INITIAL_WEIGHTS
from doppler.policies import Decisions, DualPolicy, dual
from doppler.policies.dual_rollout import MAX_CANDIDATES
from doppler.problem import build
from doppler.support.errors import InputError

SMALL = {
    "sel_hidden": 8,
    "plc_hidden": 8,
    "hidden": 8,
    "rounds": 2,
    "pairs": 4,
    "sel": "learned",
    "plc": "learned",
    "look_ahead": True,
}


def make_policy(seed: int = 0, *, sharpness: float = 1.0, **changes) -> DualPolicy:
    """Random weights where new ones are 0; with more sharpness choices are less even."""
    torch.manual_seed(seed)
    return unlike_new(DualPolicy(**{**SMALL, **changes}), 0.03 * sharpness)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def replayed(policy: DualPolicy, view, decisions: Decisions) -> np.ndarray:
    with torch.no_grad():
        return policy.log_prob(view, decisions)[0].numpy()


def assert_possible(problem, decisions: Decisions) -> None:
    """Every op once, producers first, on a device that runs it."""
    edges = problem.graph.edges
    device_BV, priority_BV = decisions.placements()
    for device_V, priority_V in zip(device_BV, priority_BV, strict=True):
        assert sorted(priority_V.tolist()) == list(range(problem.num_ops))
        assert (priority_V[edges.src] < priority_V[edges.dst]).all()
        assert np.isfinite(problem.arrays.op_seconds[np.arange(problem.num_ops), device_V]).all()


# --- Rollout and replay -------------------------------------------------------------------------

SIZES = [(1, 1), (1, 4), (2, 2), (7, 3), (15, 5), (40, 1), (40, 8)]


@pytest.mark.parametrize("explore", [None, 0.0, 0.3, 1.0])
@pytest.mark.parametrize(("num_ops", "num_devices"), SIZES)
def test_the_replay_finds_the_log_probabilities_of_the_rollout(num_ops, num_devices, explore):
    for seed in range(3):
        problem = random_problem(seed, num_ops=num_ops, num_devices=num_devices)
        view = make_view(problem)
        policy = make_policy(seed, sharpness=10.0)
        decisions = policy.rollout(view, 5, explore, generator(seed))
        assert_possible(problem, decisions)
        np.testing.assert_allclose(replayed(policy, view, decisions), decisions.log_prob, atol=1e-4)


@pytest.mark.parametrize("identical_devices", [False, True])
@pytest.mark.parametrize(("num_ops", "num_devices"), SIZES)
def test_the_replay_finds_the_log_probabilities_of_followed_decisions(
    num_ops, num_devices, identical_devices
):
    problem = random_problem(
        7, num_ops=num_ops, num_devices=num_devices, identical_devices=identical_devices
    )
    view = make_view(problem)
    policy, other = make_policy(0, sharpness=10.0), make_policy(1)
    taught = other.rollout(view, 4, None, generator())
    followed = policy.follow(view, taught.op, taught.device)
    np.testing.assert_array_equal(followed.op, taught.op)
    np.testing.assert_array_equal(followed.device, taught.device)
    np.testing.assert_allclose(replayed(policy, view, followed), followed.log_prob, atol=1e-4)


def test_following_its_own_decisions_a_policy_finds_the_same_log_probability_and_record():
    problem = random_problem(3, num_ops=20, num_devices=4)
    view, policy = make_view(problem), make_policy(sharpness=10.0)
    played = policy.rollout(view, 6, None, generator())
    followed = policy.follow(view, played.op, played.device)
    np.testing.assert_array_equal(followed.log_prob, played.log_prob)
    np.testing.assert_array_equal(followed.record.device_x, played.record.device_x)
    np.testing.assert_array_equal(followed.record.device_mask, played.record.device_mask)


def test_an_update_encodes_the_graph_once(monkeypatch):
    """Once it learns; the gradients are those of encoding anew, also after a change of weights."""
    view, policy, counted = make_view(random_problem(0)), make_policy(), []
    policy.bind(view)
    encode = policy.network.forward

    def count(*arguments):
        counted.append(torch.is_grad_enabled())
        return encode(*arguments)

    monkeypatch.setattr(policy.network, "forward", count)

    def gradients(decisions: Decisions) -> list[np.ndarray]:
        policy.zero_grad()
        policy.log_prob(view, decisions)[0].sum().backward()
        return [one.grad.numpy().copy() for one in policy.parameters() if one.grad is not None]

    played = policy.rollout(view, 4, None, generator())
    policy.rollout(view, 4, None, generator(1))
    assert counted == [False], "a policy that only plays keeps nothing for gradients"
    first = gradients(played)
    assert counted == [False, True]
    with torch.no_grad():
        policy.sel_out.weight.add_(0.0)  # an update, which changes nothing
    policy.rollout(view, 4, None, generator())
    again = gradients(played)
    assert counted == [False, True, True]
    assert all(np.array_equal(*pair) for pair in zip(first, again, strict=True))
    gradients(played)  # what gradients came from is gone
    assert counted == [False, True, True, True]
    copied = copy.deepcopy(policy)
    assert copied.rollout(view, 2, None, generator()).op.shape == (2, view.problem.num_ops)
    played = policy.rollout(view, 4, None, generator())
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.5)
    changed = gradients(policy.follow(view, played.op, played.device))
    assert any(not np.allclose(*pair) for pair in zip(first, changed, strict=True))


def test_log_probabilities_of_all_episodes_of_a_tiny_problem_sum_to_one():
    view, policy = make_view(tiny_problem()), make_policy(sharpness=10.0)
    op_BV, device_BV = all_episodes()
    total = np.exp(policy.follow(view, op_BV, device_BV).log_prob).sum()
    assert total == pytest.approx(1.0, abs=1e-5)


def test_entropy_is_that_of_the_distributions_along_the_episode():
    problem = build(graph_of([1, 1]), cluster_of([1.0, 2.0]))
    policy = make_policy(sharpness=0.0, scheduler=False)  # both heads even
    decisions = policy.rollout(make_view(problem), 3, None, generator())
    log_prob_B, entropy_B = policy.log_prob(make_view(problem), decisions)
    # Two candidates then one, two devices each time.
    assert entropy_B.tolist() == pytest.approx([3 * np.log(2)] * 3)
    assert log_prob_B.tolist() == pytest.approx([-3 * np.log(2)] * 3)


@pytest.mark.parametrize("explore", [None, 0.0])
def test_one_set_of_weights_serves_problems_of_any_size(explore):
    policy = make_policy(sharpness=10.0)
    for seed, (num_ops, num_devices) in enumerate(SIZES):
        problem = random_problem(seed, num_ops=num_ops, num_devices=num_devices)
        view = make_view(problem)
        decisions = policy.rollout(view, 2, explore, generator())
        assert decisions.op.shape == (2, num_ops)
        assert_possible(problem, decisions)
        np.testing.assert_allclose(replayed(policy, view, decisions), decisions.log_prob, atol=1e-4)


# --- Sampling -----------------------------------------------------------------------------------


def tiny_problem():
    """Three ops, the last one after the first; two unequal devices: 3 orders, 8 placements."""
    graph = graph_of([1, 2, 3], [(0, 2, 4)])
    return build(graph, cluster_of([1.0, 2.0], latency_s=1.0))


def all_episodes() -> tuple[np.ndarray, np.ndarray]:
    orders = [(0, 1, 2), (0, 2, 1), (1, 0, 2)]
    episodes = list(itertools.product(orders, itertools.product((0, 1), repeat=3)))
    return np.array([order for order, _ in episodes]), np.array([where for _, where in episodes])


def assert_frequencies(counted: dict, probability: dict, num: int) -> None:
    """Pearson's chi-square of what was drawn; cells too rare for it are put together."""
    assert sum(counted.values()) == num
    assert counted.keys() <= probability.keys()
    assert sum(probability.values()) == pytest.approx(1.0, abs=1e-5)
    cells = [(counted.get(key, 0), num * share) for key, share in probability.items()]
    common = [cell for cell in cells if cell[1] >= 5]
    rare = [cell for cell in cells if cell[1] < 5]
    assert sum(count for count, _ in rare) <= 5 * len(rare) + 10
    statistic = sum((count - expected) ** 2 / expected for count, expected in common)
    assert statistic < chi2.isf(1e-6, len(common)), cells


def episodes_of(decisions: Decisions) -> list[tuple]:
    return [
        (*op, *on) for op, on in zip(decisions.op.tolist(), decisions.device.tolist(), strict=True)
    ]


def test_episodes_are_sampled_with_the_probabilities_that_they_claim():
    view, policy = make_view(tiny_problem()), make_policy(2, sharpness=50.0)
    every = policy.follow(view, *all_episodes())
    probability = dict(zip(episodes_of(every), np.exp(every.log_prob), strict=True))
    assert max(probability.values()) > 2 * min(probability.values()), "an even policy shows nothing"
    sampled = policy.rollout(view, 20_000, None, generator())
    assert_frequencies(Counter(episodes_of(sampled)), probability, 20_000)


def test_exploring_always_is_uniform_over_what_may_be_chosen():
    view, policy = make_view(tiny_problem()), make_policy(2, sharpness=100.0)
    # Two candidates at first; after op 0 again two, after op 1 only op 0.
    orders = {(0, 1, 2): 1 / 4, (0, 2, 1): 1 / 4, (1, 0, 2): 1 / 2}
    probability = {
        (*order, *devices): share / 8
        for order, share in orders.items()
        for devices in itertools.product((0, 1), repeat=3)
    }
    explored = policy.rollout(view, 20_000, 1.0, generator())
    assert_frequencies(Counter(episodes_of(explored)), probability, 20_000)


@pytest.mark.parametrize("explore", [0.3, 0.9])
def test_exploring_at_times_takes_the_most_likely_choice_otherwise(explore):
    policy, num = make_policy(2, sharpness=100.0), 20_000
    # One op for three devices, then three ops for one device: one choice matters in each.
    for graph, speeds, chosen in (
        (graph_of([1]), [1.0, 2.0, 4.0], lambda decisions: decisions.device[:, 0]),
        (graph_of([1, 2, 3]), [1.0], lambda decisions: decisions.op[:, 0]),
    ):
        view = make_view(build(graph, cluster_of(speeds)))
        greedy = int(chosen(policy.rollout(view, 1, 0.0, generator()))[0])
        probability = {i: explore / 3 + (1 - explore) * (i == greedy) for i in range(3)}
        drawn = Counter(chosen(policy.rollout(view, num, explore, generator())).tolist())
        assert_frequencies(drawn, probability, num)


def test_greedy_is_the_same_whatever_the_random_numbers_and_the_most_likely_first_choice():
    problem = random_problem(5, num_ops=20, num_devices=4)
    view, policy = make_view(problem), make_policy(sharpness=10.0)
    greedy = policy.rollout(view, 4, 0.0, generator(1))
    again = policy.rollout(view, 1, 0.0, generator(2))
    for b in range(4):
        np.testing.assert_array_equal(greedy.op[b], again.op[0])
        np.testing.assert_array_equal(greedy.device[b], again.device[0])
    single = make_view(build(graph_of([1, 2, 3]), cluster_of([1.0])))
    orders = np.array(list(itertools.permutations(range(3))))
    log_prob = policy.follow(single, orders, np.zeros_like(orders)).log_prob
    first = {v: np.exp(log_prob[orders[:, 0] == v]).sum() for v in range(3)}
    assert policy.rollout(single, 1, 0.0, generator()).op[0, 0] == max(first, key=first.__getitem__)


@pytest.mark.parametrize("explore", [None, 0.3])
def test_the_same_random_numbers_give_the_same_decisions_on_any_number_of_threads(
    explore, monkeypatch
):
    view, policy = make_view(random_problem(4, num_ops=15, num_devices=3)), make_policy()
    results = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(dual, "num_threads", lambda threads=threads: threads)
        results.append(policy.rollout(view, 7, explore, generator(9)))
    for result in results[1:]:
        np.testing.assert_array_equal(result.op, results[0].op)
        np.testing.assert_array_equal(result.device, results[0].device)
        np.testing.assert_array_equal(result.log_prob, results[0].log_prob)
    other = policy.rollout(view, 7, explore, generator(10))
    assert not np.array_equal(other.op, results[0].op)


# --- Decisions ----------------------------------------------------------------------------------


def test_placements_give_each_op_its_device_and_its_rank():
    decisions = Decisions(
        op=np.array([[2, 0, 1], [0, 1, 2]]),
        device=np.array([[5, 6, 7], [1, 2, 3]]),
        log_prob=np.zeros(2),
        record=None,
    )
    device_BV, priority_BV = decisions.placements()
    assert device_BV.tolist() == [[6, 7, 5], [1, 2, 3]]
    assert priority_BV.tolist() == [[1, 2, 0], [0, 1, 2]]


def test_the_order_of_decisions_is_topological():
    for seed in range(10):
        problem = random_problem(seed)
        decisions = make_policy(seed).rollout(make_view(problem), 3, None, generator(seed))
        assert_possible(problem, decisions)


@pytest.mark.parametrize(
    ("op", "device"),
    [
        ([2, 0, 1], [0, 0, 0]),  # before its producer
        ([0, 0, 2], [0, 0, 0]),  # twice
        ([0, 1, 3], [0, 0, 0]),  # no such op
        ([0, 1, 2], [0, 2, 0]),  # no such device
        ([0, 1, 2], [0, -1, 0]),
        ([0, 1, 2], [0, 1, 0]),  # op 1 does not run on device 1
    ],
)
def test_impossible_decisions_are_refused_with_the_episode_that_holds_them(op, device):
    graph = graph_of([1, 2, 3], [(0, 2, 4)], kinds=["a", "b", "a"])
    problem = build(graph, cluster_of([1.0, 2.0], unsupported_kinds=[[], ["b"]]))
    fine = [0, 1, 2], [1, 0, 1]
    with pytest.raises(InputError) as error:
        make_policy().follow(
            make_view(problem), np.array([fine[0], op]), np.array([fine[1], device])
        )
    assert str(error.value) == (
        "decisions of episode 1: an op before its producers, or on a device that cannot run it"
    )


def test_more_candidates_than_the_first_guess_are_recorded():
    num_ops = 250  # all open at once: 250 + 249 + ... rows, the guess is 16 * 250
    view = make_view(build(graph_of([1] * num_ops), cluster_of([1.0, 2.0])))
    policy = make_policy()
    decisions = policy.rollout(view, 2, None, generator())
    seen = sum(min(MAX_CANDIDATES, left) for left in range(1, num_ops + 1))
    assert seen > 16 * num_ops
    assert decisions.record.candidate_ptr[:, -1].tolist() == [seen] * 2
    np.testing.assert_allclose(replayed(policy, view, decisions), decisions.log_prob, rtol=1e-5)
    again = policy.follow(view, decisions.op, decisions.device)
    np.testing.assert_array_equal(again.log_prob, decisions.log_prob)


# --- Masks --------------------------------------------------------------------------------------


def test_of_identical_empty_devices_only_the_first_may_be_chosen():
    view = make_view(build(graph_of([1] * 6), cluster_of([1.0] * 4)))
    decisions = make_policy().rollout(view, 20, None, generator())
    for b, t in itertools.product(range(20), range(6)):
        used = set(decisions.device[b, :t].tolist())
        allowed = np.flatnonzero(decisions.record.device_mask[b, t]).tolist()
        assert allowed == sorted(used | ({len(used)} if len(used) < 4 else set()))


def test_empty_devices_that_differ_may_all_be_chosen():
    view = make_view(build(graph_of([1, 1]), cluster_of([1.0, 2.0, 1.0, 2.0])))
    record = make_policy().rollout(view, 20, None, generator()).record
    assert (record.device_mask[:, 0] == [1, 1, 0, 0]).all()


def test_devices_that_cannot_run_an_op_may_not_be_chosen():
    cluster = cluster_of([1.0] * 3, unsupported_kinds=[["a"], ["b"], []])
    problem = build(graph_of([1] * 8, kinds=["a", "b"] * 4), cluster)
    view = make_view(problem)
    for explore in (None, 1.0, 0.0):
        played = make_policy().rollout(view, 20, explore, generator())
        decisions = make_policy().follow(view, played.op, played.device)  # recorded in any case
        mask_BVD = decisions.record.device_mask
        assert (mask_BVD[decisions.op % 2 == 0] == [0, 1, 1]).all()
        assert (mask_BVD[decisions.op % 2 == 1] == [1, 0, 1]).all()
        assert_possible(problem, decisions)


def test_another_of_several_identical_empty_devices_is_the_same_decision():
    problem = build(graph_of([1, 2, 3, 4], [(0, 2, 5), (1, 3, 5)]), cluster_of([1.0] * 4))
    view, policy = make_view(problem), make_policy(sharpness=10.0)
    op_BV = np.tile(np.arange(4), (3, 1))
    # The same partition of the ops, the devices named in the order of first use and otherwise.
    device_BV = np.array([[0, 1, 0, 2], [0, 2, 0, 3], [3, 1, 3, 0]])
    decisions = policy.follow(view, op_BV, device_BV)
    assert decisions.log_prob == pytest.approx([decisions.log_prob[0]] * 3, abs=1e-5)
    np.testing.assert_allclose(replayed(policy, view, decisions), decisions.log_prob, atol=1e-4)
    # What is in use stays open, and of the empty ones the taken one alone.
    assert decisions.record.device_mask[1].tolist() == [
        [1, 0, 0, 0],
        [1, 0, 1, 0],
        [1, 1, 1, 0],
        [1, 0, 1, 1],
    ]


# --- Gradients ----------------------------------------------------------------------------------


def test_gradients_reach_every_parameter_and_are_finite():
    problem = random_problem(1, num_ops=20, num_devices=4, costs="distinct")
    view = merged(make_view(problem), least_weight_s=0.0, cap_s=problem.scale_s / 3)
    policy = make_policy()
    decisions = policy.rollout(view, 8, None, generator())
    assert (decisions.record.device_mask == 0).any(), "masked choices must not spoil gradients"
    log_prob_B, entropy_B = policy.log_prob(view, decisions)
    weights_B = torch.linspace(-1, 1, 8)  # the mean of log-probabilities alone has less to say
    ((log_prob_B * weights_B).sum() + entropy_B.sum()).backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0, name


def test_a_step_along_the_gradient_makes_the_decisions_more_likely():
    view, policy = make_view(random_problem(2, num_ops=12, num_devices=3)), make_policy()
    decisions = policy.rollout(view, 1, None, generator())
    before = policy.log_prob(view, decisions)[0].sum()
    before.backward()
    torch.optim.SGD(policy.parameters(), lr=1e-3, maximize=True).step()
    after = policy.follow(view, decisions.op, decisions.device).log_prob[0]
    assert after > before.item()


# --- More candidates than SEL looks at ----------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_of_many_candidates_that_can_start_at_once_those_of_the_largest_b_levels_are_seen(seed):
    work = generator(seed).integers(1, 40, size=150)  # with ties
    problem = build(graph_of(work), cluster_of([1.0, 1.0]))
    view = make_view(problem)
    decisions = make_policy(seed, sharpness=5.0).rollout(view, 3, None, generator(seed))
    assert_possible(problem, decisions)
    record = decisions.record
    for b, op_V in enumerate(decisions.op):
        left = sorted(range(150), key=lambda v: (-work[v], v))
        for t, op in enumerate(op_V.tolist()):
            rows = slice(record.candidate_ptr[b, t], record.candidate_ptr[b, t + 1])
            assert set(record.candidate_op[b, rows].tolist()) == set(left[:MAX_CANDIDATES])
            left.remove(op)
    np.testing.assert_allclose(
        replayed(make_policy(seed, sharpness=5.0), view, decisions), decisions.log_prob, atol=1e-3
    )


def test_a_decision_that_would_not_have_been_seen_can_be_followed():
    problem = build(graph_of(np.arange(1, 101)), cluster_of([1.0, 1.0]))
    least_first = np.arange(100)[None]
    decisions = make_policy().follow(make_view(problem), least_first, np.zeros((1, 100), int))
    assert decisions.op.tolist() == least_first.tolist()
    seen = np.diff(decisions.record.candidate_ptr[0])
    assert seen[:37].tolist() == list(range(100, 63, -1)), "all, where the one taken is none of 64"


def test_episodes_are_played_with_the_weights_and_the_problem_of_the_moment():
    policy, other = make_policy(0), make_policy(1)
    views = [make_view(random_problem(seed, num_ops=12, num_devices=3)) for seed in (0, 1)]

    def played(policy, view) -> list[float]:
        return policy.rollout(view, 4, None, generator()).log_prob.tolist()

    def changed_by(change) -> bool:
        before = [played(policy, view) for view in views]
        change()
        after = [played(policy, view) for view in views]
        anew = copy.deepcopy(policy)
        anew._played_with = None
        assert after == [played(anew, view) for view in views]
        return all(one != other for one, other in zip(before, after, strict=True))

    def step() -> None:
        optimizer = torch.optim.Adam(policy.parameters(), lr=0.1)
        decisions = policy.rollout(views[0], 4, None, generator())
        policy.log_prob(views[0], decisions)[0].sum().backward()
        optimizer.step()

    def add() -> None:
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(0.1)

    assert not changed_by(lambda: None)
    assert changed_by(step)
    assert changed_by(lambda: policy.load_state_dict(other.state_dict()))
    assert changed_by(add)


def test_an_update_encodes_the_graph_once_also_with_episodes_beside_it(monkeypatch):
    policy, view = make_policy(0), make_view(random_problem(0, num_ops=40, num_devices=3))
    policy.log_prob(view, policy.rollout(view, 4, None, generator()))
    encoded = []
    parts_of = policy._static_parts
    monkeypatch.setattr(policy, "_static_parts", lambda view: encoded.append(1) or parts_of(view))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1)
    played = policy.rollout(view, 4, None, generator())
    with torch.no_grad():  # of these nothing is learned
        policy.rollout(view, 4, None, generator())
    policy.log_prob(view, played)
    assert len(encoded) == 1


def add_unseen(policy) -> None:
    """Change all weights in the way that torch does not count."""
    for parameter in policy.parameters():
        parameter.data.add_(torch.randn_like(parameter))


def test_placements_follow_weights_that_were_changed_through_data():
    policy, view = make_policy(0), make_view(random_problem(0, num_ops=40, num_devices=3))
    policy.log_prob(view, policy.rollout(view, 4, None, generator()))  # it is being trained
    averaged = copy.deepcopy(policy)  # as for a moving average of the weights

    def placed(policy, explore) -> list[list[int]]:
        return policy.rollout(view, 4, explore, generator()).device.tolist()

    for one, explore in ((policy, 0.0), (averaged, 0.0), (averaged, None)):
        before = placed(one, explore)
        add_unseen(one)
        after = placed(one, explore)
        assert before != after
        anew = copy.deepcopy(one)
        assert after == placed(anew, explore)


def test_of_many_candidates_those_that_can_start_earliest_are_seen():
    # Op 0 is on device 0. Eighty ops can start on device 1 at once; a hundred others, of larger
    # b_levels, only when op 0 has ended.
    work = [1, *[2] * 80, *[40] * 100]
    graph = graph_of(work, [(0, v, 10_000) for v in range(81, 181)])
    view = make_view(build(graph, cluster_of([1.0, 1.0])))
    op_BV = np.arange(181)[None]
    record = make_policy().follow(view, op_BV, np.where(op_BV == 0, 0, 1)).record
    rows = slice(record.candidate_ptr[0, 1], record.candidate_ptr[0, 2])
    assert set(record.candidate_op[0, rows].tolist()) == set(range(1, MAX_CANDIDATES + 1))


# --- Experts --------------------------------------------------------------------------------------


def only_experts(seed: int = 0, **changes) -> DualPolicy:
    """A policy whose learned part adds nothing."""
    torch.manual_seed(seed)
    return DualPolicy(**{**SMALL, **changes})


def test_with_nothing_learned_the_policy_is_a_list_scheduler_behind_queues():
    """Equal starts and ends apart: costs are distinct."""
    alone = [random_problem(seed, num_ops=30, num_devices=3, costs="distinct") for seed in range(6)]
    hosted = [hosted_problem(seed, costs="distinct") for seed in range(4)]
    for problem in alone + hosted:
        greedy = only_experts().rollout(make_view(problem), 1, 0.0, generator())
        followed = only_experts().follow(make_view(problem), greedy.op, greedy.device)
        record, queues = followed.record, PlainQueues(problem)
        mean_s = problem.mean_op_seconds.mean()
        for t, (v, d) in enumerate(
            zip(greedy.op[0].tolist(), greedy.device[0].tolist(), strict=True)
        ):
            rows = slice(record.candidate_ptr[0, t], record.candidate_ptr[0, t + 1])
            able = np.flatnonzero(np.isfinite(problem.arrays.op_seconds[v])).tolist()
            start_of = {
                int(u): min(
                    queues.start_s(int(u), on)[0]
                    for on in np.flatnonzero(np.isfinite(problem.arrays.op_seconds[u])).tolist()
                )
                for u in record.candidate_op[0, rows]
            }
            first = min(start_of.values())
            expected = [(start_of[int(u)] - first) / mean_s for u in record.candidate_op[0, rows]]
            found = record.candidate_terms[0, rows, 0]
            np.testing.assert_allclose(found, np.minimum(expected, 100), rtol=1e-5, atol=1e-5)
            ends = {on: queues.start_s(v, on)[0] + problem.arrays.op_seconds[v, on] for on in able}
            assert ends[d] <= min(ends.values()) + 1e-9 * problem.scale_s
            late = {on: (end - min(ends.values())) / mean_s for on, end in ends.items()}
            for on in np.flatnonzero(record.device_mask[0, t]).tolist():
                assert record.device_terms[0, t, on, 0] == pytest.approx(
                    min(late[on], 100), rel=1e-5, abs=1e-5
                )
            queues.place(v, d)


@pytest.mark.parametrize("merge", [False, True])
def test_what_experts_count_is_replayed(merge):
    view = make_view(random_problem(4, num_ops=25, num_devices=4, costs="distinct"))
    if merge:
        view = merged(view, least_weight_s=0.0, cap_s=view.problem.scale_s / 3)
    policy = make_policy(sharpness=5.0)
    with torch.no_grad():
        policy.plc_scheduler_weights[1] = 0.7
    decisions = policy.rollout(view, 8, None, generator())
    np.testing.assert_allclose(replayed(policy, view, decisions), decisions.log_prob, atol=1e-3)
    without = make_policy(sharpness=5.0, scheduler=False)
    assert np.abs(replayed(without, view, decisions) - decisions.log_prob).min() > 1.0


def test_the_surer_experts_are_the_nearer_are_episodes_to_the_greedy_one():
    view, near = make_view(random_problem(4, num_ops=25, num_devices=4, costs="distinct")), []
    for scheduler_scale in (1.0, 10.0):
        policy = make_policy(scheduler_scale=scheduler_scale)
        np.testing.assert_allclose(
            policy.sel_scheduler_weights.detach(),
            scheduler_scale * np.array(SEL_INITIAL_WEIGHTS),
            rtol=1e-6,
        )
        greedy, drawn = (policy.rollout(view, *how, generator()) for how in ((1, 0.0), (64, None)))
        near.append((drawn.op == greedy.op).mean())
    assert near[1] > near[0] + 0.1


def test_experts_are_left_out_where_the_ablation_says_so():
    policy = make_policy(scheduler=False)
    for known in (policy.sel_scheduler_weights, policy.plc_scheduler_weights):
        assert not known.requires_grad and not known.any()
    published = make_policy(look_ahead=False)
    assert published.sel_scheduler_weights.requires_grad and published.sel_scheduler_weights.any()
    half = make_policy(sel="b_level")
    assert not half.sel_scheduler_weights.requires_grad and half.plc_scheduler_weights.requires_grad
