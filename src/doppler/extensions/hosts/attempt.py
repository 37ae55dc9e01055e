"""One run of a placement by all agents: it is sent out, begun at one time, and watched."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from doppler.executor.session import ExecutionError
from doppler.executor.tasks import Tasks
from doppler.extensions.hosts.members import AgentLostError, Group, RefusedError
from doppler.extensions.hosts.parts import HostPart

# Time from when all agents are ready to when they begin, so that the signal reaches all of them.
LEAD_S = 1e-3
_ASKED_LAST_S = 1.0


class LostRunError(Exception):
    """A run that did not end because an agent or a message is lost; the message is one line."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Attempt:
    """One run of a placement in a session.

    Attributes:
        group: the agents.
        session: number of the session that the agents have opened.
        tasks: of the whole placement.
        timeout_s: how long an agent may be silent, and a message may take.
        agent_of: [D] rank of the agent that has each device.
        describe: returns the name of a task, for errors.
        host: returns the name of an agent by its rank, for errors.
    """

    group: Group
    session: int
    tasks: Tasks
    timeout_s: float
    agent_of: Sequence[int]
    describe: Callable[[int], str]
    host: Callable[[int], str]

    def carry_out(
        self, parts: Sequence[HostPart], extra: Sequence[Sequence[np.ndarray]]
    ) -> list[list[np.ndarray]]:
        """Run the parts on their agents and return what each agent measured.

        Args:
            parts: for each agent.
            extra: further arrays for each agent; empty if there are none.

        Returns:
            For each agent, the arrays of `AgentRun.carry_out`.

        Raises:
            LostRunError: an agent or a message is lost; all agents have to be restarted.
            ExecutionError: a task failed; the agents stay usable.
        """
        group, number = self.group, self.group.number()
        ranks = range(len(parts))
        try:
            for rank, part in enumerate(parts):
                fields = {
                    **{"ask": "run", "number": number, "run": number, "session": self.session},
                    "timeout_s": self.timeout_s,
                }
                group.send(rank, fields, [*part, *(extra[rank] if extra else ())])
            return self._wait(ranks, number)
        except AgentLostError as failure:
            raise self.lost(failure) from None
        except RefusedError as refused:
            self._let_go(refused, ranks, number)
            at = self.host(refused.rank)
            what = at if refused.task is None else f"{self.describe(refused.task)}, {at}"
            raise ExecutionError(f"{what}: {refused.why}") from None
        except BaseException:  # interrupted: the state of the agents is unknown
            group.close(wait=False)
            raise

    def _wait(self, ranks: range, number: int) -> list[list[np.ndarray]]:
        ready: set[int] = set()
        told: dict[int, list[np.ndarray]] = {}
        for member, message in self.group.answers(ranks, number, self.timeout_s, self._watch):
            if not message.fields.get("ready"):
                told[member.rank] = message.arrays
            else:
                ready.add(member.rank)
                if len(ready) == len(ranks):
                    self._begin(ranks, number)
            if len(told) == len(ranks):
                break
        return [told[rank] for rank in ranks]

    def _begin(self, ranks: range, number: int) -> None:
        """Let all agents begin at the same time, each by its own clock."""
        at_s = time.perf_counter() + LEAD_S
        for rank in ranks:
            offset_s = self.group.members[rank].offset_s
            self.group.send(rank, {"ask": "go", "run": number, "at_s": at_s + offset_s})

    def _watch(self, said: dict[int, dict[str, Any]]) -> None:
        """Raise a LostRunError if a message was sent too long ago; ``said``: status by rank."""
        awaited = {task for fields in said.values() for task in fields.get("awaited", ())}
        for rank, fields in said.items():
            for task, age_s in fields.get("sent", ()):
                if task in awaited and age_s > self.timeout_s:
                    raise LostRunError(
                        f"{self.describe(task)}: sent by {self.host(rank)}, has not arrived "
                        f"within {self.timeout_s:g} s"
                    )

    def _let_go(self, refused: RefusedError, ranks: range, number: int) -> None:
        """Abort the run on the other agents after one agent has refused it."""
        if refused.hangs:
            self.group.close(wait=False)
            return
        left = set(ranks) - {refused.rank}
        try:
            for rank in left:
                self.group.send(rank, {"ask": "abort", "run": number})
            while left:
                with suppress(RefusedError):
                    for member, message in self.group.answers(sorted(left), number, self.timeout_s):
                        if not message.fields.get("ready"):
                            left.discard(member.rank)
                            break
                    continue
                self.group.close(wait=False)  # a second agent has refused, too
                return
        except AgentLostError:
            self.group.close(wait=False)

    # --- Lost agents ------------------------------------------------------------------------------

    def lost(self, failure: AgentLostError) -> LostRunError:
        """Return an error that names the lost agent, the reason, and the op at which it was lost.

        Args:
            failure: the loss.
        """
        where = self.host(failure.rank)
        op = self._next_op(failure.rank)
        at = "" if op is None else f" at {self.describe(op)}"
        return LostRunError(f"{where}: {failure.why}{at}")

    def _next_op(self, rank: int) -> int | None:
        """Return the first op of an agent that may not have ended, as far as the others know."""
        others = [member.rank for member in self.group.members if member.rank != rank]
        ended: set[int] = set()
        for other in others:
            with suppress(AgentLostError, RefusedError):
                (answer,) = self.group.ask(
                    [other], {"ask": "status"}, timeout_s=_ASKED_LAST_S, ignores_lost=True
                )
                ended |= set(answer.fields.get("ended", ()))
        before: list[list[int]] = [[] for _ in self.tasks.resource]
        for task, successors in enumerate(self.tasks.successors):
            for one in successors:
                before[one].append(task)
        left = list(ended)
        while left:  # all predecessors of a task that has ended have ended
            for task in before[left.pop()]:
                if task not in ended:
                    ended.add(task)
                    left.append(task)
        own = [
            v for v in range(self.tasks.num_ops) if self.agent_of[self.tasks.resource[v]] == rank
        ]
        open_ops = [v for v in own if v not in ended]
        waiting = [v for v in open_ops if all(task in ended for task in before[v])]
        return min(waiting or open_ops or own, key=self.tasks.key.__getitem__, default=None)
