"""What each stage does, from the first line it says to the summary it leaves.

A stage that needs an earlier one finds it by problem, policy, settings and seed, or first runs it
in its own run directory.
"""

import json
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from doppler.baselines import Baseline
from doppler.errors import InputError
from doppler.problem import Placement
from doppler.reporting.rows import RESULTS_FILE, read_results
from doppler.reporting.table import print_results
from doppler.stages.checkpoints import LAST
from doppler.stages.optimisation import seeded_generator
from doppler.stages.reinforcement import Reinforcement
from doppler.stages.run import Method, Run
from doppler.stages.run_directory import (
    SUMMARY_FILE,
    claimed,
    is_finished,
    run_directory,
)
from doppler.stages.training import imitation_key, train_imitation, train_reinforcement

Summary = dict[str, Any]


def execute(
    cfg: DictConfig, overrides: Sequence[str], console: Console, *, is_step: bool = False
) -> Summary:
    """Run a configuration, or show the table of the run that has done so already.

    is_step: the run serves another one, and leaves showing results to it.

    Raises:
        InputError: one line about what is wrong with the configuration or its files.
    """
    stage = STAGES.get(cfg.stage.name)
    if stage is None:
        raise InputError(f"stage.name: {cfg.stage.name!r} is not one of {', '.join(STAGES)}")
    run = Run(cfg, run_directory(cfg, _method_name(cfg)), console, is_step)
    run.check()
    finished = is_finished(run.directory) and not cfg.overwrite
    with claimed(run.directory, cfg, overrides):
        if not finished:
            run.introduce()
            return stage(run)
    run.say(f"{run.directory} is finished already (overwrite=true runs it again)")
    print_results(read_results(run.directory / RESULTS_FILE), console)
    return json.loads((run.directory / SUMMARY_FILE).read_text())


def _method_name(cfg: DictConfig) -> str:
    """The method that a run is about, as its directory is called."""
    if cfg.stage.name == "evaluate":
        return "+".join(str(name) for name in cfg.baseline)
    return str(cfg.policy.name)


def run_imitation(run: Run) -> Summary:
    """Stage I: train, then execute the greedy placement once."""
    begin = time.perf_counter()
    module = train_imitation(run)
    rng = seeded_generator(run.cfg.seed, "greedy")
    device_BV, priority_BV = module.policy.rollout(run.view, 1, 0.0, rng).placements()
    placement = Placement.make(run.problem, device_BV[0], priority_BV[0])
    with run.open() as session:
        greedy_s = float(session.measure(device_BV, priority_BV, rng=rng).cost_s()[0])
    wall_s = time.perf_counter() - begin
    method = Method(
        name=f"{run.cfg.policy.name} imitation",
        placement=placement,
        makespan_s=greedy_s,
        uses_order=True,
        evaluations=1,
        wall_s=wall_s,
    )
    return run.finish(
        method,
        [],
        {
            "imitation_key": imitation_key(run),
            "greedy_makespan_s": greedy_s,
            "episodes": module.num_episodes,
            "episodes_per_s": module.num_episodes / wall_s,
        },
    )


def run_rl_sim(run: Run) -> Summary:
    """Stage II, after stage I or from ``stage.init_from``."""
    return _reinforce(run, {})


def run_pipeline(run: Run) -> Summary:
    """Stages I and II, the baselines beside."""
    return _reinforce(run, run.baselines)


def _reinforce(run: Run, baselines: dict[str, Baseline]) -> Summary:
    init_from, imitation_s = _initial_weights(run)
    with run.open() as session:
        module = train_reinforcement(
            run, title="stage II, simulated", init_from=init_from, session=session
        )
    learned = _learned_methods(run, module, imitation_s)
    others = [learned[1], *compare_baselines(run, baselines)]
    return run.finish(
        learned[0],
        others,
        {
            "init_from": str(init_from) if init_from else None,
            "greedy_makespan_s": module.greedy_s,
            "episodes": module.num_episodes,
            "episodes_per_s": module.num_episodes / max(module.elapsed_s, 1e-9),
        },
    )


def _learned_methods(run: Run, module: Reinforcement, imitation_s: float) -> list[Method]:
    """The best sample, and the greedy placement of the best weights."""
    name = str(run.cfg.policy.name)
    if module.best_placement is None or module.greedy_placement is None:
        raise InputError(
            f"{run.problem.graph.name}: no episode of {module.evaluations_used} fits in the "
            f"memory of {run.cfg.cluster.name}"
        )
    found = [
        (name, module.best_placement, module.best_s),
        (f"{name} greedy", module.greedy_placement, module.greedy_s),
    ]
    return [
        Method(
            name=label,
            placement=placement,
            makespan_s=seconds,
            uses_order=True,
            evaluations=module.evaluations_used,
            wall_s=module.elapsed_s + imitation_s,
        )
        for label, placement, seconds in found
    ]


def run_evaluate(run: Run) -> Summary:
    """The configured baselines alone."""
    methods = compare_baselines(run, run.baselines)
    if not methods:
        raise InputError("baseline: none is configured, or none can run on this system")
    methods.sort(key=lambda method: method.makespan_s)
    return run.finish(methods[0], methods[1:], {})


def compare_baselines(run: Run, baselines: dict[str, Baseline]) -> list[Method]:
    """Search with each baseline; those that choose an order need a system that honours it."""
    methods = []
    for name, baseline in baselines.items():
        if run.system.queue == "fifo" and getattr(baseline, "order", False):
            run.say(f"{name} is left out: it searches for an order, and this system is fifo")
            continue
        begin = time.perf_counter()
        with run.open() as session:
            result = baseline.place(session, seeded_generator(run.cfg.seed, name))
            assert result.evaluations == session.evaluations, f"{name} miscounts"
        if not np.isfinite(result.makespan_s):
            run.say(f"{name} is left out: it found no placement that fits in memory")
            continue
        methods.append(
            Method(
                name=name,
                placement=result.placement,
                makespan_s=result.makespan_s,
                uses_order=baseline.uses_order,
                evaluations=result.evaluations,
                wall_s=time.perf_counter() - begin,
            )
        )
    return methods


def _initial_weights(run: Run) -> tuple[Path | None, float]:
    """Checkpoint to begin stage II from, and the seconds that it took to make."""
    choice = run.cfg.stage.init_from
    if choice is None:
        return None, 0.0
    if choice != "auto":
        return Path(choice), 0.0
    found = _find_imitation(run)
    if found is None:
        cfg = deepcopy(run.cfg)
        OmegaConf.update(cfg, "stage", {"name": "imitation"}, merge=False)
        cfg.run_dir, cfg.overwrite = None, False
        directory = run_directory(cfg, _method_name(cfg))
        run.say(f"stage I is needed first: it runs in {directory}")
        execute(cfg, [], run.console, is_step=True)
        found = directory
    summary = json.loads((found / SUMMARY_FILE).read_text())
    run.say(f"initial weights: {found / LAST}")
    return found / LAST, float(summary["wall_s"])


def _find_imitation(run: Run) -> Path | None:
    key = imitation_key(run)
    pattern = f"imitation/*/*/*/seed={run.cfg.seed}-*/{SUMMARY_FILE}"
    for path in sorted(Path(run.cfg.output_dir).glob(pattern)):
        if json.loads(path.read_text()).get("imitation_key") == key:
            return path.parent
    return None


STAGES: dict[str, Callable[[Run], Summary]] = {
    "imitation": run_imitation,
    "rl_sim": run_rl_sim,
    "pipeline": run_pipeline,
    "evaluate": run_evaluate,
}
