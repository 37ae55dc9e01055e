"""Placeto: ops in a fixed order; the graph is embedded anew at every step.

Shape suffixes: B episodes, V ops and steps, D devices, C = B x D, N rows of a plan, F features,
H hidden.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from doppler.env import OP_FEATURES, ProblemView
from doppler.policies.contract import Decisions, in_a_row
from doppler.policies.encoder import LEAKINESS
from doppler.policies.fixed_order import Choices, FixedOrderPolicy, choose, distribution, slowness
from doppler.policies.placeto_plan import Round, Rows, make_plan
from doppler.problem.arrays import link_seconds
from doppler.support.options import Depth, Width, checked

# Features of an op as seen from a device: to be placed now; placed here; cost of the link to here.
NUM_STATE_FEATURES = 3
# Largest size [row, episode, device, hidden] of each tensor of a pass: 64 MB.
_ROOM = 1 << 24


class _Problem:
    """The data of a problem that all episodes use; ops are numbered by their step."""

    def __init__(self, view: ProblemView, order_V: NDArray[np.int64], rounds: int) -> None:
        self.plan = make_plan(view.problem, order_V, rounds)
        slowness_VD = slowness(view, order_V)
        x_VDF = np.empty((*slowness_VD.shape, len(OP_FEATURES) + 1), dtype=np.float32)
        x_VDF[:, :, :-1] = view.op_features[order_V][:, None, :]
        x_VDF[:, :, -1] = slowness_VD
        self.x_VDF = torch.from_numpy(x_VDF)
        self.away_DD = torch.from_numpy(_link_costs(view))


def _link_costs(view: ProblemView) -> NDArray[np.float32]:
    """Seconds [D, D] of a mean transfer between two devices, over their mean; 0 on the diagonal."""
    arrays = view.problem.arrays
    seconds_DD = np.where(np.eye(len(arrays.kind), dtype=bool), 0.0, link_seconds(arrays))
    links = seconds_DD[seconds_DD > 0.0]
    return (seconds_DD / (links.mean() if len(links) else 1.0)).astype(np.float32)


class _Tape:
    """Tables of rows, filled at once or, if no gradients are needed, step by step."""

    def __init__(self) -> None:
        self._tables: dict[object, Tensor] = {}

    def put(self, key: object, rows: Rows, steps: slice, value: Tensor) -> Tensor:
        """Set the rows of these steps; return the whole table."""
        here, num = rows.at(steps), len(rows.op)
        if here == slice(0, num):
            self._tables[key] = value
        else:
            if key not in self._tables:
                self._tables[key] = value.new_empty((num, *value.shape[1:]))
            self._tables[key][here] = value
        return self._tables[key]


class _Sweep(nn.Module):
    """Rounds of messages in one direction: h = own features + g(mean of f(h) over neighbours)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.message = nn.Linear(hidden, hidden)
        self.update = nn.Linear(hidden, hidden)

    def forward(
        self, own_NCH: Tensor, states: Rows, rounds: tuple[Round, ...], steps: slice, tape: _Tape
    ) -> Tensor:
        """Return embeddings after the last round, as a whole table."""
        h_NCH, before = own_NCH[states.at(steps)], states
        for number, now in enumerate(rounds):
            message_NCH = nn.functional.leaky_relu(self.message(h_NCH), LEAKINESS)
            message_NCH = tape.put((self, number), before, steps, message_NCH)
            rows = now.rows.at(steps)
            heard_NCH = self.update(now.sources.reduce(message_NCH, rows, "mean"))
            h_NCH = own_NCH[now.own[rows]] + nn.functional.leaky_relu(heard_NCH, LEAKINESS)
            before = now.rows
        return tape.put(self, before, steps, h_NCH)


@checked
class Placeto(FixedOrderPolicy):
    """Placeto's placement policy, with ops in the order of b_level.

    At each step every op is embedded from its features, the present placement and a mark on the op
    to place, by messages along the edges and, separately, against them. The score of a device comes
    from the embedding of the op itself and from the pooled embeddings of its ancestors, its
    descendants and the ops parallel to it. An embedding is computed once for as long as it does not
    change (placeto_plan), for all episodes at once, and in `log_prob` for all steps at once.

    Args:
        hidden: width.
        rounds: of messages in each direction, all with the same weights.

    Source: Placeto (Addanki et al., NeurIPS 2019), section on graph embedding. Deviations: its
    softmax has one output for each of a fixed number of devices. Here the graph is embedded as seen
    from each device, with the same weights: "placed on device i" becomes "placed here", or the cost
    of the link from there, plus how much slower the op runs here. So one policy serves any cluster.
    Messages are averaged instead of summed, and pooled sums are divided by the number of ops, to
    keep large graphs in range. Ops that are not placed yet are on no device instead of an initial
    one.
    """

    def __init__(self, *, hidden: Width, rounds: Depth) -> None:
        super().__init__()
        self.hidden, self.rounds = hidden, rounds
        self.embed_op = nn.Linear(len(OP_FEATURES) + 1, hidden)
        self.embed_state = nn.Linear(NUM_STATE_FEATURES, hidden, bias=False)
        self.sweeps = nn.ModuleList(_Sweep(hidden) for _ in range(2))
        self.pools = nn.ModuleList(nn.Linear(2 * hidden, hidden) for _ in range(3))
        self.mid = nn.Linear(5 * hidden, hidden)
        self.out = nn.Linear(hidden, 1, bias=False)
        with torch.no_grad():  # start close to uniform, so that early episodes explore
            self.out.weight.mul_(0.1)
        self._problems: dict[str, _Problem] = {}

    def _problem(self, view: ProblemView) -> _Problem:
        key = view.problem.hash
        if key not in self._problems:
            self._problems[key] = _Problem(view, self.order(view), self.rounds)
        return self._problems[key]

    def _chunks(self, problem: _Problem, num_episodes: int) -> Iterator[slice]:
        num_devices = problem.x_VDF.shape[1]
        most = max(1, _ROOM // (problem.plan.num_rows * num_devices * self.hidden))
        for first in range(0, num_episodes, most):
            yield slice(first, min(first + most, num_episodes))

    def _logits(
        self, problem: _Problem, here_VBD: Tensor, away_VBD: Tensor, steps: slice, tape: _Tape
    ) -> Tensor:
        """Scores [steps, B, D]; ops that are placed after a step do not affect it."""
        plan, (_, num, num_devices) = problem.plan, here_VBD.shape
        own_NCH = self._states(problem, here_VBD, away_VBD, steps, tape)
        tables = [
            network(own_NCH, plan.states, rounds, steps, tape)
            for network, rounds in zip(self.sweeps, plan.sweeps, strict=True)
        ]
        rows = plan.embedded.at(steps)
        parts = [table[part[rows]] for table, part in zip(tables, plan.parts, strict=True)]
        embedded_NCG = torch.cat(parts, dim=2)
        seen = [embedded_NCG[plan.current[steps] - rows.start]]
        for pool, related in zip(self.pools, plan.related, strict=True):
            pooled_NCH = nn.functional.leaky_relu(pool(embedded_NCG), LEAKINESS)
            table_NCH = tape.put(pool, plan.embedded, steps, pooled_NCH)
            seen.append(related.reduce(table_NCH, steps, "sum") / len(here_VBD))
        hidden = nn.functional.leaky_relu(self.mid(torch.cat(seen, dim=2)), LEAKINESS)
        return self.out(hidden).view(-1, num, num_devices)

    def _states(
        self, problem: _Problem, here_VBD: Tensor, away_VBD: Tensor, steps: slice, tape: _Tape
    ) -> Tensor:
        """Round 0: every op with its features, its device, and whether it is the one to place."""
        rows = problem.plan.states
        now = rows.at(steps)
        op_N, step_N = torch.from_numpy(rows.op[now]), torch.from_numpy(rows.step[now])
        placed_N11 = (step_N > op_N)[:, None, None]
        here_NBD, away_NBD = here_VBD[op_N] * placed_N11, away_VBD[op_N] * placed_N11
        current_NBD = (step_N == op_N)[:, None, None].expand_as(here_NBD).to(here_NBD.dtype)
        state_NBDH = self.embed_state(torch.stack([current_NBD, here_NBD, away_NBD], dim=3))
        op_ND1H = self.embed_op(problem.x_VDF[op_N])[:, None]
        own_NBDH = nn.functional.leaky_relu(op_ND1H + state_NBDH, LEAKINESS)
        return tape.put("states", rows, steps, own_NBDH.flatten(1, 2))

    def rollout(
        self, view: ProblemView, num_episodes: int, explore: float | None, rng: np.random.Generator
    ) -> Decisions:
        problem, choices = self._problem(view), self.choices(view)
        draw_BV2 = rng.random((num_episodes, view.problem.num_ops, 2))
        device_BV = np.empty(draw_BV2.shape[:2], dtype=np.int64)
        log_prob_B = np.zeros(num_episodes)
        with torch.no_grad():
            for chunk in self._chunks(problem, num_episodes):
                self._play(
                    problem,
                    choices,
                    explore,
                    draw_BV2[chunk],
                    device_BV[chunk],
                    log_prob_B[chunk],
                )
        return self.decisions(view, device_BV, log_prob_B)

    def _play(
        self,
        problem: _Problem,
        choices: Choices,
        explore: float | None,
        draw_BV2: NDArray[np.float64],
        device_BV: NDArray[np.int64],
        log_prob_B: NDArray[np.float64],
    ) -> None:
        num, num_ops = device_BV.shape
        here_VBD = torch.zeros(num_ops, num, problem.x_VDF.shape[1])
        away_VBD, tape, every = torch.zeros_like(here_VBD), _Tape(), np.arange(num)
        for t in range(num_ops):
            logit_1BD = self._logits(problem, here_VBD, away_VBD, slice(t, t + 1), tape)
            if choices.leader_V[t] == t:
                log_prob_BD, _ = distribution(logit_1BD[0], choices.closed_VD[t])
                device_BV[:, t] = choose(log_prob_BD, explore, draw_BV2[:, t])
                log_prob_B += log_prob_BD.numpy()[every, device_BV[:, t]]
            else:
                device_BV[:, t] = device_BV[:, choices.leader_V[t]]
            device_B = device_BV[:, t]
            here_VBD[t, every, device_B] = 1.0
            away_VBD[t] = problem.away_DD[device_B]

    def log_prob(self, view: ProblemView, *decisions: Decisions) -> tuple[Tensor, Tensor]:
        problem, choices = self._problem(view), self.choices(view)
        return in_a_row(self._replay_all(problem, choices, each) for each in decisions)

    def _replay_all(
        self, problem: _Problem, choices: Choices, decisions: Decisions
    ) -> tuple[Tensor, Tensor]:
        chunks = list(self._chunks(problem, len(decisions.device)))
        results = []
        for chunk in chunks:
            device_VB, judged_VB = (
                torch.from_numpy(device_BV[chunk].T.copy())
                for device_BV in (decisions.device, decisions.judged[1])
            )
            replay = partial(self._replay, problem, choices, device_VB, judged_VB)
            if len(chunks) == 1 or not torch.is_grad_enabled():
                results.append(replay())
            else:  # activations of a chunk are recomputed for its gradients
                results.append(checkpoint(replay, use_reentrant=False))
        return in_a_row(results)

    def _replay(
        self, problem: _Problem, choices: Choices, device_VB: Tensor, judged_VB: Tensor
    ) -> tuple[Tensor, Tensor]:
        num_ops, num_devices = choices.closed_VD.shape
        here_VBD = nn.functional.one_hot(device_VB, num_devices).to(torch.float32)
        away_VBD = problem.away_DD[device_VB]
        logit_VBD = self._logits(problem, here_VBD, away_VBD, slice(0, num_ops), _Tape())
        log_prob_VBD, entropy_VB = distribution(logit_VBD, choices.closed_VD[:, None])
        judged_VB = log_prob_VBD.gather(2, judged_VB[..., None])[..., 0]
        decides_V = torch.from_numpy(choices.decides_V)
        return judged_VB[decides_V].sum(0), entropy_VB[decides_V].sum(0)
