"""Strangers at the door of agents, and agents that freeze while they find each other."""

import os
import resource
import signal
import socket
import threading
from contextlib import suppress

import pytest

from doppler.extensions.hosts import launchers, members
from doppler.extensions.hosts.launchers import Door, LocalLauncher
from doppler.extensions.hosts.wire import WireError, connect
from doppler.support.errors import InputError

SECRET = b"a secret of thirty-two bytes ...."


@pytest.fixture
def door():
    made = Door("127.0.0.1", SECRET)
    yield made
    made.close()


def come(door: Door) -> None:
    """An agent comes, and says which it is."""
    wire = connect((door.address, door.port), SECRET)
    wire.send({"rank": 3})


def test_a_crowd_of_silent_strangers_keeps_no_agent_out(door, monkeypatch):
    monkeypatch.setattr(launchers, "_MOST_ASKED", 4)
    before = threading.active_count()
    strangers = [socket.create_connection((door.address, door.port)) for _ in range(40)]
    come(door)
    found = door.admitted(10.0)
    assert found is not None and found[1] == {"rank": 3}
    assert threading.active_count() - before <= 6, "each stranger has a thread"
    for one in strangers:
        one.close()


def test_the_door_opens_again_when_there_are_files_again(door):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    client = socket.socket()
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")), limits[1]))
    try:
        client.connect((door.address, door.port))
        assert door.admitted(0.5) is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    come(door)
    assert door.admitted(10.0) is not None
    client.close()


@pytest.mark.parametrize("words", [b"", b"x" * 64, b"GET / HTTP/1.1\r\n\r\n" * 8])
def test_who_does_not_know_the_secret_is_turned_away(door, words):
    with socket.create_connection((door.address, door.port)) as stranger:
        stranger.settimeout(10.0)
        with suppress(ConnectionError, OSError):  # it may be turned away at once
            stranger.sendall(words)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(4096):
                pass
    assert door.admitted(0.1) is None


def test_an_agent_that_freezes_while_agents_join_is_named(monkeypatch):
    monkeypatch.setattr(members, "JOIN_S", 1.0)
    group = members.Group(LocalLauncher(), 2)
    send, frozen = group.send, []

    def freeze_first(rank, fields, arrays=()):
        if fields.get("ask") == "join" and rank == 1:
            os.kill(group.members[1].pid, signal.SIGSTOP)
            frozen.append(group.members[1].pid)
        send(rank, fields, arrays)

    monkeypatch.setattr(group, "send", freeze_first)
    with pytest.raises(InputError, match=r"executor: agent \d: .*1 \(.*silent for 1 s"):
        group.ensure()
    assert not os.path.exists(f"/proc/{frozen[0]}") or _is_dead(frozen[0])


def _is_dead(pid: int) -> bool:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"


def test_a_host_that_talks_nonsense_is_no_driver():
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: server.accept()[0].sendall(b"x" * 999), daemon=True).start()
        with pytest.raises((InputError, WireError)):
            connect(server.getsockname()[:2], SECRET)
