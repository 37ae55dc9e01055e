"""Stages I and II on one problem: build the module, train it, resume it, keep its best."""

import hashlib
import json
import logging
import warnings
from pathlib import Path

import pytorch_lightning as pl
import torch
from hydra.utils import instantiate
from torch.utils.data import DataLoader

from doppler.policies import Policy
from doppler.reporting.progress import TrainingProgress
from doppler.stages.checkpoints import (
    BEST,
    LAST,
    LastCheckpoint,
    effort_of,
    load_checkpoint,
    load_policy_weights,
    save_checkpoint,
)
from doppler.stages.imitation import Imitation
from doppler.stages.optimisation import NO_EFFORT, Updates
from doppler.stages.reinforcement import Reinforcement
from doppler.stages.run import Run, plain
from doppler.system import Session

# Lightning's advice on loggers, workers and devices does not concern what runs here.
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
logging.getLogger("lightning_fabric").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="pytorch_lightning")


def make_policy(run: Run) -> Policy:
    """The configured policy with the initial weights of the run's seed."""
    torch.manual_seed(run.cfg.seed)
    return instantiate(run.cfg.policy.build)


def imitation_key(run: Run) -> str:
    """What imitation depends on: problem, policy, its settings, seed. Equal keys, equal weights."""
    parts = {
        "problem": run.problem.hash,
        "policy": plain(run.cfg.policy),
        "imitation": plain(run.cfg.algorithm.imitation),
        "trainer": plain(run.cfg.trainer.build),
        "seed": run.cfg.seed,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def fit(run: Run, module: pl.LightningModule, num_updates: int) -> None:
    """Train, from last.ckpt on where the directory has one."""
    trainer = instantiate(run.cfg.trainer.build)(
        max_steps=num_updates,
        default_root_dir=run.directory,
        logger=instantiate(run.cfg.logger, directory=str(run.directory)),
        callbacks=[
            LastCheckpoint(directory=run.directory, every_s=run.cfg.trainer.checkpoint_every_s),
            TrainingProgress(console=run.console),
        ],
    )
    # The tensors of an update are small: a second thread of torch gains a tenth on an idle machine
    # and costs a factor of ten where something else computes. Rollouts use all cores.
    torch.set_num_threads(1)
    last = run.directory / LAST
    if last.exists():
        load_checkpoint(last)  # a damaged file is named before training begins
        run.say(f"resuming from {last}")
    batches = DataLoader(Updates(), batch_size=None)
    trainer.fit(module, batches, ckpt_path=last if last.exists() else None, weights_only=False)


def train_imitation(run: Run) -> Imitation:
    """Stage I; leaves last.ckpt."""
    build = instantiate(run.cfg.algorithm.imitation)
    module = build(policy=make_policy(run), view=run.view, seed=run.cfg.seed)
    fit(run, module, module.num_updates)
    return module


def train_reinforcement(
    run: Run, *, title: str, init_from: Path | None, session: Session
) -> Reinforcement:
    """Stage II or III from the weights of a checkpoint, or from random ones; leaves best.ckpt."""
    policy, inherited = make_policy(run), NO_EFFORT
    if init_from is not None:
        load_policy_weights(policy, init_from)  # type: ignore[arg-type]
        inherited = effort_of(init_from)
    build = instantiate(run.cfg.algorithm.reinforcement)
    module: Reinforcement = build(
        title=title,
        policy=policy,
        view=run.view,
        session=session,
        seed=run.cfg.seed,
        on_best=run.keep_best,
        inherited=inherited,
        on_best_greedy=lambda: save_checkpoint(module.trainer, run.directory / BEST),
    )
    fit(run, module, module.num_updates)
    module.try_greedy()
    return module
