"""Somebody else's algorithm: MaskablePPO of sb3-contrib places ops, compared with random placement.

    pip install 'doppler[rl]'
    python examples/maskable_ppo.py [workload] [cluster] [episodes]

`doppler run workload=... cluster=... budget.evaluations=EPISODES` is stage II at as many episodes.
"""

import sys
import time

import gymnasium
import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback

import doppler.env.placement_env  # noqa: F401 - registers it where doppler is not installed


class Makespans(BaseCallback):
    """Notes the makespan of every episode, in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def _on_step(self) -> bool:
        self.seconds += [info["seconds"] for info in self.locals["infos"] if "seconds" in info]
        return True


def random_makespans(env: gymnasium.Env, episodes: int, seed: int) -> list[float]:
    """Seconds of placements whose actions are drawn from the allowed ones."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(episodes):
        _, info = env.reset()
        while "seconds" not in info:
            action = rng.choice(np.flatnonzero(info["action_mask"]))
            _, _, _, _, info = env.step(action)
        found.append(info["seconds"])
    return found


def main(workload: str, cluster: str, episodes: int) -> None:
    """Train, and print the makespans of both by episodes and by seconds."""
    torch.set_num_threads(1)
    env = gymnasium.make("doppler/Placement-v0", workload=workload, cluster=cluster)
    bare = env.unwrapped
    num_ops = bare.problem.num_ops  # type: ignore[attr-defined]
    model = MaskablePPO(
        "MultiInputPolicy",
        env,
        n_steps=4 * num_ops,  # whole episodes
        batch_size=num_ops,
        gamma=1.0,
        learning_rate=1e-3,
        ent_coef=1e-3,
        policy_kwargs={"net_arch": [64, 64]},
        seed=0,
    )
    noted, begin = Makespans(), time.perf_counter()
    model.learn(episodes * num_ops, callback=noted)
    took_s = time.perf_counter() - begin
    begin = time.perf_counter()
    drawn = random_makespans(env, len(noted.seconds), seed=0)
    drawn_s = time.perf_counter() - begin
    print(f"{workload} on {cluster}: {len(noted.seconds)} episodes of {num_ops} steps each")
    for name, seconds, took in (("MaskablePPO", noted.seconds, took_s), ("random", drawn, drawn_s)):
        last = seconds[-max(1, len(seconds) // 10) :]
        print(
            f"{name}: best {1e3 * min(seconds):.4g} ms, mean of the last tenth "
            f"{1e3 * np.mean(last):.4g} ms, {took:.0f} s"
        )
    env.close()


if __name__ == "__main__":
    words = sys.argv[1:]
    main(
        words[0] if words else "chainmm",
        words[1] if len(words) > 1 else "p100x4",
        int(words[2]) if len(words) > 2 else 400,
    )
