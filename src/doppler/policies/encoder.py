"""A graph encoder of edge-conditioned messages in both directions, and sums over paths.

Shape suffixes: V ops, E edges, F features, H hidden.
"""

import torch
from torch import Tensor, nn
from torch_geometric.nn import GINEConv

LEAKINESS = 0.1


class GraphEncoder(nn.Module):
    """Rounds of message passing along and against the edges, with separate weights.

    Args:
        num_features: of the ops.
        hidden: width.
        rounds: of message passing; without any, H_v is a function of the op alone.
        num_edge_features: of the edges.

    Source: DOPPLER (Yao et al., ICLR 2026), shared graph network with 6 rounds of width 128 and an
    edge network per message. Here messages are GINE's (Hu et al., "Strategies for pre-training
    graph neural networks", ICLR 2020), a sum of relu(h_u + W e_uv): a round takes two products with
    the ops instead of one with every edge. Backward edges have weights of their own instead of
    none.
    """

    def __init__(
        self, *, num_features: int, hidden: int, rounds: int, num_edge_features: int = 1
    ) -> None:
        super().__init__()

        def convolutions() -> nn.ModuleList:
            return nn.ModuleList(
                GINEConv(nn.Linear(hidden, hidden), edge_dim=num_edge_features)
                for _ in range(rounds)
            )

        self.embed = nn.Linear(num_features, hidden)
        self.forward_rounds, self.backward_rounds = convolutions(), convolutions()
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(rounds))

    def forward(
        self,
        x_VF: Tensor,
        edge_index_2E: Tensor,
        edge_EF: Tensor,
        added_VH: Tensor | None = None,
    ) -> Tensor:
        """Return embeddings H_v [V, H].

        Args:
            x_VF: features of the ops.
            edge_index_2E: source and destination of the edges.
            edge_EF: features of the edges.
            added_VH: added to the first layer before its rectifier.
        """
        first_VH = self.embed(x_VF)
        if added_VH is not None:
            first_VH = first_VH + added_VH
        h_VH = nn.functional.leaky_relu(first_VH, LEAKINESS)
        against_2E = edge_index_2E.flip(0)
        rounds = zip(self.forward_rounds, self.backward_rounds, self.norms, strict=True)
        for along, against, norm in rounds:
            message_VH = along(h_VH, edge_index_2E, edge_EF)
            message_VH = message_VH + against(h_VH, against_2E, edge_EF)
            h_VH = h_VH + nn.functional.leaky_relu(norm(message_VH), LEAKINESS)
        return h_VH


class Paths:
    """Sums and averages over the ops of a path that begins at each op.

    Sums are computed by doubling: a path of 2 n ops is one of n ops and the n after them. So time
    and memory grow only with the logarithm of the length.

    Args:
        next_V: the op after each op, -1 at the end; the path includes the op itself.

    Source: DOPPLER sums the embeddings along the path (PaperPolicy); StepwiseDualPolicy averages
    them, to keep deep graphs in range.
    """

    def __init__(self, next_V: Tensor) -> None:
        num_ops = len(next_V)
        end = torch.tensor([num_ops])  # an empty row after the ops
        ahead_V = torch.cat([torch.where(next_V < 0, num_ops, next_V), end])
        self._ahead: list[Tensor] = []
        while bool((ahead_V < num_ops).any()):
            self._ahead.append(ahead_V)
            ahead_V = ahead_V[ahead_V]
        self._length_V1 = self.sum(torch.ones(num_ops, 1))

    def sum(self, h_VH: Tensor) -> Tensor:
        """Return the sum [V, H] of h over each path."""
        sum_VH = torch.cat([h_VH, h_VH.new_zeros(1, h_VH.shape[1])])
        for ahead_V in self._ahead:
            sum_VH = sum_VH + sum_VH[ahead_V]
        return sum_VH[:-1]

    def mean(self, h_VH: Tensor) -> Tensor:
        """Return the mean [V, H] of h over each path."""
        return self.sum(h_VH) / self._length_V1
