"""The dual policy: SEL picks the op, PLC its device, both over one graph encoder.

Shape suffixes: B episodes, V ops and steps, D devices, N candidates of all steps and episodes,
F features, H hidden of the encoder, S hidden of SEL, P hidden of PLC.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.utils import scatter

from doppler.episode import OP_FEATURES, View, make_episode
from doppler.episode.process import NUM_DEVICE_FEATURES, NUM_SEL_FEATURES
from doppler.errors import InputError
from doppler.policies.contract import Decisions
from doppler.policies.dual_rollout import (
    NO_ROOM,
    NO_SUCH_CHOICE,
    SAMPLE,
    HeadWeights,
    Record,
    make_record,
    make_scratch,
    play_batch,
    record_of,
)
from doppler.policies.encoder import LEAKINESS, GraphEncoder, path_mean_matrix


class _ViewTensors(NamedTuple):
    """A view as the encoder takes it."""

    x_VF: Tensor
    edge_index_2E: Tensor
    edge_E1: Tensor
    sink_path_VV: Tensor
    source_path_VV: Tensor


class _StaticParts(NamedTuple):
    """First-layer sums of both heads that do not depend on the placement, per op."""

    sel_op_VS: Tensor
    plc_op_VP: Tensor
    plc_placed_VP: Tensor


class DualPolicy(nn.Module):
    """DOPPLER's two policies.

    SEL(v) = MLP[x_v, H_v, mean of H along v's longest path to a sink and to a source, features of
    v among the candidates]; softmax over candidates. PLC(v, d) = MLP[x_v, H_v, sum of H over the
    ops on d / V, features of d for v]; softmax over devices. Rollouts run compiled on all cores,
    `log_prob` replays the recorded decisions in one batched pass.

    hidden, rounds: of the encoder. sel_hidden, plc_hidden: of the heads.

    Source: DOPPLER (Yao et al., ICLR 2026), section on the dual policy; the features that depend on
    the placement, and the sizes, are ours.
    """

    def __init__(self, *, hidden: int, rounds: int, sel_hidden: int, plc_hidden: int) -> None:
        super().__init__()
        sizes = {"hidden": hidden, "sel_hidden": sel_hidden, "plc_hidden": plc_hidden}
        for key, size in sizes.items():
            if size < 1:
                raise InputError(f"policy.build.{key}: at least 1, got {size}")
        if rounds < 0:
            raise InputError(f"policy.build.rounds: at least 0, got {rounds}")
        num_static = len(OP_FEATURES)
        self.encoder = GraphEncoder(num_features=num_static, hidden=hidden, rounds=rounds)
        self.sel_static = nn.Linear(num_static + 3 * hidden, sel_hidden)
        self.sel_dynamic = nn.Linear(NUM_SEL_FEATURES, sel_hidden, bias=False)
        self.sel_out = nn.Linear(sel_hidden, 1, bias=False)
        self.plc_static = nn.Linear(num_static + hidden, plc_hidden)
        self.plc_placed = nn.Linear(hidden, plc_hidden, bias=False)
        self.plc_dynamic = nn.Linear(NUM_DEVICE_FEATURES, plc_hidden, bias=False)
        self.plc_mid = nn.Linear(plc_hidden, plc_hidden)
        self.plc_out = nn.Linear(plc_hidden, 1, bias=False)
        with torch.no_grad():  # begin close to uniform: early episodes should explore
            self.sel_out.weight.mul_(0.1)
            self.plc_out.weight.mul_(0.1)
        self._tensors: dict[str, _ViewTensors] = {}
        self._num_threads = len(os.sched_getaffinity(0))

    def _static_parts(self, view: View) -> _StaticParts:
        key = view.problem.hash
        if key not in self._tensors:
            edges = view.problem.graph.edges
            self._tensors[key] = _ViewTensors(
                x_VF=torch.from_numpy(view.op_features),
                edge_index_2E=torch.from_numpy(np.stack([edges.src, edges.dst])),
                edge_E1=torch.from_numpy(view.edge_features),
                sink_path_VV=path_mean_matrix(torch.from_numpy(view.to_sink)),
                source_path_VV=path_mean_matrix(torch.from_numpy(view.to_source)),
            )
        x_VF, edge_index_2E, edge_E1, sink_path_VV, source_path_VV = self._tensors[key]
        h_VH = self.encoder(x_VF, edge_index_2E, edge_E1)
        paths = [sink_path_VV @ h_VH, source_path_VV @ h_VH]
        return _StaticParts(
            sel_op_VS=self.sel_static(torch.cat([x_VF, h_VH, *paths], dim=1)),
            plc_op_VP=self.plc_static(torch.cat([x_VF, h_VH], dim=1)),
            plc_placed_VP=self.plc_placed(h_VH) / len(x_VF),
        )

    def _head_weights(self, view: View) -> HeadWeights:
        with torch.no_grad():
            parts = self._static_parts(view)

        def array(tensor: Tensor) -> NDArray[np.float32]:
            return np.ascontiguousarray(tensor.detach().numpy())

        return HeadWeights(
            sel_op=array(parts.sel_op_VS),
            sel_in=array(self.sel_dynamic.weight.T),
            sel_out=array(self.sel_out.weight[0]),
            plc_op=array(parts.plc_op_VP),
            plc_placed=array(parts.plc_placed_VP),
            plc_in=array(self.plc_dynamic.weight.T),
            plc_mid=array(self.plc_mid.weight.T),
            plc_mid_bias=array(self.plc_mid.bias),
            plc_out=array(self.plc_out.weight[0]),
        )

    def rollout(
        self, view: View, num_episodes: int, explore: float | None, rng: np.random.Generator
    ) -> Decisions:
        """See contract.Policy."""
        seeds_B = rng.integers(0, 2**62, size=num_episodes)
        return self._play(view, seeds_B, SAMPLE if explore is None else explore, None)

    def follow(
        self, view: View, op_BV: NDArray[np.int64], device_BV: NDArray[np.int64]
    ) -> Decisions:
        """See contract.Policy; ``device_BV[b, t]`` is the device of the op of step t."""
        seeds_B = np.zeros(len(op_BV), dtype=np.int64)
        return self._play(view, seeds_B, 0.0, (op_BV, device_BV))

    def _play(
        self,
        view: View,
        seeds_B: NDArray[np.int64],
        explore: float,
        forced: tuple[NDArray[np.int64], NDArray[np.int64]] | None,
    ) -> Decisions:
        problem, weights = view.problem, self._head_weights(view)
        num, num_ops, num_devices = len(seeds_B), problem.num_ops, problem.num_devices
        # Candidates a step are not known beforehand: begin with a guess, double it if it is short.
        room = 16 * num_ops
        threads = min(self._num_threads, num)
        while True:
            record = make_record(num, num_ops, num_devices, room)
            if forced is not None:
                record.op[:], record.device[:] = forced
            rows_B = np.zeros(num, dtype=np.int64)

            def part(i: int, record: Record = record, rows_B: NDArray[np.int64] = rows_B) -> None:
                mine = slice(num * i // threads, num * (i + 1) // threads)
                play_batch(
                    problem.arrays,
                    view.arrays,
                    weights,
                    make_episode(problem.arrays, view.arrays),
                    make_scratch(weights, num_devices),
                    float(explore),
                    seeds_B[mine],
                    forced is not None,
                    record_of(record, mine),
                    rows_B[mine],
                )

            if threads == 1:
                part(0)
            else:
                with ThreadPoolExecutor(threads, "rollout") as pool:
                    list(pool.map(part, range(threads)))
            if (rows_B != NO_ROOM).all():
                break
            room *= 2
        if (rows_B == NO_SUCH_CHOICE).any():
            raise InputError(
                f"decisions of episode {int((rows_B == NO_SUCH_CHOICE).argmax())}: an op before "
                "its producers, or on a device that cannot run it"
            )
        return Decisions(
            op=record.op, device=record.device, log_prob=record.log_prob, record=record
        )

    def log_prob(self, view: View, decisions: Decisions) -> tuple[Tensor, Tensor]:
        """See contract.Policy."""
        parts, record = self._static_parts(view), decisions.record
        sel_log_prob_B, sel_entropy_B = self._replay_sel(parts, record)
        plc_log_prob_B, plc_entropy_B = self._replay_plc(parts, record)
        return sel_log_prob_B + plc_log_prob_B, sel_entropy_B + plc_entropy_B

    def _replay_sel(self, parts: _StaticParts, record: Record) -> tuple[Tensor, Tensor]:
        num, num_ops = record.op.shape
        rows_B = record.candidate_ptr[:, -1]
        op_N = torch.from_numpy(
            np.concatenate([record.candidate_op[b, : rows_B[b]] for b in range(num)])
        )
        x_NF = torch.from_numpy(
            np.concatenate([record.candidate_x[b, : rows_B[b]] for b in range(num)])
        )
        # Steps of all episodes in a row: step t of episode b is segment b * V + t.
        segment_N = torch.repeat_interleave(
            torch.arange(num * num_ops),
            torch.from_numpy(np.diff(record.candidate_ptr, axis=1).ravel()),
        )
        first_B = np.concatenate([[0], np.cumsum(rows_B)[:-1]])
        chosen_T = torch.from_numpy((record.chosen + first_B[:, None]).ravel())
        hidden_NS = nn.functional.leaky_relu(
            parts.sel_op_VS[op_N] + self.sel_dynamic(x_NF), LEAKINESS
        )
        logit_N = self.sel_out(hidden_NS)[:, 0]
        top_T = scatter(logit_N.detach(), segment_N, dim_size=num * num_ops, reduce="max")
        shifted_N = logit_N - top_T[segment_N]
        total_T = scatter(shifted_N.exp(), segment_N, dim_size=num * num_ops, reduce="sum")
        log_prob_N = shifted_N - total_T.log()[segment_N]
        entropy_T = scatter(
            -log_prob_N.exp() * log_prob_N, segment_N, dim_size=num * num_ops, reduce="sum"
        )
        return (
            log_prob_N[chosen_T].view(num, num_ops).sum(1),
            entropy_T.view(num, num_ops).sum(1),
        )

    def _replay_plc(self, parts: _StaticParts, record: Record) -> tuple[Tensor, Tensor]:
        num_devices = record.device_mask.shape[-1]
        op_BV, device_BV = torch.from_numpy(record.op), torch.from_numpy(record.device)
        on_BVD = nn.functional.one_hot(device_BV, num_devices).to(torch.float32)
        added_BVDP = on_BVD[..., None] * parts.plc_placed_VP[op_BV][:, :, None, :]
        # What lies on each device before the step: the sum over all earlier steps.
        placed_BVDP = added_BVDP.cumsum(dim=1) - added_BVDP
        hidden_BVDP = nn.functional.leaky_relu(
            parts.plc_op_VP[op_BV][:, :, None, :]
            + placed_BVDP
            + self.plc_dynamic(torch.from_numpy(record.device_x)),
            LEAKINESS,
        )
        hidden_BVDP = nn.functional.leaky_relu(self.plc_mid(hidden_BVDP), LEAKINESS)
        logit_BVD = self.plc_out(hidden_BVDP)[..., 0]
        closed_BVD = torch.from_numpy(record.device_mask == 0)
        log_prob_BVD = logit_BVD.masked_fill(closed_BVD, -torch.inf).log_softmax(dim=-1)
        entropy_BVD = -log_prob_BVD.exp() * log_prob_BVD.masked_fill(closed_BVD, 0.0)
        chosen_BV = log_prob_BVD.gather(2, device_BV[..., None])[..., 0]
        return chosen_BV.sum(1), entropy_BVD.sum((1, 2))
