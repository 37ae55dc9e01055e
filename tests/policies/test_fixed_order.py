"""What Placeto and GDP share: rollouts against the replay, what may be chosen, and learning."""

import io
import itertools
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from problems import cluster_of, graph_of, random_device, random_problem, random_ranking
from rich.console import Console
from scipy.stats import chi2

from doppler.baselines.levels import b_levels
from doppler.cluster import preset
from doppler.env import make_view, merged
from doppler.experiment import execute
from doppler.graph import DataflowGraph, save_json
from doppler.policies import GDP, Decisions, Placeto
from doppler.problem import build
from doppler.simulator import WorkConserving
from doppler.support.errors import InputError

PROJECT = Path(__file__).resolve().parents[2]
SIZES = [(1, 1), (1, 4), (2, 2), (7, 3), (15, 5), (40, 1), (40, 8)]


def make_policy(kind: str, seed: int = 0, *, sharpness: float = 1.0) -> Placeto | GDP:
    """Random weights; with more sharpness the choices are less even than those of new weights."""
    torch.manual_seed(seed)
    if kind == "placeto":
        policy = Placeto(hidden=8, rounds=3)
        with torch.no_grad():
            policy.out.weight.mul_(sharpness)
    else:
        policy = GDP(
            hidden=8, rounds=2, layers=2, heads=2, segment=4, positions=True, max_devices=8
        )
        with torch.no_grad():
            policy.score.weight.mul_(sharpness)
            policy.score.bias.mul_(min(sharpness, 1.0))
    return policy


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def replayed(policy, view, decisions: Decisions) -> np.ndarray:
    with torch.no_grad():
        return policy.log_prob(view, decisions)[0].numpy()


def assert_possible(problem, decisions: Decisions) -> None:
    """Every op once, by falling b_level, producers first, on a device that runs it."""
    edges, levels = problem.graph.edges, b_levels(problem)
    device_BV, priority_BV = decisions.placements()
    for op_V, device_V, priority_V in zip(decisions.op, device_BV, priority_BV, strict=True):
        assert sorted(op_V.tolist()) == list(range(problem.num_ops))
        assert (np.diff(levels[op_V]) <= 0).all()
        assert (priority_V[edges.src] < priority_V[edges.dst]).all()
        assert np.isfinite(problem.arrays.op_seconds[np.arange(problem.num_ops), device_V]).all()


both = pytest.mark.parametrize("kind", ["placeto", "gdp"])


# --- Rollout and replay -------------------------------------------------------------------------


@both
@pytest.mark.parametrize("explore", [None, 0.0, 0.3, 1.0])
@pytest.mark.parametrize(("num_ops", "num_devices"), SIZES)
def test_the_replay_finds_the_log_probabilities_of_the_rollout(kind, num_ops, num_devices, explore):
    problem = random_problem(3, num_ops=num_ops, num_devices=num_devices)
    view, policy = make_view(problem), make_policy(kind, sharpness=10.0)
    decisions = policy.rollout(view, 5, explore, generator())
    assert decisions.device.shape == (5, num_ops)
    assert_possible(problem, decisions)
    np.testing.assert_allclose(replayed(policy, view, decisions), decisions.log_prob, atol=1e-4)


@both
def test_one_set_of_weights_serves_problems_of_any_size(kind):
    policy = make_policy(kind, sharpness=10.0)
    for seed, (num_ops, num_devices) in enumerate(SIZES):
        problem = random_problem(seed, num_ops=num_ops, num_devices=num_devices)
        view = make_view(problem)
        decisions = policy.rollout(view, 2, None, generator())
        assert_possible(problem, decisions)
        np.testing.assert_allclose(replayed(policy, view, decisions), decisions.log_prob, atol=1e-4)


@both
@pytest.mark.parametrize(("num_ops", "num_devices"), SIZES)
def test_of_anothers_decisions_the_devices_are_followed_in_its_own_order(
    kind, num_ops, num_devices
):
    # No two devices are alike: each keeps its name.
    cluster = cluster_of([2.0**d for d in range(num_devices)])
    graph = random_problem(5, num_ops=num_ops, num_devices=1, given_costs=False).graph
    problem = build(graph, cluster)
    view, policy = make_view(problem), make_policy(kind, sharpness=10.0)
    device_BV = np.stack([random_device(problem, generator(b)) for b in range(4)])
    op_BV = np.stack([np.argsort(random_ranking(problem, generator(b))) for b in range(4)])
    taken_BV = np.take_along_axis(device_BV, op_BV, axis=1)
    followed = policy.follow(view, op_BV, taken_BV)
    assert_possible(problem, followed)
    np.testing.assert_array_equal(followed.placements()[0], device_BV)
    np.testing.assert_allclose(replayed(policy, view, followed), followed.log_prob, atol=1e-4)


@both
def test_log_probabilities_of_all_episodes_of_a_tiny_problem_sum_to_one(kind):
    view, policy = make_view(tiny_problem()), make_policy(kind, sharpness=20.0)
    every = policy.follow(view, *all_episodes())
    assert np.exp(every.log_prob).sum() == pytest.approx(1.0, abs=1e-5)


@both
def test_entropy_is_that_of_the_distributions_along_the_episode(kind):
    cluster = cluster_of([1.0, 2.0, 4.0], unsupported_kinds=[[], ["b"], []])
    view = make_view(build(graph_of([1, 1], kinds=["a", "b"]), cluster))
    policy = make_policy(kind, sharpness=0.0)
    if kind == "gdp":
        with torch.no_grad():
            policy.score_slowness.weight.zero_()
            policy.score_slowness.bias.zero_()
    decisions = policy.rollout(view, 3, None, generator())
    log_prob_B, entropy_B = policy.log_prob(view, decisions)
    # Three devices for one op, two for the other.
    assert entropy_B.tolist() == pytest.approx([np.log(6)] * 3)
    assert log_prob_B.tolist() == pytest.approx([-np.log(6)] * 3)


# --- Sampling -----------------------------------------------------------------------------------


def tiny_problem():
    """Three ops, the last one after the first; two unequal devices: 8 placements."""
    graph = graph_of([1, 2, 3], [(0, 2, 4)])
    return build(graph, cluster_of([1.0, 2.0], latency_s=1.0))


def all_episodes() -> tuple[np.ndarray, np.ndarray]:
    device_BV = np.array(list(itertools.product((0, 1), repeat=3)))
    return np.tile(np.arange(3), (8, 1)), device_BV


def assert_frequencies(counted: Counter, probability: dict, num: int) -> None:
    """Pearson's chi-square of what was drawn."""
    assert counted.keys() <= probability.keys()
    assert min(probability.values()) * num >= 5
    statistic = sum(
        (counted[key] - num * share) ** 2 / (num * share) for key, share in probability.items()
    )
    assert statistic < chi2.isf(1e-6, len(probability) - 1), (counted, probability)


def counted(decisions: Decisions) -> Counter:
    return Counter(map(tuple, decisions.device.tolist()))


@pytest.mark.parametrize(("kind", "sharpness"), [("placeto", 300.0), ("gdp", 5.0)])
def test_episodes_are_sampled_with_the_probabilities_that_they_claim(kind, sharpness):
    view, policy = make_view(tiny_problem()), make_policy(kind, 2, sharpness=sharpness)
    every = policy.follow(view, *all_episodes())
    share_B = np.exp(every.log_prob)
    probability = dict(zip(map(tuple, every.device.tolist()), share_B.tolist(), strict=True))
    assert max(probability.values()) > 2 * min(probability.values()), "an even policy shows nothing"
    num = 20_000
    assert_frequencies(counted(policy.rollout(view, num, None, generator())), probability, num)


@both
@pytest.mark.parametrize("explore", [1.0, 0.3])
def test_exploring_is_uniform_over_the_open_devices_and_greedy_otherwise(kind, explore):
    cluster = cluster_of([1.0, 2.0, 4.0], unsupported_kinds=[["a"], [], []])
    view = make_view(build(graph_of([1.0], kinds="a"), cluster))
    policy, num = make_policy(kind, sharpness=20.0), 10_000
    greedy = int(policy.rollout(view, 1, 0.0, generator()).device[0, 0])
    probability = {(d,): explore / 2 + (1 - explore) * (d == greedy) for d in (1, 2)}
    assert_frequencies(counted(policy.rollout(view, num, explore, generator())), probability, num)


@both
def test_greedy_takes_the_most_likely_device_whatever_the_random_numbers(kind):
    problem = random_problem(5, num_ops=20, num_devices=4)
    view, policy = make_view(problem), make_policy(kind, sharpness=20.0)
    greedy = policy.rollout(view, 3, 0.0, generator(1))
    again = policy.rollout(view, 1, 0.0, generator(2))
    for b in range(3):
        np.testing.assert_array_equal(greedy.device[b], again.device[0])
    single = make_view(build(graph_of([1.0]), cluster_of([1.0, 2.0, 4.0])))
    every = policy.follow(single, np.zeros((3, 1), dtype=int), np.arange(3)[:, None])
    chosen = policy.rollout(single, 1, 0.0, generator()).device[0, 0]
    assert chosen == every.log_prob.argmax()


@both
def test_the_same_random_numbers_give_the_same_decisions(kind):
    view, policy = make_view(random_problem(4, num_ops=15, num_devices=3)), make_policy(kind)
    first, again, other = (policy.rollout(view, 7, None, generator(s)) for s in (9, 9, 10))
    np.testing.assert_array_equal(first.device, again.device)
    np.testing.assert_array_equal(first.log_prob, again.log_prob)
    assert not np.array_equal(first.device, other.device)


@both
def test_of_several_decisions_all_episodes_are_replayed_in_a_row(kind):
    view, policy = make_view(random_problem(4, num_ops=15, num_devices=3)), make_policy(kind)
    several = [policy.rollout(view, num, None, generator(num)) for num in (3, 1)]
    each = [policy.log_prob(view, decisions) for decisions in several]
    for together, apart in zip(
        policy.log_prob(view, *several), zip(*each, strict=True), strict=True
    ):
        torch.testing.assert_close(together, torch.cat(apart))


# --- Decisions ----------------------------------------------------------------------------------


@both
def test_devices_that_cannot_run_an_op_are_never_chosen(kind):
    cluster = cluster_of([1.0] * 3, unsupported_kinds=[["a"], ["b"], []])
    problem = build(graph_of([1] * 8, kinds=["a", "b"] * 4), cluster)
    view, policy = make_view(problem), make_policy(kind)
    for explore in (None, 1.0, 0.0):
        decisions = policy.rollout(view, 50, explore, generator())
        assert_possible(problem, decisions)
        log_prob_B, entropy_B = policy.log_prob(view, decisions)
        assert torch.isfinite(log_prob_B).all()
        assert torch.isfinite(entropy_B).all()


@both
@pytest.mark.parametrize(
    ("op", "device"),
    [
        ([2, 0, 1], [0, 0, 0]),  # before its producer
        ([0, 0, 2], [0, 0, 0]),  # twice
        ([0, 1, 3], [0, 0, 0]),  # no such op
        ([0, 1, -1], [0, 0, 0]),
        ([0, 1, 2], [0, 2, 0]),  # no such device
        ([0, 1, 2], [0, -1, 0]),
        ([0, 1, 2], [0, 1, 0]),  # op 1 does not run on device 1
    ],
)
def test_impossible_decisions_are_refused_with_the_episode_that_holds_them(kind, op, device):
    graph = graph_of([1, 2, 3], [(0, 2, 4)], kinds=["a", "b", "a"])
    problem = build(graph, cluster_of([1.0, 2.0], unsupported_kinds=[[], ["b"]]))
    fine = [0, 1, 2], [1, 0, 1]
    with pytest.raises(InputError) as error:
        make_policy(kind).follow(
            make_view(problem), np.array([fine[0], op]), np.array([fine[1], device])
        )
    assert str(error.value) == (
        "decisions of episode 1: an op before its producers, or on a device that cannot run it"
    )


@both
@pytest.mark.parametrize("explore", [None, 0.0, 1.0])
def test_episodes_of_a_merged_view_keep_groups_together_and_are_replayed(kind, explore):
    problem = random_problem(1, num_ops=20, num_devices=4, costs="distinct")
    view, policy = make_view(problem), make_policy(kind, sharpness=10.0)
    seen = merged(view, least_weight_s=0.0, cap_s=problem.scale_s / 3)
    group_V = seen.arrays.group
    assert 1 < len(set(group_V.tolist())) < 20
    together = policy.rollout(seen, 5, explore, generator())
    assert_possible(problem, together)
    device_BV, _ = together.placements()
    np.testing.assert_array_equal(device_BV, device_BV[:, group_V])
    np.testing.assert_allclose(replayed(policy, seen, together), together.log_prob, atol=1e-4)
    _, entropy_B = policy.log_prob(seen, together)
    assert (entropy_B <= len(set(group_V.tolist())) * np.log(4) + 1e-4).all()
    apart, _ = policy.rollout(view, 5, 1.0, generator()).placements()
    assert (apart != apart[:, group_V]).any(), "unmerged ones would have done the same"


@both
def test_decisions_that_split_a_group_are_none_and_the_others_sum_to_one(kind):
    view, policy = make_view(tiny_problem()), make_policy(kind, sharpness=20.0)
    whole = merged(view, least_weight_s=1.0, cap_s=100.0)
    assert whole.arrays.group[0] == whole.arrays.group[2]
    op_BV, device_BV = all_episodes()
    fine = device_BV[:, 0] == device_BV[:, 2]
    every = policy.follow(whole, op_BV[fine], device_BV[fine])
    assert np.exp(every.log_prob).sum() == pytest.approx(1.0, abs=1e-5)
    with pytest.raises(InputError, match="decisions of episode 0"):
        policy.follow(whole, op_BV[~fine], device_BV[~fine])


@both
def test_of_advice_the_devices_are_judged_at_the_states_of_the_episode(kind):
    # The last op is the same for both: what else the episode did is what it knows.
    view, policy = make_view(tiny_problem()), make_policy(kind, sharpness=20.0)
    played = policy.rollout(view, 1, 1.0, generator(3))
    other = replace(played, device=np.array([[*played.device[0, :2], 1 - played.device[0, 2]]]))
    advised = replace(played, advised=(played.op, other.device))
    np.testing.assert_allclose(
        replayed(policy, view, advised), replayed(policy, view, other), atol=1e-6
    )
    first = replace(played, advised=(played.op, np.array([[1, 1, 1]]) - played.device))
    apart = [replayed(policy, view, one)[0] for one in (played, first)]
    assert apart[0] != apart[1]


# --- Learning -----------------------------------------------------------------------------------


@both
def test_gradients_reach_every_parameter_and_are_finite(kind):
    problem = random_problem(1, num_ops=20, num_devices=4, given_costs=False)
    assert np.isinf(problem.arrays.op_seconds).any(), "closed devices must not spoil gradients"
    view, policy = make_view(problem), make_policy(kind)
    decisions = policy.rollout(view, 8, None, generator())
    log_prob_B, entropy_B = policy.log_prob(view, decisions)
    weights_B = torch.linspace(-1, 1, 8)
    ((log_prob_B * weights_B).sum() + entropy_B.sum()).backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0, name


@both
def test_a_step_along_the_gradient_makes_the_decisions_more_likely(kind):
    view, policy = make_view(random_problem(2, num_ops=12, num_devices=3)), make_policy(kind)
    decisions = policy.rollout(view, 1, None, generator())
    before = policy.log_prob(view, decisions)[0].sum()
    before.backward()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 1e-3 * parameter.grad
    assert replayed(policy, view, decisions)[0] > before.item()


def two_chains() -> DataflowGraph:
    """Chains of 4 and 5 ops that best run side by side on two devices."""
    chains = [range(4), range(4, 9)]
    return graph_of([1e10] * 9, [(u, v, 1e7) for chain in chains for u, v in pairwise(chain)])


@pytest.fixture
def train(tmp_path):
    """train(*overrides) -> summary of a run of the command line's code on the two chains."""
    save_json(two_chains(), tmp_path / "chains.json")
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(PROJECT / "conf"), version_base="1.3"):

        def go(*overrides: str) -> dict:
            fixed = (
                f"output_dir={tmp_path}",
                f"workload.path={tmp_path / 'chains.json'}",
                "workload=file",
                "cluster.num_devices=2",
                "stage=rl_sim",
            )
            cfg = compose("config", [*fixed, *overrides])
            return execute(cfg, [], Console(file=io.StringIO()))

        yield go


@both
def test_stage_ii_finds_the_known_optimum_of_two_chains_greedily(kind, train):
    problem = build(two_chains(), preset(name="p100x4", num_devices=2))
    device_BV = np.array(list(itertools.product((0, 1), repeat=9)))
    with WorkConserving().open(problem) as session:
        cost_B = session.measure(device_BV, np.tile(np.arange(9), (512, 1))).cost_s()
    assert (cost_B < 1.01 * cost_B.min()).sum() == 2, "each chain on a device of its own"
    summary = train(f"policy={kind}", "stage.init_from=null", "budget.evaluations=800")
    assert summary["greedy_makespan_s"] == pytest.approx(cost_B.min(), rel=1e-9)


@both
def test_stages_i_and_ii_run_and_repeat_bit_for_bit(kind, train):
    overrides = (f"policy={kind}", "budget.imitation_episodes=32", "budget.evaluations=60")
    first = train(*overrides)
    again = train(*overrides, "overwrite=true")
    assert first["init_from"] is not None
    for key in ("makespan_s", "greedy_makespan_s", "jitter_mean_s"):
        assert first[key] == again[key]
