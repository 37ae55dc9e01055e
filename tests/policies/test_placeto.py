"""Placeto: computing an embedding once while it stays the same equals embedding at every step."""

import numpy as np
import pytest
import torch
from problems import cluster_of, graph_of, random_problem
from torch.nn.functional import leaky_relu

import doppler.policies.placeto
from doppler.baselines.levels import b_level_priority
from doppler.env import make_view
from doppler.policies import Decisions, Placeto
from doppler.policies.placeto_plan import make_plan
from doppler.problem import build
from doppler.support.errors import InputError


def make_policy(rounds: int = 3, seed: int = 0) -> Placeto:
    torch.manual_seed(seed)
    policy = Placeto(hidden=8, rounds=rounds)
    with torch.no_grad():
        policy.out.weight.mul_(20.0)
    return policy


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def neighbours(problem) -> tuple[list[set[int]], list[set[int]]]:
    producers, consumers = ([set() for _ in range(problem.num_ops)] for _ in range(2))
    for src, dst in zip(
        problem.graph.edges.src.tolist(), problem.graph.edges.dst.tolist(), strict=True
    ):
        producers[dst].add(src)
        consumers[src].add(dst)
    return producers, consumers


def reachable(start: int, neighbours_V: list[set[int]]) -> set[int]:
    found, left = set(), [start]
    while left:
        new = neighbours_V[left.pop()] - found
        found |= new
        left += new
    return found


def score(policy: Placeto, view, v: int, d: int, device_of: dict[int, int]) -> torch.Tensor:
    """Device d's score for op v: one full pass over the graph, op by op."""
    problem = view.problem
    num_ops, arrays = problem.num_ops, problem.arrays
    size = arrays.size.mean() if len(arrays.size) else 0.0
    links_DD = arrays.latency_s + size * arrays.seconds_per_size
    np.fill_diagonal(links_DD, 0.0)
    mean_link = links_DD[links_DD > 0].mean() if (links_DD > 0).any() else 1.0

    def own(u: int) -> torch.Tensor:
        fastest = arrays.op_seconds[u].min()
        slower = arrays.op_seconds[u, d] / fastest - 1.0 if fastest > 0 else 0.0
        place = device_of.get(u)
        x = [*view.op_features[u].tolist(), min(max(slower, 0.0), 2.0)]
        state = [
            float(u == v),
            float(place == d),
            0.0 if place is None else links_DD[place, d] / mean_link,
        ]
        embedded = policy.embed_op(torch.tensor(x, dtype=torch.float32))
        return leaky_relu(
            embedded + policy.embed_state(torch.tensor(state, dtype=torch.float32)), 0.1
        )

    producers, consumers = neighbours(problem)
    own_V = [own(u) for u in range(num_ops)]
    embedded_V: list[list[torch.Tensor]] = [[] for _ in range(num_ops)]
    for sweep, heard_from in zip(policy.sweeps, (producers, consumers), strict=True):
        h_V = own_V
        for _ in range(policy.rounds):
            message_V = [leaky_relu(sweep.message(h), 0.1) for h in h_V]
            mean_V = [
                torch.stack([message_V[u] for u in heard_from[w]]).mean(0)
                if heard_from[w]
                else torch.zeros(policy.hidden)
                for w in range(num_ops)
            ]
            h_V = [own_V[w] + leaky_relu(sweep.update(mean_V[w]), 0.1) for w in range(num_ops)]
        for w in range(num_ops):
            embedded_V[w].append(h_V[w])
    whole_V = [torch.cat(parts) for parts in embedded_V]
    above, below = reachable(v, producers), reachable(v, consumers)
    beside = set(range(num_ops)) - above - below - {v}
    seen = [whole_V[v]]
    for pool, ops in zip(policy.pools, (above, below, beside), strict=True):
        total = torch.zeros(policy.hidden)
        for u in ops:
            total = total + leaky_relu(pool(whole_V[u]), 0.1)
        seen.append(total / num_ops)
    return policy.out(leaky_relu(policy.mid(torch.cat(seen)), 0.1))[0]


@pytest.mark.parametrize("rounds", [1, 2, 5])
@pytest.mark.parametrize(
    ("seed", "num_ops", "num_devices"), [(0, 1, 2), (1, 6, 2), (2, 9, 3), (5, 12, 3), (4, 12, 2)]
)
def test_log_probabilities_are_those_of_a_full_pass_over_the_graph_at_every_step(
    seed, num_ops, num_devices, rounds
):
    problem = random_problem(seed, num_ops=num_ops, num_devices=num_devices)
    view, policy = make_view(problem), make_policy(rounds)
    decisions = policy.rollout(view, 2, None, generator())
    with torch.no_grad():
        replayed_B = policy.log_prob(view, decisions)[0]
        for op_V, device_V, replayed in zip(
            decisions.op.tolist(), decisions.device.tolist(), replayed_B, strict=True
        ):
            device_of, log_prob = {}, 0.0
            for v, chosen in zip(op_V, device_V, strict=True):
                able = np.isfinite(problem.arrays.op_seconds[v])
                score_D = torch.stack(
                    [
                        score(policy, view, v, d, device_of)
                        if able[d]
                        else torch.tensor(-torch.inf)
                        for d in range(num_devices)
                    ]
                )
                log_prob += score_D.log_softmax(0)[chosen].item()
                device_of[v] = chosen
            assert replayed.item() == pytest.approx(log_prob, abs=1e-4)


def test_embeddings_are_computed_far_less_often_than_at_every_step():
    problem = random_problem(3, num_ops=200, num_devices=2)
    order_V = np.argsort(b_level_priority(problem))
    plan = make_plan(problem, order_V, 2)
    assert 200 < len(plan.embedded.op) < 200 * 200 / 4
    # All rounds reach everything: nothing is left out either.
    dense = build(
        graph_of([1.0] * 20, [(u, v, 1.0) for v in range(20) for u in range(v)]),
        cluster_of([1.0, 1.0]),
    )
    assert len(make_plan(dense, np.arange(20), 2).embedded.op) == 20 * 20


def test_identical_devices_are_interchangeable():
    problem = random_problem(6, num_ops=12, num_devices=3, identical_devices=True)
    view, policy = make_view(problem), make_policy()
    decisions = policy.rollout(view, 4, None, generator())
    swapped = Decisions(
        op=decisions.op,
        device=np.array([2, 0, 1])[decisions.device],
        log_prob=decisions.log_prob,
        record=None,
    )
    with torch.no_grad():
        one_B, other_B = (policy.log_prob(view, d)[0].numpy() for d in (decisions, swapped))
    np.testing.assert_allclose(one_B, other_B, atol=1e-4)


def test_the_link_between_devices_counts():
    """Of two empty devices that differ by their links alone, the scores differ."""
    bytes_per_s = np.array([[1.0, 4.0, 0.5], [4.0, 1.0, 4.0], [0.5, 4.0, 1.0]])
    problem = build(graph_of([1, 1], [(0, 1, 4)]), cluster_of([1.0] * 3, bytes_per_s=bytes_per_s))
    view, policy = make_view(problem), make_policy()
    op_BV, device_BV = np.array([[0, 1], [0, 1]]), np.array([[0, 1], [0, 2]])
    near, far = policy.follow(view, op_BV, device_BV).log_prob
    assert abs(near - far) > 1e-3


def test_chunks_of_episodes_change_neither_decisions_nor_gradients(monkeypatch):
    problem = random_problem(8, num_ops=15, num_devices=3)
    view, policy = make_view(problem), make_policy()
    results, computed_again = [], []

    def checkpoint(replay, **options):
        computed_again.append(options)
        return torch.utils.checkpoint.checkpoint(replay, **options)

    monkeypatch.setattr(doppler.policies.placeto, "checkpoint", checkpoint)
    for room, times in ((1 << 24, 0), (1, 5)):
        monkeypatch.setattr(doppler.policies.placeto, "_ROOM", room)
        policy.zero_grad()
        decisions = policy.rollout(view, 5, None, generator())
        log_prob_B, entropy_B = policy.log_prob(view, decisions)
        ((log_prob_B * torch.arange(5)).sum() + entropy_B.sum()).backward()
        results.append((decisions, [p.grad.clone() for p in policy.parameters()]))
        assert len(computed_again) == times, "what is replayed at once is kept"
    (whole, whole_grads), (parts, parts_grads) = results
    np.testing.assert_array_equal(whole.device, parts.device)
    np.testing.assert_allclose(whole.log_prob, parts.log_prob, atol=1e-5)
    for one, other in zip(whole_grads, parts_grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("key", ["hidden", "rounds"])
def test_sizes_below_one_are_refused(key):
    sizes = {"hidden": 8, "rounds": 2, key: 0}
    with pytest.raises(
        InputError, match=rf"^Placeto.{key}: must be a whole number of at least 1, got 0"
    ):
        Placeto(**sizes)
