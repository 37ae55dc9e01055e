"""Lines of configuration that describe problems to train on."""

import pytest
from hydra.core.global_hydra import GlobalHydra
from problems import random_problem

from doppler.experiment.problem_set import problems_of
from doppler.graph import save_json
from doppler.support.errors import InputError


@pytest.fixture
def no_hydra():
    GlobalHydra.instance().clear()


def test_lines_are_swept_over_their_values(no_hydra):
    lines = [
        "workload=synthetic workload.family=layered,tree workload.seed=range(0,3) cluster=p100x4",
        "workload=chainmm workload.params.n=256 cluster=mixed cluster.num_devices=2,3",
    ]
    found = list(problems_of(lines, "problems"))
    assert [problem.num_devices for problem in found] == [4] * 6 + [2, 3]
    assert len({problem.hash for problem in found}) == 8
    assert [problem.graph.name.split("_")[0] for problem in found[:6]] == ["layered"] * 3 + [
        "tree"
    ] * 3


def test_of_a_sweep_and_of_each_of_its_lines_problems_are_the_same(no_hydra):
    swept = "workload=synthetic,chainmm workload.name=a,b cluster=mixed cluster.num_devices=3,2"
    alone = [
        f"workload={workload} workload.name={name} cluster=mixed cluster.num_devices={num}"
        for workload in ("synthetic", "chainmm")
        for name in "ab"
        for num in (3, 2)
    ]
    found = list(problems_of([swept], "problems"))
    expected = [one for line in alone for one in problems_of([line], "problems")]
    assert [one.hash for one in found] == [one.hash for one in expected]
    assert [one.graph.name for one in found] == ["a", "a", "b", "b"] * 2
    later = problems_of([swept, "workload=synthetic cluster=mixed"], "problems")
    assert list(later)[-1].graph.name == "layered_100_0", "no value is left of the lines before"


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_a_line_takes_the_options_that_the_command_line_takes(no_hydra, plus):
    """Options that no file of conf/ lists, with one value or several."""
    start = "workload=synthetic workload.num_ops=30 workload.seed=range(1,3) cluster=p100x4"
    lines = [f"{start} {plus}cluster.memory_bytes={sizes}" for sizes in ("2e8", "3e8,4e8")]
    found = list(problems_of(lines, "held_out"))
    sizes = [one.arrays.memory_bytes.tolist() for one in found]
    assert sizes == [[size] * 4 for size in (2e8, 2e8, 3e8, 4e8, 3e8, 4e8)]
    names = [one.graph.name for one in found]
    assert names == [f"layered_30_{seed}" for seed in (1, 2, 1, 1, 2, 2)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("workload=nothing", "Could not find 'workload/nothing'|nothing"),
        ("workload=chainmm seed=3", "seed is not of workload, decomposition, cluster"),
        ("workload=synthetic workload.family=ladder", "got 'ladder'"),
        ("workload=chainmm workload.n=4", "workload.n: no such option"),
        ("workload=chainmm cluster.memory_byte=4", "did you mean cluster.memory_bytes"),
        ("workload=chainmm cluster", "cluster"),
        ("workload=", "workload"),
    ],
)
def test_a_line_that_is_no_problem_is_named(no_hydra, line, message):
    with pytest.raises(InputError, match=rf"^held_out\[1\]: {line}: .*({message})"):
        list(problems_of(["workload=chainmm workload.params.n=64", line], "held_out"))


def test_a_line_may_name_a_folder(no_hydra, tmp_path):
    for seed in (1, 2):
        save_json(random_problem(seed, num_ops=8 + seed).graph, tmp_path / f"{seed}.json")
    lines = [f"workload=file workload.path={tmp_path} cluster=mixed cluster.num_devices=2,3"]
    found = list(problems_of(lines, "problems"))
    assert [(one.num_ops, one.num_devices) for one in found] == [(9, 2), (9, 3), (10, 2), (10, 3)]


def test_a_line_may_name_a_file(no_hydra, tmp_path):
    problem = random_problem(1, num_ops=9)
    save_json(problem.graph, tmp_path / "graph.json")
    (found,) = problems_of([f"workload=file workload.path={tmp_path}/graph.json"], "problems")
    assert found.num_ops == 9
