"""The dual policy with a graph network that runs at every step, to measure its benefit.

Shape suffixes: B episodes, V ops and steps, E edges, D devices, C states (an episode before one of
its steps), N candidates in these states, F features, H hidden of the encoder, P hidden of PLC.
"""

import sys
from typing import Literal, NamedTuple, NotRequired, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from doppler.env import ProblemView, make_episode
from doppler.policies.contract import Decisions, in_a_row
from doppler.policies.dual import DualPolicy, StaticParts
from doppler.policies.dual_heads_kernels import make_head_buffers
from doppler.policies.dual_replay import SelRows, plc_choices, sel_choices
from doppler.policies.dual_rollout import Record, Returning
from doppler.policies.dual_rollout_kernels import begin, step
from doppler.policies.encoder import GraphEncoder, Paths
from doppler.support.options import DepthOrNone, Positive, Width, checked

# Number of ops, over all states, that one pass encodes; more only need more memory.
_OPS_AT_ONCE = 1 << 14


class _ViewTensors(NamedTuple):
    """A view in the form that the encoder needs."""

    x_VF: Tensor
    edge_index_2E: Tensor
    edge_E1: Tensor
    to_sink: Paths
    to_source: Paths


class _Options(TypedDict):
    """The options of DualPolicy."""

    sel_hidden: NotRequired[Width]
    plc_hidden: NotRequired[Width]
    sel: NotRequired[Literal["learned", "b_level"]]
    plc: NotRequired[Literal["learned", "earliest_start"]]
    look_ahead: NotRequired[bool]
    scheduler: NotRequired[bool]
    scheduler_scale: NotRequired[Positive]


@checked
class StepwiseDualPolicy(DualPolicy):
    """DualPolicy with a graph network that sees the placement so far and runs before every step.

    SEL(v) also sees H_v and the means of H along v's longest paths to a sink and to a source.
    PLC(v, d) also sees H_v and the sum of H over the ops on d, divided by V. Besides its features,
    an op enters with whether it is placed and the load of its device, and an edge with whether its
    ends are placed, and on one device or on two. So the encoding does not depend on the number or
    the names of devices.

    Args:
        hidden: width of the network.
        rounds: of messages.
        options: those of DualPolicy.

    Source: DOPPLER (Yao et al., ICLR 2026), ablation of message passing per episode against per
    step; Placeto (Addanki et al. 2019) encodes at every step.
    """

    network_prefixes = ()  # a lower rate for its network was no better
    most_steps = sys.maxsize

    def __init__(self, *, hidden: Width, rounds: DepthOrNone, **options: Unpack[_Options]) -> None:
        super().__init__(hidden=0, **options)
        num_static, sel_hidden = self.sel_static.in_features, self.sel_static.out_features
        plc_hidden = self.plc_static.out_features
        self.encoder = GraphEncoder(
            num_features=num_static + 2, hidden=hidden, rounds=rounds, num_edge_features=3
        )
        self.sel_static = nn.Linear(num_static + 3 * hidden, sel_hidden)
        self.plc_static = nn.Linear(num_static + hidden, plc_hidden)
        self.plc_placed = nn.Linear(hidden, plc_hidden, bias=False)

    def _view_tensors(self, view: ProblemView) -> _ViewTensors:
        edges = view.problem.graph.edges
        return _ViewTensors(
            x_VF=self._op_features(view),
            edge_index_2E=torch.from_numpy(np.stack([edges.src, edges.dst])),
            edge_E1=torch.from_numpy(view.edge_features),
            to_sink=Paths(torch.from_numpy(view.to_sink)),
            to_source=Paths(torch.from_numpy(view.to_source)),
        )

    def _encode(
        self, view: ProblemView, tensors: _ViewTensors, device_CV: Tensor
    ) -> tuple[StaticParts, Tensor]:
        """First layers of both heads, and PLC's sums over the ops on each device [C, D, P].

        Args:
            view: the problem.
            tensors: the view for the encoder.
            device_CV: device of each op, -1 if it is not placed.
        """
        x_VF, edge_index_2E, edge_E1, to_sink, to_source = tensors
        num, num_ops = device_CV.shape
        placed_CV = device_CV >= 0
        on_CVD = nn.functional.one_hot(device_CV + 1, view.problem.num_devices + 1)[..., 1:].float()
        work_V = torch.from_numpy(view.problem.mean_op_seconds / view.problem.scale_s).float()
        load_CD = torch.einsum("cvd,v->cd", on_CVD, work_V)
        x_CVF = torch.cat(
            [
                x_VF.expand(num, -1, -1),
                placed_CV[..., None].float(),
                torch.einsum("cvd,cd->cv", on_CVD, load_CD)[..., None],
            ],
            dim=-1,
        )
        src_E, dst_E = edge_index_2E
        both_CE = placed_CV[:, src_E] & placed_CV[:, dst_E]
        same_CE = device_CV[:, src_E] == device_CV[:, dst_E]
        edge_CEF = torch.cat(
            [
                edge_E1.expand(num, -1, -1),
                (both_CE & same_CE)[..., None].float(),
                (both_CE & ~same_CE)[..., None].float(),
            ],
            dim=-1,
        )
        # The states form one graph of C parts.
        shift_C = torch.arange(num) * num_ops
        index_2CE = edge_index_2E[:, None, :] + shift_C[:, None]
        h_CVH = self.encoder(x_CVF.flatten(0, 1), index_2CE.flatten(1), edge_CEF.flatten(0, 1))
        h_CVH = h_CVH.unflatten(0, (num, num_ops))
        columns = h_CVH.transpose(0, 1).flatten(1)
        along = [
            paths.mean(columns).view(num_ops, num, -1).transpose(0, 1)
            for paths in (to_sink, to_source)
        ]
        own_CVF = torch.cat([x_VF.expand(num, -1, -1), h_CVH], dim=-1)
        parts = StaticParts(
            sel_op_VS=self.sel_static(torch.cat([own_CVF, *along], dim=-1)),
            plc_op_VP=self.plc_static(own_CVF),
            query_VR=h_CVH.new_zeros(num, num_ops, 0),
            key_VR=h_CVH.new_zeros(num, num_ops, 0),
            plc_device_VD=h_CVH.new_zeros(num, num_ops, view.problem.num_devices),
        )
        return parts, torch.einsum("cvd,cvp->cdp", on_CVD, self.plc_placed(h_CVH) / num_ops)

    @torch.no_grad()
    def _play_into(
        self,
        view: ProblemView,
        seeds_B: NDArray[np.int64],
        explore: float,
        is_forced: bool,
        returning: Returning,
        record: Record,
    ) -> NDArray[np.int64]:
        arrays, num = view.problem.arrays, len(seeds_B)
        tensors = self._view_tensors(view)
        device_BV = torch.full((num, view.problem.num_ops), -1)
        episodes = [make_episode(arrays, view.arrays) for _ in range(num)]
        rows_B = np.array([begin(arrays, episodes[b], b, record) for b in range(num)])
        for t in range(view.problem.num_ops):
            parts, placed_BDP = self._encode(view, tensors, device_BV)
            for b in range(num):
                weights = self._head_weights(StaticParts(*(part[b] for part in parts)))
                scratch = make_head_buffers(weights, view.problem.num_devices)
                scratch.on_device[:] = placed_BDP[b].numpy()
                rows_B[b] = step(
                    arrays,
                    view.arrays,
                    weights,
                    episodes[b],
                    scratch,
                    float(explore),
                    seeds_B[b],
                    is_forced,
                    b,
                    t,
                    returning,
                    record,
                )
            if (rows_B < 0).any():
                break
            device_BV[torch.arange(num), record.op[:, t]] = torch.from_numpy(record.device[:, t])
        return rows_B

    def log_prob(self, view: ProblemView, *decisions: Decisions) -> tuple[Tensor, Tensor]:
        """Replay many states at a time, and once more for the gradients (see `contract.Policy`).

        Without the second replay, embeddings of V graphs with V ops would be kept for each episode.
        """
        return in_a_row(self._replay_all(view, self._recorded(view, each)) for each in decisions)

    def _replay_all(self, view: ProblemView, decisions: Decisions) -> tuple[Tensor, Tensor]:
        num, num_ops = decisions.op.shape
        rows = SelRows(decisions.record, decisions.advised and decisions.advised[0])
        tensors, at_once = self._view_tensors(view), max(1, _OPS_AT_ONCE // num_ops)
        parts = [
            checkpoint(
                self._replay_some,
                view,
                tensors,
                decisions,
                rows,
                torch.arange(first, min(first + at_once, num * num_ops)),
                use_reentrant=False,
            )
            for first in range(0, num * num_ops, at_once)
        ]
        log_prob_BV, entropy_BV = (
            torch.cat(each).view(num, num_ops) for each in zip(*parts, strict=True)
        )
        return log_prob_BV.sum(1), entropy_BV.sum(1)

    def _replay_some(
        self,
        view: ProblemView,
        tensors: _ViewTensors,
        decisions: Decisions,
        rows: SelRows,
        state_C: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy [C] of the steps from some consecutive states."""
        record: Record = decisions.record
        num_ops = record.op.shape[1]
        device_BV, step_BV = map(torch.from_numpy, decisions.placements())
        episode_C, step_C = state_C // num_ops, state_C % num_ops
        device_CV = device_BV[episode_C].where(step_BV[episode_C] < step_C[:, None], -1)
        parts, placed_CDP = self._encode(view, tensors, device_CV)

        first, last = torch.searchsorted(rows.step, torch.stack([state_C[0], state_C[-1] + 1]))
        step_N = rows.step[first:last] - state_C[0]
        own_NS = parts.sel_op_VS[step_N, rows.op[first:last]]
        sel_in_SF = self._sel_in(rows.x.shape[-1])
        hidden_NS = own_NS + nn.functional.linear(rows.x[first:last], sel_in_SF)
        known_N = rows.scheduler_terms[first:last] @ self.sel_scheduler_weights
        sel = sel_choices(hidden_NS, self.sel_out, known_N, step_N, rows.chosen[state_C] - first)

        op_C = torch.from_numpy(record.op).flatten()[state_C]
        device_x_TDF = torch.from_numpy(record.device_x).flatten(0, 1)
        plc_in_PF = self._plc_in(device_x_TDF.shape[-1])
        own_CP = parts.plc_op_VP[torch.arange(len(state_C)), op_C]
        plc = plc_choices(
            own_CP[:, None] + placed_CDP + nn.functional.linear(device_x_TDF[state_C], plc_in_PF),
            self.plc_mid,
            self.plc_out,
            torch.from_numpy(record.device_terms).flatten(0, 1)[state_C]
            @ self.plc_scheduler_weights,
            torch.from_numpy(record.device_mask).flatten(0, 1)[state_C] == 0,
            torch.from_numpy(decisions.judged[1]).flatten()[state_C],
        )
        return sel[0] + plc[0], sel[1] + plc[1]
