"""GDP: GraphSAGE and segment-recurrent attention, all ops placed in one forward pass.

Shape suffixes: B episodes, V ops and steps, D devices, E edges, F features, H hidden, S ops of a
segment, M ops of the memory.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from doppler.env import OP_FEATURES, ProblemView
from doppler.policies.encoder import LEAKINESS
from doppler.policies.fixed_order import slowness
from doppler.policies.one_pass import OnePassPolicy
from doppler.support.errors import InputError
from doppler.support.options import Count, Depth, Devices, Width, checked


class _Inputs(NamedTuple):
    """A problem in the form that the networks need; ops are numbered by their step."""

    step_V: Tensor
    x_VF: Tensor
    edge_index_2E: Tensor
    slowness_VD: Tensor


class _Sage(nn.Module):
    """Rounds of GraphSAGE: the maximum over transformed neighbours beside the op's own embedding.

    Source: GDP, graph embedding network (Hamilton et al. 2017, pooling aggregator). Deviation:
    consumers and producers are aggregated separately, each with their own weights.
    """

    def __init__(self, *, hidden: int, rounds: int) -> None:
        super().__init__()
        self.embed = nn.Linear(len(OP_FEATURES), hidden)
        self.along, self.against = (
            nn.ModuleList(SAGEConv(hidden, hidden, aggr="max", project=True) for _ in range(rounds))
            for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(rounds))

    def forward(self, x_VF: Tensor, edge_index_2E: Tensor) -> Tensor:
        h_VH = nn.functional.leaky_relu(self.embed(x_VF), LEAKINESS)
        for along, against, norm in zip(self.along, self.against, self.norms, strict=True):
            next_VH = along(h_VH, edge_index_2E) + against(h_VH, edge_index_2E.flip(0))
            h_VH = h_VH + nn.functional.leaky_relu(norm(next_VH), LEAKINESS)
        return h_VH


class _Attention(nn.Module):
    """A layer of segment-recurrent attention.

    Ops attend to the ops of their segment and to those of the segment before, whose states are
    constants here. There are no positions, because the graph embedding says where an op is.

    Source: GDP, placement network (Dai et al. 2019 without positional encoding), with the
    superposition that adapts shared weights to a graph: the input of a dense layer is multiplied by
    a function of the graph embedding.
    """

    def __init__(self, *, hidden: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.attention = nn.MultiheadAttention(hidden, heads)
        self.superposition = nn.Linear(hidden, hidden)
        self.dense_norm = nn.LayerNorm(hidden)
        self.dense = nn.Sequential(
            nn.Linear(hidden, 2 * hidden), nn.LeakyReLU(LEAKINESS), nn.Linear(2 * hidden, hidden)
        )

    def forward(self, h_SH: Tensor, memory_MH: Tensor, graph_SH: Tensor) -> Tensor:
        context_H = self.norm(torch.cat([memory_MH, h_SH]))
        heard_SH, _ = self.attention(self.norm(h_SH), context_H, context_H, need_weights=False)
        h_SH = h_SH + heard_SH
        scale_SH = 1.0 + self.superposition(graph_SH)
        return h_SH + self.dense(scale_SH * self.dense_norm(h_SH))


def _position_code(num_ops: int, width: int) -> Tensor:
    """Sines and cosines [V, width] of the step, wavelengths from 2 to 2,000 steps."""
    frequency = torch.pi * 1000.0 ** -torch.linspace(0.0, 1.0, width // 2)
    phase = torch.arange(num_ops)[:, None] * frequency
    return torch.cat([phase.sin(), phase.cos()], dim=1)


def _standardised(h_VH: Tensor) -> Tensor:
    """Mean 0 and deviation 1 over the ops."""
    centred_VH = h_VH - h_VH.mean(dim=0)
    return centred_VH * torch.rsqrt(centred_VH.square().mean(dim=0) + 1e-4)


@checked
class GDP(OnePassPolicy):
    """GDP's policy: one pass gives every op its distribution over devices, independent of others.

    GraphSAGE embeds the ops; layers of attention run over them in the order of b_level, segment by
    segment, with the states of the segment before as memory; a last layer scores the devices.

    Args:
        hidden: width, even.
        rounds: of GraphSAGE.
        layers: of attention.
        heads: of attention.
        segment: ops in one.
        positions: tell ops apart by their place in the order.
        max_devices: outputs of the last layer.

    Source: GDP (Zhou et al. 2019, arXiv 1910.01578). Deviations: the last layer has outputs for
    max_devices devices, of which a problem uses the first, and adds how much slower an op runs
    there, by a learned factor: one policy for any cluster of up to so many devices. Embeddings are
    standardised over the ops before the last layer, without which all ops learn the same. The paper
    leaves positions away; but our workloads are blocks of ops that nothing else tells apart, and
    what is placed at once by equal distributions cannot be divided among devices. Trained by the
    stages of this project instead of PPO.
    """

    def __init__(
        self,
        *,
        hidden: Width,
        rounds: Depth,
        layers: Depth,
        heads: Width,
        segment: Count,
        positions: bool,
        max_devices: Devices,
    ) -> None:
        super().__init__()
        if hidden % (2 * heads) != 0:
            raise InputError(f"policy.build.hidden: {hidden} is not divisible by 2 x {heads} heads")
        self.segment, self.positions = segment, positions
        self.sage = _Sage(hidden=hidden, rounds=rounds)
        self.attention = nn.ModuleList(
            _Attention(hidden=hidden, heads=heads) for _ in range(layers)
        )
        self.score = nn.Linear(2 * hidden if positions else hidden, max_devices)
        self.score_slowness = nn.Linear(self.score.in_features, 1)
        with torch.no_grad():  # start close to uniform, so that early episodes explore
            self.score.weight.mul_(0.1)
            self.score_slowness.weight.mul_(0.1)
        self._inputs: dict[str, _Inputs] = {}

    def _inputs_of(self, view: ProblemView) -> _Inputs:
        key = view.problem.hash
        if key not in self._inputs:
            order_V, edges = self.order(view), view.problem.graph.edges
            step_V = np.argsort(order_V)
            self._inputs[key] = _Inputs(
                step_V=torch.from_numpy(step_V),
                x_VF=torch.from_numpy(view.op_features[order_V]),
                edge_index_2E=torch.from_numpy(step_V[np.stack([edges.src, edges.dst])]),
                slowness_VD=torch.from_numpy(slowness(view, order_V)),
            )
        return self._inputs[key]

    def scores(self, view: ProblemView) -> Tensor:
        """Score devices (see `OnePassPolicy`); the networks see ops in the order of steps."""
        inputs = self._inputs_of(view)
        most, num_devices = self.score.out_features, view.problem.num_devices
        if num_devices > most:
            raise InputError(f"policy.build.max_devices: {most}, the cluster has {num_devices}")
        graph_VH = self.sage(inputs.x_VF, inputs.edge_index_2E)
        if self.positions:
            code_VH = _position_code(*graph_VH.shape)
            h_VH = _standardised(self._attend(graph_VH + code_VH, graph_VH))
            h_VH = torch.cat([h_VH, code_VH], dim=1)
        else:
            h_VH = _standardised(self._attend(graph_VH, graph_VH))
        slowness_VD = self.score_slowness(h_VH) * inputs.slowness_VD
        score_VD = self.score(h_VH)[:, :num_devices] + slowness_VD
        return score_VD[inputs.step_V]

    def _attend(self, h_VH: Tensor, graph_VH: Tensor) -> Tensor:
        for layer in self.attention:
            memory_MH, segments = h_VH[:0], []
            for h_SH, graph_SH in zip(
                h_VH.split(self.segment), graph_VH.split(self.segment), strict=True
            ):
                segments.append(layer(h_SH, memory_MH, graph_SH))
                memory_MH = h_SH.detach()
            h_VH = torch.cat(segments)
        return h_VH
