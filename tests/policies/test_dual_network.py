"""The graph network of the dual policy: what it changes, what it learns, whose weights it takes."""

import numpy as np
import pytest
import torch
from new_weights import unlike_new
from problems import cluster_of, graph_of, random_problem

import doppler
from doppler.env import make_view, merged
from doppler.env.scheduler_terms import PLC_INITIAL_WEIGHTS, SEL_INITIAL_WEIGHTS
from doppler.policies import DualPolicy, dual_network
from doppler.policies.dual_pairs import pairs_of
from doppler.policies.weights import load_policy_weights
from doppler.problem import build
from doppler.support.errors import InputError

SMALL = {"sel_hidden": 8, "plc_hidden": 8, "hidden": 8, "rounds": 2, "pairs": 4, "own": 3}


def bound(view, seed: int = 0, spread: float = 0.0, **changes) -> DualPolicy:
    torch.manual_seed(seed)
    policy = DualPolicy(**{**SMALL, **changes})
    policy.bind(view)
    return unlike_new(policy, spread) if spread else policy


def saved(path, policy):
    state = {f"policy.{name}": value for name, value in policy.state_dict().items()}
    torch.save({"state_dict": state, "doppler": {"evaluations": 3}}, path)
    return path


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def some_views():
    for seed in range(3):
        problem = random_problem(seed, num_ops=25, num_devices=4, costs="distinct")
        view = make_view(problem)
        yield from (view, merged(view, least_weight_s=0.0, cap_s=problem.scale_s / 3))


def test_new_weights_are_the_list_scheduler_to_the_bit():
    for view in some_views():
        policies = [DualPolicy(hidden=0), DualPolicy(), bound(view), bound(view, seed=7, rounds=0)]
        for explore in (None, 0.0):
            first, *others = [p.rollout(view, 6, explore, generator()) for p in policies]
            for other in others:
                np.testing.assert_array_equal(other.op, first.op)
                np.testing.assert_array_equal(other.device, first.device)
                np.testing.assert_array_equal(other.log_prob, first.log_prob)
    for policy in policies:
        learned = {n: w for n, w in policy.named_parameters() if n.endswith("scheduler_weights")}
        assert [w.tolist() for w in learned.values()] == [
            pytest.approx(list(known)) for known in (SEL_INITIAL_WEIGHTS, PLC_INITIAL_WEIGHTS)
        ]


def test_pairs_are_a_product_of_queries_and_of_keys_summed_over_devices():
    """Against the definition, with one matrix of V x V an episode; gradients, too."""
    for view in some_views():
        decisions = bound(view).rollout(view, 3, None, generator())
        record, (num_ops, num_devices) = decisions.record, view.arrays.able.shape
        query, key = torch.randn(2, num_ops, 4, dtype=torch.float32, requires_grad=True).unbind(0)
        query, key = (one.detach().requires_grad_() for one in (query, key))
        found = pairs_of(query, key, record)
        op_BV, device_BV = torch.from_numpy(decisions.op), torch.from_numpy(decisions.device)
        on_BVD = torch.nn.functional.one_hot(device_BV, num_devices).float()
        product_BVV = torch.einsum("btr,bur->btu", query[op_BV], key[op_BV]).tril(-1)
        expected = product_BVV @ on_BVD
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        weight = torch.randn_like(found)
        for got, wanted in zip(
            torch.autograd.grad((found * weight).sum(), (query, key)),
            torch.autograd.grad((expected * weight).sum(), (query, key)),
            strict=True,
        ):
            torch.testing.assert_close(got, wanted, atol=1e-3, rtol=1e-3)


def test_replay_of_a_bound_policy_is_what_was_played_and_all_of_it_learns():
    for view in some_views():
        policy = bound(view, spread=0.1)
        played = policy.rollout(view, 5, None, generator())
        followed = policy.follow(view, played.op, played.device)
        np.testing.assert_allclose(followed.log_prob, played.log_prob, rtol=1e-6)
        log_prob_B, entropy_B = policy.log_prob(view, played)
        np.testing.assert_allclose(log_prob_B.detach().numpy(), played.log_prob, atol=1e-3)
        ((log_prob_B * torch.linspace(-1, 1, 5)).sum() + entropy_B.sum()).backward()
        idle = [n for n, w in policy.named_parameters() if w.grad is None or not w.grad.any()]
        assert idle == [] if view.is_merged else all("group" in name for name in idle)


def test_the_number_of_ops_on_a_device_says_nothing_to_pairs():
    view = next(iter(some_views()))
    network = bound(view, spread=0.1).network
    encoded = network(view, torch.from_numpy(view.op_features))
    torch.testing.assert_close(encoded.key.sum(0), torch.zeros(4), atol=1e-4, rtol=0.0)


def test_equal_ops_are_told_apart_only_by_numbers_of_their_own():
    # Four equal chains of two ops.
    graph = graph_of([1.0] * 8, [(2 * i, 2 * i + 1, 1.0) for i in range(4)])
    view = make_view(build(graph, cluster_of([1.0] * 2)))
    x_VF = torch.from_numpy(view.op_features)
    h_without = unlike_new(DualPolicy(**SMALL), 0.1).network(view, x_VF).plc
    torch.testing.assert_close(h_without[::2], h_without[:1].expand(4, -1))
    h_with = bound(view, spread=0.1).network(view, x_VF).plc
    assert (h_with[::2] - h_with[:1]).abs().amax(1)[1:].min() > 1e-3


def test_weights_of_one_problem_are_taken_over_by_it_and_by_others_without_its_own(tmp_path):
    views = [v for v in some_views() if not v.is_merged]
    taught = bound(views[0], spread=0.1)
    path = saved(tmp_path / "taught.ckpt", taught)
    again = bound(views[0], seed=5)
    load_policy_weights(again, path)
    for (name, one), (_, two) in zip(
        taught.state_dict().items(), again.state_dict().items(), strict=True
    ):
        assert torch.equal(one, two), name
    elsewhere, unbound = bound(views[1], seed=5), DualPolicy(**SMALL)
    for other in (elsewhere, unbound):
        load_policy_weights(other, path)
        assert torch.equal(other.network.query_RH, taught.network.query_RH)
    # Numbers that nobody has trained change nothing.
    decisions = [p.rollout(views[1], 4, None, generator()) for p in (elsewhere, unbound)]
    np.testing.assert_array_equal(decisions[0].log_prob, decisions[1].log_prob)


def test_on_another_machine_ops_keep_their_numbers_and_devices_begin_anew(tmp_path):
    graph = random_problem(0, num_ops=25, num_devices=4, costs="distinct").graph
    here, there = (make_view(build(graph, cluster_of(speeds))) for speeds in ([1, 1], [1, 2, 3]))
    taught, other = bound(here, spread=0.1), bound(there)
    load_policy_weights(other, saved(tmp_path / "x.ckpt", taught))
    assert torch.equal(other.network.own.vectors, taught.network.own.vectors)
    assert torch.equal(other.network.own.into.weight, taught.network.own.into.weight)
    assert other.network.own.devices.shape == (3, 4) and not other.network.own.devices.any()


def test_numbers_of_another_length_begin_anew_and_change_nothing(tmp_path):
    view = next(iter(some_views()))
    path = saved(tmp_path / "x.ckpt", bound(view, spread=0.1, own=5))
    longer, without = bound(view, seed=5), DualPolicy(**SMALL)
    for policy in (longer, without):
        load_policy_weights(policy, path)
    decisions = [p.rollout(view, 4, None, generator()) for p in (longer, without)]
    assert not longer.network.own.into.weight.any()
    np.testing.assert_array_equal(decisions[0].op, decisions[1].op)


@pytest.mark.parametrize("missing", ["vectors", "into.weight"])
def test_numbers_are_not_read_by_a_layer_that_was_trained_on_others(tmp_path, missing):
    view, path = next(iter(some_views())), tmp_path / "x.ckpt"
    saved(path, bound(view, spread=0.1))
    whole = torch.load(path)
    del whole["state_dict"][f"policy.network.own.{missing}"]
    torch.save(whole, path)
    policy = bound(view, seed=5)
    begun = policy.network.own.vectors.clone()
    load_policy_weights(policy, path)
    assert not policy.network.own.into.weight.any()
    assert torch.equal(policy.network.own.vectors, begun)


def test_a_digest_of_another_kind_is_named(tmp_path):
    view, path = next(iter(some_views())), tmp_path / "x.ckpt"
    saved(path, bound(view))
    whole, name = torch.load(path), "policy.network.own.made_for"
    whole["state_dict"][name] = whole["state_dict"][name].float()
    torch.save(whole, path)
    with pytest.raises(InputError, match=rf"x\.ckpt: state_dict: {name}: expected torch\.uint8,"):
        load_policy_weights(bound(view), path)
    load_policy_weights(DualPolicy(**SMALL), path)  # has no use for it


def test_weights_without_a_network_still_serve(tmp_path):
    view = next(iter(some_views()))
    old = unlike_new(DualPolicy(sel_hidden=8, plc_hidden=8, hidden=0), 0.1)
    policy = bound(view)
    load_policy_weights(policy, saved(tmp_path / "old.ckpt", old))
    decisions = [p.rollout(view, 4, None, generator()) for p in (old, policy)]
    np.testing.assert_array_equal(decisions[0].log_prob, decisions[1].log_prob)


def test_a_network_that_adds_nothing_is_not_asked_until_the_policy_learns(monkeypatch):
    view, asked = next(iter(some_views())), []
    silent, plain = bound(view), DualPolicy(sel_hidden=8, plc_hidden=8, hidden=0)
    load = {name: one for name, one in silent.state_dict().items() if "network." not in name}
    plain.load_state_dict(load)
    forward = silent.network.forward
    monkeypatch.setattr(silent.network, "forward", lambda *x: asked.append(1) or forward(*x))
    decisions = [policy.rollout(view, 4, None, generator()) for policy in (silent, plain)]
    np.testing.assert_array_equal(decisions[0].log_prob, decisions[1].log_prob)
    assert not asked
    log_prob_B, _ = silent.log_prob(view, decisions[0])
    log_prob_B.sum().backward()
    assert asked and silent.network.query_RH.grad.any()
    with torch.no_grad():
        silent.network.plc.weight.fill_(0.1)
    asked.clear()
    silent.rollout(view, 4, None, generator())
    assert asked


def test_a_policy_bound_to_one_graph_refuses_another_in_one_line():
    graph = random_problem(0, num_ops=10, num_devices=2).graph
    first = make_view(build(graph, cluster_of([1, 1])))
    others = [random_problem(seed, num_ops=n, num_devices=2) for seed, n in ((0, 11), (1, 10))]
    policy = bound(first, spread=0.1)
    said = "^policy: it is bound to another problem, a graph of 10 ops; it cannot place 'test', wh"
    for problem in others * 2:
        policy.rollout(first, 1, None, generator())
        with pytest.raises(InputError, match=f"{said}ich has {problem.num_ops}$"):
            policy.rollout(make_view(problem), 1, None, generator())
    options = {"evaluations": 1, "method": "policy", "policy": policy}
    with pytest.raises(InputError, match=said):
        doppler.place(others[1].graph, cluster=others[1].cluster, **options)
    policy.bind(make_view(others[1]))
    policy.rollout(make_view(others[1]), 1, None, generator())


def test_a_bound_policy_serves_its_graph_merged_and_on_other_machines():
    problem = random_problem(0, num_ops=25, num_devices=4, costs="distinct")
    graph, policy = problem.graph, bound(make_view(problem), spread=0.1)
    for speeds in ([1, 1], [1, 2, 3, 4], [1] * 6):
        view = make_view(build(graph, cluster_of(speeds)))
        for one in (view, merged(view, least_weight_s=0.0, cap_s=view.problem.scale_s / 3)):
            policy.rollout(one, 2, None, generator())
    more = make_view(build(graph, cluster_of([1, 2, 3, 4, 5])))
    with pytest.raises(InputError, match=r"^policy: it is bound to a cluster of 4 dev.* has 5$"):
        policy.rollout(more, 2, None, generator())


def test_a_training_computes_the_digest_of_its_graph_once(monkeypatch):
    view, digests = next(iter(some_views())), []
    policy, digest = bound(view, spread=0.1), dual_network._digest
    monkeypatch.setattr(dual_network, "_digest", lambda view: digests.append(view) or digest(view))
    for _ in range(3):
        log_prob_B, _ = policy.log_prob(view, policy.rollout(view, 2, None, generator()))
        log_prob_B.sum().backward()
    assert len(digests) == 1
