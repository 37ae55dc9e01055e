"""Agents on this machine: right results and traces, and one line for whatever goes wrong.

All tests share the agents, which take seconds to start; who harms them has them started anew.
"""

import os
import signal
import socket
import time

import numpy as np
import pytest
import torch
from executions import WORKLOADS, check_runs, ordered_placement, problem
from problems import random_placement
from torch import nn

from doppler.cluster import Cluster, host, preset
from doppler.einsum import Given, lower
from doppler.executor import ExecutionError
from doppler.extensions.hosts import Emulated, Hosts, members
from doppler.extensions.hosts.launchers import Door
from doppler.extensions.hosts.wire import HANDSHAKE_S, WireError, connect
from doppler.extensions.modules import import_module
from doppler.graph.synthetic import synthetic
from doppler.problem import Placement, build
from doppler.simulator import WorkConserving
from doppler.support.errors import InputError
from doppler.system import listening_to_agents
from doppler.trace import check, explain


@pytest.fixture(scope="module", autouse=True)
def no_agent_is_left():
    yield
    pids = [member.pid for group in members._groups.values() for member in group.members]
    members.close_all()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def disturbed(session, **fields):
    """Let the agents' clocks, messages or ops be as they should not."""
    session._group.ask([0, 1], {"ask": "disturb", **fields}, timeout_s=60.0)


# --- Results and traces ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", WORKLOADS)
def test_results_and_traces_are_right(name):
    check_runs(name, 4, Hosts(agents=2), range(2))


@pytest.mark.parametrize("queue", ["fifo", "strict"])
def test_every_queue_is_right(queue):
    check_runs("cholesky", 4, Hosts(agents=2, queue=queue), range(2))


def test_every_run_is_held_against_plain_torch_where_that_is_asked_for():
    of = problem("cholesky", 4)
    with Hosts(agents=2, verify=True, warm_up=0).open(of) as session:
        trace = session.trace(random_placement(of, 0))
        check(trace)
        assert explain(trace).lines()
        disturbed(session, drops=[])
        wiped = session.outputs(trace.placement.device.tolist())
        session.wipe()
        gone = session.outputs(trace.placement.device.tolist())
        assert all(torch.isfinite(one).all() for one in wiped.values())
        assert all(torch.isnan(one).any() for one in gone.values())


def test_measurements_are_those_of_the_protocol():
    of = problem("cholesky", 3)  # two devices of one agent, one of the other
    device_BV = np.random.default_rng(0).integers(3, size=(2, of.num_ops))
    with Hosts(agents=2, warm_up=0).open(of) as session:
        measured = session.measure(device_BV, repeats=2)
        assert session.evaluations == 4 and measured.feasible.all()
        assert (measured.seconds > 0).all() and (measured.peak_bytes > 0).all()
        all_of_one = session.measure(np.zeros((1, of.num_ops), dtype=np.int64))
        assert all_of_one.feasible[0], "one agent has nothing to do"


def test_a_strict_order_that_waits_for_itself_is_infeasible():
    of = problem("cholesky", 4)
    straight = ordered_placement(of, 0)
    backwards = Placement.make(of, straight.device, of.num_ops - 1 - straight.priority)
    with Hosts(agents=2, queue="strict", warm_up=0).open(of) as session:
        measured = session.measure(backwards.device[None], backwards.priority[None])
        assert not measured.feasible[0]
        with pytest.raises(InputError, match="placement: never finishes"):
            session.trace(backwards)


def test_inputs_that_are_given_and_half_precision_reach_all_agents():
    class Halves(nn.Module):
        def forward(self, x, y):
            return (x @ y).relu() @ y

    inputs = tuple(torch.randn(16, 16, dtype=torch.bfloat16) for _ in range(2))
    imported = import_module(Halves(), inputs)
    lowered = lower(imported.program, Given().splits(imported.program, 2))
    of = build(lowered, host(num_devices=2))
    given = imported.binding.inputs(inputs)
    with Hosts(agents=2, verify=True, warm_up=0).open(of, inputs=given) as session:
        results = session.results(ordered_placement(of, 1))
    outputs = imported.binding.outputs(results)
    torch.testing.assert_close(outputs, Halves()(*inputs), rtol=0.05, atol=0.5)


# --- The network ----------------------------------------------------------------------------------


def test_late_messages_in_another_order_change_nothing_but_time():
    of = problem("cholesky", 4)
    with Hosts(agents=2, verify=True, warm_up=0).open(of) as session:
        placement = ordered_placement(of, 0)
        prompt = session.results(placement)
        disturbed(session, delay_s=0.02)
        late = session.results(placement)
        trace = session.trace(placement)
        disturbed(session)
        assert prompt.keys() == late.keys()
        assert all(torch.equal(prompt[name], late[name]) for name in prompt)
        on = np.array([d >= 2 for d in range(4)])
        crossing = on[trace.transfer_src] != on[trace.transfer_dst]
        took = trace.transfer_finish_s - trace.transfer_start_s
        assert np.mean(took[crossing]) > np.mean(took[~crossing])
        check(trace)


def test_the_clock_of_an_agent_is_found_within_what_is_said():
    of = problem("cholesky", 4)
    with Hosts(agents=2, warm_up=0).open(of) as session:
        for ahead_s in (5.0, -3.0, 0.0):
            disturbed(session, skew_s=ahead_s)
            for offset_s, error_s in session._group.clocks():
                assert abs(offset_s - ahead_s) <= error_s


def test_runs_begin_together_and_are_told_by_one_clock():
    of = problem("cholesky", 4)
    with Hosts(agents=2, verify=True, warm_up=0).open(of) as session:
        disturbed(session, skew_s=1000.0)
        group = session._group
        group.members = [one._replace(offset_s=1000.0) for one in group.members]
        check(session.trace(ordered_placement(of, 0)))
        group.members = [one._replace(offset_s=0.0) for one in group.members]
        disturbed(session)


def a_crossing_transfer(session, placement):
    """One that can be missed by an op: the last."""
    tasks = session._unroller.work_conserving(
        placement.device.tolist(), placement.priority.tolist()
    )
    agent = session._agent_of
    crossing = [
        task
        for task in range(tasks.num_ops, len(tasks.resource))
        if agent[tasks.channel(task)[0]] != agent[tasks.channel(task)[1]]
    ]
    return crossing[len(crossing) // 2], session._describe(tasks, crossing[len(crossing) // 2])


def test_a_message_that_is_lost_is_named_and_a_restart_goes_on():
    of = problem("cholesky", 4)
    placement = ordered_placement(of, 0)
    with Hosts(agents=2, warm_up=0, timeout_s=1.0).open(of) as session:
        task, name = a_crossing_transfer(session, placement)
        disturbed(session, drops=[task])
        with pytest.raises(ExecutionError) as error:
            session.trace(placement)
        said = str(error.value)
        assert said.startswith(f"{name}: sent by host ")
        assert said.endswith("has not arrived within 1 s") and "\n" not in said
        check(session.trace(placement))  # by agents that were started anew


# --- Failures -------------------------------------------------------------------------------------


def test_an_op_that_fails_is_named_and_the_session_goes_on():
    of = problem("cholesky", 4)
    placement = ordered_placement(of, 0)
    with Hosts(agents=2, warm_up=0).open(of) as session:
        pids = [member.pid for member in session._group.members]
        disturbed(session, fails=[7])
        with pytest.raises(ExecutionError) as error:
            session.trace(placement)
        name, device = of.graph.ops.names[7], of.cluster.devices[placement.device[7]].name
        rank = int(placement.device[7]) // 2
        assert str(error.value) == (
            f"op 7 ({name!r}) on device {device}, host {rank} ({os.uname().nodename}, process "
            f"{pids[rank]}): RuntimeError: told to fail"
        )
        disturbed(session)
        check(session.trace(placement))
        assert [member.pid for member in session._group.members] == pids


def test_an_op_that_cannot_be_planned_is_named():
    words = nn.Embedding(4, 8)
    index = torch.arange(4).reshape(2, 2)
    imported = import_module(words, (index,))
    of = build(lower(imported.program, Given().splits(imported.program, 1)), host(num_devices=2))
    wrong = imported.binding.inputs((index + 100,))
    with pytest.raises(InputError, match=r"op \d+ \('.*'\) on host \d .*: IndexError"):
        Hosts(agents=2).open(of, inputs=wrong)


def said_of_a_lost_agent(session, placement: Placement, number: signal.Signals) -> str:
    """A run goes on after the second agent's first end; what the line says after its next."""
    os.kill(session._group.members[1].pid, number)
    check(session.trace(placement))
    member = session._group.members[1]
    os.kill(member.pid, number)
    why = "was ended by SIGKILL" if number == signal.SIGKILL else "does not answer for 1 s"
    with pytest.raises(ExecutionError) as error:
        session.trace(placement)
    said = str(error.value)
    assert said.startswith(f"host 1 ({member.host}, process {member.pid}): {why} at op ")
    assert "\n" not in said
    return said


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_agent_that_dies_or_hangs_is_named_with_its_op_and_a_restart_goes_on(number):
    of = problem("cholesky", 4)
    placement = ordered_placement(of, 0)
    with Hosts(agents=2, warm_up=0, timeout_s=1.0, restarts=1, verify=True).open(of) as session:
        disturbed(session, delay_s=0.5)
        assert " on device cpu:" in said_of_a_lost_agent(session, placement, number)


def test_agents_are_told_of_and_shared():
    told = []
    of = problem("cholesky", 4)
    with listening_to_agents(told.append), Hosts(agents=2, warm_up=0).open(of) as session:
        first = [member.known_as() for member in session._group.members]
        with Hosts(agents=2, warm_up=0, verify=True).open(of) as other:
            check(other.trace(ordered_placement(of, 0)))
        check(session.trace(ordered_placement(of, 0)))
    assert told == [first, first]
    assert [one["rank"] for one in first] == [0, 1]
    assert all(one.keys() == {"rank", "host", "pid"} for one in first)


@pytest.mark.parametrize(
    ("fields", "cluster", "message"),
    [
        (
            {"agents": 5},
            host(num_devices=4),
            "system.agents: 5, but cluster 'host' has 4 devices",
        ),
        (
            {"agents": 3},
            preset(name="dgx_h100x16", num_devices=16),
            "system.agents: 3, but cluster 'dgx_h100x16' has 2 hosts",
        ),
    ],
)
def test_more_agents_than_there_is_work_for_are_refused(fields, cluster, message):
    graph = synthetic(family="layered", num_ops=30, transfer_ratio=1.0, seed=0)
    with pytest.raises(InputError) as error:
        Emulated(**fields).open(build(graph, cluster))
    assert str(error.value) == message


# --- Who may join ---------------------------------------------------------------------------------


def test_who_does_not_know_the_secret_is_not_let_in():
    door = Door("127.0.0.1", b"x" * 32)
    try:
        with pytest.raises(InputError, match="is the secret the same"):
            connect((door.address, door.port), b"y" * 32)
        with socket.create_connection((door.address, door.port)) as silent:
            silent.settimeout(HANDSHAKE_S)
            silent.recv(32)
            silent.sendall(b"z" * 64)
            assert silent.recv(1) == b"", "it is shown the door"
        assert door.admitted(0.2) is None
        wire = connect((door.address, door.port), b"x" * 32)
        wire.send({"rank": 0})
        assert door.admitted(10.0)[1] == {"rank": 0}
    finally:
        door.close()


def test_a_frame_that_is_none_is_refused():
    door = Door("127.0.0.1", b"x" * 32)
    wire = connect((door.address, door.port), b"x" * 32)
    wire.send({"rank": 0})
    there, _ = door.admitted(10.0)
    door.close()
    array = np.arange(6.0).reshape(2, 3)
    wire.send({"n": 1}, [array, np.zeros((0, 2), dtype=np.int64)])
    fields, arrays = there.receive()
    assert fields["n"] == 1 and np.array_equal(arrays[0], array) and arrays[1].shape == (0, 2)
    for wrong in (
        b"\0\0\0\2\0\0\0\0\0\0\0\0[]",
        b"\0\0\0\5\0\0\0\0\0\0\0\0hello",
        b"\xff" * 12,
        b'\0\0\0\x1d\0\0\0\0\0\0\0\x08{"arrays": [["|O", [1]]]}     12345678',
    ):
        wire.socket.sendall(wrong)
        with pytest.raises(WireError, match="frame"):
            there.receive()
        if wrong == b"\xff" * 12:
            continue
    there.close()
    with pytest.raises(WireError):
        for _ in range(100):
            wire.send({"n": 2}, [np.zeros(1000)])
            time.sleep(0.01)


# --- Emulation ------------------------------------------------------------------------------------


def emulated_problem(cluster: Cluster):
    graph = synthetic(family="layered", num_ops=40, transfer_ratio=1.0, seed=1)
    return build(graph, cluster)


def test_one_agent_alone_emulates_what_is_simulated():
    """No message passes, and devices end their tasks in time however late their thread wakes."""
    of = emulated_problem(preset(name="h100x8", num_devices=8))
    placement = random_placement(of, 0)
    with WorkConserving().open(of) as session:
        expected = session.trace(placement)
    scale = 0.05 / expected.makespan_s
    with Emulated(agents=1, time_scale=scale).open(of) as session:
        trace = session.trace(placement)
        assert session.measure(placement.device[None]).seconds[0, 0] > 0
    np.testing.assert_allclose(trace.op_finish_s, expected.op_finish_s, rtol=1e-6)
    check(trace, tolerance_s=1e-6 * trace.makespan_s)


def test_hosts_that_are_emulated_keep_links_and_interfaces():
    of = emulated_problem(preset(name="dgx_h100x16", num_devices=16))
    placement = random_placement(of, 0)
    with WorkConserving().open(of) as session:
        expected = session.trace(placement)
    scale = 0.3 / expected.makespan_s
    with Emulated(time_scale=scale).open(of) as session:
        trace = session.trace(placement)
    check(trace)
    assert trace.rules.interfaces == "outgoing" and (trace.transfer_outlet >= 0).any()
    assert (trace.transfer_inlet == -1).all()
    assert trace.makespan_s >= expected.makespan_s * (1 - 1e-6)
    assert explain(trace).lines()
    with Emulated(time_scale=scale, slow_host=1, slower=1.0).open(of) as session:
        slow = session.trace(placement)
    took, usual = (one.op_finish_s - one.op_start_s for one in (slow, trace))
    factor = np.where(placement.device < 8, 1.0, 2.0)
    np.testing.assert_allclose(took, usual * factor, rtol=1e-6)
    with pytest.raises(InputError, match=r"system\.slow_host: 2, but cluster"):
        Emulated(slow_host=2).open(of)
