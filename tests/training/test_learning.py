"""Learning is real: what the policy decides, without drawing, is optimal after training only.

Problems of 10 to 14 ops whose optimum CP-SAT proves, none left out for any other reason: twenty in
the slow test, the first three with a tenth of the budget in `make test`.
"""

from pathlib import Path

import numpy as np
import pytest
import pytorch_lightning as pl
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import instantiate
from omegaconf import OmegaConf
from problems import random_problem
from trainings import fit, task_of

from doppler.baselines import CPSAT
from doppler.env import make_view
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


def proven(number: int) -> list[tuple[Problem, float]]:
    """So many problems and their optimal makespans."""
    found, seed = [], 0
    while len(found) < number:
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
            problems=[task],
            trials=[task],
            options=learning,
            num_updates=learning.updates_within(cfg.budget.evaluations, 0),
            seed=seed,
            title="test",
            on_best=lambda: None,
        )
        fit(module, directory)
        module.try_greedy()
    return task.greedy.seconds


def num_optimal(problems, cfg, directory: Path, seed: int) -> tuple[int, int]:
    """On how many problems the greedy placement is optimal, before training and after."""
    before = after = 0
    for problem, optimum_s in problems:
        pl.seed_everything(seed, verbose=False)
        policy = instantiate(cfg.policy.build)
        enough_s = optimum_s * (1 + 1e-5)
        before += greedy_s(policy, problem) <= enough_s
        after += trained_greedy_s(policy, cfg, problem, directory, seed) <= enough_s
    return before, after


def test_the_greedy_placement_of_small_problems_is_optimal_after_little_training(cfg, tmp_path):
    little = OmegaConf.merge(cfg, {"budget": {"evaluations": 800}})
    before, after = num_optimal(proven(3), little, tmp_path, seed=0)
    assert before == 0 and after >= 2, (before, after)


@pytest.mark.slow
def test_the_greedy_placement_is_optimal_after_training_and_rarely_before(cfg, tmp_path):
    problems = proven(NUM_PROBLEMS)
    counts = [num_optimal(problems, cfg, tmp_path, seed) for seed in range(NUM_SEEDS)]
    before, after = np.median(counts, axis=0)
    assert after >= 16, counts
    assert before <= 5, counts
