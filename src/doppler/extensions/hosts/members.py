"""The agents of a group, as the one who started them sees them: asked, watched, started anew."""

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

# A member that says nothing for so long when it is to end is ended.
PATIENCE_S = 2.0
# Agents that find each other say something more often.
JOIN_S = 60.0
_PINGS = 8


class AgentLostError(Exception):
    """An agent is gone, or silent; why, in words."""

    def __init__(self, rank: int, why: str) -> None:
        super().__init__(rank, why)
        self.rank, self.why = rank, why


class RefusedError(Exception):
    """An agent could not do what it was asked to: why, and the task at fault; hangs: it goes on."""

    def __init__(self, rank: int, fields: dict[str, Any]) -> None:
        super().__init__(rank, fields["error"])
        self.rank, self.why = rank, str(fields["error"])
        self.task: int | None = fields.get("task")
        self.hangs = bool(fields.get("hangs"))


class Member(NamedTuple):
    """An agent.

    Attributes:
        offset_s: what its clock says when that of this process says 0.
        error_s: how far that may be off.
        boot: the same for agents on one machine.
    """

    rank: int
    host: str
    pid: int
    wire: Wire
    offset_s: float
    error_s: float
    boot: str

    def known_as(self) -> dict[str, Any]:
        """What agents.json says of it."""
        return {"rank": self.rank, "host": self.host, "pid": self.pid}


class Group:
    """Agents that know each other.

    generation: how often they were started.
    """

    def __init__(self, launcher: Launcher, num: int) -> None:
        self._launcher, self._num = launcher, num
        self._started: Started | None = None
        self.members: list[Member] = []
        self.generation = 0
        self._numbers = itertools.count(1)

    def ensure(self) -> None:
        """Start the agents, unless they are there.

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
            if fields["boot"] == started.boot:  # one clock: what was estimated is its error alone
                offset_s, error_s = 0.0, 0.0
            self.members[i] = member._replace(offset_s=offset_s, error_s=error_s)

    def _join(self) -> None:
        """Let the agents find each other: what one says, all may ask for."""
        for member in self.members:
            self.send(member.rank, {"ask": "join", "number": 0, "size": self._num})
        said: dict[str, str] = {}
        asked: list[tuple[Member, str]] = []
        left = set(range(self._num))
        while left:
            received = self._received(list(left), JOIN_S)
            if not received:
                names = ", ".join(f"{rank} ({self.members[rank].host})" for rank in sorted(left))
                why = f"{names}: nothing is heard for {JOIN_S:g} s while agents find each other"
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
        """Offset of its clock, and how far that may be off: half of the fastest question's time.

        Source: as NTP does it (Mills 1991), the sample of least delay.
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
        """Of each agent an estimate of its offset, and how far it may be off, measured now."""
        return [self._clock(member) for member in self.members]

    # --- Questions --------------------------------------------------------------------------------

    def number(self) -> int:
        """A number that no question and no run has had."""
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
        """Ask some agents, and wait for all their answers.

        arrays, each: what goes to one agent only. timeout_s: how long one may be silent; one that
        works answers when it is asked how it is. ignores_lost: what they say of others.

        Raises:
            AgentLostError: one is gone or silent.
            RefusedError: one could not do it.
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
        """What some agents answer to a question, as it comes; endless.

        From time to time they are asked how they are: who does not say so in ``timeout_s`` is lost.
        watch: is told what they said, by rank.
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
        """Another agent has lost this one."""
        how = self._how_it_ended(self.members[rank])
        raise AgentLostError(rank, how or f"is not reached by the others: {why}")

    def send(self, rank: int, fields: dict[str, Any], arrays: Sequence[np.ndarray] = ()) -> None:
        """Tell an agent something.

        Raises:
            AgentLostError: it is gone.
        """
        member = self.members[rank]
        try:
            member.wire.send(fields, arrays)
        except WireError:
            raise self._gone(member) from None

    def _received(
        self, ranks: Sequence[int], timeout_s: float | None
    ) -> list[tuple[Member, Message]]:
        """What has come from some agents; waits for something to come."""
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
        """End the agents."""
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
    """The agents of this process; they stay until it ends."""
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
