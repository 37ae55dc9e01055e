"""Somebody else's algorithm: MaskablePPO of sb3-contrib places ops, compared with random placement.

    pip install '.[rl]'
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
    """Notes the makespan of every episode, and when it ended, in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[float, float]] = []
        self._begin_s = time.perf_counter()

    def note(self, info: dict) -> bool:
        """Note the episode that has just ended, if one has."""
        if "seconds" in info:
            self.found.append((info["seconds"], time.perf_counter() - self._begin_s))
        return "seconds" in info

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            self.note(info)
        return True


def place_at_random(env: gymnasium.Env, episodes: int, seed: int) -> Makespans:
    """Episodes whose actions are drawn from the allowed ones."""
    rng, noted = np.random.default_rng(seed), Makespans()
    for _ in range(episodes):
        _, info = env.reset()
        while not noted.note(info):
            action = rng.choice(np.flatnonzero(info["action_mask"]))
            _, _, _, _, info = env.step(action)
    return noted


def print_curve(name: str, noted: Makespans) -> None:
    """Print the makespan after a tenth, a third and all of the episodes."""
    for share in (0.1, 0.33, 1.0):
        so_far = noted.found[: max(1, round(share * len(noted.found)))]
        makespans = [makespan_s for makespan_s, _ in so_far]
        last = makespans[-max(1, len(makespans) // 10) :]
        print(
            f"{name}: {len(so_far)} episodes, {so_far[-1][1]:.0f} s: best "
            f"{1e3 * min(makespans):.4g} ms, mean of the last tenth {1e3 * np.mean(last):.4g} ms"
        )


def main(workload: str, cluster: str, episodes: int) -> None:
    """Train, and print how both get better by episodes and by seconds."""
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
    learned = Makespans()
    model.learn(episodes * num_ops, callback=learned)
    drawn = place_at_random(env, len(learned.found), seed=0)
    print(f"{workload} on {cluster}: {len(learned.found)} episodes of {num_ops} steps each")
    print_curve("MaskablePPO", learned)
    print_curve("random", drawn)
    env.close()


if __name__ == "__main__":
    words = sys.argv[1:]
    main(
        words[0] if words else "chainmm",
        words[1] if len(words) > 1 else "p100x4",
        int(words[2]) if len(words) > 2 else 400,
    )
