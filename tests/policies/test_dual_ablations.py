"""The dual policy without one of its parts: what is left, and that the rest is as it was."""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from new_weights import unlike_new
from problems import cluster_of, graph_of, problem_without_ties, random_problem

from doppler.baselines import CriticalPath
from doppler.baselines.levels import b_levels
from doppler.env import DEVICE_FEATURES, OP_FEATURES, ProblemView, advice, make_view, merged
from doppler.policies import DualPolicy, StepwiseDualPolicy, dual_per_step
from doppler.policies.dual_ablations import PUBLISHED_DEVICE_FEATURES, PUBLISHED_OP_FEATURES
from doppler.policies.encoder import Paths
from doppler.problem import Problem, build
from doppler.support.errors import InputError

FULL = {
    "sel_hidden": 8,
    "plc_hidden": 8,
    "sel": "learned",
    "plc": "learned",
    "look_ahead": True,
}
HEURISTIC = {"sel": "b_level", "plc": "earliest_start"}
ABLATIONS = (
    {"sel": "b_level"},
    {"plc": "earliest_start"},
    HEURISTIC,
    {"look_ahead": False},
)


def make_policy(seed: int = 0, *, per_step: bool = False, **changes) -> DualPolicy:
    """Random weights, less even than new ones."""
    torch.manual_seed(seed)
    arguments = {**FULL, **changes}
    arguments = {"hidden": 8, "rounds": 2, **arguments}
    return unlike_new((StepwiseDualPolicy if per_step else DualPolicy)(**arguments), 0.3)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def merged_view(problem: Problem) -> ProblemView:
    return merged(make_view(problem), least_weight_s=0.0, cap_s=problem.scale_s / 3)


def replayed(policy: DualPolicy, view, decisions) -> np.ndarray:
    with torch.no_grad():
        return policy.log_prob(view, decisions)[0].numpy()


class Schedule:
    """The schedule that an episode builds, op by op, without contention."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.finish: dict[int, float] = {}
        self.device: dict[int, int] = {}
        self.available = [0.0] * problem.num_devices

    def start(self, v: int, d: int) -> float:
        """When op v could start on device d; inf where it cannot run."""
        arrays, graph = self.problem.arrays, self.problem.graph
        if not np.isfinite(arrays.op_seconds[v, d]):
            return np.inf
        ready = [0.0]
        for e in np.flatnonzero(graph.edges.dst == v):
            u = int(graph.edges.src[e])
            source, size = self.device[u], arrays.size[graph.regions.of_edge[e]]
            transfer = 0.0
            if source != d:
                transfer = arrays.latency_s[source, d] + size * arrays.seconds_per_size[source, d]
            ready.append(self.finish[u] + transfer)
        return max(self.available[d], *ready)

    def candidates(self) -> list[int]:
        edges = self.problem.graph.edges
        return [
            v
            for v in range(self.problem.num_ops)
            if v not in self.finish
            and all(int(u) in self.finish for u in edges.src[edges.dst == v])
        ]

    def place(self, v: int, d: int) -> None:
        self.finish[v] = self.start(v, d) + self.problem.arrays.op_seconds[v, d]
        self.available[d] = self.finish[v]
        self.device[v] = d


# --- Heads replaced by the heuristic --------------------------------------------------------------


@pytest.mark.parametrize("explore", [None, 0.0, 0.5])
@pytest.mark.parametrize("changes", [{"sel": "b_level"}, {"plc": "earliest_start"}, HEURISTIC])
def test_the_replaced_heads_decide_as_the_critical_path_does(changes, explore):
    for seed in range(4):
        problem = random_problem(seed, num_ops=25, num_devices=4)
        decisions = make_policy(seed, **changes).rollout(
            make_view(problem), 3, explore, generator(seed)
        )
        level_V, others = b_levels(problem), Counter()
        for op_V, device_V in zip(decisions.op, decisions.device, strict=True):
            schedule = Schedule(problem)
            for v, d in zip(op_V.tolist(), device_V.tolist(), strict=True):
                largest = max(level_V[u] for u in schedule.candidates())
                starts = [schedule.start(v, other) for other in range(problem.num_devices)]
                others["sel"] += level_V[v] < largest * (1 - 1e-9)
                others["plc"] += starts[d] > min(starts) * (1 + 1e-9)
                schedule.place(v, d)
        for head in ("sel", "plc"):
            assert (others[head] == 0) == (head in changes), (head, others)


def test_with_both_heads_replaced_the_episode_is_that_of_the_critical_path():
    problem = problem_without_ties()
    op_BV, device_BV = CriticalPath(evaluations=1).decide(problem, 8, generator())
    for explore in (None, 0.0, 1.0):
        played = make_policy(**HEURISTIC).rollout(make_view(problem), 8, explore, generator())
        np.testing.assert_array_equal(played.op, op_BV)
        np.testing.assert_array_equal(played.device, device_BV)
        assert played.log_prob.tolist() == [0.0] * 8


def test_advice_is_what_the_critical_path_would_do_at_every_state():
    others = Counter()
    for seed in range(4):
        problem = random_problem(seed, num_ops=25, num_devices=4)
        view, level_V = make_view(problem), b_levels(problem)
        played = make_policy(seed).rollout(view, 3, 1.0, generator(seed))
        advised = advice(view, played.op, played.device, generator(seed))
        for b, t in itertools.product(range(3), range(25)):
            if t == 0:
                schedule = Schedule(problem)
            v, d = int(played.op[b, t]), int(played.device[b, t])
            op, device = int(advised[0][b, t]), int(advised[1][b, t])
            candidates = schedule.candidates()
            assert op in candidates
            assert level_V[op] == pytest.approx(max(level_V[u] for u in candidates))
            starts = [schedule.start(v, other) for other in range(4)]
            assert starts[device] == pytest.approx(min(starts))
            others.update(op=op != v, device=device != d)
            schedule.place(v, d)
    assert min(others.values()) > 20, "the episodes went the heuristic's way"


def test_ties_of_the_heuristic_are_even_whatever_the_weights_say():
    problem = build(graph_of([2, 2, 2, 1]), cluster_of([1.0, 2.0, 4.0]))
    decisions = make_policy(**HEURISTIC).rollout(make_view(problem), 6000, None, generator())
    first = Counter(zip(decisions.op[:, 0].tolist(), decisions.device[:, 0].tolist(), strict=True))
    assert first.keys() == {(v, d) for v in range(3) for d in range(3)}
    # 6000 / 9 = 667 each, with a standard deviation of 24.
    assert max(abs(count - 6000 / 9) for count in first.values()) < 5 * 24.4


@pytest.mark.parametrize(("changes", "idle"), [({"sel": "b_level"}, "sel_"), (HEURISTIC, "")])
def test_nothing_is_learned_by_a_replaced_head(changes, idle):
    view = merged_view(random_problem(1, num_ops=20, num_devices=4, costs="distinct"))
    policy = make_policy(**changes)
    log_prob_B, entropy_B = policy.log_prob(view, policy.rollout(view, 8, None, generator()))
    ((log_prob_B * torch.linspace(-1, 1, 8)).sum() + entropy_B.sum()).backward()
    for name, parameter in policy.named_parameters():
        moved = parameter.grad is not None and bool((parameter.grad != 0).any())
        assert moved != name.startswith((idle, f"network.{idle.rstrip('_')}")), name


@pytest.mark.parametrize("per_step", [False, True])
def test_decisions_that_the_heuristic_would_not_take_are_followed_all_the_same(per_step):
    problem = random_problem(7, num_ops=15, num_devices=4, identical_devices=True)
    view, policy = make_view(problem), make_policy(per_step=per_step, **HEURISTIC)
    taught = make_policy(1).rollout(view, 4, None, generator())
    followed = policy.follow(view, taught.op, taught.device)
    np.testing.assert_array_equal(followed.op, taught.op)
    np.testing.assert_array_equal(followed.device, taught.device)
    assert np.isfinite(followed.log_prob).all()
    np.testing.assert_allclose(replayed(policy, view, followed), followed.log_prob, atol=1e-4)
    own = policy.rollout(view, 4, None, generator())
    again = policy.follow(view, own.op, own.device)
    np.testing.assert_array_equal(again.log_prob, own.log_prob)


# --- What is seen ---------------------------------------------------------------------------------


def test_without_look_ahead_only_the_published_features_count():
    view = make_view(random_problem(2, num_ops=20, num_devices=4))
    policy = make_policy(look_ahead=False, scheduler=False)
    decisions = policy.rollout(view, 4, None, generator())
    before = replayed(policy, view, decisions)
    record = decisions.record
    for i, name in enumerate(DEVICE_FEATURES):
        kept = record.device_x[..., i].copy()
        record.device_x[..., i] += generator(i).random(kept.shape)
        changed = not np.allclose(replayed(policy, view, decisions), before, atol=1e-5)
        record.device_x[..., i] = kept
        assert changed == (name in PUBLISHED_DEVICE_FEATURES), name
    record.candidate_x[:] = generator().random(record.candidate_x.shape)
    np.testing.assert_array_equal(replayed(policy, view, decisions), before)
    for i, name in enumerate(OP_FEATURES):
        features = view.op_features.copy()
        features[:, i] = generator().random(len(features))
        same = make_policy(
            look_ahead=False, scheduler=False
        )  # weights as before, nothing kept of the view
        after = replayed(same, replace(view, op_features=features), decisions)
        assert np.allclose(after, before, atol=1e-5) == (name not in PUBLISHED_OP_FEATURES), name


@pytest.mark.parametrize("per_step", [False, True])
def test_what_edges_are_like_counts_with_a_graph_network_only(per_step):
    view = make_view(random_problem(2, num_ops=20, num_devices=4))
    policy = make_policy(per_step=per_step)
    decisions = policy.rollout(view, 4, None, generator())
    other = replace(view, edge_features=1.0 - view.edge_features)
    after = replayed(policy, other, decisions)
    assert np.allclose(after, decisions.log_prob, atol=1e-5) == (not per_step)


@pytest.mark.parametrize("per_step", [False, True])
@pytest.mark.parametrize("explore", [None, 0.0, 0.3])
@pytest.mark.parametrize("changes", ABLATIONS, ids=str)
def test_the_replay_finds_the_log_probabilities_of_the_rollout(changes, explore, per_step):
    for seed, (num_ops, num_devices) in enumerate([(1, 1), (12, 3)]):
        view = make_view(random_problem(seed, num_ops=num_ops, num_devices=num_devices))
        policy = make_policy(seed, per_step=per_step, **changes)
        decisions = policy.rollout(view, 3, explore, generator(seed))
        np.testing.assert_allclose(replayed(policy, view, decisions), decisions.log_prob, atol=1e-4)


@pytest.mark.parametrize("per_step", [False, True])
def test_what_the_heuristic_advises_is_judged_as_if_it_had_been_done(per_step):
    problem = random_problem(6, num_ops=14, num_devices=3, costs="distinct")
    view, policy = make_view(problem), make_policy(per_step=per_step)
    played = policy.rollout(view, 3, 1.0, generator())
    itself = replace(played, advised=(played.op, played.device))
    np.testing.assert_allclose(replayed(policy, view, itself), played.log_prob, atol=1e-4)
    advised = replace(played, advised=advice(view, played.op, played.device, generator()))
    assert (replayed(policy, view, advised) < 0).all()
    # Of the last step alone: an episode that ends as advised.
    last = [each.copy() for each in (played.op, played.device)]
    last[1][:, -1] = advised.advised[1][:, -1]
    ended = policy.follow(view, played.op, last[1])
    of_last = replace(played, advised=(played.op, last[1]))
    np.testing.assert_allclose(replayed(policy, view, of_last), ended.log_prob, atol=1e-4)


@pytest.mark.parametrize("per_step", [False, True])
def test_of_several_decisions_all_episodes_are_replayed_in_a_row(per_step):
    view = make_view(random_problem(2, num_ops=12, num_devices=3))
    policy = make_policy(per_step=per_step)
    several = [policy.rollout(view, num, None, generator(num)) for num in (3, 1)]
    each = [policy.log_prob(view, decisions) for decisions in several]
    for together, apart in zip(
        policy.log_prob(view, *several), zip(*each, strict=True), strict=True
    ):
        torch.testing.assert_close(together, torch.cat(apart))


@pytest.mark.parametrize(
    ("key", "value"),
    [("sel", "earliest_start"), ("plc", "b_level"), ("look_ahead", "no")],
)
def test_what_is_no_choice_is_refused_by_name(key, value):
    with pytest.raises(InputError, match=rf"^DualPolicy\.{key}: must be .*, got '{value}'$"):
        make_policy(**{key: value})


# --- Encoding at every step -----------------------------------------------------------------------


def test_encoded_at_every_step_the_policy_sees_where_ops_are_and_no_names_of_devices():
    view = make_view(random_problem(3, num_ops=12, num_devices=3, identical_devices=True))
    policy = make_policy(per_step=True)
    tensors = policy._view_tensors(view)
    device_CV = torch.from_numpy(generator().integers(-1, 3, (2, 12)))
    with torch.no_grad():
        parts, placed_CDP = policy._encode(view, tensors, device_CV)
        assert not torch.allclose(parts.sel_op_VS[0], parts.sel_op_VS[1])
        renamed = torch.tensor([-1, 2, 0, 1])[device_CV + 1]
        same, swapped_CDP = policy._encode(view, tensors, renamed)
        for one, other in zip(parts, same, strict=True):
            torch.testing.assert_close(one, other)
        torch.testing.assert_close(placed_CDP, swapped_CDP[:, [2, 0, 1]])
        # A state alone is encoded as it is among others.
        alone, _ = policy._encode(view, tensors, device_CV[1:])
        for one, other in zip(parts, alone, strict=True):
            torch.testing.assert_close(one[1:], other)


def test_the_network_tells_the_two_directions_of_an_edge_apart():
    policy = make_policy(per_step=True)
    x_VF = torch.zeros(2, policy.encoder.embed.in_features)
    h_VH = policy.encoder(x_VF, torch.tensor([[0], [1]]), torch.ones(1, 3))
    assert not torch.allclose(h_VH[0], h_VH[1])
    swapped_VH = policy.encoder(x_VF, torch.tensor([[1], [0]]), torch.ones(1, 3))
    torch.testing.assert_close(h_VH, swapped_VH.flip(0))


def test_paths_average_over_the_ops_on_them():
    # 0 -> 2 -> 3, 1 -> 3.
    mean_VV = Paths(torch.tensor([2, 3, 3, -1])).mean(torch.eye(4))
    third = 1 / 3
    expected = [[third, 0, third, third], [0, 0.5, 0, 0.5], [0, 0, 0.5, 0.5], [0, 0, 0, 1]]
    torch.testing.assert_close(mean_VV, torch.tensor(expected))


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 100])
def test_paths_of_any_length_are_averaged_over_whole(length):
    h_VH = torch.arange(float(length))[:, None] ** 2
    mean_VH = Paths(torch.tensor([*range(1, length), -1])).mean(h_VH)
    expected = [h_VH[v:].mean() for v in range(length)]
    torch.testing.assert_close(mean_VH[:, 0], torch.stack(expected))


def test_states_replayed_few_at_a_time_give_the_same_gradients(monkeypatch):
    view = merged_view(random_problem(1, num_ops=15, num_devices=3, costs="distinct"))
    gradients = []
    for ops_at_once in (1 << 14, 40, 1):
        monkeypatch.setattr(dual_per_step, "_OPS_AT_ONCE", ops_at_once)
        policy = make_policy(per_step=True)
        decisions = policy.rollout(view, 3, None, generator())
        log_prob_B, entropy_B = policy.log_prob(view, decisions)
        ((log_prob_B * torch.linspace(-1, 1, 3)).sum() + entropy_B.sum()).backward()
        gradients.append({name: p.grad for name, p in policy.named_parameters()})
    for name, gradient in gradients[0].items():
        assert gradient.abs().max() > 0, name
        for other in gradients[1:]:
            torch.testing.assert_close(other[name], gradient, rtol=1e-3, atol=1e-4)


def test_entropy_at_every_step_is_that_of_both_heads():
    problem = build(graph_of([1, 1]), cluster_of([1.0, 2.0]))
    view, policy = make_view(problem), make_policy(per_step=True, scheduler=False)
    with torch.no_grad():  # both heads even
        policy.sel_out.weight.zero_()
        policy.plc_out.weight.zero_()
    log_prob_B, entropy_B = policy.log_prob(view, policy.rollout(view, 3, None, generator()))
    # Two candidates then one, two devices each time.
    assert entropy_B.tolist() == pytest.approx([3 * np.log(2)] * 3)
    assert log_prob_B.tolist() == pytest.approx([-3 * np.log(2)] * 3)


def test_more_candidates_than_the_first_guess_are_recorded_at_every_step_too():
    view = make_view(build(graph_of([1] * 40), cluster_of([1.0, 2.0])))
    policy = make_policy(per_step=True, hidden=2, rounds=1)
    decisions = policy.rollout(view, 2, None, generator())
    assert decisions.record.candidate_ptr[:, -1].tolist() == [40 * 41 // 2] * 2
    np.testing.assert_allclose(replayed(policy, view, decisions), decisions.log_prob, atol=1e-4)
