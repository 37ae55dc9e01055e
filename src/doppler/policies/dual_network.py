"""The graph network that SEL and PLC share, encoded once for all episodes of an update.

Shape suffixes: V ops, E edges, D devices, F features, H hidden of the network, R numbers of a query
or a key, S hidden of SEL, P hidden of PLC, W numbers of an op's own.
"""

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from doppler.env import ProblemView
from doppler.policies.encoder import GraphEncoder, Paths
from doppler.support.errors import InputError

# Up to this number of ops, sums of keys over a device are used unchanged. In larger graphs they are
# divided by how many times more ops there are, because a device holds so many more. (Divided by the
# root of that, they outgrow all else: weights that were trained on up to 367 ops placed a fork-join
# graph of 10,000 ops 25% worse than untrained ones.)
_USUAL_OPS = 256
# Of the learned vectors: ops' vectors, and the layer that was trained to read them.
_TOGETHER = {"own.vectors", "own.into.weight"}
# Standard deviation of an op's vector at first.
_OWN_SPREAD = 0.5


class Encoded(NamedTuple):
    """What both heads read from the network, for one problem.

    Attributes:
        sel: [V, S] added to SEL's first layer.
        plc: [V, P] added to PLC's first layer.
        query: [V, R] see ``key``.
        key: [V, R] PLC's logit of device d for op v contains query_v . the sum of key_u over the
            ops u on d.
        device: [V, D] added to PLC's logits: query_v . the vector of d's class.
    """

    sel: Tensor
    plc: Tensor
    query: Tensor
    key: Tensor
    device: Tensor


class OwnVectors(nn.Module):
    """Learned vectors of the ops and devices of one problem.

    Without them a network cannot tell equal ops apart, and so cannot learn to put them on different
    devices. Weights that serve many problems have none.

    Attributes:
        vectors: [V, W] of the ops.
        into: layer that feeds them into the network.
        devices: [D, R] of the devices. All devices of a class use the vector of its first device.
        made_for: digest of the graph that they belong to.
    """

    def __init__(self, view: ProblemView, *, width: int, hidden: int, num_pairs: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(view.problem.num_ops, width) * _OWN_SPREAD)
        self.into = nn.Linear(width, hidden, bias=False)
        self.devices = nn.Parameter(torch.zeros(view.problem.num_devices, num_pairs))
        self.made_for: Tensor
        self.register_buffer("made_for", _digest(view))


def _digest(view: ProblemView) -> Tensor:
    """A digest of the graph as 32 numbers; costs and machines do not enter."""
    edges = view.problem.graph.edges
    digest = hashlib.sha256(f"{view.problem.num_ops}".encode())
    for end in (edges.src, edges.dst):
        digest.update(end.astype("<i8").tobytes())
    return torch.tensor(list(digest.digest()), dtype=torch.uint8)


class SharedNetwork(nn.Module):
    """Computes H_v by messages in both directions, and what SEL and PLC read from it.

    All layers that read H_v are zero at first, so new weights change no decision.

    Args:
        num_features: of an op.
        hidden: width of the network.
        rounds: of messages; with 0, H_v is a function of the op alone.
        num_pairs: R, 0: without keys and queries.
        own_width: W, 0: ops have no learned vectors.
        sel_hidden: width of SEL's head.
        plc_hidden: width of PLC's head.

    Source: DOPPLER (Yao et al., ICLR 2026): PLC sees the sum of H over the ops on a device. Here
    that sum is multiplied by a query of the op to place, so that compiled episodes only keep a sum
    of keys per device. Keys have mean 0 over the ops, because the number of ops on a device is
    already in other features.
    """

    def __init__(
        self,
        *,
        num_features: int,
        hidden: int,
        rounds: int,
        num_pairs: int,
        own_width: int,
        sel_hidden: int,
        plc_hidden: int,
    ) -> None:
        super().__init__()
        self._own_width = own_width
        self.encoder = GraphEncoder(num_features=num_features, hidden=hidden, rounds=rounds)
        self.sel = nn.Linear(3 * hidden, sel_hidden, bias=False)
        self.plc = nn.Linear(hidden, plc_hidden, bias=False)
        self.query_RH = nn.Parameter(torch.zeros(num_pairs, hidden))
        self.key_RH = nn.Parameter(torch.randn(num_pairs, hidden) / hidden**0.5)
        self.own: OwnVectors | None = None
        # Of the last problem that was encoded: its hash and its digest.
        self._last_digest: tuple[str, Tensor] | None = None
        for reads in (self.sel, self.plc):
            nn.init.zeros_(reads.weight)

    def bind(self, view: ProblemView) -> None:
        """Add learned vectors for the ops and devices of one problem."""
        if self._own_width == 0:
            return
        num_pairs, hidden = self.key_RH.shape
        self.own = OwnVectors(view, width=self._own_width, hidden=hidden, num_pairs=num_pairs)

    def completed(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Convert weights of a network of the same sizes so that this network can load them.

        Learned vectors of ops and devices are kept if they belong to the graph that this network is
        bound to, and dropped if this network serves many problems. New vectors of ops change
        nothing until they are trained. Vectors are kept only with the layer that reads them.

        Args:
            weights: by name; empty for a policy without a network.
        """
        mine = self.state_dict()
        if not weights:
            return dict(mine)
        shared = {name: one for name, one in weights.items() if not name.startswith("own.")}
        own = {name: one for name, one in mine.items() if name.startswith("own.")}
        theirs = weights.get("own.made_for")
        if own:
            own["own.into.weight"] = torch.zeros_like(own["own.into.weight"])
        if theirs is not None and own and torch.equal(theirs, own["own.made_for"]):
            kept = {n: weights[n] for n in own if n in weights and weights[n].shape == own[n].shape}
            if not kept.keys() >= _TOGETHER:
                kept = {name: one for name, one in kept.items() if name not in _TOGETHER}
            own |= kept
        return shared | own

    @property
    def is_silent(self) -> bool:
        """Whether it adds nothing to any decision, because all that reads H_v is still zero."""
        reads = (self.sel.weight, self.plc.weight, self.query_RH)
        return not any(bool(one.count_nonzero()) for one in reads)

    def check_bound_to(self, view: ProblemView) -> None:
        """Refuse a graph other than the one that the learned vectors belong to.

        Raises:
            InputError: it is another graph.
        """
        if self.own is None:
            return
        problem = view.problem
        if self._last_digest is None or self._last_digest[0] != problem.hash:
            self._last_digest = (problem.hash, _digest(view))
        if not torch.equal(self._last_digest[1], self.own.made_for):
            raise InputError(
                f"policy: it is bound to another problem, a graph of {len(self.own.vectors)} ops; "
                f"it cannot place {problem.graph.name!r}, which has {problem.num_ops}"
            )

    def forward(self, view: ProblemView, x_VF: Tensor) -> Encoded:
        """Encode a problem.

        Args:
            view: the problem.
            x_VF: features of its ops.
        """
        edges, problem = view.problem.graph.edges, view.problem
        edge_index_2E = torch.from_numpy(np.stack([edges.src, edges.dst]))
        own_VH = None
        if self.own is not None:
            own_VH = self.own.into(self.own.vectors)
        h_VH = self.encoder(x_VF, edge_index_2E, _edge_features(view), own_VH)
        along = [
            Paths(torch.from_numpy(next_V)).mean(h_VH) for next_V in (view.to_sink, view.to_source)
        ]
        query_VR = h_VH @ self.query_RH.T
        scale = min(1.0, _USUAL_OPS / problem.num_ops)
        return Encoded(
            sel=self.sel(torch.cat([h_VH, *along], dim=1)),
            plc=self.plc(h_VH),
            query=query_VR,
            key=(h_VH - h_VH.mean(dim=0)) @ self.key_RH.T * scale,
            device=self._of_devices(view, query_VR),
        )

    def _of_devices(self, view: ProblemView, query_VR: Tensor) -> Tensor:
        if self.own is None:
            return query_VR.new_zeros(len(query_VR), view.problem.num_devices)
        device_class = torch.from_numpy(view.arrays.device_class)
        if int(device_class.max()) >= len(self.own.devices):
            raise InputError(
                f"policy: it is bound to a cluster of {len(self.own.devices)} devices; it cannot "
                f"place on {view.problem.cluster.name!r}, which has {len(device_class)}"
            )
        return query_VR @ self.own.devices[device_class].T


def _edge_features(view: ProblemView) -> Tensor:
    """Transfer seconds in mean ops [E, 1], as logarithms: they differ by powers of ten."""
    problem = view.problem
    transfer_E = problem.mean_transfer_seconds[problem.graph.regions.of_edge]
    return torch.from_numpy(np.log1p(transfer_E / view.arrays.mean_op_s)[:, None]).float()
