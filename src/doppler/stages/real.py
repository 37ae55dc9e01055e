"""stage=rl_real: stage III learns from measured seconds; at its end all methods run in turns."""

from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from doppler.errors import InputError
from doppler.executor import Cuda, ExecutorSession, Threads
from doppler.problem import Placement
from doppler.stages.checkpoints import found_of
from doppler.stages.optimisation import check_count, seeded_generator
from doppler.stages.reinforcement import Reinforcement
from doppler.stages.run import Method, Run, plain
from doppler.stages.searching import compare_baselines, is_pointless, search
from doppler.stages.training import train_reinforcement
from doppler.stages.turns import Contender, leave_measured, measure_in_turns, show_beside

# Executing until it is known what GPUs are busy with: drivers say so of up to the last second.
USE_S = 2.0


@dataclass(frozen=True, eq=False)
class _Learned:
    """What stage III ends with, before it is known which of its placements is the fastest.

    candidates: by name. evaluations: on the real system, those included that choose of them.
    """

    module: Reinforcement
    candidates: dict[str, Placement]
    evaluations: int


def run_rl_real(run: Run, init_from: Path | None) -> dict[str, Any]:
    """Stage III from the weights of a checkpoint, and what it is held against.

    Baselines search in the calibrated simulator, one on the real system, with as many evaluations
    as stage III. Its own and another placement are executed in levels with barriers, too.
    """
    settings = run.cfg.stage
    learned = _learn(run, init_from)
    others = [*compare_baselines(run.simulated, run.baselines), *_search_measured(run, learned)]
    rng = seeded_generator(run.cfg.seed, "turns")
    candidates = _methods(run, learned, next(iter(learned.candidates)))
    chances_MR = measure_in_turns(
        [Contender(run, one) for one in candidates], settings.choosing, rng
    )
    final = candidates[int(np.median(chances_MR, axis=1).argmin())].name
    methods = _methods(run, learned, final)
    contenders = [
        *(Contender(run, method) for method in [*methods, *others]),
        *_synchronous(run, methods[0]),
    ]
    seconds_MR = measure_in_turns(contenders, settings.repeats, rng)
    fits_M = np.asarray(np.isfinite(seconds_MR).all(axis=1))
    if not fits_M[0]:
        raise InputError(f"{methods[0].name}: its placement does not fit in memory")
    contenders = [one for one, fits in zip(contenders, fits_M, strict=True) if fits]
    rows, ratios = leave_measured(run, contenders, seconds_MR[fits_M])
    module = learned.module
    own_s = module.elapsed_s - module.inherited.seconds
    own = [one.method for one in contenders if one.run is run]
    summary = run.leave(
        [replace(one, makespan_s=row.makespan_s) for one, row in zip(own, rows, strict=True)],
        rows,
        {
            "init_from": str(init_from) if init_from else None,
            "costs": str(run.cfg.costs),
            "final_is": final,
            "repeats": seconds_MR.shape[1],
            "std": float(seconds_MR[0].std()),
            "measured_evaluations": learned.evaluations,
            "episodes": module.num_episodes,
            "episodes_per_s": module.num_episodes / max(own_s, 1e-9),
            "paired": {one.other: [one.ratio, one.low, one.high] for one in ratios},
            "gpus": _use_of_gpus(run, methods[0].placement),
        },
    )
    if not run.is_step:
        show_beside(run.directory, run.console)
    return summary


def as_stage_three(cfg: DictConfig) -> DictConfig:
    """The configuration with the settings in which stage III differs from stage II.

    Raises:
        InputError: or OmegaConf's own error, in one line: a setting that cannot be.
    """
    for key in ("choosing", "repeats"):
        check_count(f"stage.{key}", cfg.stage[key], 2)
    cfg = deepcopy(cfg)
    OmegaConf.set_struct(cfg, True)
    cfg.algorithm.reinforcement.merge_with(cfg.stage.reinforcement)
    return cfg


def _use_of_gpus(run: Run, placement: Placement) -> dict[str, Any]:
    """Share of the time that they are busy, and bytes in use, while they execute the placement."""
    if not isinstance(run.system, Cuda):
        return {}
    with run.open() as session:
        assert isinstance(session, ExecutorSession)
        found = session.use(placement, USE_S)
    for gpu, busy, memory_bytes in found:
        run.say(f"{gpu}: busy {busy:.0%} of the time, {memory_bytes / 1e9:.2f} GB in use (NVML)")
    return {one.gpu: {"busy": one.busy, "memory_bytes": one.memory_bytes} for one in found}


def _learn(run: Run, init_from: Path | None) -> _Learned:
    """Train on the real system; candidates: its best and its greedy placement, and stage II's."""
    cfg = as_stage_three(run.cfg)
    cfg.run_dir = str(run.directory)
    name = str(cfg.policy.name)
    with run.open() as session:
        module = train_reinforcement(
            replace(run, cfg=cfg),
            title="stage III, measured",
            init_from=init_from,
            session=session,
        )
    greedy = module.greedy.placement
    assert greedy is not None, "training begins with a greedy placement"
    candidates = {name: module.best.placement or greedy, f"{name} greedy": greedy}
    before = None if init_from is None else found_of(init_from, run.problem).placement
    if before is not None:
        candidates[f"{name} stage II"] = before
    evaluations = module.best.evaluations - module.inherited.evaluations
    evaluations += cfg.stage.choosing * len(candidates)
    return _Learned(module, candidates, evaluations)


def _methods(run: Run, learned: _Learned, final: str) -> list[Method]:
    """The candidates; the final one of them bears the policy's name."""
    name, module = str(run.cfg.policy.name), learned.module
    settings = [plain(run.cfg[key]) for key in ("policy", "algorithm", "stage")]
    methods = []
    for label, placement in {**learned.candidates, name: learned.candidates[final]}.items():
        is_earlier = label == f"{name} stage II"
        own = 0 if is_earlier else learned.evaluations
        methods.append(
            Method(
                name=label,
                settings=settings,
                placement=placement,
                makespan_s=module.best.seconds,
                uses_order=run.honours_order,
                evaluations=module.inherited.evaluations + own,
                wall_s=module.inherited.seconds if is_earlier else module.elapsed_s,
            )
        )
    return methods


def _search_measured(run: Run, learned: _Learned) -> list[Method]:
    """A baseline on the real system, with as many evaluations as stage III had there."""
    conf = deepcopy(run.cfg.stage.measured)
    conf.evaluations = learned.evaluations
    baseline = instantiate(conf)
    name = f"{type(baseline).__name__.lower()} measured"
    if is_pointless(run, baseline):
        run.say(f"{name} is left out: it searches for an order, and this system keeps none")
        return []
    run.say(f"{name}: {learned.evaluations:,} executions")
    return [_found(run, conf, name)]


def _found(run: Run, conf: DictConfig, name: str) -> Method:
    """What a baseline finds on a run's system."""
    baseline = instantiate(conf)
    result, effort = search(run, baseline, name)
    return Method(
        name=name,
        settings=plain(conf),
        placement=result.placement,
        makespan_s=result.makespan_s,
        uses_order=baseline.uses_order and run.honours_order,
        evaluations=effort.evaluations,
        wall_s=effort.seconds,
    )


def _synchronous(run: Run, final: Method) -> list[Contender]:
    """The synchronous alternative on the same devices, where the executor has one.

    With the final placement, and with one that is searched for it in its own simulator.
    """
    system = run.system
    if not isinstance(system, Threads | Cuda):
        return []
    cfg = deepcopy(run.cfg)
    cfg.executor = {
        "_target_": f"doppler.executor.Synchronous{type(system).__name__}",
        **{key: getattr(system, key) for key in ("verify", "timeout_s", "warm_up")},
    }
    cfg.simulator = {"_target_": "doppler.simulator.BulkSynchronous", "noise": 0.0}
    synchronous = replace(run, cfg=cfg)
    own = _found(synchronous.simulated, cfg.stage.synchronous, "synchronous, its own placement")
    same = replace(final, name="synchronous, same placement", uses_order=False)
    return [Contender(synchronous, method) for method in (same, own)]
