"""Training on many problems."""

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from hydra.core.global_hydra import GlobalHydra
from problems import random_problem
from torch.utils.data import DataLoader

from doppler.episode import make_view
from doppler.errors import InputError
from doppler.graph import save_json
from doppler.policies import DualPolicy
from doppler.simulator import WorkConserving
from doppler.stages.checkpoints import save_checkpoint
from doppler.stages.optimisation import Updates
from doppler.stages.problem_set import problems_of
from doppler.stages.set_reinforcement import SetReinforcement

TRAINED_ON, HELD_OUT = range(6), range(100, 108)


def make_policy() -> DualPolicy:
    torch.manual_seed(0)
    sizes = {"hidden": 4, "rounds": 1, "sel_hidden": 8, "plc_hidden": 16}
    return DualPolicy(encoder="gated", sel="learned", plc="learned", look_ahead=True, **sizes)


def opened(seeds):
    """Problems of 14 to 30 ops on 2 to 4 devices: their views and sessions."""
    problems = [
        random_problem(seed, num_ops=14 + seed % 17, num_devices=2 + seed % 3, costs="distinct")
        for seed in seeds
    ]
    return [make_view(p) for p in problems], [WorkConserving().open(p) for p in problems]


def make(updates: int, on_best=lambda: None, **arguments) -> SetReinforcement:
    views, sessions = opened(TRAINED_ON)
    held_out, held_out_sessions = opened(HELD_OUT)
    settings = {
        **{
            "batch_problems": 2,
            "episodes_each": 16,
            "try_every": 25,
            "entropy": 0.003,
            "merged": 0.5,
            "seed": 0,
            "on_best": on_best,
        },
        **{"learning_rate": 1e-2, "final_learning_rate": 1e-3, "policy": make_policy()},
        **{"views": views, "sessions": sessions},
        **{"held_out": held_out, "held_out_sessions": held_out_sessions},
    }
    return SetReinforcement(updates=updates, **{**settings, **arguments})


def fit(module, tmp_path, steps=None, ckpt_path=None):
    trainer = pl.Trainer(
        max_steps=steps or module.num_updates,
        default_root_dir=tmp_path,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
        deterministic=True,
    )
    torch.set_num_threads(1)
    batches = DataLoader(Updates(), batch_size=None)
    trainer.fit(module, batches, ckpt_path=ckpt_path, weights_only=False)
    return trainer


def greedy_ratios(policy) -> np.ndarray:
    """Greedy makespans of unseen problems over those of untrained weights."""
    views, sessions = opened(range(200, 220))
    seconds = []
    for one in (policy, make_policy()):
        rng = np.random.default_rng(0)
        seconds.append(
            [
                float(session.measure(*one.rollout(view, 1, 0.0, rng).placements()).cost_s()[0])
                for view, session in zip(views, sessions, strict=True)
            ]
        )
    return np.divide(*seconds)


def test_weights_trained_on_some_problems_are_better_on_others(tmp_path):
    ratios = []
    module = make(75, on_best=lambda: ratios.append(module.best_ratio))
    fit(module, tmp_path)
    module.try_held_out()
    assert greedy_ratios(module.policy).mean() < 0.9
    assert ratios == sorted(set(ratios), reverse=True)
    assert 1.0 <= ratios[-1] < 0.95 * ratios[0], "makespans over lower bounds"
    assert module.evaluations == 75 * 32 + (75 // 25 + 1) * len(HELD_OUT)


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (0.5, 20), (1.0, 40)])
def test_of_the_draws_a_share_places_groups(tmp_path, monkeypatch, share, expected):
    module, numbers = make(20, merged=share, try_every=100), []
    rollout = module.policy.rollout

    def spied(view, num_episodes, explore, rng):
        if num_episodes > 1:  # not the greedy ones of held-out problems
            numbers.append(int(view.is_merged))
        return rollout(view, num_episodes, explore, rng)

    monkeypatch.setattr(module.policy, "rollout", spied)
    fit(module, tmp_path)
    assert len(numbers) == 40
    assert abs(sum(numbers) - expected) <= (12 if share == 0.5 else 0)
    assert bool(module.policy.plc_group.weight.any()) == (share > 0)


def weights(module) -> dict:
    return {name: value.clone() for name, value in module.policy.state_dict().items()}


def test_an_interrupted_training_goes_on_as_if_nothing_had_been(tmp_path):
    whole = make(40)
    fit(whole, tmp_path)
    begun = make(40)
    save_checkpoint(fit(begun, tmp_path, steps=17), tmp_path / "last.ckpt")
    resumed = make(40)
    fit(resumed, tmp_path, ckpt_path=tmp_path / "last.ckpt")
    for name, value in weights(whole).items():
        assert torch.equal(value, resumed.policy.state_dict()[name]), name
    assert (whole.evaluations, whole.best_ratio) == (resumed.evaluations, resumed.best_ratio)


@pytest.mark.parametrize(
    "key", ["updates", "batch_problems", "episodes_each", "try_every", "learning_rate", "merged"]
)
def test_numbers_that_make_no_sense_are_named(key):
    with pytest.raises(
        InputError, match=rf"algorithm\.problem_set\.{key}: must be a (whole )?number"
    ):
        make(**{"updates": 10, key: -1 if key == "merged" else 0})


def test_there_must_be_problems():
    for key in ("views", "held_out"):
        empty = {key: [], f"{'' if key == 'views' else 'held_out_'}sessions": []}
        with pytest.raises(InputError, match="at least one problem each"):
            make(10, **empty)


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


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("workload=nothing", "Could not find 'workload/nothing'|nothing"),
        ("workload=chainmm seed=3", "seed is not of workload, decomposition, cluster"),
        ("workload=synthetic workload.family=ladder", "'ladder' is not one of"),
        ("workload=chainmm workload.n=4", "workload.n"),
        ("workload=", "workload"),
    ],
)
def test_a_line_that_is_no_problem_is_named(no_hydra, line, message):
    with pytest.raises(InputError, match=rf"^held_out\[1\]: {line}: .*({message})"):
        list(problems_of(["workload=chainmm workload.params.n=64", line], "held_out"))


def test_a_line_may_name_a_file(no_hydra, tmp_path):
    problem = random_problem(1, num_ops=9)
    save_json(problem.graph, tmp_path / "graph.json")
    (found,) = problems_of([f"workload=file workload.path={tmp_path}/graph.json"], "problems")
    assert found.num_ops == 9
