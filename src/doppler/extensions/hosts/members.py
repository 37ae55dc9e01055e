"""The driver's view of a group of agents: sends them requests, watches them, and restarts them."""

import atexit
import itertools
import selectors
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from doppler.extensions.hosts.launchers import Launcher, Started, close_nursery
from doppler.extensions.hosts.wire import Message, Wire, WireError
from doppler.support.errors import InputError
from doppler.system import announce_agents

# An agent that has not ended this long after it was told to is killed.
PATIENCE_S = 2.0
# Longest silence while agents connect to each other.
JOIN_S = 60.0
_PINGS = 8


class AgentLostError(Exception):
    """An agent is gone, or silent.

    Attributes:
        rank: of the agent.
        why: the reason, in words.
    """

    def __init__(self, rank: int, why: str) -> None:
        super().__init__(rank, why)
        self.rank, self.why = rank, why


class RefusedError(Exception):
    """An agent could not do what it was asked to.

    Attributes:
        rank: of the agent.
        why: the reason, in words.
        task: that failed, among the tasks of all agents; None if it was no task.
        hangs: whether the task still runs.
    """

    def __init__(self, rank: int, fields: dict[str, Any]) -> None:
        super().__init__(rank, fields["error"])
        self.rank, self.why = rank, str(fields["error"])
        self.task: int | None = fields.get("task")
        self.hangs = bool(fields.get("hangs"))


class Member(NamedTuple):
    """An agent of a group.

    Attributes:
        rank: its number in the group.
        host: name of its machine.
        pid: its process ID.
        wire: the connection to it.
        offset_s: its clock minus the clock of this process, seconds.
        error_s: how far ``offset_s`` may be off, seconds.
        boot: equal for agents on one machine.
    """

    rank: int
    host: str
    pid: int
    wire: Wire
    offset_s: float
    error_s: float
    boot: str

    def known_as(self) -> dict[str, Any]:
        """Return how agents.json describes the agent."""
        return {"rank": self.rank, "host": self.host, "pid": self.pid}


class Group:
    """Agents that are connected to each other.

    Args:
        launcher: starts them.
        num: of agents.

    Attributes:
        members: the agents by rank; empty if they are not running.
        generation: number of times that they were started.
    """

    def __init__(self, launcher: Launcher, num: int) -> None:
        self._launcher, self._num = launcher, num
        self._started: Started | None = None
        self.members: list[Member] = []
        self.generation = 0
        self._numbers = itertools.count(1)

    def ensure(self) -> None:
        """Start the agents unless they are running.

        Raises:
            InputError: they cannot be started, or do not find each other.
        """
        if not self.members:
            self._start()
        announce_agents([member.known_as() for member in self.members])

    def _start(self) -> None:
        self._started = self._launcher.start(self._num)
        self.generation += 1
        try:
            self._take_in(self._started)
        except BaseException:
            self.close(wait=False)
            raise

    def _take_in(self, started: Started) -> None:
        hellos = started.hellos()
        self.members = [
            Member(
                rank, str(fields["host"]), int(fields["pid"]), wire, 0.0, 0.0, str(fields["boot"])
            )
            for rank, (wire, fields) in enumerate(hellos)
        ]
        try:
            self._join()
        except (AgentLostError, RefusedError) as error:
            raise InputError(f"executor: agent {error.rank}: {error.why}") from None
        for i, (member, (_, fields)) in enumerate(zip(self.members, hellos, strict=True)):
            offset_s, error_s = self._clock(member)
            if fields["boot"] == started.boot:  # the same clock: any estimated offset is an error
                offset_s, error_s = 0.0, 0.0
            self.members[i] = member._replace(offset_s=offset_s, error_s=error_s)

    def _join(self) -> None:
        """Let the agents connect to each other, with this process as their key-value store."""
        for member in self.members:
            self.send(member.rank, {"ask": "join", "number": 0, "size": self._num})
        said: dict[str, str] = {}
        asked: list[tuple[Member, str]] = []
        left = set(range(self._num))
        while left:
            received = self._received(list(left), JOIN_S)
            if not received:
                names = ", ".join(f"{rank} ({self.members[rank].host})" for rank in sorted(left))
                why = f"{names}: silent for {JOIN_S:g} s while agents connect to each other"
                raise AgentLostError(min(left), why)
            for member, message in received:
                fields = message.fields
                if fields.get("store") == "set":
                    said[fields["key"]] = fields["value"]
                elif fields.get("store") == "get":
                    asked.append((member, fields["key"]))
                elif "error" in fields:
                    raise RefusedError(member.rank, fields)
                elif "answers" in fields:
                    left.discard(member.rank)
            for member, key in [one for one in asked if one[1] in said]:
                self.send(member.rank, {"value": said[key]})
                asked.remove((member, key))

    def _clock(self, member: Member) -> tuple[float, float]:
        """Estimate the offset of an agent's clock, and the error: half the fastest round trip.

        Source: Mills, "Internet time synchronization: the network time protocol", 1991: use the
        sample of least delay.
        """
        best = (np.inf, 0.0)
        for _ in range(_PINGS):
            begin_s = time.perf_counter()
            (answer,) = self.ask([member.rank], {"ask": "clock"}, timeout_s=PATIENCE_S * 10)
            end_s = time.perf_counter()
            offset_s = float(answer.fields["now_s"]) - 0.5 * (begin_s + end_s)
            best = min(best, (0.5 * (end_s - begin_s), offset_s))
        return best[1], best[0]

    def clocks(self) -> list[tuple[float, float]]:
        """Estimate the current offset and possible error of each agent's clock, in seconds."""
        return [self._clock(member) for member in self.members]

    # --- Requests ---------------------------------------------------------------------------------

    def number(self) -> int:
        """Return a number that no request and no run has had."""
        return next(self._numbers)

    def ask(
        self,
        ranks: Sequence[int],
        fields: dict[str, Any],
        arrays: Sequence[Sequence[np.ndarray]] | None = None,
        *,
        each: Sequence[dict[str, Any]] | None = None,
        timeout_s: float,
        ignores_lost: bool = False,
    ) -> list[Message]:
        """Send a request to some agents, and wait for all their answers.

        Args:
            ranks: of the agents.
            fields: of the request.
            arrays: for each agent; None: none.
            each: further fields for each agent; None: none.
            timeout_s: how long an agent may be silent. An agent that works still answers when it is
                asked for its status.
            ignores_lost: ignore reports of agents that they have lost another one.

        Returns:
            The answers, in the order of ``ranks``.

        Raises:
            AgentLostError: an agent is gone or silent.
            RefusedError: an agent could not do it.
        """
        number = self.number()
        for i, rank in enumerate(ranks):
            own = {} if each is None else each[i]
            told = {**fields, **own, "number": number}
            self.send(rank, told, () if arrays is None else arrays[i])
        answers: dict[int, Message] = {}
        for member, message in self.answers(ranks, number, timeout_s, ignores_lost=ignores_lost):
            answers[member.rank] = message
            if len(answers) == len(ranks):
                break
        return [answers[rank] for rank in ranks]

    def answers(
        self,
        ranks: Sequence[int],
        number: int,
        timeout_s: float,
        watch: Callable[[dict[int, dict[str, Any]]], None] | None = None,
        *,
        ignores_lost: bool = False,
    ) -> Iterator[tuple[Member, Message]]:
        """Yield the answers of some agents to a request as they come, without end.

        From time to time the agents are asked for their status. An agent that does not answer
        within ``timeout_s`` is lost.

        Args:
            ranks: of the agents.
            number: of the request.
            timeout_s: how long an agent may be silent.
            watch: called with the status of all agents, by rank.
            ignores_lost: as in `ask`.

        Raises:
            AgentLostError: an agent is gone or silent.
            RefusedError: an agent could not do it.
        """
        every_s = min(max(timeout_s / 10, 0.02), 5.0)
        asked_s: dict[int, float] = {}
        said: dict[int, dict[str, Any]] = {}
        next_s, health = time.monotonic() + every_s, self.number()
        while True:
            for member, message in self._received(ranks, max(0.0, next_s - time.monotonic())):
                fields = message.fields
                if "lost" in fields and "answers" not in fields:
                    if not ignores_lost:
                        self._blame(int(fields["lost"]), str(fields["why"]))
                elif fields.get("answers") == health:
                    asked_s.pop(member.rank, None)
                    said[member.rank] = fields
                elif fields.get("answers") == number:
                    if "error" in fields:
                        raise RefusedError(member.rank, fields)
                    yield member, message
            now = time.monotonic()
            for rank, since_s in asked_s.items():
                if now - since_s > timeout_s:
                    raise AgentLostError(rank, f"does not answer for {timeout_s:g} s")
            if now < next_s:
                continue
            if not asked_s:
                if watch is not None and len(said) == len(ranks):
                    watch(said)
                said = {}
                for rank in ranks:
                    asked_s[rank] = now
                    self.send(rank, {"ask": "status", "number": health})
            next_s = now + every_s

    def _blame(self, rank: int, why: str) -> None:
        """Raise the error of an agent that another agent has lost."""
        how = self._how_it_ended(self.members[rank])
        raise AgentLostError(rank, how or f"cannot be reached by the other agents: {why}")

    def send(self, rank: int, fields: dict[str, Any], arrays: Sequence[np.ndarray] = ()) -> None:
        """Send an agent a message.

        Args:
            rank: of the agent.
            fields: of the message.
            arrays: of the message.

        Raises:
            AgentLostError: the agent is gone.
        """
        member = self.members[rank]
        try:
            member.wire.send(fields, arrays)
        except WireError:
            raise self._gone(member) from None

    def _received(
        self, ranks: Sequence[int], timeout_s: float | None
    ) -> list[tuple[Member, Message]]:
        """Wait until some of the agents have sent something, and return it."""
        with selectors.DefaultSelector() as selector:
            for rank in ranks:
                member = self.members[rank]
                selector.register(member.wire.socket, selectors.EVENT_READ, member)
            found = []
            for key, _ in selector.select(timeout_s):
                member = key.data
                try:
                    found.append((member, member.wire.receive()))
                except WireError:
                    raise self._gone(member) from None
            return found

    def _gone(self, member: Member) -> AgentLostError:
        return AgentLostError(member.rank, self._how_it_ended(member) or "is gone")

    def _how_it_ended(self, member: Member) -> str:
        return self._started.how_it_ended(member.rank) if self._started else ""

    def close(self, *, wait: bool = True) -> None:
        """End the agents.

        Args:
            wait: let them end by themselves first; otherwise they are killed immediately.
        """
        for member in self.members:
            with suppress(WireError):
                if wait:
                    member.wire.send({"ask": "end"})
                member.wire.close()
        self.members = []
        if self._started is not None:
            self._started.end(PATIENCE_S if wait else 0.0)
            self._started = None


_groups: dict[tuple[Launcher, int], Group] = {}


def group_of(launcher: Launcher, num: int) -> Group:
    """Return this process's group of agents, which lasts until the process ends.

    Args:
        launcher: starts the agents.
        num: of agents.
    """
    key = launcher, num
    if key not in _groups:
        _groups[key] = Group(launcher, num)
    return _groups[key]


@atexit.register
def close_all() -> None:
    """End all agents that this process has started."""
    for group in _groups.values():
        group.close()
    _groups.clear()
    close_nursery()
