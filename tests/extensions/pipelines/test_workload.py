"""workload=pipeline_parallel from the shell: the schedule that it leaves, and what it refuses."""

import json

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import InstantiationException
from problems import REPOSITORY
from rich.console import Console

from doppler.cluster import preset
from doppler.experiment import execute
from doppler.extensions.pipelines import check_orders, load_orders
from doppler.extensions.pipelines.workload import pipeline_parallel
from doppler.support.errors import InputError

SMALL = ["workload=pipeline_parallel", "budget.evaluations=40", "cluster.num_devices=2"]


@pytest.fixture
def run(tmp_path):
    def go(*overrides: str):
        with initialize_config_dir(str(REPOSITORY / "conf"), version_base="1.3"):
            cfg = compose("config", [*SMALL, *overrides, f"output_dir={tmp_path}"])
        cfg.baseline.pipeline.steps[2].at_most = 2
        return execute(cfg, [], Console(quiet=True))

    return go


def test_a_run_leaves_a_schedule_that_torch_finishes(run, tmp_path):
    summary = run(
        *("workload.forward=[1,2,1,1]", "workload.microbatches=4", "workload.transfer=0.25"),
        *("workload.stages_of_device=free", "workload.weight_grad_bytes=0.5"),
        "++cluster.memory_bytes=[4,5]",
    )
    (schedule,) = tmp_path.rglob("schedule.csv")
    check_orders(load_orders(schedule), 4)
    assert (schedule.parent / "pipeline.png").stat().st_size > 10_000
    assert summary["stage"] == "evaluate" and summary["queue"] == "strict"
    assert summary["peak_bytes"][0] <= 4 and summary["peak_bytes"][1] <= 5
    theirs = summary["torch_schedules"]
    assert {"Interleaved1F1B", "ZBVZeroBubble", "DualPipeV"} <= theirs.keys()
    fitting = [one["makespan_s"] for one in theirs.values() if one["fits"]]
    assert summary["lower_bound_s"] <= summary["makespan_s"] <= min(fitting, default=1e9)


PROFILE = {
    "format": "doppler-stages",
    "version": 1,
    "stages": [
        {
            "forward_s": s + 1.0,
            "input_grad_s": 0.0 if s == 0 else 1.0,
            "weight_grad_s": 1.0,
            "activation_bytes": 2.0,
            "weight_grad_bytes": 1.0,
        }
        for s in range(2)
    ],
}


def test_a_profile_stands_in_place_of_numbers(run, tmp_path):
    (tmp_path / "stages.json").write_text(json.dumps(PROFILE))
    summary = run(f"workload.profile={tmp_path}/stages.json", "workload.microbatches=3")
    assert summary["makespan_s"] == pytest.approx(1 + 3 * 4)
    PROFILE["stages"][1]["forward_s"] = -1.0
    (tmp_path / "bad.json").write_text(json.dumps(PROFILE))
    with pytest.raises(
        (InputError, InstantiationException),
        match=r"bad.json: stages\[1\].forward_s: must be 0 or more",
    ):
        run(f"workload.profile={tmp_path}/bad.json")
    PROFILE["stages"][1]["forward_s"] = 1.0
    (tmp_path / "bad.json").write_text(json.dumps({**PROFILE, "transfer_s": [-1.0]}))
    with pytest.raises(
        (InputError, InstantiationException),
        match=r"bad.json: transfer_s\[0\]: must be 0 or more",
    ):
        run(f"workload.profile={tmp_path}/bad.json")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["++cluster.memory_bytes=0.5"], "0.5 on device 0 is too small .* 1 on every device would"),
        (["workload.forward=[1,0]"], "workload.forward: stage 1 takes no time"),
        (["workload.stages_of_device=w"], "must be one of loop, v, free, got 'w'"),
        (["workload.forward=[1,1]", "workload.stages=3"], "forward: 2 numbers for 3 stages"),
        (["workload.stages=1"], "cluster.num_devices=1 would fit"),
        (["workload.microbatches=100000"], "at most 33333 would fit"),
        (["workload.transfer=[1,1]"], "transfer: 2 numbers for 1 boundaries"),
    ],
)
def test_bad_input_ends_in_one_line_and_leaves_nothing(run, tmp_path, overrides, said):
    with pytest.raises((InputError, InstantiationException), match=said):
        run(*overrides)
    assert not list(tmp_path.iterdir())


def test_other_searches_take_its_place(run):
    summary = run("stage=evaluate", "baseline=[annealing_order]", "workload.microbatches=2")
    assert summary["makespan_s"] == 7


def test_a_schedule_that_torch_would_not_run_is_left_out_with_the_reason(run, tmp_path):
    summary = run(
        *("workload.stages=4", "workload.stages_of_device=free", "workload.transfer=1000"),
        *("workload.microbatches=2", "baseline=[single_device]"),
    )
    assert summary["makespan_s"] == pytest.approx(24.0), "all on one device"
    assert not list(tmp_path.rglob("schedule.csv"))
    (told,) = tmp_path.rglob("explanation.txt")
    assert "no schedule.csv for torch: schedule: rank" in told.read_text()


def test_a_profile_is_used_again_for_what_was_measured_alone(tmp_path):
    path = tmp_path / "stages.json"
    asked = {"module": "own.py:made", "boundaries": [3], "transfer": 0.5}
    path.write_text(json.dumps({**PROFILE, "notes": ["own.py:made", "boundaries: 3"]}))
    cluster = preset(name="identical", num_devices=2)

    def made(**changes):
        return pipeline_parallel(
            cluster=cluster, microbatches=2, profile=str(path), **{**asked, **changes}
        )

    assert made().pipeline.transfer_s.tolist() == [0.5]
    for change in ({"module": "own.py:other"}, {"boundaries": [2]}, {"boundaries": None}):
        with pytest.raises(InputError, match=r"stages.json: was not measured of own.py"):
            made(**change)
    path.write_text(json.dumps({**PROFILE, "transfer_s": [2.0]}))
    assert made(module=None).pipeline.transfer_s.tolist() == [2.0]
