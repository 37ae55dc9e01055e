"""Small files of recorded answers."""

import csv
import gzip
from pathlib import Path

import numpy as np


def write_answers(path: Path, num: int = 240, seed: int = 0) -> Path:
    """Sums, which the large model alone gets right, and songs, which both do; as many of each."""
    rng = np.random.default_rng(seed)
    rows = []
    for n in range(num):
        is_sum = n % 2 == 0
        words = rng.choice(["seven", "eight", "nine"] if is_sum else ["la", "tra", "hey"], size=6)
        prompt = ("add " if is_sum else "sing ") + " ".join(words)
        right = rng.random() < 0.95
        rows.append(
            ("x", "sums" if is_sum else "songs", prompt, int(right and not is_sum), int(right))
        )
    make = gzip.open if path.suffix == ".gz" else open
    with make(path, "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("set", "subject", "prompt", "small_right", "large_right"))
        writer.writerows(rows)
    return path
