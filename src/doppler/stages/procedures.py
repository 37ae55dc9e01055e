"""What each stage does, from the first line it says to the summary it leaves.

A stage that needs an earlier one finds it by problem, policy, settings and seed, or first runs it
in its own run directory.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from doppler.baselines import Baseline
from doppler.errors import InputError
from doppler.graph import save_json, save_text
from doppler.graph.formats import write_atomically
from doppler.problem import Placement
from doppler.report.description import counts, describe
from doppler.report.graph_picture import save_graph_picture
from doppler.report.metrics import CsvMetrics
from doppler.report.rows import RESULTS_FILE, SUMMARY_FILE, print_results, read_results
from doppler.stages.applying import apply_policy, run_inference
from doppler.stages.calibrating import is_calibrated, run_calibrate, show_fidelity
from doppler.stages.checkpoints import LAST
from doppler.stages.memory import peak_bytes
from doppler.stages.problem_set import train_on_set
from doppler.stages.real import as_stage_three, run_rl_real
from doppler.stages.reinforcement import Reinforcement
from doppler.stages.run import Method, Run, plain
from doppler.stages.run_directory import (
    claimed,
    is_finished,
    run_directory,
)
from doppler.stages.searching import compare_baselines
from doppler.stages.settling import EXECUTING, costs_path, settled
from doppler.stages.training import (
    greedy_placement,
    imitation_key,
    train_imitation,
    train_reinforcement,
)
from doppler.stages.turns import show_beside

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
    cfg = settled(cfg, console)
    if cfg.stage.name == "rl_real":
        as_stage_three(cfg)  # what is wrong with its settings ends before anything runs
        cfg.costs = str(_calibrated_costs(cfg, console))
    run = _make_run(cfg, console, is_step)
    run.check()
    logger: CsvMetrics = instantiate(cfg.logger, directory=str(run.directory))
    with claimed(run.directory, cfg, run.problem.hash, overrides, wait=is_step):
        if not (already := is_finished(run.directory)):
            run.introduce()
            stage(run)
        if not is_step:
            logger.publish()
    if already and not is_step:
        run.say(f"{run.directory} is finished already (overwrite=true runs it again)")
        _show(run)
    return _summary_of(run.directory)


def _make_run(cfg: DictConfig, console: Console, is_step: bool) -> Run:
    return Run(cfg, _method_name(cfg), console, is_step, executes=cfg.stage.name in EXECUTING)


def _show(run: Run) -> None:
    """Print what a finished run has to tell."""
    stage, directory = run.cfg.stage.name, run.directory
    if stage == "describe":
        run.say((directory / DESCRIPTION_FILE).read_text().rstrip())
    elif stage == "calibrate":
        show_fidelity(run.cfg, _summary_of(directory)["fidelity"], run.console)
    else:
        print_results(read_results(directory / RESULTS_FILE), run.console)
        if stage == "rl_real":
            show_beside(directory, run.console)


def _calibrated_costs(cfg: DictConfig, console: Console) -> Path:
    """The file of measured costs that has all that a run needs, filled first if it has not.

    Seeds share it: whichever comes first calibrates.
    """
    path = costs_path(cfg)
    step = _step(cfg, plain(cfg.stage.calibration))
    step.seed = 0
    run = _make_run(step, console, True)
    if is_calibrated(run):
        console.print(f"measured costs: {path}", highlight=False, soft_wrap=True)
        return path
    run.say(f"calibration is needed first: it runs in {run.directory}")
    step.overwrite = is_finished(run.directory)  # but what it measured is gone
    execute(step, [], console, is_step=True)
    return path


def _step(cfg: DictConfig, stage: dict[str, Any]) -> DictConfig:
    """The configuration of another stage that a run needs first, in a directory of its own."""
    step = deepcopy(cfg)
    OmegaConf.update(step, "stage", stage, merge=False)
    step.run_dir, step.overwrite = None, False
    return step


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
    if cfg.stage.name == "calibrate":
        return "costs"
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
    fits = bool(np.isfinite(method.makespan_s))
    extra = {
        "imitation_key": imitation_key(run),
        "greedy_makespan_s": method.makespan_s if fits else None,
        "episodes": module.num_episodes,
        "episodes_per_s": module.num_episodes / max(own_s, 1e-9),
        "peak_memory_bytes": peak_bytes(),
    }
    if fits:
        return run.finish(method, [], extra)
    if run.is_step:  # weights to go on from, which is what was asked for
        return run.summarise(extra)
    raise InputError(f"{method.name}: the greedy placement does not fit in memory")


def run_rl_sim(run: Run) -> Summary:
    """Stage II, after stage I or from ``stage.init_from``; or on many problems."""
    if run.cfg.problems:
        return apply_policy(run, train_on_set(run))
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
    best, *others = _learned_methods(run, module)
    if not np.isfinite(best.makespan_s):
        raise InputError(
            f"{run.problem.graph.name}: no episode of {module.evaluations_used} fits in the "
            f"memory of {run.cfg.cluster.name}"
        )
    fitting = [method for method in others if np.isfinite(method.makespan_s)]
    for method in others:
        if method not in fitting:
            run.say(f"{method.name} is left out: it does not fit in memory")
    greedy = others[-1]
    assert module.trained is not None, "training has ended"
    own_s = module.trained.elapsed_s - module.inherited.seconds
    return run.finish(
        best,
        [*fitting, *compare_baselines(run, baselines)],
        {
            "init_from": str(init_from) if init_from else None,
            "reinforcement_key": (
                reinforcement_key(run) if run.cfg.stage.init_from == "auto" else None
            ),
            "greedy_makespan_s": greedy.makespan_s if greedy in fitting else None,
            "episodes": module.num_episodes,
            "episodes_per_s": module.num_episodes / max(own_s, 1e-9),
            "peak_memory_bytes": peak_bytes(),
        },
    )


def _learned_methods(run: Run, module: Reinforcement) -> list[Method]:
    """The best of all, the best of training alone, the greedy placement of the best weights."""
    assert module.greedy.placement is not None, "training begins with a greedy placement"
    best = module.best.placement or module.greedy.placement
    name = str(run.cfg.policy.name)
    settings = [
        *(plain(run.cfg.policy), plain(run.cfg.algorithm), run.origin),
        *(plain(run.cfg.stage.teacher), plain(run.cfg.trainer.build)),
    ]

    def method(label: str, placement: Placement, evaluations: int, wall_s: float) -> Method:
        return Method(
            name=label,
            settings=settings,
            placement=placement,
            makespan_s=run.nominal_s(placement),
            uses_order=run.honours_order,
            evaluations=evaluations,
            wall_s=wall_s,
        )

    trained = module.trained
    assert trained is not None, "training has ended"
    effort = trained.evaluations, trained.elapsed_s
    methods = [method(name, best, module.best.evaluations, module.elapsed_s)]
    if module.best.evaluations > trained.evaluations and trained.found.placement is not None:
        methods.append(method(f"{name} trained", trained.found.placement, *effort))
    return [*methods, method(f"{name} greedy", module.greedy.placement, *effort)]


def run_evaluate(run: Run) -> Summary:
    """The configured baselines alone."""
    methods = compare_baselines(run, run.baselines)
    if not methods:
        raise InputError("baseline: none is configured, or none can run on this system")
    methods.sort(key=lambda method: method.makespan_s)
    return run.finish(methods[0], methods[1:], {})


def _initial_weights(run: Run) -> Path | None:
    """Checkpoint to begin stage II or III from."""
    choice = run.cfg.stage.init_from
    if choice is None:
        return None
    if choice != "auto":
        return Path(choice)
    teacher = plain(run.cfg.stage.teacher)
    if run.cfg.stage.name == "rl_real":
        title, stage = "stage II", {"name": "rl_sim", "teacher": teacher, "init_from": "auto"}
        found = _find(run, ("rl_sim", "pipeline"), "reinforcement_key", reinforcement_key(run))
    else:
        title, stage = "stage I", {"name": "imitation", "teacher": teacher}
        found = _find(run, ("imitation",), "imitation_key", imitation_key(run))
    if found is None:
        cfg = _step(run.cfg, stage)
        found = run_directory(cfg, _method_name(cfg), run.problem.hash)
        run.say(f"{title} is needed first: it runs in {found}")
        execute(cfg, [], run.console, is_step=True)
    run.say(f"initial weights: {found / LAST}")
    return found / LAST


def _find(run: Run, stages: Sequence[str], name: str, key: str) -> Path | None:
    """A finished run of one of these stages whose summary has this key, on the run's seed."""
    for stage in stages:
        pattern = f"{stage}/*/*/*/seed={run.cfg.seed}-*/{SUMMARY_FILE}"
        for path in sorted(Path(run.cfg.output_dir).glob(pattern)):
            if _summary_of(path.parent).get(name) == key:
                return path.parent
    return None


def reinforcement_key(run: Run) -> str:
    """What stage II from stage I depends on; equal keys, equal weights."""
    parts = [imitation_key(run), plain(run.cfg.algorithm)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


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
    summary = run.summarise(counts(graph))
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
    "calibrate": run_calibrate,
    "rl_real": lambda run: run_rl_real(run, _initial_weights(run)),
}
