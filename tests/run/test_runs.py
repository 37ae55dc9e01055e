"""Runs from configuration to run directory, in this process."""

import fcntl
import json
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate

from doppler.cluster.json_format import load_cluster
from doppler.graph import load_graph
from doppler.policies.weights import load_checkpoint
from doppler.problem import Placement, build
from doppler.report.aggregate import collect, summarise
from doppler.report.page import write_report
from doppler.report.rows import read_results
from doppler.support.errors import InputError
from doppler.training import Reinforcement

ARTIFACTS = (
    "summary.json",
    "results.csv",
    "placement.json",
    "graph.json",
    "trace.json",
    "schedule.png",
    "metrics.csv",
    "checkpoints/last.ckpt",
    "checkpoints/best.ckpt",
    ".hydra/config.yaml",
    ".hydra/overrides.yaml",
)
SUMMARY_KEYS = (
    *("workload", "num_ops", "num_edges", "cluster", "num_devices", "stage", "method", "system"),
    *("system_kind", "queue", "seed", "makespan_s", "greedy_makespan_s", "jitter_mean_s"),
    *("jitter_p95_s", "repeats", "std", "lower_bound_s", "evaluations", "episodes"),
    *("episodes_per_s", "wall_s", "versions", "git_commit", "host"),
)


def only(paths):
    (path,) = paths
    return path


def test_pipeline_leaves_everything_the_contract_names(run, configure, tmp_path):
    summary, text = run()
    directory = only(tmp_path.glob("train/chainmm/p100x4/doppler/seed=0-*"))
    for name in ARTIFACTS:
        assert (directory / name).stat().st_size > 0, name
    assert set(SUMMARY_KEYS) <= json.loads((directory / "summary.json").read_text()).keys()
    rows = {row.method: row for row in read_results(directory / "results.csv")}
    assert rows.keys() == {
        *("doppler", "doppler trained", "doppler greedy", "doppler imitation", "single_device"),
        *("critical_path", "etf", "annealing_order", "estimates_then_anneal"),
    }
    for method in rows:
        assert method in text, "the table names every method"
    for row in rows.values():
        assert row.lower_bound_s <= row.makespan_s * (1 + 1e-9)
        assert row.jitter_mean_s <= row.jitter_p95_s
    assert rows["doppler"].evaluations <= 100 == rows["annealing_order"].evaluations
    assert rows["doppler"].makespan_s <= rows["doppler greedy"].makespan_s
    assert summary["makespan_s"] == rows["doppler"].makespan_s

    # What was written can be read back and executes to what was reported.
    cfg = configure("workload.params.n=64")
    problem = build(load_graph(directory / "graph.json"), instantiate(cfg.cluster))
    placement = Placement.load(directory / "placement.json", problem)
    with instantiate(cfg.system).open(problem) as session:
        assert session.trace(placement).makespan_s == summary["makespan_s"]


def test_a_finished_run_is_shown_and_not_repeated(run, tmp_path):
    run("stage=rl_sim", "stage.init_from=null")
    directory = only(tmp_path.glob("rl_sim/*/*/*/seed=0-*"))
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()}
    summary, text = run("stage=rl_sim", "stage.init_from=null")
    assert "finished already" in text and "doppler" in text
    assert summary["makespan_s"] > 0
    results = [path for path in before if path.name != ".lock" and ".hydra" not in path.parts]
    assert all(path.stat().st_mtime_ns == before[path] for path in results)
    (directory / "stray").write_text("of the earlier run")
    run("stage=rl_sim", "stage.init_from=null", "overwrite=true")
    assert (directory / "summary.json").stat().st_mtime_ns > before[directory / "summary.json"]
    assert not (directory / "stray").exists()


def test_stage_one_is_part_of_the_run_that_needs_it(run, tmp_path):
    summary, _ = run("stage=train")
    (directory,) = tmp_path.glob("train/*/*/*/*")
    assert summary["init_from"] == str(directory / "imitation/checkpoints/last.ckpt")
    assert (directory / "imitation/metrics.csv").exists()
    alone, _ = run("stage=imitation")
    rows = {row.method: row for row in read_results(directory / "results.csv")}
    assert rows["doppler imitation"].makespan_s == alone["makespan_s"]
    assert {path.name for path in tmp_path.iterdir()} == {"train", "imitation"}


def test_imitation_weights_are_what_stage_two_begins_with(run, tmp_path):
    imitated, _ = run("stage=imitation")
    checkpoint = only(tmp_path.glob("imitation/*/*/*/*/checkpoints/last.ckpt"))
    run("stage=rl_sim", f"stage.init_from='{checkpoint}'")
    lines = only(tmp_path.glob("rl_sim/*/*/*/*/metrics.csv")).read_text().splitlines()
    first = dict(zip(lines[0].split(","), lines[1].split(","), strict=True))
    assert float(first["greedy_s"]) == imitated["greedy_makespan_s"]


def test_the_ablation_of_training_changes_no_weight(run, tmp_path):
    run("method=ablation/frozen")
    checkpoints = only(tmp_path.glob("rl_sim/*/*/*/*/checkpoints"))
    assert not (checkpoints.parent / "settling").exists()
    first, last = (
        load_checkpoint(checkpoints / name)["state_dict"] for name in ("best.ckpt", "last.ckpt")
    )
    assert all(torch.equal(one, last[name]) for name, one in first.items())


def test_the_best_placement_is_imitated_though_earlier_weights_had_placed_it(
    run, tmp_path, monkeypatch
):
    try_on = Reinforcement.try_on

    def lucky(self, problem) -> float:
        """As if this greedy placement were the best so far."""
        seconds = try_on(self, problem)
        problem.greedy = problem.evaluator.found
        return seconds

    monkeypatch.setattr(Reinforcement, "try_on", lucky)
    run("method=ablation/frozen", "algorithm.imitate_best=true")
    directory = only(tmp_path.glob("rl_sim/*/*/*/*"))
    assert (directory / "settling/metrics.csv").exists()


def test_an_explicit_directory_with_another_run_is_refused(run, tmp_path):
    run("stage=evaluate", "baseline=round_robin", f"run_dir={tmp_path}/mine")
    before = (tmp_path / "mine/summary.json").read_bytes()
    with pytest.raises(InputError, match="holds a run of another configuration"):
        run("stage=evaluate", "baseline=single_device", f"run_dir={tmp_path}/mine")
    with pytest.raises(InputError, match="holds a run of another configuration"):
        run("stage=evaluate", "baseline=random", f"run_dir={tmp_path}/mine", "overwrite=true")
    assert (tmp_path / "mine/summary.json").read_bytes() == before
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/text").write_text("mine")
    with pytest.raises(InputError, match="does not hold a run"):
        run("stage=evaluate", "baseline=random", f"run_dir={tmp_path}/notes", "overwrite=true")
    assert (tmp_path / "notes/text").read_text() == "mine"


def test_no_other_run_is_removed_with_the_directory_that_it_lies_in(run, tmp_path):
    words = ("stage=evaluate", "baseline=round_robin", f"run_dir={tmp_path}/mine")
    run(*words)
    other = ("stage=evaluate", "baseline=single_device", f"output_dir={tmp_path}/mine")
    run(*other)
    kept = only((tmp_path / "mine").glob("evaluate/*/*/*/*/summary.json"))
    with pytest.raises(InputError, match="would remove another run"):
        run(*words, "overwrite=true")
    assert kept.exists() and (tmp_path / "mine/summary.json").exists()
    run(*other, "overwrite=true")  # it has no other run in it


@pytest.mark.parametrize(
    ("name", "told"), [("etf", "is the name of a baseline"), ("my own", "must have no spaces")]
)
def test_a_policy_whose_rows_would_pass_for_others_is_refused(name, told, run, tmp_path):
    with pytest.raises(InputError, match=f"^policy.name: .*{told}"):
        run("baseline=[etf]", f"policy.name={name}")
    assert not list(tmp_path.glob("train/*"))


def test_evaluate_says_why_no_baseline_is_left(run):
    with pytest.raises(InputError, match=r"^baseline: none is configured$"):
        run("stage=evaluate", "baseline=[]")
    with pytest.raises(InputError, match=r"nothing to compare \(etf, random\): no placement"):
        run("stage=evaluate", "baseline=[etf,random]", "++cluster.memory_bytes=3e4")


def test_evaluate_ranks_baselines_and_report_averages_seeds(run, tmp_path):
    for seed in (1, 2):
        run("stage=evaluate", "baseline=critical_path", f"seed={seed}")
        run("stage=evaluate", "baseline=[round_robin,single_device]", f"seed={seed}")
    both = only(tmp_path.glob("evaluate/chainmm/p100x4/baselines/seed=1-*"))
    assert [row.method for row in read_results(both / "results.csv")] == [
        "round_robin",
        "single_device",
    ]
    table = {row.method: row for row in summarise(collect([tmp_path])).itertuples()}
    assert {name: row.seeds for name, row in table.items()} == {
        "critical_path": 2,
        "round_robin": 2,
        "single_device": 2,
    }
    assert table["single_device"].spread_s == pytest.approx(0.0, abs=1e-12)
    assert table["single_device"].gap == pytest.approx(3.0)


def test_fifo_systems_leave_order_searches_out_and_say_so(run):
    _, text = run("stage=evaluate", "baseline=[annealing,annealing_order]", "system.queue=fifo")
    assert "annealing_order is left out" in text


def test_a_stored_graph_runs_under_its_own_name(run, tmp_path):
    (tmp_path / "tiny.txt").write_text("4\n0, \n0, 1\n1, 2\n100,400\n100,400\n100,400\n")
    summary, text = run(
        *("workload=file", f"workload.path={tmp_path}/tiny.txt", "system=published"),
        *("stage=evaluate", "baseline=single_device"),
    )
    assert summary["workload"] == "tiny"
    assert summary["makespan_s"] == pytest.approx(300e-10)
    assert "comes with its own times" in text


@pytest.mark.parametrize("system", ["system.noise=0.1", "system.queue=random"])
def test_systems_that_draw_random_numbers_run_and_report_nominal_times(run, system):
    quiet, _ = run("stage=evaluate", "baseline=single_device")
    noisy, _ = run("stage=evaluate", "baseline=single_device", system)
    assert noisy["makespan_s"] == pytest.approx(quiet["makespan_s"], rel=1e-9)
    learned, _ = run("stage=train", system)
    assert learned["makespan_s"] >= learned["lower_bound_s"]


def test_a_machine_without_room_ends_in_one_line(run, tmp_path):
    # Every op fits alone, but not all that must be kept at once.
    rows = ",".join('{"output_bytes": 9e9, "flops": 1}' for _ in range(4))
    (tmp_path / "big.json").write_text(
        f'{{"format": "doppler-graph", "version": 1, "ops": [{rows}], "edges": [], "inputs": []}}'
    )
    big = ("workload=file", f"workload.path={tmp_path}/big.json", "cluster.num_devices=1")
    with pytest.raises(
        InputError, match=r"nothing to compare \(round_robin\): no placement that fits"
    ):
        run(*big, "stage=evaluate", "baseline=round_robin")
    with pytest.raises(InputError, match="fits in the memory of p100x4"):
        run(*big, "stage=rl_sim", "stage.init_from=null")


def test_an_edited_input_file_is_another_run(run, tmp_path):
    text = "2\n\n0\n1\n{},400\n100,400\n"
    arguments = ("workload=file", f"workload.path={tmp_path}/graph.txt", "stage=evaluate")
    seconds = []
    for cost in (100, 900):
        (tmp_path / "graph.txt").write_text(text.format(cost))
        summary, shown = run(*arguments, "baseline=single_device")
        assert "finished already" not in shown
        seconds.append(summary["makespan_s"])
    assert seconds == pytest.approx([200e-10, 1000e-10])


def test_what_a_kill_leaves_of_a_claim_does_not_block_the_directory(run, tmp_path):
    begun = tmp_path / "begun"
    (begun / ".hydra").mkdir(parents=True)
    (begun / ".lock").touch()
    (begun / ".hydra/.config.yaml.partial").write_text("half a fi")
    summary, _ = run("stage=evaluate", "baseline=round_robin", f"run_dir={begun}")
    assert summary["method"] == "round_robin"


def test_a_refused_configuration_does_not_block_its_directory(run, tmp_path):
    bad = ("stage=rl_sim", "stage.init_from=null", f"run_dir={tmp_path}/mine")
    with pytest.raises(InputError, match="fewer than one batch"):
        run(*bad, "algorithm.reinforcement.batch_episodes=1000", "algorithm.search_share=0")
    summary, _ = run(*bad)
    assert summary["episodes"] > 0


@pytest.mark.parametrize("evaluations", [1, 2, 5])
def test_stage_two_of_few_evaluations_is_a_search(run, tmp_path, evaluations):
    few = (f"budget.evaluations={evaluations}", "baseline=[round_robin]")
    summary, text = run("stage=train", *few)
    assert "nothing is trained, the search uses all of them" in text
    assert (summary["episodes"], summary["evaluations"]) == (0, evaluations)
    assert summary["greedy_makespan_s"] is None and summary["trained_source"] is None
    directory = only(tmp_path.glob("train/*/*/*/*"))
    methods = [row.method for row in read_results(directory / "results.csv")]
    assert methods == ["doppler", "doppler imitation", "round_robin"]


def test_a_directory_in_use_is_refused(run, configure, tmp_path):
    (tmp_path / "mine").mkdir()
    with (tmp_path / "mine/.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another process runs here"):
            run("stage=evaluate", "baseline=round_robin", f"run_dir={tmp_path}/mine")


def test_report_keeps_different_problems_systems_and_settings_apart(run, tmp_path):
    base = ("stage=evaluate", "baseline=critical_path")
    run(*base)
    run(*base, "workload.params.n=128")
    run(*base, "+system.streams=2")
    run(*base, "baseline.critical_path.evaluations=1")
    run(*base, "seed=1")
    table = summarise(collect([tmp_path])).itertuples()
    assert sorted(row.seeds for row in table) == [1, 1, 1, 2]


def test_weights_from_an_earlier_training_bring_their_evaluations_along(run, tmp_path):
    first, _ = run("stage=rl_sim", "stage.init_from=null")
    checkpoint = only(tmp_path.glob("rl_sim/*/*/*/*/checkpoints/last.ckpt"))
    second, _ = run("stage=rl_sim", f"stage.init_from='{checkpoint}'", "seed=1")
    assert second["evaluations"] == 2 * first["evaluations"]


def tight(directory: Path, output_bytes: list[int], edges: list[dict[str, int]]) -> tuple[str, ...]:
    """Overrides: ops of 1 s; for each of 6 bytes a device of 10; 1 byte/s between devices."""
    ops = [{"output_bytes": num, "flops": 1} for num in output_bytes]
    graph = {"format": "doppler-graph", "version": 1, "ops": ops, "edges": edges, "inputs": []}
    (directory / "tight.json").write_text(json.dumps(graph))
    device = "{flop_per_s:{f32:1},memory_bytes_per_s:1e9,launch_overhead_s:0,memory_bytes:10}"
    return (
        *("workload=file", f"workload.path={directory}/tight.json", "cluster.name=tiny"),
        *("cluster._target_=doppler.cluster.custom", "~cluster.num_devices"),
        *("+cluster.bytes_per_s=1.0", "+cluster.latency_s=0"),
        f"+cluster.devices=[{','.join([device] * output_bytes.count(6))}]",
    )


def test_stage_two_begins_where_stage_one_does_not_fit(run, tmp_path):
    # Four of five ops fill a device each. Without learning, stage I does not know that.
    edges = [{"src": 0, "dst": dst, "bytes": 3} for dst in range(1, 5)]
    still = "algorithm.imitation.learning_rate=[1e-12,1e-12]"
    close = (*tight(tmp_path, [3, 6, 6, 6, 6], edges), still)
    summary, text = run(*close, "stage=train", "baseline=[]")
    assert "doppler imitation is left out: it does not fit in memory" in text
    assert 0 < summary["makespan_s"] < 100
    markdown, _ = write_report([tmp_path], tmp_path / "report")
    assert "doppler imitation" not in markdown, "it has no placement that fits"
    with pytest.raises(InputError, match="the greedy placement does not fit in memory"):
        run(*close, "stage=imitation", "overwrite=true")


def test_learned_placements_that_do_not_fit_are_no_rows(run, tmp_path):
    # Two ops of 6 bytes on two devices of 10: apart they fit, together they do not.
    summary, _ = run(
        *tight(tmp_path, [6, 6], []), "stage=train", "baseline=[single_device,round_robin]"
    )
    directory = only(tmp_path.glob("train/tight/tiny/doppler/*"))
    json.loads((directory / "summary.json").read_text(), parse_constant=pytest.fail)
    rows = {row.method: row for row in read_results(directory / "results.csv")}
    assert "single_device" not in rows
    assert summary["makespan_s"] == rows["round_robin"].makespan_s == pytest.approx(1.0)


def test_describe_leaves_the_graph_in_words_files_and_a_picture(run, tmp_path):
    summary, text = run("stage=describe")
    directory = only(tmp_path.glob("describe/chainmm/p100x4/graph/seed=0-*"))
    assert load_graph(directory / "graph.json").num_ops == summary["num_ops"] == 76
    again = load_graph(directory / "graph.txt")
    assert (again.num_ops, again.num_edges, len(again.inputs)) == (76, 80, 36)
    assert set(again.ops.kinds) == {"matmul", "elementwise", "formation"}
    assert (directory / "graph.png").stat().st_size > 0
    assert (directory / "cluster.png").read_bytes().startswith(b"\x89PNG")
    assert load_cluster(directory).num_devices == summary["num_devices"] == 4
    assert summary["level_widths"] == [32, 12, 16, 8, 8]
    said = (directory / "description.txt").read_text()
    assert said.strip() in text and "DE" in said
    _, later = run("stage=describe")
    assert "finished already" in later and said.strip() in later


def test_describe_says_why_there_is_no_text_file(run, tmp_path):
    # Splits that do not align: an op reads two regions of another.
    _, text = run("stage=describe", "workload=dataproc", "decomposition=given")
    directory = only(tmp_path.glob("describe/*/*/*/*"))
    assert (directory / "graph.json").exists() and not (directory / "graph.txt").exists()
    assert "no graph.txt: " in text


@pytest.mark.parametrize("decomposition", ["auto", "given", "published"])
def test_every_decomposition_runs(run, decomposition):
    summary, _ = run("stage=describe", f"decomposition={decomposition}")
    assert summary["num_ops"] >= 28


def test_training_graphs_and_published_costs_run(run):
    forward, _ = run("stage=describe", "workload=ffnn", "workload.preset=small")
    training, _ = run(
        "stage=describe", "workload=ffnn", "workload.preset=small", "workload.training=true"
    )
    assert training["num_ops"] > 2 * forward["num_ops"]
    published, text = run("stage=evaluate", "baseline=[critical_path]", "workload.costs=published")
    assert "comes with its own times" in text
    assert published["num_ops"] == 76
