"""The paper's own model: its size, its features, and what its networks compute, by hand."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from problems import cluster_of, graph_of, random_problem

from doppler.env import OP_FEATURES, ProblemView, advice, make_view, merged
from doppler.policies import Decisions, PaperPolicy
from doppler.policies.dual_ablations import PUBLISHED_OP_FEATURES
from doppler.policies.paper_replay import placed_before
from doppler.problem import build
from doppler.support.errors import InputError

# As published: conf/policy/paper.yaml.
HIDDEN, ROUNDS, HEAD = 128, 6, 64


def make_policy(seed: int = 0, *, hidden: int = 6, rounds: int = 2) -> PaperPolicy:
    torch.manual_seed(seed)
    policy = PaperPolicy(hidden=hidden, rounds=rounds, head_hidden=5)
    with torch.no_grad():
        for encoder in (policy.sel_encoder, policy.plc_encoder):
            encoder.bias.normal_()
    return policy


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def replayed(policy: PaperPolicy, view: ProblemView, decisions: Decisions) -> np.ndarray:
    with torch.no_grad():
        return policy.log_prob(view, decisions)[0].numpy()


def test_it_has_the_published_number_of_parameters():
    policy = PaperPolicy(hidden=HIDDEN, rounds=ROUNDS, head_hidden=HEAD)
    embed = 5 * HIDDEN + HIDDEN
    edge_network = (HIDDEN + HIDDEN) + (HIDDEN + 1) * HIDDEN**2
    gru = 3 * (HIDDEN + 1) * HIDDEN * 2
    encoder = embed + edge_network + HIDDEN + gru
    head = (4 * HIDDEN + 1) * HEAD + HEAD  # the last bias changes no softmax
    sel, plc = embed + head, 2 * embed + head
    counted = sum(parameter.numel() for parameter in policy.parameters())
    assert counted == 2 * encoder + sel + plc == 4_495_616
    assert 2 * edge_network / counted == pytest.approx(0.94, abs=0.005)


# --- A forward pass by hand -----------------------------------------------------------------------


def three_ops() -> ProblemView:
    """0 -> 1 -> 2 and 0 -> 2: work 2, 3, 1; transfers 4, 2, 8; an unused device of half the speed.

    Seconds on the two devices: 2, 3, 1 and 4, 6, 2; a byte takes a second.
    """
    graph = graph_of([2, 3, 1], [(0, 1, 4, 0), (1, 2, 2), (0, 2, 8, 1)])
    return make_view(build(graph, cluster_of([1.0, 0.5])))


EDGES = [(0, 1, 4.0), (1, 2, 2.0), (0, 2, 8.0)]
PATHS = {0: [0, 1, 2], 1: [1, 2], 2: [2]}  # to the sink: 0 -> 1 -> 2 takes 19 s, 0 -> 2 16.5 s
ANCESTRY = {0: [0], 1: [0, 1], 2: [0, 1, 2]}


def op_features() -> np.ndarray:
    """compute, b_level, t_level, incoming, outgoing: means over devices, in the view's units."""
    work = np.array([3.0, 4.5, 1.5])  # mean of the two devices
    b_level = [3 + 4 + 4.5 + 2 + 1.5, 4.5 + 2 + 1.5, 1.5]
    t_level = [0.0, 3 + 4, 3 + 4 + 4.5 + 2]
    scale = three_ops().problem.scale_s
    return np.stack(
        [
            work / scale,
            np.array(b_level) / 15,
            np.array(t_level) / 15,
            np.array([0.0, 4, 10]) / 8,
            np.array([12.0, 2, 0]) / 8,
        ],
        axis=1,
    )


def leaky(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, 0.1 * x)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def linear(weights: dict[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    return weights[f"{name}.weight"] @ x + weights.get(f"{name}.bias", 0.0)


def embeddings(weights: dict[str, np.ndarray], name: str, x_VF: np.ndarray, rounds: int):
    """H_v of the three ops: message after message, each edge both ways."""
    h = [np.maximum(linear(weights, f"{name}.embed", x), 0) for x in x_VF]
    width = len(h[0])
    for _ in range(rounds):
        heard = [weights[f"{name}.bias"].copy() for _ in h]
        for src, dst, seconds in EDGES:
            inner = np.maximum(linear(weights, f"{name}.edge_in", np.array([seconds / 8])), 0)
            matrix = linear(weights, f"{name}.edge_out", inner).reshape(width, width)
            heard[dst] += h[src] @ matrix
            heard[src] += h[dst] @ matrix
        before, h = h, []
        for message, old in zip(heard, before, strict=True):
            m = np.maximum(message, 0)
            i_r, i_z, i_n = np.split(
                weights[f"{name}.update.weight_ih"] @ m + weights[f"{name}.update.bias_ih"], 3
            )
            h_r, h_z, h_n = np.split(
                weights[f"{name}.update.weight_hh"] @ old + weights[f"{name}.update.bias_hh"], 3
            )
            z, new = sigmoid(i_z + h_z), np.tanh(i_n + sigmoid(i_r + h_r) * h_n)
            h.append((1 - z) * new + z * old)
    return [leaky(one) for one in h]


def test_the_forward_pass_on_three_ops_is_that_computed_by_hand():
    view, rounds = three_ops(), 3
    policy = make_policy(1, rounds=rounds)
    weights = {name: value.numpy().astype(float) for name, value in policy.state_dict().items()}
    x_VF = op_features()

    # SEL: the first op is the only candidate at every step.
    h = embeddings(weights, "sel_encoder", x_VF, rounds)
    for v in range(3):
        seen = np.concatenate(
            [
                leaky(linear(weights, "sel_op", x_VF[v])),
                h[v],
                sum(h[u] for u in PATHS[v]),
                sum(h[u] for u in ANCESTRY[v]),
            ]
        )
        logit = linear(weights, "sel_out", leaky(linear(weights, "sel_in", seen)))
        assert policy._heads(view).sel_logit_V[v].item() == pytest.approx(logit[0], abs=1e-5)

    # PLC: op 0 to device 0, op 1 to device 1, op 2 to device 0, by the seconds of each step.
    scale = view.problem.scale_s
    clip = np.array([4, 2, 4, 4, 4])
    device_x = [  # load, compute of producers here, their first start, their last end, start of v
        [[0, 0, 0, 0, 0], [0, 0, 0, 0, 0]],
        # 0 ran from 0 to 2; its 4 bytes are on device 1 at 6, but op 2 waits for 8 more.
        [[2, 2, 0, 2, 2], [0, 0, 0, 0, 6]],
        # 1 runs from 6 to 12 on device 1; op 2 reads 2 bytes of it, and 8 of op 0, there at 10.
        [[2, 2, 0, 2, 14], [6, 6, 6, 12, 12]],
    ]
    h, on, total = embeddings(weights, "plc_encoder", x_VF, rounds), [[], []], 0.0
    decisions = policy.follow(view, np.array([[0, 1, 2]]), np.array([[0, 1, 0]]))
    for v, taken in enumerate([0, 1, 0]):
        logits = []
        for d in range(2):
            seen_x = np.minimum(np.array(device_x[v][d]) / scale, clip)
            assert decisions.record.device_x[0, v, d] == pytest.approx(seen_x, abs=1e-6)
            seen = np.concatenate(
                [
                    leaky(linear(weights, "plc_device", seen_x)),
                    leaky(linear(weights, "plc_op", x_VF[v])),
                    h[v],
                    sum((h[u] for u in on[d]), np.zeros(6)),
                ]
            )
            logits.append(linear(weights, "plc_out", leaky(linear(weights, "plc_in", seen)))[0])
        total += logits[taken] - np.log(np.exp(logits).sum())
        on[taken].append(v)
    assert decisions.log_prob[0] == pytest.approx(total, abs=1e-5)
    assert replayed(policy, view, decisions)[0] == pytest.approx(total, abs=1e-5)


# --- What is seen ---------------------------------------------------------------------------------


def test_nothing_but_the_features_of_the_paper_is_seen():
    view = make_view(random_problem(2, num_ops=20, num_devices=4, costs="distinct"))
    decisions = make_policy().rollout(view, 4, None, generator())
    before, rng = replayed(make_policy(), view, decisions), generator(1)

    def changed(view: ProblemView) -> bool:
        other = make_policy()  # keeps nothing of the view
        followed = other.follow(view, decisions.op, decisions.device)
        return not np.allclose(replayed(other, view, followed), before, atol=1e-6)

    for i, name in enumerate(OP_FEATURES):
        features_VF = view.op_features.copy()
        features_VF[:, i] = rng.random(len(features_VF))
        is_seen = name in PUBLISHED_OP_FEATURES and name not in ("incoming", "outgoing")
        assert changed(replace(view, op_features=features_VF)) == is_seen, name
    assert changed(replace(view, edge_features=1.0 - view.edge_features)), "sums of transfers too"
    assert changed(replace(view, to_sink=np.full(20, -1)))
    arrays = view.arrays
    assert not changed(replace(view, arrays=arrays._replace(kernel=1 + arrays.kernel)))
    assert not changed(replace(view, arrays=arrays._replace(siblings=1 + arrays.siblings)))


def test_every_device_may_be_chosen_of_equal_and_empty_ones_too():
    view = make_view(build(graph_of([1] * 6), cluster_of([1.0] * 4)))
    record = make_policy().rollout(view, 5, None, generator()).record
    assert (record.device_mask == 1).all()


# --- The contract ---------------------------------------------------------------------------------


@pytest.mark.parametrize("explore", [None, 0.0, 0.3, 1.0])
@pytest.mark.parametrize(("num_ops", "num_devices"), [(1, 1), (2, 2), (15, 5), (40, 8)])
def test_the_replay_finds_the_log_probabilities_of_the_rollout(num_ops, num_devices, explore):
    view = make_view(random_problem(3, num_ops=num_ops, num_devices=num_devices))
    for seen in (view, merged(view, least_weight_s=0.0, cap_s=view.arrays.scale_s / 3)):
        policy = make_policy()
        decisions = policy.rollout(seen, 3, explore, generator())
        np.testing.assert_allclose(replayed(policy, seen, decisions), decisions.log_prob, atol=1e-4)
        group_V = seen.arrays.group
        device_BV, _ = decisions.placements()
        np.testing.assert_array_equal(device_BV, device_BV[:, group_V])
        followed = policy.follow(seen, decisions.op, decisions.device)
        np.testing.assert_array_equal(followed.log_prob, decisions.log_prob)


def test_log_probabilities_of_all_episodes_of_a_tiny_problem_sum_to_one():
    view = make_view(build(graph_of([1, 2, 3], [(0, 2, 4)]), cluster_of([1.0, 2.0])))
    orders = [(0, 1, 2), (0, 2, 1), (1, 0, 2)]
    every = list(itertools.product(orders, itertools.product((0, 1), repeat=3)))
    op_BV, device_BV = (np.array(each) for each in zip(*every, strict=True))
    total = np.exp(make_policy().follow(view, op_BV, device_BV).log_prob).sum()
    assert total == pytest.approx(1.0, abs=1e-5)


def test_gradients_reach_every_parameter_and_are_finite():
    view = make_view(random_problem(1, num_ops=20, num_devices=4, costs="distinct"))
    policy = make_policy()
    log_prob_B, entropy_B = policy.log_prob(view, policy.rollout(view, 8, None, generator()))
    ((log_prob_B * torch.linspace(-1, 1, 8)).sum() + entropy_B.sum()).backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize(
    ("op", "device"), [([2, 0, 1], [0, 0, 0]), ([0, 1, 2], [0, 2, 0]), ([0, 1, 2], [0, -1, 0])]
)
def test_impossible_decisions_are_refused_with_the_episode_that_holds_them(op, device):
    view = make_view(build(graph_of([1, 2, 3], [(0, 2, 4)]), cluster_of([1.0, 2.0])))
    with pytest.raises(InputError, match="decisions of episode 1: an op before its producers"):
        make_policy().follow(view, np.array([[0, 1, 2], op]), np.array([[1, 0, 1], device]))


def test_advice_is_judged_at_the_states_of_the_episode_itself():
    view = make_view(random_problem(4, num_ops=12, num_devices=3, costs="distinct"))
    policy, edges, leaky_relu = (
        make_policy(),
        view.problem.graph.edges,
        torch.nn.functional.leaky_relu,
    )
    played = policy.rollout(view, 3, 1.0, generator())
    advised = advice(view, played.op, played.device, generator(1))
    assert (advised[0] != played.op).any() and (advised[1] != played.device).any()
    found_B = replayed(policy, view, replace(played, advised=advised))
    assert not np.allclose(found_B, played.log_prob)
    with torch.no_grad():
        heads, device_PH = policy._heads(view), policy._plc_parts()[0]
        for b in range(3):
            total, done, on = 0.0, set(), [[] for _ in range(3)]
            for t, (v, d) in enumerate(zip(played.op[b], played.device[b], strict=True)):
                ready = [
                    u for u in range(12) if done.issuperset(edges.src[edges.dst == u].tolist())
                ]
                logits = heads.sel_logit_V[[u for u in ready if u not in done]]
                total += (heads.sel_logit_V[advised[0][b, t]] - logits.logsumexp(0)).item()
                x_DF = torch.from_numpy(played.record.device_x[b, t])
                placed_DP = torch.stack([heads.plc_placed_VP[there].sum(0) for there in on])
                embedded_DP = leaky_relu(policy.plc_device(x_DF), 0.1) @ device_PH.T
                hidden_DP = heads.plc_op_VP[v] + placed_DP + embedded_DP
                logit_D = policy.plc_out(leaky_relu(hidden_DP, 0.1))[:, 0]
                logit_D[torch.from_numpy(played.record.device_mask[b, t] == 0)] = -torch.inf
                total += logit_D.log_softmax(0)[advised[1][b, t]].item()
                done.add(int(v))
                on[d].append(v)
            assert found_B[b] == pytest.approx(total, abs=1e-4)


@pytest.mark.parametrize("key", ["hidden", "rounds", "head_hidden"])
def test_sizes_that_are_none_are_refused_by_name(key):
    sizes = {"hidden": 4, "rounds": 1, "head_hidden": 4, key: 0}
    with pytest.raises(InputError, match=rf"^PaperPolicy\.{key}: "):
        PaperPolicy(**sizes)


def test_what_lies_on_each_device_and_its_gradients_are_those_of_plain_torch():
    view, policy = make_view(random_problem(2, num_ops=12, num_devices=3)), make_policy()
    record = policy.rollout(view, 4, None, generator()).record
    own_VP, added_VP = torch.randn(2, 12, 5).requires_grad_()
    op_BV, device_BV = torch.from_numpy(record.op), torch.from_numpy(record.device)
    on_BVD = torch.nn.functional.one_hot(device_BV, 3).to(torch.float32)
    each_BVDP = on_BVD[..., None] * added_VP[op_BV][:, :, None]
    plain_BVDP = own_VP[op_BV][:, :, None] + each_BVDP.cumsum(dim=1) - each_BVDP
    found_NP = placed_before(own_VP, added_VP, record)
    torch.testing.assert_close(found_NP, plain_BVDP.flatten(0, 2))
    weight_NP = torch.randn(found_NP.shape)
    for found, plain in zip(
        torch.autograd.grad((found_NP * weight_NP).sum(), (own_VP, added_VP)),
        torch.autograd.grad((plain_BVDP.flatten(0, 2) * weight_NP).sum(), (own_VP, added_VP)),
        strict=True,
    ):
        torch.testing.assert_close(found, plain)
