"""Agents on GPUs that are made up, in processes of their own; see made_up_gpus."""

import logging
import os
import signal

import numpy as np
import pytest
import torch
from executions import check_runs, ordered_placement, problem
from test_hosts import disturbed, said_of_a_lost_agent

from doppler.executor import ExecutionError
from doppler.extensions.hosts import Hosts, launchers, members
from doppler.support.errors import InputError
from doppler.trace import check


@pytest.fixture(scope="module")
def agents_with():
    """agents_with(num): from now on new agents see so many GPUs."""
    usual = launchers._NURSERY

    def start(num: int, communicator: str = "Untagged") -> None:
        born = f"from made_up_gpus import main; main({num}, {communicator!r})"
        if launchers._NURSERY != born:
            members.close_all()
            launchers._NURSERY = born

    members.close_all()
    yield start
    members.close_all()
    launchers._NURSERY = usual


WAYS = {
    1: "0 use NCCL, 8 use the hosts' memory",
    4: "8 use NCCL, 0 use the hosts' memory",
}


@pytest.mark.parametrize("num_gpus", [2, 3])
def test_three_agents_and_gpus_that_some_share(agents_with, num_gpus):
    agents_with(num_gpus)
    system = Hosts(agents=3, devices="gpus", queue="fifo", verify=True, warm_up=0)
    with system.open(problem("cholesky", 5)) as session:
        locks = [lock for each in session._locks for lock in each]
        assert locks == [f"cuda-{gpu}" for gpu in range(num_gpus)]
        for seed in range(2):
            check(session.trace(ordered_placement(session.problem, seed)))


@pytest.mark.parametrize("num_gpus", [1, 4])
def test_results_and_traces_are_right_by_either_way(agents_with, caplog, num_gpus):
    agents_with(num_gpus)
    with caplog.at_level(logging.INFO, logger="doppler.extensions.hosts"):
        for name in ("chainmm", "cholesky", "ffnn"):
            check_runs(name, 4, Hosts(agents=2, devices="gpus"), range(2))
    told = [message for message in caplog.messages if "NCCL" in message]
    assert told == [f"pairs of devices of different agents: {WAYS[num_gpus]}"] * 3


def test_late_messages_change_nothing(agents_with):
    agents_with(4)
    of = problem("cholesky", 4)
    with Hosts(agents=2, devices="gpus", verify=True, warm_up=0).open(of) as session:
        placement = ordered_placement(of, 0)
        prompt = session.results(placement)
        disturbed(session, delay_s=0.02)
        late = session.results(placement)
        check(session.trace(placement))
        disturbed(session)
    assert all(torch.equal(prompt[name], late[name]) for name in prompt)


def test_an_op_that_fails_leaves_channels_that_go_on(agents_with):
    agents_with(4)
    of = problem("cholesky", 4)
    with Hosts(agents=2, devices="gpus", verify=True, warm_up=0).open(of) as session:
        placement = ordered_placement(of, 0)
        pids = [member.pid for member in session._group.members]
        for op in (7, of.num_ops // 2):
            disturbed(session, fails=[op])
            with pytest.raises(ExecutionError, match=rf"^op {op} .*told to fail$"):
                session.trace(placement)
        disturbed(session)
        check(session.trace(placement))
        assert [member.pid for member in session._group.members] == pids


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_agent_that_dies_or_hangs_is_named_and_a_restart_goes_on(agents_with, number):
    agents_with(4)
    of = problem("cholesky", 4)
    placement = ordered_placement(of, 0)
    system = Hosts(agents=2, devices="gpus", warm_up=0, timeout_s=1.0, restarts=1, verify=True)
    with system.open(of) as session:
        session.trace(placement)
        said_of_a_lost_agent(session, placement, number)


def test_a_message_that_is_lost_is_named(agents_with):
    agents_with(4)
    of = problem("cholesky", 4)
    placement = ordered_placement(of, 0)
    with Hosts(agents=2, devices="gpus", warm_up=0, timeout_s=1.0).open(of) as session:
        tasks = session._unroller.work_conserving(
            placement.device.tolist(), placement.priority.tolist()
        )
        crossing = [
            task
            for task in range(tasks.num_ops, len(tasks.resource))
            if len({d // 2 for d in tasks.channel(task)}) == 2
        ]
        lost = crossing[len(crossing) // 2]
        disturbed(session, drops=[lost])
        with pytest.raises(ExecutionError, match=r"has not arrived within 1 s$") as error:
            session.trace(placement)
        assert str(error.value).startswith(f"{session._describe(tasks, lost)}: sent by host ")
        check(session.trace(placement))


def test_agents_that_nccl_cannot_connect_are_told_of_in_one_line(agents_with):
    agents_with(4, "unreachable")
    of = problem("cholesky", 4)
    with Hosts(agents=2, devices="gpus", warm_up=0).open(of) as session:
        alone = np.zeros((1, of.num_ops), dtype=np.int64)
        assert session.measure(alone).feasible[0], "nothing crosses"
        with pytest.raises(ExecutionError) as error:
            session.trace(ordered_placement(of, 0))
    said = str(error.value)
    assert said.startswith("transfer of op ") and ", host " in said
    assert said.endswith(": NCCL: no socket interface found")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_host_without_a_gpu_is_named(agents_with):
    members.close_all()
    launchers._NURSERY = "from doppler.extensions.hosts.nursery import main; main()"
    with pytest.raises(InputError) as error:
        Hosts(agents=2, devices="gpus").open(problem("cholesky", 4))
    said = str(error.value)
    assert said.startswith(f"system.devices: torch sees no GPU on host 0 ({os.uname().nodename}")
