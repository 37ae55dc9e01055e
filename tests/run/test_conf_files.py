"""Every file of conf/ composes and instantiates."""

import pytest
from conf_files import GROUP_FILES, choice_of, group_of, name_of
from hydra.utils import instantiate
from recorded_answers import write_answers


@pytest.mark.parametrize("file", GROUP_FILES, ids=name_of)
def test_every_configuration_file_composes_and_instantiates(file, configure, tmp_path):
    group, choice = group_of(file), choice_of(file)
    overrides = [f"{group}={choice}"]
    if (group, choice) in (("workload", "file"), ("experiment", "optima")):
        (tmp_path / "graph.txt").write_text("2\n\n0\n1\n100,400\n100,400\n")
        overrides.append(f"workload.path={tmp_path}/graph.txt")
    if (group, choice) in (
        *(("workload", "answers"), ("workload", "answers_program")),
        *(("experiment", "router"), ("experiment", "program")),
    ):
        overrides.append(f"workload.path={write_answers(tmp_path / 'answers.csv')}")
    if (group, choice) == ("workload", "torch"):
        overrides.append("workload.module=benchmarks.torch_modules:mlp")
    if (group, choice) == ("logger", "wandb"):
        pytest.importorskip("wandb")
    cfg = configure(*overrides)
    for key in ("workload", "cluster", "system"):
        assert instantiate(cfg[key]) is not None
    assert instantiate(cfg.policy.build) is not None
    assert instantiate(cfg.algorithm.imitation) is not None
    assert instantiate(cfg.algorithm.reinforcement) is not None
    assert instantiate(cfg.search.anneal) is not None
    baselines = cfg.get("baseline", {})  # none for a method that is learned
    assert all(instantiate(conf) is not None for conf in baselines.values())
