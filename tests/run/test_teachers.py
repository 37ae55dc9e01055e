"""Any baseline teaches stage I, and what it takes to know what to teach is counted."""

import json
import shutil
from pathlib import Path

import pytest
from hydra.utils import instantiate
from problems import REPOSITORY

from doppler.problem import Placement, build
from doppler.report.rows import read_results
from doppler.search import seeded_generator
from doppler.support.errors import InputError

BASELINES = sorted(path.stem for path in (REPOSITORY / "conf/baseline").glob("*.yaml"))
# Episodes of two updates.
FEW = ("stage=imitation", "budget.imitation_episodes=32", "budget.evaluations=60")


def only(paths) -> Path:
    (path,) = paths
    return path


def taught_by(name: str) -> tuple[str, ...]:
    return "stage=imitation", f"baseline@stage.teacher={name}"


@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_teaches_and_its_executions_are_counted(name, run, configure, tmp_path):
    arguments = (*FEW, *taught_by(name))
    if name == "cp_sat":
        pytest.importorskip("ortools")
        arguments = (*arguments, "stage.teacher.deterministic_time=0.5")
    summary, text = run(*arguments)
    directory = only(tmp_path.glob("imitation/chainmm/p100x4/doppler/*"))
    assert (directory / "checkpoints/last.ckpt").exists()

    cfg = configure(*arguments, "workload.params.n=64")
    problem = build(instantiate(cfg.workload), instantiate(cfg.cluster))
    baseline = instantiate(cfg.stage.teacher)
    if hasattr(baseline, "decide"):
        assert summary["evaluations"] == 1, "the greedy placement at the end, and nothing else"
        return
    with instantiate(cfg.system).open(problem) as session:
        result = baseline.place(session, seeded_generator(0, "teacher"))
        assert summary["evaluations"] == session.evaluations + 1
    taught = Placement.load(directory / "teacher.json", problem)
    assert taught.device.tolist() == result.placement.device.tolist()
    assert taught.priority.tolist() == result.placement.priority.tolist()
    assert f"{type(baseline).__name__} teaches a placement" in text
    assert summary["wall_s"] > json.loads((directory / "teacher.json").read_text())["seconds"] > 0


def test_stage_two_counts_what_its_teacher_used(run, tmp_path):
    rows = {}
    for name in ("critical_path", "annealing"):
        _, text = run(
            *("stage=train", "baseline=[annealing]", f"baseline@stage.teacher={name}"),
            "stage.teacher.evaluations=50",
        )
        (line,) = (line for line in text.splitlines() if "/train/" in line and " -> " in line)
        folder = Path(line.split(" -> ")[1])
        rows[name] = {row.method: row for row in read_results(folder / "results.csv")}
    alone, taught = rows["critical_path"], rows["annealing"]
    teacher = json.loads(only(tmp_path.glob("train/*/*/*/*/imitation/teacher.json")).read_text())
    assert taught["doppler"].makespan_s <= teacher["makespan_s"], "its evaluations count too"
    assert taught["doppler"].evaluations == alone["doppler"].evaluations == 100, "one budget"
    assert alone["doppler trained"].evaluations < 60 < taught["doppler trained"].evaluations < 80
    for method in ("doppler", "doppler trained", "doppler greedy"):
        assert taught[method].variant != alone[method].variant
    assert taught["annealing"].evaluations == 100, "the one beside is not the teacher"


def test_runs_of_other_episodes_or_trainer_settings_are_other_methods(run, tmp_path):
    def variants(name: str, *options: str) -> dict[str, str]:
        run("stage=rl_sim", f"run_dir={tmp_path}/{name}", *options)
        return {row.method: row.variant for row in read_results(tmp_path / name / "results.csv")}

    plain = variants("plain")
    assert {"doppler", "doppler trained", "doppler imitation"} <= plain.keys()
    same = ("seed=1", "trainer.checkpoint_every_s=9", "budget.measured_evaluations=7")
    seed = variants("seed", *same)
    assert all(seed[name] == plain[name] for name in seed.keys() & plain.keys())
    for name, option in (
        ("episodes", "budget.imitation_episodes=16"),
        ("clip", "trainer.gradient_clip_val=0.001"),
    ):
        other = variants(name, option)
        assert all(other[each] != plain[each] for each in other.keys() & plain.keys())


def test_episodes_of_imitation_count_only_where_something_is_imitated(run, tmp_path):
    found = set()
    for episodes in (8, 16):
        run(
            *("stage=rl_sim", "stage.init_from=null", "algorithm.imitate_best=false"),
            *(f"budget.imitation_episodes={episodes}", f"run_dir={tmp_path}/{episodes}"),
        )
        rows = read_results(tmp_path / f"{episodes}/results.csv")
        found.add(tuple((row.method, row.variant, row.makespan_s) for row in rows))
    assert len(found) == 1, "the option changes nothing"


def test_a_teacher_that_uses_the_whole_budget_leaves_nothing_to_train_with(run):
    with pytest.raises(InputError, match=r"^stage\.teacher: 101 evaluations are used, .*none of"):
        run("stage=rl_sim", "baseline@stage.teacher=annealing", "stage.teacher.evaluations=100")


def test_a_search_is_not_repeated_by_the_run_that_goes_on(run, tmp_path):
    arguments = (*FEW, *taught_by("annealing"))
    first, _ = run(*arguments)
    directory = only(tmp_path.glob("imitation/*/*/*/*"))
    (directory / "summary.json").unlink()
    shutil.rmtree(directory / "checkpoints")
    kept = json.loads((directory / "teacher.json").read_text())
    (directory / "teacher.json").write_text(json.dumps({**kept, "evaluations": 1000}))
    again, _ = run(*arguments)
    assert first["evaluations"] == 61
    assert again["evaluations"] == 1001, "searched once more"


def test_a_teacher_without_a_placement_that_fits_ends_in_one_line(run, tmp_path):
    rows = ",".join('{"output_bytes": 9e9, "flops": 1}' for _ in range(4))
    (tmp_path / "big.json").write_text(
        f'{{"format": "doppler-graph", "version": 1, "ops": [{rows}], "edges": [], "inputs": []}}'
    )
    with pytest.raises(
        InputError, match=r"^stage\.teacher: RoundRobin found no placement that fits"
    ):
        run(
            *("workload=file", f"workload.path={tmp_path}/big.json", "cluster.num_devices=1"),
            *taught_by("round_robin"),
        )


def test_a_name_alone_is_refused_where_no_command_line_reads_it(run):
    with pytest.raises(InputError, match=r"baseline@stage\.teacher=annealing chooses it"):
        run("stage=imitation", "stage.teacher=annealing")


def test_it_is_said_when_stage_one_has_not_learned_its_teacher(run):
    taught = ("stage=imitation", "baseline@stage.teacher=annealing", "budget.evaluations=300")
    few, many = (f"budget.imitation_episodes={num}" for num in (4, 1600))
    hasty, text = run(*taught, few)
    assert "warning: stage I: the policy's placement takes" in text
    summary, text = run(*taught, many)
    assert "warning" not in text
    assert summary["makespan_s"] < hasty["makespan_s"]


def test_the_policy_decides_the_best_placement_that_its_training_found(run, tmp_path):
    enough = ("budget.evaluations=150", "budget.imitation_episodes=1600")
    run(*enough, "algorithm.search_share=0", "baseline=[]")
    rows = read_results(only(tmp_path.glob("train/*/*/*/*/results.csv")))
    seconds = {row.method: row.makespan_s for row in rows}
    assert seconds["doppler greedy"] == seconds["doppler"]
