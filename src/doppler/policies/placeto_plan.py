"""Plans when each op's embedding changes, for ops that are placed in a fixed order.

Placeto embeds the whole graph anew at every step. But a step changes the features of only two ops,
the one just placed and the next one, and K rounds of messages carry this no further than K edges.
So an op has few distinct embeddings in an episode, and which ones is known before it begins. Each
is a row here and computed once. The result equals V full passes, at a twentieth of the work.

Ops are numbered by their step. Shape suffixes: V ops and steps, E edges, N rows.
"""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from doppler.problem import Problem

IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class Rows:
    """Versions of ops, sorted by the step from which they are valid.

    Attributes:
        op: [N] the op of each version.
        step: [N] the first step at which it is valid.
        ptr: [V + 1] versions that begin at step t are rows ptr[t]:ptr[t + 1].
    """

    op: IntArray
    step: IntArray
    ptr: IntArray

    def at(self, steps: slice) -> slice:
        """Return the rows that begin at one of the steps."""
        return slice(int(self.ptr[steps.start]), int(self.ptr[steps.stop]))

    def find(self, op: IntArray, step: IntArray) -> IntArray:
        """Return the row of each op that is valid at the corresponding step."""
        num_steps = len(self.ptr) - 1
        by_op = np.lexsort((self.step, self.op))
        key = (self.op * num_steps + self.step)[by_op]
        return by_op[np.searchsorted(key, op * num_steps + step, side="right") - 1]


@dataclass(frozen=True, eq=False, kw_only=True)
class Bags:
    """Rows to sum or average for each row of another table: column[ptr[i]:ptr[i + 1]]."""

    column: Tensor
    ptr: IntArray

    def reduce(self, x_NCH: Tensor, rows: slice, mode: str) -> Tensor:
        """Return sum or mean over the bags of ``rows``; an empty bag gives 0."""
        ptr = self.ptr[rows.start : rows.stop + 1]
        reduced = torch.nn.functional.embedding_bag(
            self.column[int(ptr[0]) : int(ptr[-1])],
            x_NCH.view(len(x_NCH), -1),
            torch.from_numpy(ptr - ptr[0]),
            mode=mode,
            include_last_offset=True,
        )
        return reduced.view(-1, *x_NCH.shape[1:])


@dataclass(frozen=True, eq=False, kw_only=True)
class Round:
    """One round of messages: how its rows follow from those of the round before.

    Attributes:
        rows: of this round.
        own: [N] the row of round 0 with the op's own features at that time.
        sources: the rows of the round before that send messages.
    """

    rows: Rows
    own: Tensor
    sources: Bags


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """All rows of an episode of one problem.

    Attributes:
        states: of round 0: an op waits, is to be placed, is placed.
        sweeps: the rounds along the edges and those against them.
        embedded: rows of complete embeddings, made from row ``parts[i]`` of each sweep's last
            round.
        parts: see ``embedded``.
        current: [V] the row of each step's op, which begins at that step.
        related: for each step the rows of the op's ancestors, of its descendants, and of the
            others.
    """

    states: Rows
    sweeps: tuple[tuple[Round, ...], tuple[Round, ...]]
    embedded: Rows
    parts: tuple[Tensor, Tensor]
    current: Tensor
    related: tuple[Bags, Bags, Bags]

    @property
    def num_rows(self) -> int:
        """Number of rows in all tables."""
        rounds = [round_.rows for sweep in self.sweeps for round_ in sweep]
        return sum(len(rows.op) for rows in (self.states, self.embedded, *rounds))


def make_plan(problem: Problem, order_V: IntArray, num_rounds: int) -> Plan:
    """Plan the episodes that place the ops in a given order.

    Args:
        problem: to place.
        order_V: the ops, producers first.
        num_rounds: of messages.
    """
    num = problem.num_ops
    name_V = np.empty(num, dtype=np.int64)
    name_V[order_V] = np.arange(num)
    src_E, dst_E = np.unique(name_V[[problem.graph.edges.src, problem.graph.edges.dst]], axis=1)
    # An op's own features change when it is to be placed and when it has been placed.
    op, step = np.tile(np.arange(num), 3), np.arange(3 * num) // num
    step = np.where(step == 0, 0, op + step - 1)
    own = _pattern(op[step < num], step[step < num], num)
    states = _rows(own)
    sweeps, last = [], []
    for source_E, target_E in ((src_E, dst_E), (dst_E, src_E)):
        neighbours = _pattern(target_E, source_E, num)
        changes, rounds, before = own, [], states
        for _ in range(num_rounds):
            changes = sp.csr_array(((neighbours @ changes) + own) != 0)
            rows = _rows(changes)
            rounds.append(
                Round(
                    rows=rows,
                    own=torch.from_numpy(states.find(rows.op, rows.step)),
                    sources=_messages(neighbours, rows, before),
                )
            )
            before = rows
        sweeps.append(tuple(rounds))
        last.append((changes, before))
    embedded = _rows(sp.csr_array((last[0][0] + last[1][0]) != 0))
    parts = [torch.from_numpy(rows.find(embedded.op, embedded.step)) for _, rows in last]
    steps = np.arange(num)
    return Plan(
        states=states,
        sweeps=(sweeps[0], sweeps[1]),
        embedded=embedded,
        parts=(parts[0], parts[1]),
        current=torch.from_numpy(embedded.find(steps, steps)),
        related=_related(src_E, dst_E, embedded),
    )


def _pattern(row: IntArray, column: IntArray, num: int) -> sp.csr_array:
    ones = np.ones(len(row), dtype=np.int64)
    return sp.csr_array((ones, (row, column)), shape=(num, num))


def _rows(changes_VV: sp.csr_array) -> Rows:
    """One row for each entry (op, step) of a pattern."""
    by_step = changes_VV.tocsc()
    by_step.sort_indices()
    ptr = np.asarray(by_step.indptr, dtype=np.int64)
    return Rows(
        op=np.asarray(by_step.indices, dtype=np.int64),
        step=np.repeat(np.arange(len(ptr) - 1), np.diff(ptr)),
        ptr=ptr,
    )


def _messages(neighbours: sp.csr_array, rows: Rows, before: Rows) -> Bags:
    """For each row, the rows of its op's neighbours that are valid at that time."""
    first = np.asarray(neighbours.indptr, dtype=np.int64)
    neighbour = np.asarray(neighbours.indices, dtype=np.int64)
    count = np.diff(first)[rows.op]
    ptr = np.concatenate([[0], np.cumsum(count)])
    entry = np.arange(ptr[-1]) - np.repeat(ptr[:-1] - first[rows.op], count)
    column = before.find(neighbour[entry], np.repeat(rows.step, count))
    return Bags(column=torch.from_numpy(column), ptr=ptr)


def _related(src_E: IntArray, dst_E: IntArray, embedded: Rows) -> tuple[Bags, Bags, Bags]:
    num = len(embedded.ptr) - 1
    above_VV = np.zeros((num, num), dtype=bool)  # [v, u]: v can be reached from u
    for i in np.argsort(dst_E, kind="stable"):  # producers are complete before their consumers
        above_VV[dst_E[i]] |= above_VV[src_E[i]]
        above_VV[dst_E[i], src_E[i]] = True
    beside_VV = ~(above_VV | above_VV.T | np.eye(num, dtype=bool))

    def bags(related_VV: NDArray[np.bool_]) -> Bags:
        step, op = np.nonzero(related_VV)
        ptr = np.concatenate([[0], np.cumsum(related_VV.sum(axis=1))])
        return Bags(column=torch.from_numpy(embedded.find(op, step)), ptr=ptr)

    return bags(above_VV), bags(above_VV.T), bags(beside_VV)
