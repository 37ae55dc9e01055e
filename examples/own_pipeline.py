"""A transformer from module to schedule to two processes that train it: python own_pipeline.py.

Its blocks are divided into four stages, each timed on this machine; a schedule is searched within
the memory of 1F1B, and run by torch's own runtime in two gloo processes. Losses are held against
those of one process. Writes stages.json, schedule.csv and pipeline.png.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from doppler.extensions.pipelines import TrainingPipeline, find
from doppler.extensions.pipelines.processes import Processes, train
from doppler.extensions.pipelines.profiles import save_profile
from doppler.extensions.pipelines.splitting import stages_of

WORDS, WIDTH, LENGTH, BATCH, MICROBATCHES, STEPS = 500, 64, 32, 16, 8, 20


class Block(nn.Module):
    """Attention and a feed-forward part."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.feed = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Both with what they are given added."""
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.feed(self.norms[1](x))


def transformer() -> tuple[nn.Sequential, Tensor]:
    """An embedding, eight blocks and a head; a microbatch. Also for ``workload.module``."""
    blocks = [Block() for _ in range(8)]
    module = nn.Sequential(nn.Embedding(WORDS, WIDTH), *blocks, nn.Linear(WIDTH, WORDS))
    return module, torch.randint(WORDS, (BATCH // MICROBATCHES, LENGTH))


def loss(logits: Tensor, words: Tensor) -> Tensor:
    """Of the next words."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), words.flatten())


def in_one_process(module: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> list[float]:
    """The same training, without a pipeline."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    told = []
    for words, target in batches:
        optimizer.zero_grad()
        value = loss(module(words), target)
        value.backward()
        optimizer.step()
        told.append(value.item())
    return told


def main(folder: Path) -> None:
    """See the module."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    module, example = transformer()
    target = torch.randint(WORDS, example.shape)
    stages, profiles = stages_of(list(module), example, 4, lambda output: loss(output, target))
    folder.mkdir(parents=True, exist_ok=True)
    save_profile(profiles, folder / "stages.json")
    pipeline = TrainingPipeline(
        forward_s=np.array([one.forward_s for one in profiles]),
        input_grad_s=np.array([one.input_grad_s for one in profiles]),
        weight_grad_s=np.array([one.weight_grad_s for one in profiles]),
        transfer_s=np.full(3, 3e-4),
        activation_bytes=np.array([one.activation_bytes for one in profiles]),
        weight_grad_bytes=np.array([one.weight_grad_bytes for one in profiles]),
        microbatches=MICROBATCHES,
        arrangement="free",
        speed=np.ones(2),
    )
    memory = 2.5 * float(pipeline.activation_bytes.sum())
    found = find(pipeline, memory)
    found.save(folder / "schedule.csv")
    found.save_picture(folder / "pipeline.png", "A transformer on two devices")
    print(f"step {1e3 * found.seconds:.1f} ms, bound {1e3 * found.lower_bound_s:.1f} ms")

    batches = [
        (torch.randint(WORDS, (BATCH, LENGTH)), torch.randint(WORDS, (BATCH, LENGTH)))
        for _ in range(STEPS)
    ]
    with Processes(2) as processes:
        told = processes.call(train, found.orders, stages, batches, MICROBATCHES, loss, 0.1)
    losses = next(one for one in told if one is not None)
    alone = in_one_process(module, batches)
    difference = max(abs(a - b) for a, b in zip(losses, alone, strict=True))
    assert difference < 1e-5, f"{losses} and {alone}"
    print(f"loss {losses[0]:.4f} to {losses[-1]:.4f}; from one process's at most {difference:.1e}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "outputs/own_pipeline"))
