"""Stages I and II on one problem: build the module, train it, resume it, keep its best."""

import hashlib
import json
import logging
import time
import warnings
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytorch_lightning as pl
import torch
from hydra.utils import instantiate
from torch.utils.data import DataLoader

from doppler.baselines import TaughtPlacement, Teacher
from doppler.errors import InputError
from doppler.policies import Policy
from doppler.problem import Placement
from doppler.report.progress import TrainingProgress
from doppler.report.rows import format_seconds
from doppler.stages.best_so_far import NOTHING, BestSoFar, Found
from doppler.stages.checkpoints import (
    BEST,
    LAST,
    LastCheckpoint,
    effort_of,
    found_of,
    load_checkpoint,
    load_policy_weights,
    save_checkpoint,
)
from doppler.stages.imitation import Imitation
from doppler.stages.inference import Inference
from doppler.stages.memory import reset_peak
from doppler.stages.optimisation import (
    NO_EFFORT,
    Effort,
    Updates,
    check_count,
    seeded_generator,
)
from doppler.stages.reinforcement import Reinforcement, Trained
from doppler.stages.run import Run, plain
from doppler.stages.searching import is_pointless, search
from doppler.system import Session

TEACHER_FILE = "teacher.json"

# Lightning's advice on loggers, workers and devices does not concern what runs here.
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
logging.getLogger("lightning_fabric").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="pytorch_lightning")


def make_policy(run: Run) -> Policy:
    """The configured policy with the initial weights of the run's seed."""
    torch.manual_seed(run.cfg.seed)
    return instantiate(run.cfg.policy.build)


def imitation_key(run: Run) -> str:
    """What imitation depends on; equal keys, equal weights."""
    parts = {
        "problem": run.problem.hash,
        "policy": plain(run.cfg.policy),
        "imitation": plain(run.cfg.algorithm.imitation),
        "teacher": plain(run.cfg.stage.teacher),
        "simulator": plain(run.cfg.simulator),  # what a teacher searches on
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
    reset_peak()
    trainer.fit(module, batches, ckpt_path=last if last.exists() else None, weights_only=False)


def make_teacher(run: Run) -> tuple[Teacher, Effort, Found]:
    """Who teaches stage I, what it took to know what to teach, and what was found by it.

    A list scheduler decides anew for every batch. Any other baseline searches once, on the run's
    system, and teaches the placement that it finds: it is kept in the run directory.

    Raises:
        InputError: the search is of no use on this system, or finds nothing that fits in memory.
    """
    baseline = instantiate(run.cfg.stage.teacher)
    if isinstance(baseline, Teacher):
        return baseline, NO_EFFORT, NOTHING
    name, path = type(baseline).__name__, run.directory / TEACHER_FILE
    if is_pointless(run, baseline):
        raise InputError(f"stage.teacher: {name} searches for an order, this system keeps none")
    if not path.exists():
        result, effort = search(run, baseline, "teacher")
        if not np.isfinite(result.makespan_s):
            raise InputError(f"stage.teacher: {name} found no placement that fits in memory")
        costs = {"makespan_s": result.makespan_s, **asdict(effort)}
        result.placement.save(path, costs)
    placement = Placement.load(path, run.problem)
    kept = json.loads(path.read_text())
    effort = Effort(kept["evaluations"], kept["seconds"])
    run.say(
        f"{name} teaches a placement of {format_seconds(kept['makespan_s'])}, found in "
        f"{effort.evaluations:,} evaluations, {format_seconds(effort.seconds)}"
    )
    found = Found(placement, kept["makespan_s"])
    return TaughtPlacement.of(run.problem, placement), effort, found


def train_imitation(run: Run) -> Imitation:
    """Stage I; leaves last.ckpt."""
    teacher, effort, found = make_teacher(run)
    build = instantiate(run.cfg.algorithm.imitation)
    module = build(
        policy=make_policy(run),
        view=run.view,
        teacher=teacher,
        seed=run.cfg.seed,
        inherited=effort,
        found=found,
    )
    fit(run, module, module.num_updates)
    return module


def train_reinforcement(
    run: Run,
    *,
    title: str,
    init_from: Path | None,
    session: Session,
) -> Reinforcement:
    """Stage II or III from the weights of a checkpoint, or from random ones; leaves best.ckpt.

    It begins with the best placement of the checkpoint, executed once more: it may come from
    another system.
    """
    policy, inherited, found = make_policy(run), NO_EFFORT, NOTHING
    if init_from is not None:
        load_policy_weights(policy, init_from)  # type: ignore[arg-type]
        inherited = effort_of(init_from)
        found = found_of(init_from, run.problem)
    best = best_so_far(run, session, inherited.evaluations)
    if found.placement is not None:
        best.confirm(found.placement)
    inference: Inference = instantiate(run.cfg.algorithm.inference)
    # What a teacher used is of the same budget, what other trainings used is not.
    is_one_budget = run.cfg.stage.init_from == "auto" and not run.executes
    used = best.evaluations - (0 if is_one_budget else inherited.evaluations)
    evaluations = run.cfg.algorithm.reinforcement.evaluations - used
    if evaluations < 1:
        raise InputError(
            f"stage.teacher: {used:,} evaluations are used, which leaves none of "
            f"budget.evaluations={run.cfg.budget.evaluations} to train with"
        )
    build = instantiate(run.cfg.algorithm.reinforcement)
    module: Reinforcement = build(
        title=title,
        policy=policy,
        view=run.view,
        best=best,
        evaluations=evaluations - inference.evaluations_of(evaluations),
        seed=run.cfg.seed,
        inherited=inherited,
        on_best_greedy=lambda: save_checkpoint(module.trainer, run.directory / BEST),
    )
    fit(run, module, module.num_updates)
    if module.trained is None:  # else an interrupted run had come further than this
        begin = time.perf_counter()
        module.try_greedy()
        module.trained = Trained(best.found, best.evaluations, module.elapsed_s)
        if inference.share > 0:
            left = evaluations - module.evaluations_used
            rng = seeded_generator(run.cfg.seed, "inference")
            inference.search(policy, run.view, best, left, order=run.honours_order, rng=rng)
        module.elapsed_s += time.perf_counter() - begin
        save_checkpoint(module.trainer, run.directory / LAST)
    return module


def greedy_placement(run: Run, policy: Policy) -> Placement:
    """What the policy decides where it does not draw."""
    rng = seeded_generator(run.cfg.seed, "greedy")
    device_BV, priority_BV = policy.rollout(run.view, 1, 0.0, rng).placements()
    return Placement.make(run.problem, device_BV[0], priority_BV[0])


def best_so_far(run: Run, session: Session, evaluations: int = 0) -> BestSoFar:
    """Executes on the run's system; keeps the best placement, on disk too."""
    check_count("algorithm.confirmations", run.cfg.algorithm.confirmations, 0)
    return BestSoFar(
        session=session,
        confirmations=run.cfg.algorithm.confirmations if run.is_random else 0,
        seed=run.cfg.seed,
        on_best=run.keep_best,
        evaluations=evaluations,
    )
