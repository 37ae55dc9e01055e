"""What each stage does, from the first line it says to the summary it leaves.

A stage that needs an earlier one finds it by problem, policy, settings and seed, or first runs it
in its own run directory.
"""

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from doppler.baselines import Baseline
from doppler.errors import InputError
from doppler.graph import save_json, save_text
from doppler.graph.formats import write_atomically
from doppler.problem import Placement
from doppler.reporting.description import counts, describe
from doppler.reporting.graph_picture import save_graph_picture
from doppler.reporting.rows import RESULTS_FILE, SUMMARY_FILE, read_results
from doppler.reporting.table import print_results
from doppler.stages.applying import run_inference
from doppler.stages.checkpoints import LAST
from doppler.stages.reinforcement import Reinforcement
from doppler.stages.run import Method, Run, plain
from doppler.stages.run_directory import (
    claimed,
    is_finished,
    run_directory,
)
from doppler.stages.searching import compare_baselines
from doppler.stages.training import (
    greedy_placement,
    imitation_key,
    train_imitation,
    train_reinforcement,
)

Summary = dict[str, Any]
DESCRIPTION_FILE = "description.txt"


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
    if isinstance(cfg.stage.get("teacher"), str):
        raise InputError(
            f"stage.teacher: a baseline's settings, not its name; outside the command line "
            f"baseline@stage.teacher={cfg.stage.teacher} chooses it"
        )
    run = Run(cfg, _method_name(cfg), console, is_step)
    run.check()
    with claimed(run.directory, cfg, run.problem.hash, overrides, wait=is_step):
        if not is_finished(run.directory):
            run.introduce()
            return stage(run)
    if not is_step:
        run.say(f"{run.directory} is finished already (overwrite=true runs it again)")
        if cfg.stage.name == "describe":
            run.say((run.directory / DESCRIPTION_FILE).read_text().rstrip())
        else:
            print_results(read_results(run.directory / RESULTS_FILE), console)
    return _summary_of(run.directory)


def _summary_of(directory: Path) -> Summary:
    path = directory / SUMMARY_FILE
    try:
        return json.loads(path.read_text())
    except ValueError:
        raise InputError(f"{path}: damaged (overwrite=true runs it again)") from None


def _method_name(cfg: DictConfig) -> str:
    """The method that a run is about, as its directory is called."""
    if cfg.stage.name == "describe":
        return "graph"
    if cfg.stage.name == "evaluate":
        return "+".join(str(name) for name in cfg.get("baseline") or {}) or "none"
    return str(cfg.policy.name)


def run_imitation(run: Run) -> Summary:
    """Stage I: train, then execute the greedy placement once."""
    module = train_imitation(run)
    placement = greedy_placement(run, module.policy)
    method = Method(
        name=f"{run.cfg.policy.name} imitation",
        settings=[
            *(plain(run.cfg.policy), plain(run.cfg.algorithm.imitation)),
            plain(run.cfg.stage.teacher),
        ],
        placement=placement,
        makespan_s=run.nominal_s(placement),
        uses_order=run.honours_order,
        evaluations=module.inherited.evaluations + 1,
        wall_s=module.elapsed_s,
    )
    own_s = module.elapsed_s - module.inherited.seconds
    if not np.isfinite(method.makespan_s):
        raise InputError(f"{method.name}: the greedy placement does not fit in memory")
    return run.finish(
        method,
        [],
        {
            "imitation_key": imitation_key(run),
            "greedy_makespan_s": method.makespan_s,
            "episodes": module.num_episodes,
            "episodes_per_s": module.num_episodes / max(own_s, 1e-9),
        },
    )


def run_rl_sim(run: Run) -> Summary:
    """Stage II, after stage I or from ``stage.init_from``."""
    return _reinforce(run, {})


def run_pipeline(run: Run) -> Summary:
    """Stages I and II, the baselines beside."""
    return _reinforce(run, run.baselines)


def _reinforce(run: Run, baselines: dict[str, Baseline]) -> Summary:
    init_from = _initial_weights(run)
    with run.open() as session:
        module = train_reinforcement(
            run, title="stage II, simulated", init_from=init_from, session=session
        )
    best, greedy = _learned_methods(run, module)
    if not np.isfinite(best.makespan_s):
        raise InputError(
            f"{run.problem.graph.name}: no episode of {module.evaluations_used} fits in the "
            f"memory of {run.cfg.cluster.name}"
        )
    fits = bool(np.isfinite(greedy.makespan_s))
    if not fits:
        run.say(f"{greedy.name} is left out: it does not fit in memory")
    own_s = module.elapsed_s - module.inherited.seconds
    return run.finish(
        best,
        [*([greedy] if fits else []), *compare_baselines(run, baselines)],
        {
            "init_from": str(init_from) if init_from else None,
            "greedy_makespan_s": greedy.makespan_s if fits else None,
            "episodes": module.num_episodes,
            "episodes_per_s": module.num_episodes / max(own_s, 1e-9),
        },
    )


def _learned_methods(run: Run, module: Reinforcement) -> tuple[Method, Method]:
    """The best sample, and the greedy placement of the best weights."""
    assert module.greedy.placement is not None, "training begins with a greedy placement"
    best = module.best.placement or module.greedy.placement
    name = str(run.cfg.policy.name)
    settings = [
        *(plain(run.cfg.policy), plain(run.cfg.algorithm), run.cfg.stage.init_from),
        *(plain(run.cfg.stage.teacher), plain(run.cfg.trainer.build)),
    ]

    def method(label: str, placement: Placement) -> Method:
        return Method(
            name=label,
            settings=settings,
            placement=placement,
            makespan_s=run.nominal_s(placement),
            uses_order=run.honours_order,
            evaluations=module.best.evaluations,
            wall_s=module.elapsed_s,
        )

    return method(name, best), method(f"{name} greedy", module.greedy.placement)


def run_evaluate(run: Run) -> Summary:
    """The configured baselines alone."""
    methods = compare_baselines(run, run.baselines)
    if not methods:
        raise InputError("baseline: none is configured, or none can run on this system")
    methods.sort(key=lambda method: method.makespan_s)
    return run.finish(methods[0], methods[1:], {})


def _initial_weights(run: Run) -> Path | None:
    """Checkpoint to begin stage II from."""
    choice = run.cfg.stage.init_from
    if choice is None:
        return None
    if choice != "auto":
        return Path(choice)
    found = _find_imitation(run)
    if found is None:
        cfg = deepcopy(run.cfg)
        stage = {"name": "imitation", "teacher": plain(run.cfg.stage.teacher)}
        OmegaConf.update(cfg, "stage", stage, merge=False)
        cfg.run_dir, cfg.overwrite = None, False
        found = run_directory(cfg, _method_name(cfg), run.problem.hash)
        run.say(f"stage I is needed first: it runs in {found}")
        execute(cfg, [], run.console, is_step=True)
    run.say(f"initial weights: {found / LAST}")
    return found / LAST


def _find_imitation(run: Run) -> Path | None:
    key = imitation_key(run)
    pattern = f"imitation/*/*/*/seed={run.cfg.seed}-*/{SUMMARY_FILE}"
    for path in sorted(Path(run.cfg.output_dir).glob(pattern)):
        if _summary_of(path.parent).get("imitation_key") == key:
            return path.parent
    return None


def run_describe(run: Run) -> Summary:
    """What the workload's graph consists of, in words, in a picture and as files."""
    graph, directory = run.problem.graph, run.directory
    lines = describe(graph)
    save_json(graph, directory / "graph.json")
    try:
        save_text(graph, directory / "graph.txt")
    except InputError as error:
        lines.append(f"no graph.txt: {error}")
    save_graph_picture(graph, directory / "graph.png")
    write_atomically(directory / DESCRIPTION_FILE, "\n".join(lines) + "\n")
    summary = {**run.identity(), **counts(graph)}
    write_atomically(directory / SUMMARY_FILE, json.dumps(summary, indent=1) + "\n")
    run.say("\n".join(lines))
    run.say(f"graph.json, graph.txt and graph.png are in {directory}")
    return summary


STAGES: dict[str, Callable[[Run], Summary]] = {
    "imitation": run_imitation,
    "rl_sim": run_rl_sim,
    "pipeline": run_pipeline,
    "inference": run_inference,
    "evaluate": run_evaluate,
    "describe": run_describe,
}
