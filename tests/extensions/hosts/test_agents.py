"""system=auto, system=hosts and system=emulated in runs, and what is left when they die."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from doppler.report.rows import read_results
from doppler.support.errors import InputError

PROJECT = Path(__file__).resolve().parents[3]
HOSTS = ("system=hosts", "system.agents=2", "cluster=host", "cluster.num_devices=4")
EVALUATE = ("stage=evaluate", *HOSTS, "budget.measured_evaluations=5")


def only(paths) -> Path:
    (path,) = paths
    return path


def test_what_agents_are_copies_of_has_loaded_no_training():
    # A library that begins to use a GPU when it is loaded leaves none to copies of the process.
    code = (
        "import sys, doppler.extensions.hosts.nursery;"
        "print({name.split('.')[0] for name in sys.modules})"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert "'torch'" in loaded
    assert not [one for one in ("pytorch_lightning", "torch_geometric") if f"'{one}'" in loaded]


def test_placements_are_evaluated_by_agents(run, tmp_path):
    summary, text = run(*EVALUATE, "baseline=[round_robin,critical_path]", "+system.verify=true")
    assert (summary["system"], summary["system_kind"]) == ("hosts", "measured")
    assert "system: hosts" in text and "workload.preset: small" in text
    directory = only(tmp_path.glob("evaluate/chainmm/host/baselines/seed=0-*"))
    agents = json.loads((directory / "agents.json").read_text())
    assert [one["rank"] for one in agents] == [0, 1]
    assert all(set(one) == {"rank", "host", "pid"} for one in agents)
    assert len({one["pid"] for one in agents} | {os.getpid()}) == 3
    rows = read_results(directory / "results.csv")
    assert [row.system_kind for row in rows] == ["measured"] * 2
    assert rows[0].makespan_s == summary["makespan_s"] <= rows[1].makespan_s
    (ratio,) = summary["paired"].values()
    assert ratio[0] <= 1.0 and summary["repeats"] > 1
    _, again = run(*EVALUATE, "baseline=[round_robin,critical_path]", "+system.verify=true")
    assert "finished already" in again


def test_what_stage_two_searches_on_is_chosen(run, tmp_path):
    small = ("budget.imitation_episodes=8", "baseline=[round_robin]")
    few = (*small, "budget.evaluations=200", "budget.measured_evaluations=200")
    emulated = ("system=emulated", "system.time_scale=1e-3")
    machine = ("cluster=dgx_h100x16", "workload=synthetic", "workload.num_ops=30")
    summary, _ = run(*emulated, *machine, *few)
    assert summary["system"] == "emulated" and summary["evaluations"] <= 200
    directory = only(tmp_path.glob("train/*/dgx_h100x16/doppler/seed=0-*"))
    assert len(json.loads((directory / "agents.json").read_text())) == 2
    simulated, _ = run(*machine, *few)
    assert simulated["system"] == "work_conserving"
    directories = tmp_path.glob("train/*/dgx_h100x16/doppler/seed=0-*")
    assert len(list(directories)) == 2, "simulated and executed ones are apart"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("system.agents=5", "system.agents: 5, but cluster 'host' has 4 devices"),
        ("system.launcher=torchrun", "system.launcher: torchrun has not started this process"),
    ],
)
def test_what_agents_cannot_do_is_refused_before_anything_is_removed(
    run, tmp_path, override, message
):
    with pytest.raises(InputError) as error:
        run(*EVALUATE, "baseline=[round_robin]", override)
    assert str(error.value) == message
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_torchrun_starts_the_agents(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node", "2", PROJECT / "src/run.py", *EVALUATE]
    small = ("baseline=[round_robin]", "workload.params.n=64", "system.launcher=torchrun")
    done = subprocess.run(
        [*command, *small, f"output_dir={tmp_path}"], cwd=PROJECT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    agents = json.loads(only(tmp_path.rglob("agents.json")).read_text())
    assert [one["rank"] for one in agents] == [0, 1]
    assert only(tmp_path.rglob("summary.json"))
    assert gone(one["pid"] for one in agents)


def started(tmp_path, *overrides):
    """A run that goes on for long, and its agents."""
    command = [sys.executable, PROJECT / "src/run.py", *EVALUATE[:-1], "workload.params.n=64"]
    process = subprocess.Popen(
        [*command, "baseline=[critical_path]", *overrides, f"output_dir={tmp_path}"],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until_s = time.monotonic() + 120
    while not (found := list(tmp_path.rglob("agents.json"))):
        assert time.monotonic() < until_s and process.poll() is None, process.communicate()
        time.sleep(0.1)
    time.sleep(1.0)
    return process, [one["pid"] for one in json.loads(found[0].read_text())]


def gone(pids) -> bool:
    """Whether all of them end."""
    until_s = time.monotonic() + 20
    left = set(pids)
    while left and time.monotonic() < until_s:
        left = {pid for pid in left if Path(f"/proc/{pid}").exists()}
        time.sleep(0.05)
    return not left


def test_a_run_ends_in_one_line_when_an_agent_is_killed(tmp_path):
    process, pids = started(tmp_path)
    os.kill(pids[1], signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.count("\n") == 1 and "Traceback" not in err
    assert err.startswith("error: host 1 (") and "was ended by SIGKILL at op " in err
    assert gone(pids)


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_no_agent_is_left_when_a_run_is_ended(tmp_path, number):
    process, pids = started(tmp_path)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == (143 if number == signal.SIGTERM else -signal.SIGKILL)
    assert gone(pids)


@pytest.mark.parametrize(
    "text",
    [
        "from doppler.extensions.hosts.launchers import LocalAgents\n"
        "agents = LocalAgents('127.0.0.1', [0], 1)\nassert agents.hellos()\nagents.end(2.0)\n",
        "from doppler.extensions.pipelines.processes import Processes\n"
        "if __name__ == '__main__':\n    with Processes(1): pass\n",
        pytest.param(
            "from doppler.extensions.hosts.ray_cluster import connected\n"
            "ray = connected('compute')\n"
            "@ray.remote\ndef path():\n    import torch, json, numpy\n    return torch.__file__\n"
            "assert 'strangers' not in ray.get(path.remote(), timeout=100)\n",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["agents", "pipelines", "ray"],
)
def test_processes_import_nothing_from_the_working_directory(tmp_path, text):
    if "ray" in text:
        pytest.importorskip("ray")
    folder, script = tmp_path / "strangers", tmp_path / "main.py"
    folder.mkdir()
    for name in ("torch", "json", "multiprocessing", "doppler", "numpy"):
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('x')\n")
    script.write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "src")}
    environment.pop("PYTHONSAFEPATH", None)
    done = subprocess.run(
        [sys.executable, script], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists()
