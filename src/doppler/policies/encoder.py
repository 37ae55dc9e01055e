"""The graph encoder that SEL and PLC share: edge-conditioned messages in both directions.

Shape suffixes: V ops, E edges, F features, H hidden.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import ResGatedGraphConv

LEAKINESS = 0.1
# Edges whose messages are computed together where no gradients are asked for: a core's cache.
_EDGES_AT_ONCE = 1 << 14


class GraphEncoder(nn.Module):
    """Rounds of gated message passing along and against the edges, with separate weights.

    num_features: of the ops. hidden: width. rounds: of message passing. num_edge_features: of the
    edges.

    Source: DOPPLER (Yao et al., ICLR 2026), shared graph network with 6 rounds of width 128 and an
    edge network per message; gated convolutions (Bresson and Laurent 2017) cost a tenth of that,
    and backward edges have weights of their own instead of none.
    """

    def __init__(
        self, *, num_features: int, hidden: int, rounds: int, num_edge_features: int = 1
    ) -> None:
        super().__init__()
        self.embed = nn.Linear(num_features, hidden)
        self.forward_rounds = nn.ModuleList(
            ResGatedGraphConv(hidden, hidden, edge_dim=num_edge_features) for _ in range(rounds)
        )
        self.backward_rounds = nn.ModuleList(
            ResGatedGraphConv(hidden, hidden, edge_dim=num_edge_features) for _ in range(rounds)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(rounds))

    def forward(
        self, x_VF: Tensor, edge_index_2E: Tensor, edge_E1: Tensor, *, by_op: bool = False
    ) -> Tensor:
        """Embeddings H_v [V, H] of op features, edges (src, dst) and edge features.

        by_op: multiply by weights once for each op in place of once for each edge: sums differ in
        the last digits, and take a fraction of the time and memory.
        """
        h_VH = nn.functional.leaky_relu(self.embed(x_VF), LEAKINESS)
        against_2E = edge_index_2E.flip(0)
        rounds = zip(self.forward_rounds, self.backward_rounds, self.norms, strict=True)
        for along, against, norm in rounds:
            if by_op:
                message_VH = _messages(along, h_VH, edge_index_2E, edge_E1)
                message_VH = message_VH + _messages(against, h_VH, against_2E, edge_E1)
            else:
                message_VH = along(h_VH, edge_index_2E, edge_E1)
                message_VH = message_VH + against(h_VH, against_2E, edge_E1)
            h_VH = h_VH + nn.functional.leaky_relu(norm(message_VH), LEAKINESS)
        return h_VH


def _messages(conv: Any, h_VH: Tensor, edge_index_2E: Tensor, edge_EF: Tensor) -> Tensor:
    """What a ResGatedGraphConv returns; its layers are applied to ops and to edges, then added."""
    width, linear = h_VH.shape[1], nn.functional.linear
    key, query, value = conv.lin_key, conv.lin_query, conv.lin_value
    to_VH = linear(h_VH, key.weight[:, :width], key.bias + query.bias)
    from_weight = torch.cat([query.weight[:, :width], value.weight[:, :width]])
    from_V2H = linear(h_VH, from_weight, torch.cat([torch.zeros_like(value.bias), value.bias]))
    edge_weight = torch.cat([key.weight + query.weight, value.weight])[:, width:]
    received_VH = conv.lin_skip(h_VH) + conv.bias
    num_edges = edge_index_2E.shape[1]
    at_once = num_edges if torch.is_grad_enabled() else _EDGES_AT_ONCE
    for first in range(0, num_edges, at_once):
        src_E, dst_E = edge_index_2E[:, first : first + at_once]
        gate_E2H = from_V2H[src_E] + linear(edge_EF[first : first + at_once], edge_weight)
        gate_EH = (gate_E2H[:, :width] + to_VH[dst_E]).sigmoid()
        message_EH = gate_EH * gate_E2H[:, width:]
        received_VH = received_VH.scatter_add_(0, dst_E[:, None].expand_as(message_EH), message_EH)
    return received_VH


class NoEncoder(nn.Module):
    """In place of the encoder: embeddings that are 0, so that heads see the features alone."""

    width = 1  # layers of width 0 make torch warn

    def forward(
        self, x_VF: Tensor, edge_index_2E: Tensor, edge_E1: Tensor, *, by_op: bool = False
    ) -> Tensor:
        """Zeros [V, 1]."""
        return x_VF.new_zeros(len(x_VF), self.width)


class Paths:
    """Sums and averages over the ops of a path that begins at each op.

    next_V: the op after each op, -1 at the end; the path includes the op itself. Sums are doubled:
    that of 2 n ops is that of n and that of the n behind them, so that neither time nor memory
    grow with the lengths of the paths but by their logarithm.

    Source: DOPPLER sums the embeddings along the path (PaperPolicy); DualPolicy averages them, to
    keep deep graphs in range.
    """

    def __init__(self, next_V: Tensor) -> None:
        num_ops = len(next_V)
        end = torch.tensor([num_ops])  # a place behind the ops, where nothing is
        ahead_V = torch.cat([torch.where(next_V < 0, num_ops, next_V), end])
        self._ahead: list[Tensor] = []
        while bool((ahead_V < num_ops).any()):
            self._ahead.append(ahead_V)
            ahead_V = ahead_V[ahead_V]
        self._length_V1 = self.sum(torch.ones(num_ops, 1))

    def sum(self, h_VH: Tensor) -> Tensor:
        """The sum [V, H] of h over each path."""
        sum_VH = torch.cat([h_VH, h_VH.new_zeros(1, h_VH.shape[1])])
        for ahead_V in self._ahead:
            sum_VH = sum_VH + sum_VH[ahead_V]
        return sum_VH[:-1]

    def mean(self, h_VH: Tensor) -> Tensor:
        """The mean [V, H] of h over each path."""
        return self.sum(h_VH) / self._length_V1
