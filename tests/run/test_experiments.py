"""Every experiment: its cells compose and build; small ones run."""

from pathlib import Path

import pytest
from conf_files import choice_of, files_of
from hydra.utils import instantiate
from omegaconf import OmegaConf
from recorded_answers import write_answers

from doppler.experiment import Stage
from doppler.experiment.specification import Specification
from doppler.report.aggregate import collect
from doppler.report.rows import read_results

EXPERIMENTS, METHODS = files_of("experiment"), files_of("method")


def sweep_of(file: Path) -> dict[str, list[str]]:
    params = OmegaConf.load(file).hydra.sweeper.params
    return {key: str(value).split(",") for key, value in params.items()}


@pytest.fixture(scope="module")
def built() -> set[str]:
    """Workloads on machines of which a problem was built."""
    return set()


@pytest.mark.parametrize("file", EXPERIMENTS, ids=choice_of)
def test_every_choice_of_an_experiment_composes_and_builds(file, configure, built, tmp_path):
    sweep = sweep_of(file)
    given = []
    if "override /workload: file" in file.read_text():  # which one the command line says
        (tmp_path / "graph.txt").write_text("2\n\n0\n1\n100,400\n100,400\n")
        given = [f"workload.path={tmp_path}/graph.txt"]
    if "override /workload: answers" in file.read_text():
        given = [f"workload.path={write_answers(tmp_path / 'answers.csv')}"]
    assert len(sweep["seed"]) >= 3
    first = {key: choices[0] for key, choices in sweep.items()}
    del sweep["seed"]  # all compose alike, and composing takes long
    for key, choices in sweep.items():
        for choice in choices:
            cell = {**first, key: choice}
            overrides = [f"{name}={value}" for name, value in cell.items()]
            cfg = configure(f"experiment={choice_of(file)}", "budget=quick", *given, *overrides)
            if key in ("method", "system", "system.queue", "system.noise"):
                assert instantiate(cfg.policy.build) is not None
                assert instantiate(cfg.system) is not None
                assert all(instantiate(one) is not None for one in cfg.get("baseline", {}).values())
            if "cluster" in key or "workload" in key:
                assert isinstance(instantiate(cfg.stage), Stage)
                given_to = str([cfg[part] for part in ("workload", "cluster", "decomposition")])
                if given_to not in built:  # by the choices of another experiment
                    assert Specification(cfg).problem.num_ops > 0
                    built.add(given_to)
    composed = configure(f"experiment={choice_of(file)}")
    raw = OmegaConf.load(file)
    assert raw.output_dir == f"outputs/{choice_of(file).replace('/', '_')}", (
        "runs of an experiment lie together"
    )
    assert raw.hydra.mode == "MULTIRUN"
    assert "method" not in composed, "names of methods are choices, no settings"


def test_a_budget_of_the_command_line_reaches_the_cells_of_an_experiment(configure):
    for budget, evaluations in (("quick", 1000), ("default", 8000)):
        cfg = configure("experiment=main_4dev", "method=baselines", f"budget={budget}")
        assert cfg.baseline.annealing.evaluations == evaluations
        cfg = configure("experiment=main_4dev", "method=doppler", f"budget={budget}")
        assert cfg.budget.evaluations == evaluations


def test_no_two_methods_share_a_name_in_the_table(configure):
    named = {}
    for file in METHODS:
        cfg = configure("workload=chainmm", f"method={choice_of(file)}")
        stage = cfg.stage._target_.rpartition(".")[2]
        if stage not in ("Evaluate", "StreamStage"):  # these train no policy
            assert not cfg.get("baseline"), (
                f"{choice_of(file)}: baselines are evaluated once, by themselves"
            )
            named.setdefault(cfg.policy.name, []).append(choice_of(file))
    shared = {name: files for name, files in named.items() if len(files) > 1}
    # What method=transfer/source trains is what method=doppler trains.
    assert shared == {"doppler": ["doppler", "transfer/source"]}


def test_weights_travel_from_one_workload_to_another(run, tmp_path):
    chainmm = ("workload=chainmm", "workload.params.n=64")
    ffnn = ("workload=ffnn", "workload.preset=small")
    trained, _ = run("method=transfer/source", *ffnn)
    zero, said = run("method=transfer/zero_shot", *chainmm)
    assert "trained/p100x4/ffnn/seed=0" in said
    assert zero["method"] == "doppler_zero_shot"
    assert zero["evaluations"] <= 100
    few, _ = run("method=transfer/few_shot", *chainmm, "budget.evaluations=64")
    # Those of the training that the weights come from count.
    assert 64 < few["evaluations"] <= trained["evaluations"] + 64
    run("method=transfer/source", *ffnn, "seed=1")
    run("method=transfer/zero_shot", *chainmm, "seed=1")
    variants = {
        row.variant for row in collect([tmp_path]).itertuples() if row.method == "doppler_zero_shot"
    }
    assert len(variants) == 1, "seeds of one method are averaged"


def test_weights_travel_from_one_machine_to_another(run):
    small = ("workload=chainmm", "workload.params.n=64")
    run("method=transfer/source", *small, "cluster=v100x8")
    zero, said = run("method=transfer/zero_shot_machine", *small, "cluster=p100x4")
    assert "trained/v100x8/chainmm/seed=0" in said and zero["num_devices"] == 4
    few, _ = run(
        *("method=transfer/few_shot_machine", *small, "cluster=p100x4"), "budget.evaluations=64"
    )
    assert few["evaluations"] > 64, "those of the training that the weights come from count"


def test_the_ablations_and_the_two_stages_run_on_their_own(run):
    for file in files_of("method"):
        # Stages alone have tests of their own; a network at every step is slow.
        left_out = ("ablation/stage", "ablation/per_step")
        if choice_of(file).startswith("ablation/") and not choice_of(file).startswith(left_out):
            summary, _ = run(f"method={choice_of(file)}")
            assert summary["method"].startswith("doppler_")
            assert summary["peak_memory_bytes"] > 1e7


def test_the_papers_own_model_trains_as_the_paper_says(run, tmp_path):
    small = ("policy.build.hidden=8", "policy.build.rounds=2", "policy.build.head_hidden=4")
    summary, _ = run("policy=paper", "algorithm=paper", "baseline=[]", *small)
    (directory,) = tmp_path.glob("train/chainmm/p100x4/paper/seed=0-*")
    rows = [row.method for row in read_results(directory / "results.csv")]
    assert rows == ["paper", "paper greedy", "paper imitation"], (
        "no search: nothing is better than what training found"
    )
    assert 90 < summary["episodes"] == summary["evaluations"] - 3, "one an update, three trials"
    assert summary["source"] == summary["trained_source"] in ("episode", "greedy episode")


@pytest.mark.parametrize("policy", ["doppler", "placeto", "gdp"])
def test_every_learned_method_is_given_the_same(policy, run, tmp_path):
    summary, _ = run(f"policy={policy}", "baseline=[]", "budget.evaluations=150")
    (directory,) = tmp_path.glob(f"train/chainmm/p100x4/{policy}/seed=0-*")
    rows = {row.method: row.evaluations for row in read_results(directory / "results.csv")}
    assert rows.pop(f"{policy} imitation") == 1
    # 7 updates of 8 episodes, beside each a merged one and a clustering, and two trials.
    assert rows == {policy: 150, f"{policy} trained": 72, f"{policy} greedy": 72}
    assert summary["source"]
