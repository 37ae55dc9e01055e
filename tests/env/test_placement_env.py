"""The Gymnasium environment: its spaces, masks, rewards, and the placements that it makes."""

import re

import numpy as np
import pytest
from problems import REPOSITORY, cluster_of, graph_of, random_problem, restricted_problem

from doppler.baselines import lower_bound
from doppler.problem import build
from doppler.simulator import WorkConserving
from doppler.support.errors import InputError

gymnasium = pytest.importorskip("gymnasium")

from gymnasium.utils.env_checker import check_env  # noqa: E402

from doppler.env import PlacementEnv  # noqa: E402

ID = "doppler.env.placement_env:doppler/Placement-v0"


def played(env, seed: int = 0):
    """An episode of random allowed actions: its actions, the sum of rewards and the last info."""
    rng, actions, total = np.random.default_rng(seed), [], 0.0
    _, info = env.reset(seed=seed)
    is_over = False
    while not is_over:
        action = int(rng.choice(np.flatnonzero(info["action_mask"])))
        observation, reward, is_over, _, info = env.step(action)
        assert env.observation_space.contains(observation)
        actions.append(action)
        total += float(reward)
    return actions, total, info


@pytest.mark.filterwarnings("ignore")
def test_gymnasium_accepts_the_environment():
    check_env(PlacementEnv(problem=random_problem(0, num_ops=6, num_devices=2)))


@pytest.mark.parametrize("seed", range(3))
def test_an_episode_places_every_op_and_is_paid_what_the_system_takes(seed):
    problem = random_problem(seed, num_ops=12, num_devices=3, costs="distinct")
    env = PlacementEnv(problem=problem)
    actions, total, info = played(env, seed)
    assert sorted(action // 3 for action in actions) == list(range(12))
    placement = env.placement()
    assert placement.device.tolist() == [a % 3 for a in sorted(actions)]
    assert placement.priority[[a // 3 for a in actions]].tolist() == list(range(12))
    with WorkConserving().open(problem) as session:
        expected = session.measure(placement.device[None], placement.priority[None]).cost_s()[0]
    assert info["seconds"] == pytest.approx(expected)
    assert total == pytest.approx(-expected / lower_bound(problem).seconds)


def test_masks_allow_candidates_on_devices_that_run_them():
    cluster = cluster_of([1.0] * 2, unsupported_kinds=[["a"], []])
    env = PlacementEnv(
        problem=build(graph_of([1.0] * 3, [(0, 1, 8.0)], kinds=list("aba")), cluster)
    )
    env.reset()
    assert env.action_masks().reshape(3, 2).tolist() == [
        [False, True],
        [False, False],
        [False, True],
    ]
    _, _, _, _, info = env.step(1)  # op 0 on device 1
    assert info["action_mask"].reshape(3, 2).tolist() == [[0, 0], [1, 1], [0, 1]]


def test_ops_of_a_group_follow_the_first_of_them():
    problem = restricted_problem(3, num_ops=10, num_devices=3, memory=False)
    group_V = problem.arrays.group
    env = PlacementEnv(problem=problem)
    for seed in range(5):
        played(env, seed)
        device_V = env.placement().device
        assert (device_V == device_V[group_V]).all()


def test_an_action_that_is_not_allowed_ends_the_episode():
    env = PlacementEnv(problem=build(graph_of([1.0] * 2, [(0, 1, 8.0)]), cluster_of([1.0] * 2)))
    env.reset()
    _, reward, is_over, _, info = env.step(2)  # op 1, whose producer is not placed
    assert is_over and reward == env.failed == -100.0 and np.isinf(info["seconds"])


def test_what_does_not_fit_in_memory_has_failed():
    graph = graph_of([1.0] * 2, output_bytes=[100.0, 100.0])
    env = PlacementEnv(problem=build(graph, cluster_of([1.0], memory_bytes=150.0)))
    _, total, info = played(env)
    assert total == env.failed == -100.0 and np.isinf(info["seconds"])


def test_the_worst_placement_is_better_than_none():
    """Of two devices one takes 1,000 times as long, and a link takes longer still."""
    graph = graph_of([1.0] * 4, [(0, 1, 5e4), (1, 2, 5e4), (2, 3, 5e4)])
    env = PlacementEnv(problem=build(graph, cluster_of([1.0, 1e-3])))
    env.reset()
    rewards = [env.step(2 * op + (op + 1) % 2)[1] for op in range(4)]
    assert env.failed <= rewards[-1] < -100.0
    env.reset()
    assert env.step(2)[1] == env.failed


def test_the_name_of_a_workload_is_the_problem_that_a_run_has(configure):
    from doppler.experiment.specification import Specification

    names = {"workload": "ffnn", "cluster": "v100x8"}
    spec = Specification(configure(*(f"{key}={name}" for key, name in names.items())))
    env = gymnasium.make(ID, **names)
    assert env.unwrapped.problem.hash == spec.problem.hash


def test_environments_run_side_by_side():
    envs = gymnasium.make_vec(ID, num_envs=2, workload="chainmm", cluster="p100x4", num_devices=2)
    observation, info = envs.reset(seed=0)
    assert observation["ops"].shape[0] == info["action_mask"].shape[0] == 2
    actions = [int(np.flatnonzero(mask)[0]) for mask in info["action_mask"]]
    _, reward, *_ = envs.step(np.array(actions))
    assert reward.tolist() == [0.0, 0.0]
    envs.close()


def test_a_workload_that_is_none_is_refused_in_one_line():
    with pytest.raises(InputError, match="needs workload and cluster"):
        PlacementEnv(workload="chainmm")
    with pytest.raises(InputError, match=r"nothing\.json"):
        PlacementEnv(workload="nothing.json", cluster="p100x4")


def test_the_page_runs(capsys):
    page = (REPOSITORY / "docs/environment.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.S)
    exec(compile(block, "environment.md", "exec"), {})
    seconds, reward = map(float, capsys.readouterr().out.split())
    assert seconds > 0 > reward


@pytest.mark.slow
def test_maskable_ppo_learns_to_place_better_than_it_began():
    sb3_contrib = pytest.importorskip("sb3_contrib")
    env = PlacementEnv(problem=build(graph_of([1.0] * 6), cluster_of([1.0] * 2)))
    model = sb3_contrib.MaskablePPO(
        "MultiInputPolicy", env, n_steps=96, batch_size=48, gamma=1.0, learning_rate=3e-3, seed=0
    )
    model.learn(6 * 400)
    observation, info = env.reset()
    while "seconds" not in info:
        action, _ = model.predict(observation, action_masks=env.action_masks(), deterministic=True)
        observation, _, _, _, info = env.step(int(action))
    assert info["seconds"] == pytest.approx(3.0), "six equal ops on two devices"
