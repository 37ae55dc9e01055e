"""A trained policy placed on problems that it was not trained on."""

import json

import pytest
import torch

from doppler.policies import DualPolicy
from doppler.report.rows import read_results
from doppler.support.errors import InputError


def only(paths):
    (path,) = paths
    return path


@pytest.fixture
def checkpoint(run, tmp_path):
    """Of a policy trained on four devices."""
    run("stage=rl_sim", "stage.init_from=null", "baseline=[]")
    return only(tmp_path.glob("rl_sim/*/*/*/*/checkpoints/best.ckpt"))


def test_a_policy_places_another_problem_at_once_by_samples_and_polished(run, tmp_path, checkpoint):
    summary, text = run(
        *("stage=inference", f"stage.init_from='{checkpoint}'", "cluster.num_devices=3"),
        *("workload.params.n=128", "baseline=[critical_path]"),
    )
    assert "trained with " in text
    directory = only(tmp_path.glob("inference/chainmm/p100x4/doppler/*"))
    rows = {row.method: row for row in read_results(directory / "results.csv")}
    names = ["doppler at once", "doppler on estimates", "doppler"]
    assert set(rows) == {*names, "critical_path"}
    assert [rows[name].evaluations for name in names] == [1, 1 + 50, 100]
    seconds = [rows[name].makespan_s for name in names]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[2] < seconds[0]
    assert summary["makespan_s"] == seconds[2] == rows["doppler"].makespan_s
    assert summary["trained"]["evaluations"] > 0
    assert json.loads((directory / "placement.json").read_text())["makespan_s"] == seconds[2]


def test_other_weights_in_the_same_file_are_another_run(run, tmp_path, checkpoint):
    settings = "stage=inference", f"stage.init_from='{checkpoint}'", "baseline=[]"
    run(*settings)
    _, text = run(*settings)
    assert "finished already" in text
    changed = torch.load(checkpoint, weights_only=True)
    for weight in changed["state_dict"].values():
        if weight.is_floating_point():
            weight.mul_(0.5)
    torch.save(changed, checkpoint)
    _, text = run(*settings)
    assert "finished already" not in text
    assert len(list(tmp_path.glob("inference/chainmm/p100x4/doppler/*"))) == 2


def test_weights_without_numbers_are_refused_also_where_the_policy_has_no_use_for_them(
    run, checkpoint
):
    damaged = torch.load(checkpoint, weights_only=True)
    name = "policy.network.own.made_for"
    damaged["state_dict"][name] = damaged["state_dict"][name].to_sparse()
    torch.save(damaged, checkpoint)
    with pytest.raises(InputError, match=rf"'{name}' is not a dense tensor of numbers$"):
        run("stage=inference", f"stage.init_from='{checkpoint}'", "baseline=[]")


def test_weights_of_a_training_that_has_not_ended_are_said_to_be_such(run, tmp_path, checkpoint):
    settings = "stage=inference", f"stage.init_from='{checkpoint}'", "baseline=[]"
    told = f"{checkpoint}: its training has not ended; these are the weights so far"
    _, text = run(*settings)
    assert told not in text
    (checkpoint.parents[1] / "summary.json").unlink()
    _, text = run(*settings, "overwrite=true")
    assert told in text


def test_inference_places_on_several_hosts(run, tmp_path):
    run(
        *("stage=inference", "stage.init_from=pretrained", "cluster=ethernet_4x1"),
        *("workload.params.n=128", "baseline=[]"),
    )
    directory = only(tmp_path.glob("inference/chainmm/ethernet_4x1/doppler/*"))
    names = {row.method for row in read_results(directory / "results.csv")}
    assert names == {"doppler at once", "doppler on estimates", "doppler"}


def test_a_share_of_stage_two_is_left_to_searching_and_counts_with_it(run, tmp_path):
    rows = {}
    for share in (0.0, 0.5):
        run(
            *("stage=rl_sim", "stage.init_from=null", f"run_dir={tmp_path}/{share}"),
            f"algorithm.search_share={share}",
        )
        found = read_results(tmp_path / f"{share}/results.csv")
        rows[share] = {row.method: row for row in found}
        summary = json.loads((tmp_path / f"{share}/summary.json").read_text())
        assert summary["episodes"] == (72 if share == 0.0 else 32)
    assert rows[0.0]["doppler"].evaluations < 100 == rows[0.5]["doppler"].evaluations
    assert rows[0.5]["doppler"].makespan_s <= rows[0.5]["doppler greedy"].makespan_s


def test_inference_needs_a_checkpoint(run, tmp_path):
    with pytest.raises(InputError, match=r"stage\.init_from: is missing"):
        run("stage=inference")
    with pytest.raises(InputError, match="No such file"):
        run("stage=inference", f"stage.init_from={tmp_path}/none.ckpt")


@pytest.mark.parametrize("stage", ["inference", "rl_sim", "rl_real"])
def test_weights_that_do_not_fit_the_policy_are_refused_before_anything_begins(
    run, tmp_path, stage
):
    with pytest.raises(InputError, match=r"^pretrained: weights of another policy: "):
        run(f"stage={stage}", "stage.init_from=pretrained", "policy.build.plc_hidden=16")
    assert not any(tmp_path.iterdir())


FROM_FILE = "workload=file workload.path="
SET = (
    "stage=rl_sim",
    "+stage.problems=['workload=synthetic workload.num_ops=30 workload.seed=0,1 cluster=mixed']",
    "+stage.held_out=['workload=synthetic workload.num_ops=30 workload.seed=2']",
    "+stage.updates=2",
    "algorithm=problem_set",
    "baseline=[critical_path]",
)


def test_where_a_policy_has_not_trained_there_are_greedy_episodes_of_merged_views(run, monkeypatch):
    merged, rollout = [], DualPolicy.rollout

    def spied(self, view, num_episodes, explore, rng):
        if explore == 0.0:
            merged.append(view.is_merged)
        return rollout(self, view, num_episodes, explore, rng)

    monkeypatch.setattr(DualPolicy, "rollout", spied)
    run(*SET)  # the held-out problem before, after one update, at the end; the run's own at once
    assert not any(merged[:3]) and any(merged[3:])


def test_another_graph_in_a_file_of_a_set_is_another_run(run, tmp_path):
    graph = tmp_path / "graph.json"
    settings = [one.replace("workload.seed=2", "") for one in SET]
    settings[2] = settings[2].replace("workload=synthetic workload.num_ops=30", FROM_FILE)
    settings = [one.replace(FROM_FILE, f"{FROM_FILE}{graph}") for one in settings]
    for costs in (1e9, 2e9):
        ops = [{"flops": costs}, {"flops": costs}]
        edges = [{"src": 0, "dst": 1, "bytes": 4e6}]
        graph.write_text(
            json.dumps({"format": "doppler-graph", "version": 2, "ops": ops, "edges": edges})
        )
        _, text = run(*settings)
        assert "finished already" not in text
    assert len(list(tmp_path.glob("rl_sim/chainmm/p100x4/doppler/*"))) == 2


def test_weights_of_other_trainings_on_sets_are_other_methods(run, tmp_path):
    def variant(name: str, *options: str) -> str:
        run(*SET, f"run_dir={tmp_path}/{name}", "baseline=[]", *options)
        (found,) = {row.variant for row in read_results(tmp_path / name / "results.csv")}
        return found

    plain = variant("plain")
    unused = ("seed=1", "algorithm.imitate_best=false", "budget.imitation_episodes=9")
    assert variant("unused", *unused) == plain
    others = [
        variant("updates", "stage.updates=3"),
        variant("problems", "stage.problems=['workload=synthetic workload.num_ops=30']"),
        variant("clip", "trainer.gradient_clip_val=0.001"),
        variant("rate", "algorithm.reinforcement.learning_rate=[1e-2,1e-3]"),
    ]
    assert len({plain, *others}) == 5


def test_a_folder_with_the_name_of_a_choice_is_no_file_of_a_set(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(*SET)
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed/notes.txt").write_text("the set has cluster=mixed")
    _, text = run(*SET)
    assert "finished already" in text


def test_a_run_trains_on_many_problems_and_then_places_its_own(run, tmp_path):
    summary, text = run(*SET)
    assert "problems: 2 problems, 30 to 30 ops" in text
    directory = only(tmp_path.glob("rl_sim/chainmm/p100x4/doppler/*"))
    rows = {row.method: row for row in read_results(directory / "results.csv")}
    assert rows.keys() == {"doppler at once", "doppler on estimates", "doppler", "critical_path"}
    # Two updates of 2 times 16, and the held-out problem before.
    assert summary["trained"]["evaluations"] == 65, "those of the last weights"
    weights = directory / "checkpoints/last.ckpt"
    again, _ = run(*SET, f"stage.init_from='{weights}'")
    assert again["trained"]["evaluations"] > summary["trained"]["evaluations"]


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (("stage=train", *SET[1:]), r"^stage\.(problems|held_out|updates): no such option"),
        ((SET[0], SET[1]), r"^stage\.problems, stage\.held_out: training on a set needs both"),
        ((SET[0], SET[2]), r"^stage\.problems, stage\.held_out: training on a set needs both"),
        (SET[:3], r"^stage\.updates: must be a whole number of at least 1, got 0"),
    ],
)
def test_a_set_that_no_stage_trains_on_is_refused(run, overrides, line):
    with pytest.raises(InputError, match=line):
        run(*overrides)
