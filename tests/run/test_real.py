"""stage=calibrate and stage=rl_real, on this machine and on simulators that stand for one."""

import csv
import json
import re
from pathlib import Path

import pytest
import torch
from omegaconf.errors import OmegaConfBaseException

from doppler.experiment import train
from doppler.experiment.policy_training import clipped_as, fit_in_run
from doppler.experiment.rl_real import _algorithm
from doppler.policies.weights import load_checkpoint
from doppler.problem.costs import load_all
from doppler.report.aggregate import collect, summarise
from doppler.report.paired import read_paired
from doppler.report.rows import read_results
from doppler.support.errors import InputError

CALIBRATION = ("runs=2", "seconds=0", "placements=6", "repeats=2")
# Whatever else runs on this machine.
FORCE = "measure.force=true"
CALIBRATE = ("stage=calibrate", *(f"stage.{one}" for one in CALIBRATION), FORCE)
REAL = (
    *(
        "stage=rl_real",
        FORCE,
        "budget.measured_evaluations=80",
        "stage.choosing=2",
        "stage.repeats=3",
    ),
    *(f"stage.calibration.{one}" for one in CALIBRATION),
    "baseline=[round_robin,critical_path]",
)
# A simulator of other rules than the one that is searched stands for the machine: it never differs
# from itself, and it is not what the search believes.
STAND_IN = ("system._target_=doppler.simulator.WorkConserving", "+system.contention=none")


def only(paths) -> Path:
    (path,) = paths
    return path


def test_calibrating_leaves_costs_and_a_report_of_fidelity(run, tmp_path):
    summary, text = run(*CALIBRATE)
    directory = only(tmp_path.glob("calibrate/chainmm/host/costs/seed=0-*"))
    (table,) = load_all(only(tmp_path.glob("costs/*.json"))).values()
    assert table.has_links and len(table.kernels) == summary["kernels"] == 5
    assert all((seconds_D > 0).all() for seconds_D in table.kernels.values())
    with (directory / "fidelity.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["placement"] for row in rows] == 2 * ["random", "annealing", "heuristic"]
    assert all(float(row["measured_s"]) > 0 for row in rows)
    assert (directory / "fidelity.png").stat().st_size > 0
    assert summary["system_kind"] == "measured"
    assert set(summary["fidelity"]) == {"modelled costs", "measured costs"}
    assert "Spearman" in text and "GB/s (cpu:" in text
    (own, there), (back, other) = summary["bandwidth_bytes_per_s"]
    assert own is other is None
    assert min(there, back) > 1e7
    _, again = run(*CALIBRATE)
    assert "finished already" in again and "Spearman" in again


def test_a_simulation_with_measured_costs_says_so(run, tmp_path):
    run(*CALIBRATE)
    costs = only(tmp_path.glob("costs/*.json"))
    evaluate = ("stage=evaluate", "baseline=[round_robin]", f"costs={costs}")
    measured, text = run(*evaluate, "cluster=host")
    assert "76 ops, all links; 0 ops are modelled" in text
    modelled, _ = run(*evaluate[:2], "cluster=host")
    assert measured["problem_hash"] != modelled["problem_hash"]
    _, text = run(*evaluate, "cluster=host", "cluster.num_devices=3")
    assert "0 ops, not all links; 76 ops are modelled" in text, "these three were not measured"


def test_costs_stay_what_they_are_until_they_are_measured_anew(run, tmp_path):
    run(*CALIBRATE)
    path = only(tmp_path.glob("costs/*.json"))
    before = path.read_text()
    run(*CALIBRATE, "seed=1")
    assert path.read_text() == before
    run(*CALIBRATE, "overwrite=true")
    assert path.read_text() != before


@pytest.mark.parametrize(
    ("override", "message"),
    {
        "stage.seconds=inf": "stage.seconds: must be a number from 0 to 1,000,000,000, got inf",
        "stage.seconds=-1": "stage.seconds: must be a number from 0 to 1,000,000,000, got -1",
    }.items(),
)
def test_what_cannot_be_calibrated_is_refused_by_name(run, override, message):
    with pytest.raises(InputError, match=re.escape(message)):
        run(*CALIBRATE, *STAND_IN, override)


def test_a_calibrated_simulator_tells_what_its_own_kind_measures(run):
    summary, text = run(*CALIBRATE, *STAND_IN, "cluster=p100x4")
    assert "nothing was measured" in text and "measured on" not in text
    after = summary["fidelity"]["measured costs"]
    assert after["spearman"] == pytest.approx(1.0)
    assert after["mean_error"] < 1e-6


@pytest.mark.slow
def test_stage_three_on_this_machine(run, tmp_path):
    summary, text = run(*REAL)
    assert "stage=calibrate is needed first" in text
    assert "workload.preset: small" in text
    assert (summary["system_kind"], summary["system"]) == ("measured", "threads")
    directory = only(tmp_path.glob("rl_real/chainmm/host/doppler/seed=0-*"))
    rows = read_results(directory / "results.csv")
    names = ["doppler", "doppler greedy", "doppler stage II", "round_robin", "critical_path"]
    assert [row.method for row in rows] == [*names, "estimates_then_anneal measured"]
    assert {row.system_kind for row in rows} == {"measured"}
    simulated = read_results(directory / "simulated.csv")
    assert [row.method for row in simulated] == [row.method for row in rows]
    assert {row.system_kind for row in simulated} == {"simulated"}
    synchronous = read_results(directory / "synchronous.csv")
    assert {row.system for row in synchronous} == {"synchronous_threads"}
    ratios = read_paired(directory / "paired.csv")
    others = [row.method for row in (*rows[1:], *synchronous)]
    assert [ratio.other for ratio in ratios] == others == list(summary["paired"])
    assert all(ratio.low <= ratio.ratio <= ratio.high for ratio in ratios)
    # A search ends where what is left is less than its next step takes.
    assert summary["measured_evaluations"] <= 80 + 3 * 2 + 16
    assert 0 <= summary["measured_evaluations"] - rows[-1].evaluations < 8
    assert summary["makespan_s"] == rows[0].makespan_s == ratios[0].method_s
    assert json.loads((directory / "trace.json").read_text())
    _, again = run(*REAL)
    assert "finished already" in again
    assert again.count("95% interval") == 1 and "simulated by" in again
    run(*REAL, "stage.repeats=2")
    table = summarise(collect([tmp_path / "rl_real"])).itertuples()
    assert {row.method for row in table} == {row.method for row in rows}, "both are one table"


def test_calibration_is_shared_and_found_again(run):
    first, text = run(*REAL, *STAND_IN)
    assert text.count("is needed first") == 1 and "stage=calibrate is needed first" in text
    _, text = run(*REAL, *STAND_IN, "stage.repeats=4")
    assert "is needed first" not in text and "simulated costs: " in text
    second, text = run(*REAL, *STAND_IN, "seed=1")
    assert "is needed first" not in text, "seeds share it"
    assert first["problem_hash"] == second["problem_hash"]


def test_ops_without_a_kernel_need_no_calibration_on_a_simulator(run):
    synthetic = (*REAL, *STAND_IN, "cluster=p100x4", "workload=synthetic", "workload.num_ops=30")
    _, text = run(*synthetic)
    assert text.count("stage=calibrate is needed first") == 1
    _, text = run(*synthetic, "stage.repeats=4")
    assert "is needed first" not in text, "the links are known"


def test_calibration_says_what_the_sharing_model_is_worth(run):
    shared = "+cluster.shared=[{name: memory, bytes_per_s: 1e9, devices: all}]"
    summary, text = run(*CALIBRATE, shared)
    assert "measured costs, no sharing" in text
    # Two devices share a slow memory, so simulated runs are longer with sharing.
    _, shares, alone = (one["median_ratio"] for one in summary["fidelity"].values())
    assert shares > alone


def evaluations_of(directory: Path) -> int:
    """What a training and its search have used."""
    return load_checkpoint(directory / "checkpoints/last.ckpt")["doppler"]["evaluations"]


@pytest.mark.parametrize("seed", range(2))
def test_stage_three_ends_with_nothing_slower_than_what_it_began_with(run, tmp_path, seed):
    summary, _ = run(*REAL, *STAND_IN, f"seed={seed}")
    ratios = {other: ratio for other, (ratio, _, _) in summary["paired"].items()}
    assert ratios["doppler stage II"] <= 1.0 and ratios["doppler greedy"] <= 1.0
    directory = only(tmp_path.glob(f"rl_real/*/*/*/seed={seed}-*"))
    began = directory / "rl_sim/placement.json"
    rows = {row.method: row for row in read_results(directory / "results.csv")}
    stage_two = evaluations_of(began.parent)
    assert rows["doppler stage II"].evaluations == stage_two
    assert rows["doppler"].evaluations == stage_two + summary["measured_evaluations"]
    beside = json.loads((directory / "placements/doppler stage II.json").read_text())
    assert beside["device"] == json.loads(began.read_text())["device"]
    assert beside["makespan_s"] == rows["doppler stage II"].makespan_s


def test_an_interrupted_run_repeats_no_finished_search(run, tmp_path):
    summary, text = run(*REAL, *STAND_IN)
    assert "estimates_then_anneal measured: 8" in text and "searched already" not in text
    directory = only(tmp_path.glob("rl_real/*/*/*/seed=0-*"))
    # As a kill leaves it while methods are executed in turns.
    (directory / "summary.json").unlink()
    again, text = run(*REAL, *STAND_IN)
    assert "estimates_then_anneal measured: searched already" in text
    assert again["makespan_s"] == summary["makespan_s"]
    rows = {row.method: row for row in read_results(directory / "results.csv")}
    path = directory / "controls/estimates_then_anneal.json"
    path.write_text("{")
    (directory / "summary.json").unlink()
    _, text = run(*REAL, *STAND_IN)
    assert "searched already" not in text, "what is damaged is searched again"
    assert json.loads(path.read_text())["evaluations"] == rows[path.stem + " measured"].evaluations


NOISY = (*STAND_IN, "+system.noise=0.05")


def weights_of(directory: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(directory / "checkpoints/last.ckpt")["state_dict"]


@pytest.mark.parametrize("evaluations", [1, 2, 3, 8, 16])
def test_of_few_executions_all_are_the_searchs_and_nothing_is_trained(run, tmp_path, evaluations):
    few = (*REAL, *NOISY, f"budget.measured_evaluations={evaluations}")
    summary, text = run(*few)
    assert text.count("nothing is trained, the search uses all of them") == 1
    assert summary["episodes"] == 0
    directory = only(tmp_path.glob("rl_real/*/*/*/seed=0-*"))
    chose = json.loads((directory / "choice.json").read_text())["evaluations"]
    assert chose in (2, 4), "of two, two executions each; equal ones are executed once"
    searched = summary["measured_evaluations"] - chose
    assert evaluations - 1 <= searched <= evaluations and searched > 0
    rows = {row.method: row for row in read_results(directory / "results.csv")}
    assert [one for one in rows if one.startswith("doppler")] == ["doppler", "doppler stage II"]
    before = directory / "rl_sim"
    assert rows["doppler"].evaluations == evaluations_of(before) + summary["measured_evaluations"]
    assert (directory / "checkpoints/best.ckpt").exists()
    weights, began = weights_of(directory), weights_of(before)
    assert all(torch.equal(weights[key], began[key]) for key in began), "they are stage II's"
    # As a kill leaves it while methods are executed in turns.
    (directory / "summary.json").unlink()
    again, text = run(*few)
    assert "resuming from" in text
    assert again["measured_evaluations"] == summary["measured_evaluations"]


def test_a_batch_larger_than_the_budget_trains_nothing_and_without_a_search_is_refused(run):
    large = (*REAL, *NOISY, "+stage.algorithm.reinforcement.batch_episodes=1000")
    summary, text = run(*large, "stage.init_from=pretrained")
    assert "nothing is trained" in text and summary["episodes"] == 0
    assert summary["measured_evaluations"] <= 80 + 2
    line = r"^budget\.measured_evaluations: .* one batch of 1000 needs .* leaves no search$"
    with pytest.raises(InputError, match=line):
        run(*large, "+stage.algorithm.search_share=0")


def test_measured_runs_of_other_stages_one_and_two_are_other_methods(run, tmp_path):
    def variants(name: str, *options: str) -> set[str]:
        run(*REAL, *STAND_IN, "baseline=[]", f"run_dir={tmp_path}/{name}", *options)
        rows = read_results(tmp_path / name / "results.csv")
        return {row.variant for row in rows if row.method.startswith("doppler")}

    plain = variants("plain")
    assert variants("seed", "seed=1") == plain
    assert not variants("episodes", "budget.imitation_episodes=16") & plain
    assert not variants("clip", "trainer.gradient_clip_val=0.001") & plain


def test_stage_three_clips_gradients_by_its_own_algorithm_unless_the_trainer_is_told(configure):
    def clips(*overrides):
        cfg = configure("stage=rl_real", *overrides)
        return tuple(
            clipped_as(cfg, algorithm).gradient_clip_val for algorithm in (None, _algorithm(cfg))
        )

    own = "+stage.algorithm.gradient_clip=0.25"
    assert clips() == (1.0, 1.0)
    assert clips(own) == (1.0, 0.25)
    assert clips("+stage.algorithm.gradient_clip=null") == (1.0, None)
    assert clips("algorithm=paper", own) == (None, 0.25)
    assert clips(own, "trainer.gradient_clip_val=0.5") == (0.5, 0.5)


def test_the_gradient_clip_of_stage_three_changes_its_weights(run, tmp_path):
    short = (*REAL, *STAND_IN, "baseline=[]", "stage.init_from=pretrained")
    run(*short)
    run(*short, "+stage.algorithm.gradient_clip=1e-9")
    one, other = map(weights_of, tmp_path.glob("rl_real/*/*/*/seed=0-*"))
    assert any(not torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(
    ("method", "name", "parts"),
    [
        ("ablation/stage_three", "doppler_stage_three", set()),
        ("ablation/stages_one_three", "doppler_one_three", {"imitation"}),
    ],
)
def test_stage_three_runs_without_the_stages_before(run, tmp_path, method, name, parts):
    run(*REAL, *STAND_IN, f"method={method}")
    directory = only(tmp_path.glob(f"rl_real/*/*/{name}/seed=0-*"))
    assert {part for part in ("imitation", "rl_sim") if (directory / part).exists()} == parts
    names = [row.method for row in read_results(directory / "results.csv")]
    own = [each for each in names if each.startswith("doppler")]
    assert own == [name, f"{name} greedy"], "nothing was executed before"


def test_rows_say_what_was_allowed_however_many_executions_that_took(run, tmp_path):
    run(*REAL, *STAND_IN)
    directory = only(tmp_path.glob("rl_real/*/*/doppler/seed=0-*"))
    rows = {row.method: row for row in read_results(directory / "results.csv")}
    before = rows["doppler stage II"]
    assert before.budget == 0, "as many as it used"
    assert rows["doppler"].budget == rows["doppler greedy"].budget == before.evaluations + 80
    assert rows["doppler"].evaluations > rows["doppler"].budget, "choosing executes too"
    assert rows["estimates_then_anneal measured"].budget == 80


def test_stage_three_draws_other_numbers_than_stage_two(run, monkeypatch):
    drawn = {}

    def noted(this_run, module, **more):
        drawn[module.title] = module.rng.bit_generator.state["state"]["state"]
        return fit_in_run(this_run, module, **more)

    monkeypatch.setattr(train, "fit_in_run", noted)
    run(*REAL, *STAND_IN)
    assert {"stage II, simulated", "stage III, measured"} <= set(drawn)
    assert drawn["stage II, simulated"] != drawn["stage III, measured"]


def test_stage_three_begins_with_weights_that_are_no_runs(run):
    summary, _ = run(*REAL, *STAND_IN, "stage.init_from=pretrained")
    assert summary["init_from"] == "pretrained"


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("stage.repeats=1", r"stage\.repeats: must be a whole number of at least 2"),
        ("+stage.algorithm.reinforcement.learning_rat=1", "learning_rat"),
    ],
)
def test_settings_that_cannot_be_end_before_anything_runs(run, tmp_path, setting, told):
    with pytest.raises((InputError, OmegaConfBaseException), match=told):
        run(*REAL, setting)
    assert not list(tmp_path.iterdir())


def test_stages_that_execute_do_so_on_this_machine_unless_told_otherwise(configure):
    for stage in ("calibrate", "rl_real"):
        assert configure(f"stage={stage}").cluster.name == "host"
        assert configure(f"stage={stage}", "cluster=mixed").cluster.name == "mixed"
    assert configure("stage=rl_real", "baseline@stage.teacher=heft").cluster.name == "host"
    assert configure().cluster.name == "p100x4"
