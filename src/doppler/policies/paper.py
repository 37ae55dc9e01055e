"""The paper's own model: only its features, its networks and its sums over paths.

docs/paper.md compares it with the paper line by line.

Shape suffixes: B episodes, V ops and steps, E edges and A messages (each edge in both directions),
U distinct transfer costs, D devices, T steps of all episodes in a row, N candidates of all these
steps, F features, H hidden, P hidden of a head.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from doppler.env import OP_FEATURES, ProblemView, make_episode
from doppler.policies.choice_kernels import SAMPLE
from doppler.policies.contract import Decisions, in_a_row
from doppler.policies.dual_ablations import PUBLISHED_DEVICE_FEATURES, PUBLISHED_OP_FEATURES
from doppler.policies.dual_replay import among_candidates, among_devices
from doppler.policies.encoder import LEAKINESS, Paths
from doppler.policies.paper_replay import candidates_of, placed_before
from doppler.policies.paper_rollout import PaperRecord, PaperWeights, make_record, make_workspace
from doppler.policies.paper_rollout_kernels import play_paper
from doppler.support.errors import InputError
from doppler.support.options import Depth, Width, checked


class _Inputs(NamedTuple):
    """A problem in the form that the networks need.

    Attributes:
        x_VF: features of ops.
        cost_U1: the distinct transfer costs.
        count_U: number of messages of each cost.
        src_A: senders of messages, sorted by cost.
        dst_A: receivers of messages, sorted by cost.
        to_sink: longest paths to sinks.
        to_source: longest paths to sources.
    """

    x_VF: Tensor
    cost_U1: Tensor
    count_U: list[int]
    src_A: Tensor
    dst_A: Tensor
    to_sink: Paths
    to_source: Paths


class _Heads(NamedTuple):
    """The parts of both heads that do not depend on the placement."""

    sel_logit_V: Tensor
    plc_op_VP: Tensor
    plc_placed_VP: Tensor


def _inputs(view: ProblemView) -> _Inputs:
    edges, num_ops = view.problem.graph.edges, view.problem.num_ops
    cost_E = view.edge_features[:, 0]
    columns: dict[str, NDArray] = {
        name: view.op_features[:, OP_FEATURES.index(name)] for name in PUBLISHED_OP_FEATURES
    }
    # Bytes of each edge in full; the view's edges count data that several ops read only once.
    columns["incoming"] = np.bincount(edges.dst, cost_E, num_ops)
    columns["outgoing"] = np.bincount(edges.src, cost_E, num_ops)
    cost_U, which_E = np.unique(cost_E, return_inverse=True)
    which_A = np.tile(which_E.ravel(), 2)
    order_A = np.argsort(which_A, kind="stable")
    src_A, dst_A = np.append(edges.src, edges.dst), np.append(edges.dst, edges.src)
    return _Inputs(
        x_VF=torch.from_numpy(np.stack(list(columns.values()), axis=1).astype(np.float32)),
        cost_U1=torch.from_numpy(cost_U[:, None]),
        count_U=np.bincount(which_A, minlength=len(cost_U)).tolist(),
        src_A=torch.from_numpy(src_A[order_A]),
        dst_A=torch.from_numpy(dst_A[order_A]),
        to_sink=Paths(torch.from_numpy(view.to_sink)),
        to_source=Paths(torch.from_numpy(view.to_source)),
    )


class EdgeNetworkEncoder(nn.Module):
    """Rounds of messages, each multiplied by a matrix that a network makes from its edge's cost.

    m_v = relu(sum over neighbours u of A(cost of the edge)^T h_u + bias), h_v = GRU(m_v, h_v);
    A = Linear(1, H), relu, Linear(H, H x H).

    All rounds, and both directions of an edge, have the same weights. Edges of equal costs have
    equal matrices, which are computed once.

    Source: Gilmer et al., "Neural Message Passing for Quantum Chemistry", ICML 2017, as used by
    DOPPLER (Yao et al., ICLR 2026).
    """

    def __init__(self, *, num_features: int, hidden: int, rounds: int) -> None:
        super().__init__()
        self.rounds = rounds
        self.embed = nn.Linear(num_features, hidden)
        self.edge_in = nn.Linear(1, hidden)
        self.edge_out = nn.Linear(hidden, hidden * hidden)
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.update = nn.GRUCell(hidden, hidden)

    def forward(self, inputs: _Inputs) -> Tensor:
        """Embeddings H_v [V, H]."""
        h_VH = self.embed(inputs.x_VF).relu()
        width = h_VH.shape[1]
        matrices_UHH = self.edge_out(self.edge_in(inputs.cost_U1).relu()).view(-1, width, width)
        matrix_U = matrices_UHH.unbind(0)
        for _ in range(self.rounds):
            sent_U = h_VH.index_select(0, inputs.src_A).split(inputs.count_U)
            message_AH = torch.cat(
                [h_VH[:0], *(sent @ matrix for sent, matrix in zip(sent_U, matrix_U, strict=True))]
            )
            heard_VH = torch.zeros_like(h_VH).index_add(0, inputs.dst_A, message_AH)
            h_VH = self.update((heard_VH + self.bias).relu(), h_VH)
        return nn.functional.leaky_relu(h_VH, LEAKINESS)


@checked
class PaperPolicy(nn.Module):
    """The paper's two policies, each with its own encoder.

    SEL(v) = MLP[f(x_v), H_v, sum of H along v's longest path to a sink, the same to a source];
    softmax over all candidates. PLC(v, d) = MLP[f(features of d), f(x_v), H_v, sum of H over the
    ops on d]; softmax over all devices that can run v. f is a layer for each, the MLPs are 4 x
    hidden -> head_hidden -> 1.

    Args:
        hidden: width of the encoders.
        rounds: of messages in the encoders.
        head_hidden: width of the MLPs.

    Source: DOPPLER (Yao et al., ICLR 2026). Sizes, and what the paper leaves open, are from the
    released code. Deviations: docs/paper.md.
    """

    def __init__(self, *, hidden: Width, rounds: Depth, head_hidden: Width) -> None:
        super().__init__()
        num_op, num_device = len(PUBLISHED_OP_FEATURES), len(PUBLISHED_DEVICE_FEATURES)
        self.sel_encoder, self.plc_encoder = (
            EdgeNetworkEncoder(num_features=num_op, hidden=hidden, rounds=rounds) for _ in range(2)
        )
        self.sel_op = _layer(num_op, hidden)
        self.sel_in = _layer(4 * hidden, head_hidden)
        self.sel_out = _layer(head_hidden, 1, bias=False)
        self.plc_device = _layer(num_device, hidden)
        self.plc_op = _layer(num_op, hidden)
        self.plc_in = _layer(4 * hidden, head_hidden)
        self.plc_out = _layer(head_hidden, 1, bias=False)
        self._kept: dict[str, _Inputs] = {}

    def _heads(self, view: ProblemView) -> _Heads:
        key = view.problem.hash
        if key not in self._kept:
            self._kept[key] = _inputs(view)
        inputs = self._kept[key]
        h_VH = self.sel_encoder(inputs)
        seen_VF = torch.cat(
            [
                nn.functional.leaky_relu(self.sel_op(inputs.x_VF), LEAKINESS),
                h_VH,
                inputs.to_sink.sum(h_VH),
                inputs.to_source.sum(h_VH),
            ],
            dim=1,
        )
        sel_hidden_VP = nn.functional.leaky_relu(self.sel_in(seen_VF), LEAKINESS)
        h_VH = self.plc_encoder(inputs)
        _, op_PH, own_PH, placed_PH = self._plc_parts()
        embedded_VH = nn.functional.leaky_relu(self.plc_op(inputs.x_VF), LEAKINESS)
        return _Heads(
            sel_logit_V=self.sel_out(sel_hidden_VP)[:, 0],
            plc_op_VP=embedded_VH @ op_PH.T + h_VH @ own_PH.T + self.plc_in.bias,
            plc_placed_VP=h_VH @ placed_PH.T,
        )

    def _plc_parts(self) -> tuple[Tensor, ...]:
        """First layer of PLC's head [P, H] in four parts: device, op, its H, H on the device."""
        return self.plc_in.weight.chunk(4, dim=1)

    def rollout(
        self, view: ProblemView, num_episodes: int, explore: float | None, rng: np.random.Generator
    ) -> Decisions:
        seeds_B = rng.integers(0, 2**62, size=num_episodes)
        return self._play(view, seeds_B, SAMPLE if explore is None else explore, None)

    def follow(
        self, view: ProblemView, op_BV: NDArray[np.int64], device_BV: NDArray[np.int64]
    ) -> Decisions:
        """Play given decisions (see `contract.Policy`); those of step t are at index ``[b, t]``."""
        return self._play(view, np.zeros(len(op_BV), np.int64), 0.0, (op_BV, device_BV))

    @torch.no_grad()
    def _play(
        self,
        view: ProblemView,
        seeds_B: NDArray[np.int64],
        explore: float,
        forced: tuple[NDArray[np.int64], NDArray[np.int64]] | None,
    ) -> Decisions:
        problem, weights = view.problem, self._weights(view)
        record = make_record(len(seeds_B), problem.num_ops, problem.num_devices)
        if forced is not None:
            record.op[:], record.device[:] = forced
        play_paper(
            problem.arrays,
            view.arrays,
            weights,
            make_episode(problem.arrays, view.arrays),
            make_workspace(problem.num_ops, problem.num_devices, weights.plc_op.shape[1]),
            float(explore),
            seeds_B,
            forced is not None,
            record,
        )
        if not record.is_possible.all():
            raise InputError(
                f"decisions of episode {int(record.is_possible.argmin())}: an op before its "
                "producers, or on a device that cannot run it"
            )
        return Decisions(
            op=record.op, device=record.device, log_prob=record.log_prob, record=record
        )

    def _weights(self, view: ProblemView) -> PaperWeights:
        heads, device_PH = self._heads(view), self._plc_parts()[0]
        return PaperWeights(
            *(
                np.ascontiguousarray(tensor.detach().numpy())
                for tensor in (
                    *heads,
                    self.plc_device.weight.T,
                    self.plc_device.bias,
                    device_PH.T,
                    self.plc_out.weight[0],
                )
            )
        )

    def log_prob(self, view: ProblemView, *decisions: Decisions) -> tuple[Tensor, Tensor]:
        heads = self._heads(view)
        return in_a_row(self._replay(view, heads, each) for each in decisions)

    def _replay(
        self, view: ProblemView, heads: _Heads, decisions: Decisions
    ) -> tuple[Tensor, Tensor]:
        record: PaperRecord = decisions.record
        op_BV, device_BV = decisions.judged
        op_N, step_N, chosen_T = candidates_of(view, decisions.op, op_BV)
        sel = among_candidates(heads.sel_logit_V.index_select(0, op_N), step_N, chosen_T)
        x_TDF = torch.from_numpy(record.device_x).flatten(0, 1)
        embedded_TDH = nn.functional.leaky_relu(self.plc_device(x_TDF), LEAKINESS)
        static_NP = placed_before(heads.plc_op_VP, heads.plc_placed_VP, record)
        hidden_TDP = embedded_TDH @ self._plc_parts()[0].T + static_NP.view(*x_TDF.shape[:2], -1)
        logit_TD = self.plc_out(nn.functional.leaky_relu(hidden_TDP, LEAKINESS))[..., 0]
        closed_TD = torch.from_numpy(record.device_mask == 0).flatten(0, 1)
        plc = among_devices(logit_TD, closed_TD, torch.from_numpy(device_BV).flatten())
        shape = record.op.shape
        log_prob_T, entropy_T = sel[0] + plc[0], sel[1] + plc[1]
        return log_prob_T.view(shape).sum(1), entropy_T.view(shape).sum(1)


def _layer(num_in: int, num_out: int, *, bias: bool = True) -> nn.Linear:
    """A linear layer with orthogonal initial weights, as in the released code."""
    layer = nn.Linear(num_in, num_out, bias=bias)
    nn.init.orthogonal_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
