"""stage=rl_real: trains on measured seconds (stage III), then compares all methods in turns."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from omegaconf import DictConfig, OmegaConf

from doppler.baselines import Baseline
from doppler.executor import Cuda, ExecutorSession, Threads
from doppler.executor.devices import Use
from doppler.executor.quiet import OtherLoad
from doppler.experiment.calibrate import Calibrate, costs_path, is_calibrated
from doppler.experiment.checking import check_part
from doppler.experiment.comparison import compare_baselines, found_by
from doppler.experiment.configuration import Algorithm
from doppler.experiment.directory import RunDirectory, Summary
from doppler.experiment.disagreement import disagreements
from doppler.experiment.gpu_state import warn_of_gpus
from doppler.experiment.imitation import imitate
from doppler.experiment.interleaved import (
    TIGHT,
    Contender,
    executions,
    leave_measured,
    measure_interleaved,
    show_beside,
)
from doppler.experiment.judging import Method
from doppler.experiment.learned_rows import trainer_settings, training_speed
from doppler.experiment.measured_controls import search_measured
from doppler.experiment.policy_training import LearningBudget, check_policy, check_training_left
from doppler.experiment.results import leave
from doppler.experiment.run import Run, Stage
from doppler.experiment.specification import AUTO, IMITATION, Specification, as_container
from doppler.experiment.train import SETTLING, Learner
from doppler.experiment.trust import check_machine, disturbed
from doppler.graph.formats import write_atomically
from doppler.report.rows import ResultRow, format_seconds
from doppler.search import NO_PLACEMENT, ScoredPlacement, seeded_generator
from doppler.simulator import BulkSynchronous
from doppler.support.errors import InputError
from doppler.support.files import read_json
from doppler.support.files.values import read_integer
from doppler.support.options import Batch, FilePath, at_least
from doppler.support.waiting import duration, waiting
from doppler.system import Refuse
from doppler.training import LAST, Reinforcement, found_of

# How long to execute before reading GPU use: drivers average over up to the last second.
USE_S = 2.0
SIMULATED = "rl_sim"  # the folder of stage II in the run's directory
CHOICE_FILE = "choice.json"  # which candidate of stage III is the fastest
# For the estimate of how long a run takes: rows besides baselines and searches (three of stage III,
# two synchronous), candidates to choose from, ops that a policy places and learns from per second,
# and the factor by which a search is longer than its executions.
_COMPARED, _CANDIDATES, _OPS_PER_S, _OVERHEAD = 5, 3, 50_000, 1.25


@dataclass(frozen=True, eq=False)
class Learned:
    """The outcome of stage III before its fastest placement is known.

    Attributes:
        module: the finished training.
        candidates: placements to choose from, by name.
        evaluations: executions on the real system.
    """

    module: Reinforcement
    candidates: dict[str, ScoredPlacement]
    evaluations: int


@dataclass(frozen=True, kw_only=True)
class RealReinforcement(Stage):
    """Stages I and II in the calibrated simulator, stage III on the real system, and controls.

    Baselines search in the calibrated simulator, and some on the real system with as many
    evaluations as stage III. The placement of stage III and one other are also executed
    synchronously, in levels with barriers.

    Attributes:
        teacher: of stage I.
        calibration: the stage that measures missing costs.
        algorithm: settings of stage III that differ from the key ``algorithm``, which holds those
            of stages I and II.
        measured: the baselines that search on the real system, by name.
        synchronous: baseline that searches, in the synchronous simulator, for a placement that
            suits levels and barriers.
        choosing: maximum executions of each candidate (stage III's best and greedy placement, stage
            II's best) to choose between them. They are not used for anything else.
        repeats: maximum executions of each method's placement at the end, in turns. Fewer are made
            once all ratios are known to half a percent.
        init_from: auto: stages I and II make the first weights; imitation: stage I makes them;
            None: the initial weights of the seed; else the path of a checkpoint, or ``pretrained``.
    """

    teacher: Baseline
    calibration: Calibrate
    algorithm: Mapping[str, Any]
    measured: Mapping[str, Baseline]
    synchronous: Baseline
    choosing: Annotated[Batch, at_least(2)]
    repeats: Annotated[Batch, at_least(2)]
    init_from: FilePath | None = AUTO
    name: ClassVar[str] = "rl_real"

    def check(self, spec: Specification) -> None:
        if not isinstance(spec.memory, Refuse):
            raise InputError("memory: stage=rl_real supports only memory=refuse")
        check_policy(spec, None if self._is_made_here else self.init_from)
        _real_budget(spec).check(spec, _algorithm(spec.cfg))
        modelled = replace(spec, costs=None)  # measured costs may not exist yet
        if self.init_from == AUTO:
            simulated = modelled.on(modelled.simulator)
            _simulated_budget(simulated).check(simulated, spec.cfg.algorithm)
        modelled.check()
        self.calibration.check(modelled)

    def costs(self, cfg: DictConfig) -> Path:
        """The file of measured costs: a real system is simulated with costs measured on it.

        Args:
            cfg: the configuration.
        """
        return costs_path(cfg)

    def needed(self, run: Run) -> Iterator[Run]:
        """Yield the calibration run, which all seeds share.

        Args:
            run: that needs it.
        """
        cfg, path = run.spec.cfg, costs_path(run.spec.cfg)
        if is_calibrated(path, replace(run.spec, costs=None).problem):
            run.say(f"{run.spec.system.kind} costs: {path}")
        else:
            settings = as_container(cfg.stage.calibration)
            gone = run.step(settings, seed=0).is_finished  # what it measured is
            yield run.step(settings, seed=0, overwrite=gone)

    def check_left(self, directory: RunDirectory) -> None:
        super().check_left(directory)
        parts = [IMITATION, SIMULATED, f"{SIMULATED}/{SETTLING}", SETTLING]
        check_training_left(directory, parts)

    def run(self, run: Run) -> Summary:
        """Run stages I to III and the controls, then execute all placements in turns."""
        warn_of_gpus(run)
        spec, machine = run.spec, check_machine(run)
        self._tell_duration(run, machine.execution_s)
        init_from = self._learn_in_simulator(run)
        learned = self._learn(run, init_from)
        rng = seeded_generator(spec.seed, "turns")
        final, chose = self._choose(run, learned, rng)
        learned = replace(learned, evaluations=learned.evaluations + chose)
        methods = _methods(run, learned, final)
        others = compare_baselines(spec.on(spec.simulator), run.say)
        others += search_measured(run, learned.evaluations)
        contenders = [
            *(Contender(spec, method) for method in [*methods, *others]),
            *self._synchronous(spec, methods[0]),
        ]
        load = OtherLoad()
        most = f"at most {self.repeats} times"
        with waiting(run.say, f"executing {len(contenders)} placements {most}"):
            seconds_MR = measure_interleaved(contenders, self.repeats, rng, tight=TIGHT)
        doubt = machine.doubt or disturbed(run, load)
        fits_M = np.asarray(np.isfinite(seconds_MR).all(axis=1))
        if not fits_M[0]:
            raise InputError(f"{methods[0].name}: its placement does not fit in memory")
        contenders = [one for one, fits in zip(contenders, fits_M, strict=True) if fits]
        rows, ratios = leave_measured(
            run.directory.path, spec, contenders, seconds_MR[fits_M], doubt
        )
        otherwise = disagreements(spec, contenders, ratios)
        run.say(
            f"the simulator ranks {otherwise} placements differently than stage III's executions"
        )
        rows[0] = replace(rows[0], disagreements=otherwise)
        rows, used = _with_use(run, [one for one in contenders if one.spec is spec], rows)
        summary = leave(
            run,
            [one.method for one in contenders if one.spec is spec],
            rows,
            {
                "init_from": str(init_from) if init_from else None,
                "costs": str(spec.costs),
                "doubt": doubt,
                "final_is": final,
                "repeats": seconds_MR.shape[1],
                "std": float(seconds_MR[0].std()),
                "measured_evaluations": learned.evaluations,
                **training_speed(learned.module),
                "paired": {one.other: [one.ratio, one.low, one.high] for one in ratios},
                "disagreements": otherwise,
                "gpus": used,
            },
        )
        if not run.is_step:
            show_beside(run.directory.path, run.console)
        return summary

    def _choose(self, run: Run, learned: Learned, rng: np.random.Generator) -> tuple[str, int]:
        """Execute the candidates in turns; return the fastest one's name and the executions made.

        The choice is saved, so that an interrupted run goes on with the same number of evaluations.
        """
        path, names = run.directory.path / CHOICE_FILE, list(learned.candidates)
        with suppress(InputError, KeyError, TypeError):  # missing or damaged: choose again
            kept = read_json(path)
            if kept["final"] in names:
                return kept["final"], read_integer(kept["evaluations"], "evaluations")
        candidates = [Contender(run.spec, one) for one in _methods(run, learned, names[0])]
        chances_MR = measure_interleaved(candidates, self.choosing, rng, tight=TIGHT)
        final = candidates[int(np.median(chances_MR, axis=1).argmin())].method.name
        chose = executions(candidates, chances_MR)
        write_atomically(path, json.dumps({"final": final, "evaluations": chose}) + "\n")
        return final, chose

    def _tell_duration(self, run: Run, execution_s: float) -> None:
        """Estimate how long the run takes, from executions measured a moment ago."""
        if not np.isfinite(execution_s):
            return
        spec, searches = run.spec, len(as_container(run.spec.cfg.stage.measured))
        measured = int(spec.cfg.budget.measured_evaluations)
        placements = len(spec.baselines) + searches + _COMPARED
        rounds = self.repeats * placements + self.choosing * _CANDIDATES
        episodes = int(spec.cfg.budget.imitation_episodes) + spec.evaluations_simulated // 2
        simulated_s = episodes * spec.problem.num_ops / _OPS_PER_S if self._is_made_here else 0.0
        total_s = (measured * (1 + searches) + rounds) * execution_s * _OVERHEAD + simulated_s
        run.say(
            f"this takes {duration(total_s)}: {measured:,} executions of about "
            f"{format_seconds(execution_s)} for stage III, as many for each of {searches} searches "
            f"that learn nothing, and up to {self.repeats} rounds of about {placements} placements"
        )

    def show(self, run: Run) -> None:
        super().show(run)
        show_beside(run.directory.path, run.console)

    @property
    def _is_made_here(self) -> bool:
        """Whether this run trains the weights that stage III starts from."""
        return self.init_from in (AUTO, IMITATION)

    def _learn_in_simulator(self, run: Run) -> str | Path | None:
        """Run stages I and II as far as ``init_from`` asks; return the weights for stage III."""
        if not self._is_made_here:
            return self.init_from
        spec = run.spec.on(run.spec.simulator)
        stage_one = run.part(IMITATION, spec)
        imitate(stage_one, self.teacher)
        weights = stage_one.directory.path / LAST
        if self.init_from == IMITATION:
            return weights
        stage_two = run.part(SIMULATED, spec)
        learner = Learner(
            title="stage II, simulated",
            algorithm=spec.cfg.algorithm,
            budget=_simulated_budget(spec),
            init_from=weights,
        )
        with stage_two.open() as session:
            learner.search(stage_two, learner.train(stage_two, session))
        return stage_two.directory.path / LAST

    def _learn(self, run: Run, init_from: str | Path | None) -> Learned:
        """Train on the real system; candidates are its best and greedy placements, and stage II's.

        If nothing is trained there is no greedy candidate, because stage II's best is at least as
        good.
        """
        spec = run.spec
        learner = Learner(
            title="stage III, measured",
            algorithm=_algorithm(spec.cfg),
            budget=_real_budget(spec),
            init_from=init_from,
            stream=" measured",
        )
        with run.open() as session:
            module = learner.train(run, session)
            learner.search(run, module)
        name, problem = spec.policy_name, module.problem
        assert problem.best.placement is not None, "one was found, or the run has ended"
        candidates = {name: problem.best}
        if problem.greedy.placement is not None:  # something was trained
            candidates[f"{name} greedy"] = problem.greedy
        before = NO_PLACEMENT if init_from is None else found_of(init_from, spec.problem)
        if before.placement is not None:
            stage = "I" if self.init_from == IMITATION else "II"
            candidates[f"{name} stage {stage}"] = before
        return Learned(module, candidates, problem.evaluator.evaluations)

    def _synchronous(self, spec: Specification, final: Method) -> list[Contender]:
        """The synchronous alternatives on the same devices, if the executor has them.

        One uses the final placement, the other a placement found by searching the synchronous
        simulator.
        """
        system = spec.system
        if not isinstance(system, Threads | Cuda):
            return []
        if isinstance(system, Cuda) and system.replays_graphs():
            # Barriers are issued op by op, which alone takes longer than a replayed CUDA graph.
            return []
        barriers: tuple[Any, Any] = system.synchronous(), BulkSynchronous()
        synchronous, simulated = map(spec.on, barriers)
        settings = as_container(spec.cfg.stage.synchronous)
        name = "synchronous, its own placement"
        own = found_by(simulated, self.synchronous, name, settings)
        same = replace(final, name="synchronous, same placement", uses_order=False)
        return [Contender(synchronous, method) for method in (same, own)]


def _algorithm(cfg: DictConfig) -> DictConfig:
    """The settings of stages I and II, overridden by those of stage III.

    Raises:
        InputError: a setting does not exist or has a wrong value.
    """
    known = deepcopy(cfg.algorithm)
    OmegaConf.set_struct(known, False)
    known.merge_with(cfg.stage.algorithm)
    check_part("stage.algorithm", Algorithm, as_container(known))
    return known


def _real_budget(spec: Specification) -> LearningBudget:
    return LearningBudget(
        evaluations=int(spec.cfg.budget.measured_evaluations),
        option="budget.measured_evaluations",
        includes_teacher=False,
    )


def _simulated_budget(spec: Specification) -> LearningBudget:
    return LearningBudget(
        evaluations=spec.evaluations, option=spec.evaluations_option, includes_teacher=True
    )


def _methods(run: Run, learned: Learned, final: str) -> list[Method]:
    """The candidates as methods; the final one gets the policy's name."""
    spec, module = run.spec, learned.module
    name, inherited = spec.policy_name, learned.module.inherited
    settings = [as_container(spec.cfg[key]) for key in ("policy", "algorithm", "search")]
    settings += [{**as_container(spec.cfg.stage), "init_from": spec.origin}, trainer_settings(spec)]
    if spec.origin in (AUTO, IMITATION):  # stages I and II are part of the method
        settings += [spec.cfg.budget.imitation_episodes, spec.cfg.budget.evaluations]
    methods = []
    for label, found in {**learned.candidates, name: learned.candidates[final]}.items():
        assert found.placement is not None, "candidates are placements"
        is_earlier = label.startswith(f"{name} stage ")
        own = 0 if is_earlier else learned.evaluations
        allowed = inherited.evaluations + int(spec.cfg.budget.measured_evaluations)
        methods.append(
            Method(
                name=label,
                settings=settings,
                placement=found.placement,
                makespan_s=module.problem.evaluator.seconds,
                source=found.source,
                uses_order=True,
                evaluations=inherited.evaluations + own,
                budget=0 if is_earlier else allowed,
                wall_s=inherited.seconds if is_earlier else module.elapsed_s,
            )
        )
    return methods


def _with_use(
    run: Run, contenders: list[Contender], rows: list[ResultRow]
) -> tuple[list[ResultRow], dict[str, Any]]:
    """Add the GPU use during executions to the rows; also return that of the first row, by GPU."""
    if not isinstance(run.spec.system, Cuda):
        return rows, {}
    with run.open() as session:
        assert isinstance(session, ExecutorSession)
        uses = [session.use(one.method.placement, USE_S) for one in contenders]
    for gpu, busy, memory_bytes, energy_j in uses[0]:
        energy = "" if energy_j is None else f", {energy_j:.3g} J an execution"
        run.say(
            f"{gpu}: busy {busy:.0%} of the time, {memory_bytes / 1e9:.2f} GB in use{energy} (NVML)"
        )
    told = {one.gpu: one._asdict() for one in uses[0]}
    return [_row_with(row, use) for row, use in zip(rows, uses, strict=True)], told


def _row_with(row: ResultRow, use: list[Use]) -> ResultRow:
    """The row with the use of all GPUs together."""
    if not use:
        return row
    energy = [one.energy_j for one in use if one.energy_j is not None]
    joules = float(np.sum(energy)) if energy else np.nan
    return replace(row, gpu_busy=float(np.mean([one.busy for one in use])), energy_j=joules)
