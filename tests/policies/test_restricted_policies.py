"""Every policy on problems with groups and pins: what it may choose, and what it says of it."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from problems import REPOSITORY, restricted_problem

from doppler.baselines import ETF, HEFT, Clustering, TaughtPlacement
from doppler.env import advice, make_view, merged_at_random, mergings
from doppler.policies import DualPolicy, Policy
from doppler.problem import Problem
from doppler.simulator import WorkConserving
from doppler.support.errors import InputError

ABLATIONS = {"sel": "b_level", "plc": "earliest_start"}
SMALL = {"hidden": 8, "rounds": 1, "sel_hidden": 8, "plc_hidden": 8}


@cache
def policies() -> dict[str, Policy]:
    """One of every file in conf/policy, and the ablations of heads, all of them small."""
    torch.manual_seed(0)
    names = [path.stem for path in Path(REPOSITORY, "conf", "policy").glob("*.yaml")]
    with initialize_config_dir(str(REPOSITORY / "conf"), version_base="1.3"):
        found = {name: compose("config", [f"policy={name}"]).policy.build for name in names}
        made = {
            name: instantiate(build, **{key: size for key, size in SMALL.items() if key in build})
            for name, build in found.items()
        }
    for head, choice in ABLATIONS.items():
        made[head] = DualPolicy(sel_hidden=8, plc_hidden=8, **{head: choice})
    return made


def problems() -> list[Problem]:
    return [
        restricted_problem(seed, num_ops=8 + seed, num_devices=3 + seed % 2) for seed in range(4)
    ]


def replayed(policy: Policy, view, decisions) -> np.ndarray:
    with torch.no_grad():
        return policy.log_prob(view, decisions)[0].numpy()


@pytest.mark.parametrize("explore", [None, 0.5])
def test_rollouts_keep_groups_together_and_pins_where_they_are(explore):
    made, num_moved = policies(), 0
    for problem in problems():
        assert problem.has_groups
        plain = make_view(problem)
        for view in (merged_at_random(plain, np.random.default_rng(1)), *mergings(plain)):
            assert (view.arrays.group[problem.arrays.group] == view.arrays.group).all()
            for name, policy in made.items():
                decisions = policy.rollout(view, 4, explore, np.random.default_rng(2))
                device_BV, _ = decisions.placements()
                assert problem.allows(device_BV).all(), name
                np.testing.assert_allclose(
                    replayed(policy, view, decisions), decisions.log_prob, rtol=1e-3, atol=1e-3
                )
                num_moved += len(np.unique(device_BV, axis=0))
    assert num_moved > 3 * len(made) * len(problems())


def test_every_teacher_can_be_followed():
    made = policies()
    for seed, problem in enumerate(problems()):
        view, rng = make_view(problem), np.random.default_rng(seed)
        taught = [method(evaluations=1).decide(problem, 3, rng) for method in (ETF, HEFT)]
        with WorkConserving().open(problem) as session:
            placed = Clustering(evaluations=5).place(session, rng).placement
        taught.append(TaughtPlacement.of(problem, placed).decide(problem, 2, rng))
        for op_BV, device_BV in taught:
            advised_op_BV, advised_device_BV = advice(view, op_BV, device_BV, rng)
            assert advised_op_BV.shape == op_BV.shape
            able_VD = np.isfinite(problem.arrays.op_seconds)
            assert able_VD[op_BV, advised_device_BV].all()
            for name, policy in made.items():
                decisions = policy.follow(view, op_BV, device_BV)
                assert problem.allows(decisions.placements()[0]).all(), name
                assert np.isfinite(replayed(policy, view, decisions)).all(), name


def test_decisions_that_part_a_group_are_refused():
    problem = problems()[0]
    op_BV, device_BV = ETF(evaluations=1).decide(problem, 1, np.random.default_rng(0))
    group_V = problem.arrays.group[op_BV[0]]
    free_V = np.isfinite(problem.arrays.op_seconds[op_BV[0]]).sum(axis=1) > 1
    step = next(t for t in range(1, len(group_V)) if free_V[t] and group_V[t] in group_V[:t])
    able = np.flatnonzero(np.isfinite(problem.arrays.op_seconds[op_BV[0, step]]))
    device_BV[0, step] = able[able != device_BV[0, step]][0]
    for policy in policies().values():
        with pytest.raises(InputError, match="decisions of episode 0"):
            policy.follow(make_view(problem), op_BV, device_BV)
