"""Agents that Ray starts, and jobs on its workers: one cluster of two nodes for all tests."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from executions import ordered_placement, problem
from jobs import Counting, impossible

from doppler.baselines import Annealing
from doppler.executor import ExecutionError
from doppler.extensions.hosts import Hosts, members
from doppler.extensions.hosts.here import Here
from doppler.extensions.hosts.on_ray import OnRay
from doppler.extensions.hosts.ray_agents import units_each
from doppler.extensions.hosts.ray_cluster import disconnect
from doppler.policies.weights import load_checkpoint
from doppler.simulator import WorkConserving
from doppler.support.compute import computing
from doppler.support.errors import InputError
from doppler.trace import check

pytest.importorskip("ray")
from ray.cluster_utils import Cluster

PROJECT = Path(__file__).resolve().parents[3]
_STORE_BYTES = 80 << 20
# A node that is gone is noticed within two seconds.
_WATCHED = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 3,
}


@pytest.fixture(scope="module")
def cluster():
    """Two nodes, of three CPUs and of one."""
    store = {"object_store_memory": _STORE_BYTES}
    head = {**store, "num_cpus": 3, "include_dashboard": False, "_system_config": _WATCHED}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        nodes = Cluster(initialize_head=True, head_node_args=head)
        nodes.other = nodes.add_node(**store, num_cpus=1)
        patch.setenv("RAY_ADDRESS", nodes.address)
        yield nodes
        members.close_all()
        disconnect()
        nodes.shutdown()


def only(paths) -> Path:
    (path,) = paths
    return path


# --- Jobs -----------------------------------------------------------------------------------------

SET = (
    "stage=rl_sim",
    "algorithm=problem_set",
    "+stage.problems=['workload=synthetic workload.num_ops=30,40,50 workload.seed=1']",
    "+stage.held_out=['workload=synthetic workload.num_ops=30 workload.seed=2']",
    "+stage.updates=3",
    "algorithm.reinforcement.batch_problems=4",
    "algorithm.reinforcement.try_every=2",
)


def learned(directory: Path):
    return load_checkpoint(directory / "checkpoints/last.ckpt")["state_dict"]


def test_training_on_many_problems_is_the_same_for_any_number_of_workers(run, tmp_path, cluster):
    weights, found = [], []
    for workers in (1, 3):
        directory = tmp_path / str(workers)
        compute = ("compute=ray", f"compute.workers={workers}", f"run_dir={directory}")
        summary, _ = run(*SET, *compute)
        weights.append(learned(directory))
        found.append(summary["makespan_s"])
    as_a_job, _ = run(*SET, "compute=ray", f"run_dir={tmp_path / 'here'}", compute=Here())
    weights.append(learned(tmp_path / "here"))
    assert found == [as_a_job["makespan_s"]] * 2
    for name, tensor in weights[0].items():
        assert all(np.array_equal(tensor.numpy(), each[name].numpy()) for each in weights[1:])


def test_jobs_of_a_worker_that_dies_are_done_by_another(tmp_path, cluster):
    jobs = [(number, number in (1, 4)) for number in range(6)]
    with OnRay(workers=2).pool(Counting, str(tmp_path)) as pool:
        assert pool.map("double", jobs, 1) == [2 * number + 1 for number in range(6)]
        with pytest.raises(InputError, match=r"^job 2 of 7: told to fail$"):
            pool.map("fail", [(number,) for number in range(4)], 7)
        assert pool.map("double", [], 1) == []
        assert pool.map("double", [(3, False)], 0) == [6]
    with pytest.raises(InputError, match=r"^compute: a worker cannot be made: OSError: nothing$"):
        with OnRay(workers=1).pool(impossible) as pool:
            pool.map("double", [(1, False)])


def test_walks_of_annealing_find_the_same_wherever_they_go(cluster):
    of = problem("cholesky", 4)
    annealing = Annealing(evaluations=400, order=True, starts=3, hot=0.1, cold=0.01)
    found = []
    for compute in (None, Here(), OnRay(workers=2)):
        with computing(compute), WorkConserving(noise=0.1).open(of) as session:
            found.append(annealing.place(session, np.random.default_rng(0)))
            assert session.evaluations == 400
    for one in found[1:]:
        assert one.makespan_s == found[0].makespan_s
        assert np.array_equal(one.placement.device, found[0].placement.device)


def test_runs_of_a_sweep_are_spread_and_what_fails_is_named_at_the_end(tmp_path, cluster):
    command = [sys.executable, PROJECT / "src/run.py", "-m", "stage=evaluate", "compute=ray"]
    small = ("workload.params.n=64", "baseline=[critical_path]", "compute.workers=1")
    done = subprocess.run(
        [*command, *small, "seed=1,2", "cluster.num_devices=4,0", f"output_dir={tmp_path}"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "2 of the sweep's runs failed:" in done.stderr
    assert done.stderr.count("error: cluster.num_devices: must be ") == 2
    assert len(list(tmp_path.rglob("summary.json"))) == 2
    assert done.stdout.count("critical_path") >= 2


# --- Agents ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpus", "num", "wanted", "each"),
    [
        ([4.0, 4.0], 2, 2, 2.0),
        ([4.0, 4.0], 2, 8, 4.0),
        ([2.0], 2, 2, 1.0),
        ([2.0], 4, 2, 0.5),
        ([2.0, 1.0, 0.0], 4, 1, 0.5),
    ],
)
def test_agents_get_the_cores_that_they_want_or_share_them(cpus, num, wanted, each):
    assert units_each(cpus, num, wanted, "CPU") == each


def test_a_cluster_without_cpus_is_refused():
    with pytest.raises(InputError, match="no node of the Ray cluster has a CPU"):
        units_each([0.0, 0.0], 1, 1, "CPU")


@pytest.mark.slow
def test_agents_are_on_nodes_of_their_own_and_start_anew_when_one_or_its_node_dies(cluster):
    of = problem("cholesky", 2)
    placement = ordered_placement(of, 0)
    with Hosts(launcher="ray", agents=2, warm_up=0, restarts=2, verify=True).open(of) as session:
        check(session.trace(placement))
        first = [member.pid for member in session._group.members]
        os.kill(first[1], signal.SIGKILL)
        check(session.trace(placement))
        second = [member.pid for member in session._group.members]
        assert not set(first) & set(second)
        cluster.remove_node(cluster.other, allow_graceful=False)
        until_s = time.monotonic() + 60
        while all(Path(f"/proc/{pid}").exists() for pid in second):
            assert time.monotonic() < until_s
            time.sleep(0.05)
        check(session.trace(placement))
        third = session._group.members
        os.kill(third[0].pid, signal.SIGKILL)
        with pytest.raises(ExecutionError, match=r"^host 0 \(.*\): was ended by SIGKILL at op "):
            session.trace(placement)
