"""The dual policy: SEL picks the op, PLC its device.

Shape suffixes: B episodes, V ops and steps, D devices, T steps of all episodes in a row, N
candidates of all these steps, C steps at which PLC has a choice, F features, S hidden of SEL, P
hidden of PLC.
"""

import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from doppler.env import (
    DEVICE_FEATURES,
    DEVICE_GROUP_FEATURES,
    OP_FEATURES,
    SEL_FEATURES,
    SEL_GROUP_FEATURES,
    ProblemView,
    make_episode,
)
from doppler.env.scheduler_terms import PLC_INITIAL_WEIGHTS, SEL_INITIAL_WEIGHTS
from doppler.policies.choice_kernels import SAMPLE
from doppler.policies.contract import Decisions, in_a_row
from doppler.policies.dual_ablations import (
    PUBLISHED_DEVICE_FEATURES,
    PUBLISHED_OP_FEATURES,
    blind,
    make_even,
)
from doppler.policies.dual_heads_kernels import HeadWeights, make_head_buffers
from doppler.policies.dual_network import SharedNetwork
from doppler.policies.dual_pairs import pairs_of
from doppler.policies.dual_replay import SelRows, over_steps, plc_choices, sel_choices
from doppler.policies.dual_rollout import (
    MAX_CANDIDATES,
    NO_ROOM,
    NO_SUCH_CHOICE,
    Record,
    Returning,
    free_everywhere,
    make_record,
    record_of,
)
from doppler.policies.dual_rollout_kernels import play_batch
from doppler.support.compute.threads import num_threads
from doppler.support.errors import InputError
from doppler.support.options import DepthOrNone, Positive, Width, WidthOrNone, checked


def _no_pairs(view: ProblemView) -> tuple[Tensor, Tensor, Tensor]:
    """Empty queries, keys and device parts, for a policy without a network."""
    num_ops, num_devices = view.problem.num_ops, view.problem.num_devices
    return torch.zeros(num_ops, 0), torch.zeros(num_ops, 0), torch.zeros(num_ops, num_devices)


class StaticParts(NamedTuple):
    """The parts of the heads that do not depend on the placement (see `dual_network.Encoded`).

    Attributes:
        sel_op_VS: first layer of SEL, per op.
        plc_op_VP: first layer of PLC, per op.
        query_VR: queries of ops.
        key_VR: keys of ops.
        plc_device_VD: added to PLC's logits.
    """

    sel_op_VS: Tensor
    plc_op_VP: Tensor
    query_VR: Tensor
    key_VR: Tensor
    plc_device_VD: Tensor


def _zeros(num_features: int, width: int) -> nn.Linear:
    """A linear layer whose weights are zero; makes no random draw."""
    layer = nn.Linear(num_features, width, bias=False, device="meta").to_empty(device="cpu")
    nn.init.zeros_(layer.weight)
    return layer


def _with_groups(dynamic: nn.Linear, groups: nn.Linear, num_features: int) -> Tensor:
    """Weights of the features of every episode, followed by those of groups if these are present.

    Episodes without groups neither compute nor see group features.
    """
    if num_features == dynamic.in_features:
        return dynamic.weight
    return torch.cat([dynamic.weight, groups.weight], dim=1)


@checked
class DualPolicy(nn.Module):
    """DOPPLER's two policies over a shared graph network that is encoded once per update.

    SEL(v) = MLP[x_v, H_v, means of H along the longest paths of v, features of v among the
    candidates] + the list scheduler's terms of v; softmax over the candidates, or over the
    MAX_CANDIDATES that can start earliest if there are more.

    PLC(v, d) = MLP[x_v, H_v, features of d for v] + q_v . (sum of k_u over the ops u on d) + q_v .
    e_d + the list scheduler's terms of d for v; softmax over devices. q and k are linear in H; e_d
    belongs to the class of d (`bind`).

    The list scheduler's terms (env/scheduler_terms.py) have learned weights. Everything else is 0
    at first, so a policy with new weights equals that list scheduler, and training adds to it.
    Rollouts run in compiled code on all cores; `log_prob` replays the recorded decisions in one
    batched pass.

    Args:
        sel_hidden: width of SEL's head.
        plc_hidden: width of PLC's head.
        hidden: width of the graph network; 0: no network.
        rounds: of message passing; 0: no messages.
        pairs: length of q and k; 0: without them.
        own: length of the learned vector of each op of a problem that the policy is bound to; 0:
            none.
        sel: ``learned``, or ``b_level``: choose as the critical path heuristic does, ties at
            random. Given decisions are followed in any case.
        plc: ``learned``, or ``earliest_start``: choose as the critical path heuristic does.
        look_ahead: whether to see more than the published features.
        scheduler: whether logits contain the list scheduler's terms.
        scheduler_scale: factor on these terms in new weights; larger values make episodes more
            alike.

    Source: DOPPLER (Yao et al., ICLR 2026), section on the dual policy. The features that depend on
    the placement, the list scheduler's terms and the sizes are ours, and PLC sees the paper's sum
    of H over the ops on a device as a product with a query. `PaperPolicy` is closer to the paper.
    """

    # See contract.Policy.
    network_prefixes: ClassVar[tuple[str, ...]] = ("network.",)
    # Largest number of recorded steps of an episode, which estimate its gradient (dual_replay).
    most_steps: ClassVar[int] = 1024

    def __init__(
        self,
        *,
        sel_hidden: Width = 16,
        plc_hidden: Width = 32,
        hidden: WidthOrNone = 64,
        rounds: DepthOrNone = 4,
        pairs: WidthOrNone = 32,
        own: WidthOrNone = 16,
        sel: Literal["learned", "b_level"] = "learned",
        plc: Literal["learned", "earliest_start"] = "learned",
        look_ahead: bool = True,
        scheduler: bool = True,
        scheduler_scale: Positive = 1.0,
    ) -> None:
        super().__init__()
        seen = OP_FEATURES if look_ahead else PUBLISHED_OP_FEATURES
        self._seen_F = [OP_FEATURES.index(name) for name in seen]
        self._sel_learned, self._plc_learned = sel == "learned", plc == "learned"
        self._make_heads(len(seen), sel_hidden, plc_hidden)
        self.network: SharedNetwork | None = None
        if hidden > 0:
            self.network = SharedNetwork(
                num_features=len(seen),
                hidden=hidden,
                rounds=rounds,
                num_pairs=pairs if self._plc_learned else 0,
                own_width=own,
                sel_hidden=sel_hidden,
                plc_hidden=plc_hidden,
            )
        self.sel_scheduler_weights, self.plc_scheduler_weights = (
            nn.Parameter(scheduler_scale * torch.tensor(known))
            for known in (SEL_INITIAL_WEIGHTS, PLC_INITIAL_WEIGHTS)
        )
        for learned, out, known in (
            (self._sel_learned, self.sel_out, self.sel_scheduler_weights),
            (self._plc_learned, self.plc_out, self.plc_scheduler_weights),
        ):
            if not learned:
                make_even(out.weight)
            if not (learned and scheduler):
                make_even(known)
        if not look_ahead:
            self._blind()
        self._watched: list[nn.Parameter] = []
        # What episodes are played with, for the weights and the problem of `_state_on`: as arrays,
        # and for a policy that learns also as tensors into which gradients flow. A policy that only
        # places keeps no tensors, which would take several times the memory on large graphs.
        # The checksum is None where `_weights_to_play` was not asked to be certain.
        self._played_with: tuple[tuple, int | None, HeadWeights] | None = None
        self._encoded: tuple[tuple, StaticParts] | None = None
        self._learns = False

    def _make_heads(self, num_static: int, sel_hidden: int, plc_hidden: int) -> None:
        self.sel_static = nn.Linear(num_static, sel_hidden)
        self.sel_dynamic = nn.Linear(len(SEL_FEATURES), sel_hidden, bias=False)
        self.sel_out = nn.Linear(sel_hidden, 1, bias=False)
        self.plc_static = nn.Linear(num_static, plc_hidden)
        self.plc_dynamic = nn.Linear(len(DEVICE_FEATURES), plc_hidden, bias=False)
        self.plc_mid = nn.Linear(plc_hidden, plc_hidden)
        self.plc_out = nn.Linear(plc_hidden, 1, bias=False)
        for out in (self.sel_out, self.plc_out):
            nn.init.zeros_(out.weight)
        # Group features have no effect until a training places groups.
        self.sel_group = _zeros(len(SEL_GROUP_FEATURES), sel_hidden)
        self.plc_group = _zeros(len(DEVICE_GROUP_FEATURES), plc_hidden)

    def _blind(self) -> None:
        blind(self.sel_dynamic, SEL_FEATURES, ())
        blind(self.plc_dynamic, DEVICE_FEATURES, PUBLISHED_DEVICE_FEATURES)
        blind(self.sel_group, SEL_GROUP_FEATURES, ())
        blind(self.plc_group, DEVICE_GROUP_FEATURES, ())

    def _op_features(self, view: ProblemView) -> Tensor:
        return torch.from_numpy(view.op_features[:, self._seen_F])

    def bind(self, view: ProblemView) -> None:
        """Bind the policy to one problem, whose ops and device classes get learned vectors."""
        if self.network is not None:
            self.network.bind(view)
        self._watched, self._played_with, self._encoded = [], None, None

    def completed(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Convert weights for this policy, also those of a policy without a network."""
        if self.network is None:
            return dict(weights)
        prefix = "network."
        of_network = {
            name[len(prefix) :]: one for name, one in weights.items() if name.startswith(prefix)
        }
        heads = {name: one for name, one in weights.items() if not name.startswith(prefix)}
        completed = self.network.completed(of_network)
        return heads | {prefix + name: one for name, one in completed.items()}

    def _static_parts(self, view: ProblemView) -> StaticParts:
        x_VF = self._op_features(view)
        sel_op_VS, plc_op_VP = self.sel_static(x_VF), self.plc_static(x_VF)
        if self.network is None:
            return StaticParts(sel_op_VS, plc_op_VP, *_no_pairs(view))
        self.network.check_bound_to(view)
        # On a large graph, encoding takes most of the time and memory of a placement.
        if self.network.is_silent and not self._learns:
            return StaticParts(sel_op_VS, plc_op_VP, *_no_pairs(view))
        encoded = self.network(view, x_VF)
        return StaticParts(
            sel_op_VS=sel_op_VS + encoded.sel,
            plc_op_VP=plc_op_VP + encoded.plc,
            query_VR=encoded.query,
            key_VR=encoded.key,
            plc_device_VD=encoded.device,
        )

    def _weights_to_play(self, view: ProblemView, *, is_greedy: bool) -> HeadWeights:
        """The weights in the form that compiled episodes use; renewed when weights have changed.

        An update plays episodes and merged ones and follows the best placement, all on one problem,
        so the form is reused.

        Args:
            view: the problem.
            is_greedy: whether a placement is wanted, not an episode of a training. Then, and for a
                policy that is not trained, a checksum tells whether weights have changed, because
                `_state_on` misses some changes. It takes a quarter of a millisecond, which is too
                long for every use of an update.
        """
        key, learns = self._state_on(view), self._learns and torch.is_grad_enabled()
        checksum = None if self._learns and not is_greedy else self._checksum()
        if (
            self._played_with is None
            or self._played_with[0] != key
            or checksum not in (None, self._played_with[1])
        ):
            with torch.set_grad_enabled(learns):
                parts = self._static_parts(view)
            self._played_with = (key, checksum, self._head_weights(parts))
            if learns:
                self._encoded = (key, parts)
        return self._played_with[2]

    def _parts_to_learn_from(self, view: ProblemView) -> StaticParts:
        """Return the parts that the last episodes were played with if gradients flow into them.

        Otherwise compute the parts again. Parts are returned once only, because `backward` frees
        what it needs to compute gradients.
        """
        encoded, self._encoded = self._encoded, None
        if not torch.is_grad_enabled():
            return self._static_parts(view)
        self._learns = True
        if encoded is None or encoded[0] != self._state_on(view):
            return self._static_parts(view)
        return encoded[1]

    def _state_on(self, view: ProblemView) -> tuple[str, tuple[int, ...]]:
        """Identify the problem and the weights.

        torch counts in-place changes of a tensor, except those through ``.data`` (moving averages
        of weights are often made so): see `_checksum`.
        """
        if not self._watched:  # finding them takes longer than playing an episode
            self._watched = list(self.parameters())
        return view.problem.hash, tuple(parameter._version for parameter in self._watched)

    def _checksum(self) -> int:
        """Return a number that changes with any weight, however it was changed."""
        checksum = 0
        for parameter in self.parameters():
            checksum = zlib.crc32(parameter.detach().numpy().tobytes(), checksum)
        return checksum

    def __getstate__(self) -> dict[str, object]:
        """Leave out of copies what belongs to this policy's own tensors, or to its training."""
        left_out = {"_encoded": None, "_played_with": None, "_watched": [], "_learns": False}
        return self.__dict__ | left_out

    def _sel_in(self, num_features: int) -> Tensor:
        """SEL's first layer [S, F] for this number of features."""
        return _with_groups(self.sel_dynamic, self.sel_group, num_features)

    def _plc_in(self, num_features: int) -> Tensor:
        """PLC's first layer [P, F] for this number of features."""
        return _with_groups(self.plc_dynamic, self.plc_group, num_features)

    def _head_weights(self, parts: StaticParts) -> HeadWeights:
        def array(tensor: Tensor) -> NDArray[np.float32]:
            return np.ascontiguousarray(tensor.detach().numpy())

        return HeadWeights(
            sel_op=array(parts.sel_op_VS),
            sel_in=array(self._sel_in(len(SEL_FEATURES) + len(SEL_GROUP_FEATURES)).T),
            sel_out=array(self.sel_out.weight[0]),
            sel_scheduler=array(self.sel_scheduler_weights),
            plc_op=array(parts.plc_op_VP),
            plc_in=array(self._plc_in(len(DEVICE_FEATURES) + len(DEVICE_GROUP_FEATURES)).T),
            plc_mid=array(self.plc_mid.weight.T),
            plc_mid_bias=array(self.plc_mid.bias),
            plc_out=array(self.plc_out.weight[0]),
            plc_scheduler=array(self.plc_scheduler_weights),
            pair_query=array(parts.query_VR),
            pair_key=array(parts.key_VR),
            plc_device=array(parts.plc_device_VD),
            sel_learned=self._sel_learned,
            plc_learned=self._plc_learned,
        )

    def rollout(
        self, view: ProblemView, num_episodes: int, explore: float | None, rng: np.random.Generator
    ) -> Decisions:
        seeds_B = rng.integers(0, 2**62, size=num_episodes)
        return self._play(view, seeds_B, SAMPLE if explore is None else explore, None)

    def follow(
        self, view: ProblemView, op_BV: NDArray[np.int64], device_BV: NDArray[np.int64]
    ) -> Decisions:
        """Play given decisions (see `contract.Policy`); those of step t are at index ``[b, t]``."""
        seeds_B = np.zeros(len(op_BV), dtype=np.int64)
        return self._play(view, seeds_B, 0.0, (op_BV, device_BV))

    def return_to(
        self,
        view: ProblemView,
        op_V: NDArray[np.int64],
        device_V: NDArray[np.int64],
        window_B2: NDArray[np.int64],
        rng: np.random.Generator,
    ) -> Decisions:
        rank_V, placed_V = np.empty((2, len(op_V)), np.int64)
        rank_V[op_V], placed_V[op_V] = np.arange(len(op_V)), device_V
        seeds_B = rng.integers(0, 2**62, size=len(window_B2))
        return self._play(view, seeds_B, SAMPLE, None, Returning(rank_V, placed_V, window_B2))

    def _play(
        self,
        view: ProblemView,
        seeds_B: NDArray[np.int64],
        explore: float,
        forced: tuple[NDArray[np.int64], NDArray[np.int64]] | None,
        returning: Returning | None = None,
    ) -> Decisions:
        problem, num = view.problem, len(seeds_B)
        # Given decisions, and ties of a SEL that is not learned, may need more. Room that no
        # candidate takes takes no memory either.
        room, num_steps = MAX_CANDIDATES, min(problem.num_ops, self.most_steps)
        if explore == 0.0 and forced is None:
            num_steps = 0  # greedy episodes rarely need gradients
        assert num_steps == 0 or view.arrays.limit_s == np.inf, "such episodes are not recorded"
        if returning is None:
            returning = free_everywhere(num, problem.num_ops)
        drawn_by = seeds_B if forced is None else self._seeds_of(forced[0])
        while True:
            rng = np.random.default_rng(drawn_by)
            record = make_record(num, view, num_steps, room, rng)
            if forced is not None:
                record.op[:], record.device[:] = forced
            rows_B = self._play_into(view, seeds_B, explore, forced is not None, returning, record)
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

    def _seeds_of(self, op_BV: NDArray[np.int64]) -> list[int]:
        """Seeds that choose the recorded steps of given decisions; they change with the weights."""
        heads = self.sel_out.weight, self.plc_out.weight, self.plc_scheduler_weights
        arrays = [op_BV, *(weight.detach().numpy() for weight in heads)]
        return [zlib.crc32(array.tobytes()) for array in arrays]

    def _play_into(
        self,
        view: ProblemView,
        seeds_B: NDArray[np.int64],
        explore: float,
        is_forced: bool,
        returning: Returning,
        record: Record,
    ) -> NDArray[np.int64]:
        """Play episodes on all cores and fill the record; return the result of `play` for each."""
        arrays, num = view.problem.arrays, len(seeds_B)
        weights = self._weights_to_play(view, is_greedy=explore == 0.0 and not is_forced)
        rows_B = np.zeros(num, dtype=np.int64)
        threads = min(num_threads(), num)

        def part(i: int) -> None:
            mine = slice(num * i // threads, num * (i + 1) // threads)
            play_batch(
                arrays,
                view.arrays,
                weights,
                make_episode(arrays, view.arrays),
                make_head_buffers(weights, view.problem.num_devices),
                float(explore),
                seeds_B[mine],
                is_forced,
                returning._replace(window=returning.window[mine]),
                record_of(record, mine),
                rows_B[mine],
            )

        if threads == 1:
            part(0)
        else:
            with ThreadPoolExecutor(threads, "rollout") as pool:
                list(pool.map(part, range(threads)))
        return rows_B

    def log_prob(self, view: ProblemView, *decisions: Decisions) -> tuple[Tensor, Tensor]:
        parts = self._parts_to_learn_from(view)
        return in_a_row(self._replay(parts, self._recorded(view, each)) for each in decisions)

    def _recorded(self, view: ProblemView, decisions: Decisions) -> Decisions:
        """Play decisions again so that they are recorded."""
        if decisions.record.step.size > 0:
            return decisions
        followed = self.follow(view, decisions.op, decisions.device)
        return replace(followed, advised=decisions.advised)

    def _replay(self, parts: StaticParts, decisions: Decisions) -> tuple[Tensor, Tensor]:
        sel_log_prob_T, sel_entropy_T = self._replay_sel(parts, decisions)
        plc_log_prob_T, plc_entropy_T = self._replay_plc(parts, decisions)
        record = decisions.record
        return (
            over_steps(sel_log_prob_T, record) + over_steps(plc_log_prob_T, record),
            over_steps(sel_entropy_T, record) + over_steps(plc_entropy_T, record),
        )

    def _replay_sel(self, parts: StaticParts, decisions: Decisions) -> tuple[Tensor, Tensor]:
        rows = SelRows(decisions.record, decisions.advised and decisions.advised[0])
        own_NS = parts.sel_op_VS.index_select(0, rows.op)
        hidden_NS = torch.addmm(own_NS, rows.x, self._sel_in(rows.x.shape[-1]).T)
        known_N = rows.scheduler_terms @ self.sel_scheduler_weights
        return sel_choices(hidden_NS, self.sel_out, known_N, rows.step, rows.chosen)

    def _replay_plc(self, parts: StaticParts, decisions: Decisions) -> tuple[Tensor, Tensor]:
        record: Record = decisions.record
        num = record.step.shape[1]
        mask_TD = torch.from_numpy(record.device_mask[:, :num]).flatten(0, 1)
        # With a single open device nothing is decided: log-probability and entropy are 0.
        deciding_C = (mask_TD.count_nonzero(dim=1) > 1).nonzero()[:, 0]

        def at(of_steps: NDArray) -> Tensor:
            return torch.from_numpy(of_steps).flatten(0, 1).index_select(0, deciding_C)

        op_C = at(np.take_along_axis(record.op, record.step, 1))
        x_CDF = at(record.device_x[:, :num])
        known_CD = at(record.device_terms[:, :num]) @ self.plc_scheduler_weights
        if self.network is not None:
            pairs_BSD = pairs_of(parts.query_VR, parts.key_VR, record)
            known_CD = known_CD + pairs_BSD.flatten(0, 1).index_select(0, deciding_C)
            known_CD = known_CD + parts.plc_device_VD.index_select(0, op_C)
        own_C1P = parts.plc_op_VP.index_select(0, op_C)[:, None]
        choices = plc_choices(
            own_C1P + nn.functional.linear(x_CDF, self._plc_in(x_CDF.shape[-1])),
            self.plc_mid,
            self.plc_out,
            known_CD,
            mask_TD.index_select(0, deciding_C) == 0,
            at(np.take_along_axis(decisions.judged[1], record.step, 1)),
        )
        nothing_T = torch.zeros(len(mask_TD))
        log_prob_T, entropy_T = (nothing_T.index_copy(0, deciding_C, one) for one in choices)
        return log_prob_T, entropy_T
