"""Searches without learning on the real system; finished ones are saved and not repeated."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.utils import instantiate

from doppler.experiment.comparison import found_by, is_pointless
from doppler.experiment.judging import Method
from doppler.experiment.run import Run
from doppler.experiment.specification import Specification, as_container, short_hash
from doppler.graph.formats import write_atomically
from doppler.problem import Placement
from doppler.support.errors import InputError
from doppler.support.files import read_json
from doppler.support.files.values import read_integer, read_number, read_text
from doppler.support.waiting import waiting

FOLDER = "controls"  # in the run's directory


def search_measured(run: Run, evaluations: int) -> list[Method]:
    """Run each baseline of ``stage.measured`` on the run's system.

    Results that an interrupted run has saved with the same settings are read instead of searched
    again.

    Args:
        run: gives system, problem and configuration.
        evaluations: executions that each search may use.
    """
    found, allowed = [], int(run.spec.cfg.budget.measured_evaluations)
    for key, settings in as_container(run.spec.cfg.stage.measured).items():
        conf, name = {**settings, "evaluations": evaluations}, f"{key} measured"
        baseline = instantiate(conf, _convert_="all")
        if is_pointless(run.spec, baseline):
            run.say(
                f"{name} is left out: it searches for an order of ops, which this system ignores"
            )
            continue
        path = run.directory.path / FOLDER / f"{key}.json"
        method = _kept(path, run.spec, name, conf)
        if method is None:
            run.say(f"{name}: {evaluations:,} executions")
            with waiting(run.say, f"{name} searches"):
                method = found_by(run.spec, baseline, name, conf)
            _keep(path, method)
        else:
            run.say(f"{name}: searched already")
        # Stage III does not use equally many executions for each seed, and seeds are averaged.
        nominal = {**settings, "evaluations": allowed}
        found.append(replace(method, settings=nominal, budget=allowed))
    return found


def _keep(path: Path, method: Method) -> None:
    placement = method.placement
    kept = {
        "settings": short_hash(method.settings),
        "problem": placement.problem_hash,
        "device": placement.device.tolist(),
        "priority": placement.priority.tolist(),
        "makespan_s": method.makespan_s,
        "uses_order": method.uses_order,
        "evaluations": method.evaluations,
        "wall_s": method.wall_s,
        "source": method.source,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(kept) + "\n")


def _kept(path: Path, spec: Specification, name: str, settings: Any) -> Method | None:
    """Read what `_keep` wrote; None if it is missing, damaged, or of another search."""
    try:
        kept = read_json(path)
        if kept["settings"] != short_hash(settings) or kept["problem"] != spec.problem.hash:
            return None
        return Method(
            name=name,
            settings=settings,
            placement=Placement.make(spec.problem, kept["device"], kept["priority"]),
            makespan_s=read_number(kept["makespan_s"], "makespan_s"),
            uses_order=bool(kept["uses_order"]),
            evaluations=read_integer(kept["evaluations"], "evaluations"),
            wall_s=read_number(kept["wall_s"], "wall_s"),
            source=read_text(kept["source"], "source"),
        )
    except (InputError, KeyError, TypeError, OverflowError):
        return None  # it is searched again
