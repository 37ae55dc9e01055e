"""Channels without tags, and which GPU is whose; two ends in one process."""

import threading

import made_up_gpus
import pytest
import torch

from doppler.extensions.hosts import channels
from doppler.extensions.hosts.channels import (
    RECEIVER,
    SENDER,
    Arrival,
    ChannelError,
    Channels,
    Wanted,
    code_of,
)
from doppler.extensions.hosts.dealing import Seen, deal

AGENT_OF = [0, 0, 1, 1]
EACH_WAY = [(0, 2), (1, 2), (2, 0), (3, 1)]


@pytest.fixture
def made_up(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Stream", made_up_gpus.Stream)
    monkeypatch.setattr(torch.cuda, "stream", made_up_gpus.current)
    monkeypatch.setattr(channels, "communicator", made_up_gpus.Untagged)


def two_ends() -> list[Channels]:
    """Of two agents that hear each other's words."""
    ends: list[Channels] = []
    for rank in range(2):
        ends.append(
            Channels([1 - rank], lambda other, *word, own=rank: ends[other].hear(own, *word))
        )
    return ends


def wanted(rank: int, keys) -> dict:
    members = {key: SENDER if AGENT_OF[key[0]] == rank else RECEIVER for key in keys}
    return {key: Wanted(1 - rank, member, "cpu", 6) for key, member in members.items()}


def connected(keys) -> list[Channels]:
    ends = two_ends()
    each = [wanted(0, keys), wanted(1, reversed(keys))]  # told in whichever order
    threads = [
        threading.Thread(target=end.connect, args=(one, 30.0))
        for end, one in zip(ends, each, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


def test_messages_of_a_channel_arrive_in_order_and_channels_do_not_wait_for_each_other(made_up):
    ends = connected(EACH_WAY)
    sizes = [3, 100_000, 1, 70_000, 5]
    sent = {
        key: [torch.full((1, size, 2), float(10 * i + j)) for j, size in enumerate(sizes)]
        for i, key in enumerate(EACH_WAY)
    }
    there = {key: [torch.zeros_like(one) for one in each] for key, each in sent.items()}
    # Every second one lies in pieces, on both sides.
    for key, each in sent.items():
        each[1::2] = [one.transpose(1, 2).contiguous().transpose(1, 2) for one in each[1::2]]
        there[key][1::2] = [torch.zeros(2, *one.shape)[0].mT.contiguous().mT for one in each[1::2]]
    came: dict = {key: [] for key in EACH_WAY}
    all_came = threading.Semaphore(0)

    def arrived(run: int, task: int, channel: int) -> None:
        (key,) = (one for one in EACH_WAY if code_of(one) == channel)
        assert run == 7 and torch.equal(there[key][task], sent[key][task])
        came[key].append(task)
        all_came.release()

    for end in ends:
        end.listen(arrived, lambda other, why: pytest.fail(why))

    def send_all(key) -> None:
        sender, receiver = ends[AGENT_OF[key[0]]], ends[AGENT_OF[key[1]]]
        for task, (tensor, into) in enumerate(zip(sent[key], there[key], strict=True)):
            found = Arrival(into, task, code_of(key))
            sender[key].send(
                tensor,
                lambda found=found, size=tensor.nbytes, task=task: receiver.announce(
                    code_of(key), 7, task, size, found
                ),
            )

    threads = [threading.Thread(target=send_all, args=(key,)) for key in EACH_WAY]
    for thread in threads:
        thread.start()
    for _ in range(len(EACH_WAY) * len(sizes)):
        assert all_came.acquire(timeout=30.0)
    assert came == {key: list(range(len(sizes))) for key in EACH_WAY}


def test_what_nobody_expects_any_more_is_taken_in_and_the_next_message_is_right(made_up):
    ends = connected([(0, 2)])
    came: list[int] = []
    there = torch.zeros(4)
    done = threading.Event()
    ends[1].listen(lambda *what: (came.append(what[1]), done.set()), lambda *lost: None)
    ends[0][0, 2].send(torch.ones(50_000), lambda: ends[1].announce(2, 1, 5, 200_000, None))
    found = Arrival(there, 6, 2)
    ends[0][0, 2].send(torch.full((4,), 3.0), lambda: ends[1].announce(2, 2, 6, 16, found))
    assert done.wait(30.0)
    assert came == [6] and there.tolist() == [3.0] * 4


def test_a_message_of_another_size_is_told_of(made_up):
    ends = connected([(0, 2)])
    lost: list = []
    done = threading.Event()
    ends[1].listen(lambda *what: None, lambda *what: (lost.append(what), done.set()))
    ends[1].announce(2, 1, 5, 16, Arrival(torch.zeros(5), 5, 2))
    assert done.wait(30.0)
    assert lost == [(0, "a message of 16 bytes instead of 20")]


def test_a_channel_whose_other_end_does_not_come_is_named(made_up):
    (end, _) = two_ends()
    with pytest.raises(ChannelError) as error:
        end.connect(wanted(0, [(1, 2), (3, 0)]), 0.3)
    assert error.value.channel == (1, 2), "the first in the order of all"
    assert error.value.why == "not connected within 0.3 s"


def test_a_channel_is_connected_once_and_its_share_of_a_gpu_is_told(made_up, monkeypatch):
    made = []

    def counted(store, one):
        made.append(one)
        return made_up_gpus.Untagged(store, one)

    monkeypatch.setattr(channels, "communicator", counted)
    ends = connected([(0, 2)])
    for rank, end in enumerate(ends):
        end.connect(wanted(rank, [(0, 2)]), 0.3)
    assert sorted(one.member for one in made) == [SENDER, RECEIVER]


# --- Which GPU is whose ---------------------------------------------------------------------------


def seen(boot: str, *gpus: str, nccl: bool = True) -> Seen:
    return Seen(boot, gpus, nccl)


def test_agents_on_one_machine_have_different_gpus_and_nccl_between_them():
    found = deal(AGENT_OF, [seen("a", "0", "1", "2", "3")] * 2)
    assert found.gpu_D == [0, 1, 2, 3]
    assert found.locks == [["cuda-0", "cuda-1"], ["cuda-2", "cuda-3"]]
    assert (len(found.direct), found.num_others) == (8, 0)


def test_where_there_are_fewer_gpus_each_agent_has_its_part():
    found = deal(AGENT_OF, [seen("a", "0", "1")] * 2)
    assert found.gpu_D == [0, 0, 1, 1]
    assert found.locks == [["cuda-0"], ["cuda-1"]]
    assert len(found.direct) == 8


def test_agents_that_share_a_gpu_lock_it_once_and_send_by_way_of_the_host():
    found = deal(AGENT_OF, [seen("a", "0")] * 2)
    assert found.gpu_D == [0, 0, 0, 0]
    assert found.locks == [["cuda-0"], []]
    assert (found.direct, found.num_others) == ([], 8)
    three = deal([0, 0, 1], [seen("a", "0", "1")] * 2)
    assert three.gpu_D == [0, 0, 1]
    mixed = deal([0, 1, 1], [seen("a", "0", "1")] * 2)
    assert mixed.gpu_D == [0, 0, 1]
    assert mixed.direct == [(0, 2), (2, 0)] and mixed.num_others == 2


def test_agents_on_two_machines_or_with_gpus_of_their_own_begin_with_the_first():
    for others in (seen("b", "0", "1"), seen("a", "8", "9")):
        found = deal(AGENT_OF, [seen("a", "0", "1"), others])
        assert found.gpu_D == [0, 1, 0, 1]
        assert len(found.direct) == 8
    # Two names of locks on one machine, which one process may not wait for in vain.
    assert found.locks == [["cuda-0", "cuda-1"], []]


def test_without_nccl_at_one_end_all_goes_by_way_of_the_host():
    found = deal(AGENT_OF, [seen("a", "0", "1"), seen("b", "0", "1", nccl=False)])
    assert (found.direct, found.num_others) == ([], 8)
