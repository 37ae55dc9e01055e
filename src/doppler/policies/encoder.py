"""A graph encoder of edge-conditioned messages in both directions, and sums over paths.

Shape suffixes: V ops, E edges, F features, H hidden.
"""

import torch
from torch import Tensor, nn
from torch_geometric.nn import ResGatedGraphConv

LEAKINESS = 0.1


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

    def forward(self, x_VF: Tensor, edge_index_2E: Tensor, edge_E1: Tensor) -> Tensor:
        """Embeddings H_v [V, H] of op features, edges (src, dst) and edge features."""
        h_VH = nn.functional.leaky_relu(self.embed(x_VF), LEAKINESS)
        against_2E = edge_index_2E.flip(0)
        rounds = zip(self.forward_rounds, self.backward_rounds, self.norms, strict=True)
        for along, against, norm in rounds:
            message_VH = along(h_VH, edge_index_2E, edge_E1)
            message_VH = message_VH + against(h_VH, against_2E, edge_E1)
            h_VH = h_VH + nn.functional.leaky_relu(norm(message_VH), LEAKINESS)
        return h_VH


class Paths:
    """Sums and averages over the ops of a path that begins at each op.

    next_V: the op after each op, -1 at the end; the path includes the op itself. Sums are doubled:
    that of 2 n ops is that of n and that of the n behind them, so that neither time nor memory
    grow with the lengths of the paths but by their logarithm.

    Source: DOPPLER sums the embeddings along the path (PaperPolicy); StepwiseDualPolicy averages
    them, to keep deep graphs in range.
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
