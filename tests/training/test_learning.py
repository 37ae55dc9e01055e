"""Learning is real: what the policy decides, without drawing, is optimal after training only.

Twenty problems of 10 to 14 ops whose optimum CP-SAT proves; none is left out for any other reason.
"""

from pathlib import Path

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import instantiate
from problems import random_problem
from trainings import fit, task_of

from doppler.baselines import CPSAT
from doppler.episode import make_view
from doppler.problem import Problem
from doppler.simulator import WorkConserving
from doppler.training import Reinforcement

pytest.importorskip("ortools.sat.python.cp_model")

NUM_PROBLEMS, NUM_SEEDS = 20, 3
CONF = str(Path(__file__).resolve().parents[2] / "conf")
SYSTEM = WorkConserving(contention="none")


@pytest.fixture(scope="module")
def cfg():
    GlobalHydra.instance().clear()
    with initialize_config_dir(CONF, version_base="1.3"):
        return compose("config", ["budget.evaluations=8000"])


def proven() -> list[tuple[Problem, float]]:
    """Problems and their optimal makespans."""
    found, seed = [], 0
    while len(found) < NUM_PROBLEMS:
        problem = random_problem(
            seed, num_ops=10 + seed % 5, num_devices=2 + seed % 2, costs="distinct"
        )
        seed += 1
        with SYSTEM.open(problem) as session:
            search = CPSAT(deterministic_time=5, seconds=60, workers=1)
            result = search.place(session, np.random.default_rng(0))
        assert result.lower_bound_s is not None
        if result.lower_bound_s >= result.makespan_s * (1 - 1e-5):
            found.append((problem, result.makespan_s))
    return found


def greedy_s(policy, problem: Problem) -> float:
    placements = policy.rollout(make_view(problem), 1, 0.0, np.random.default_rng(0)).placements()
    with SYSTEM.open(problem) as session:
        return float(session.measure(*placements).cost_s()[0])


def trained_greedy_s(policy, cfg, problem: Problem, directory: Path, seed: int) -> float:
    """Of the best greedy placement of stage II with the default settings, from these weights."""
    learning = instantiate(cfg.algorithm.reinforcement)
    with SYSTEM.open(problem) as session:
        task = task_of(make_view(problem), session)
        module = Reinforcement(
            policy=policy,
            tasks=[task],
            trials=[task],
            learning=learning,
            num_updates=learning.updates_within(cfg.budget.evaluations, 0),
            seed=seed,
            title="test",
            on_best=lambda: None,
        )
        fit(module, directory)
        module.try_greedy()
    return task.greedy.seconds


@pytest.mark.slow
def test_the_greedy_placement_is_optimal_after_training_and_rarely_before(cfg, tmp_path):
    torch.set_num_threads(1)
    problems = proven()
    before, after = np.zeros((2, NUM_SEEDS))
    for seed in range(NUM_SEEDS):
        for problem, optimum_s in problems:
            pl.seed_everything(seed, verbose=False)
            policy = instantiate(cfg.policy.build)
            before[seed] += greedy_s(policy, problem) <= optimum_s * (1 + 1e-5)
            trained_s = trained_greedy_s(policy, cfg, problem, tmp_path, seed)
            after[seed] += trained_s <= optimum_s * (1 + 1e-5)
    assert np.median(after) >= 16, after
    assert np.median(before) <= 5, before
