"""A run: a stage on a specification, in a directory."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from omegaconf import DictConfig
from rich.console import Console

from doppler.experiment.configuration import check_configuration
from doppler.experiment.directory import RunDirectory, Summary
from doppler.experiment.interleaved import show_rows
from doppler.experiment.log import logged
from doppler.experiment.publishing import Loggers, check_loggers
from doppler.experiment.specification import Specification, as_container, escaped, instantiated
from doppler.support.compute import Compute, computing
from doppler.support.errors import InputError, printable_lines
from doppler.support.stopping import going_on
from doppler.support.waiting import waiting
from doppler.system import Session, listening_to_agents


class Stage(ABC):
    """What a run does. Its file in conf/stage/ names the class and sets its options.

    Attributes:
        name: of the folder that holds its runs.
        unused: keys of the configuration that do not affect its results.
    """

    name: ClassVar[str]
    unused: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def run(self, run: "Run") -> Summary:
        """Do the work of the stage and return the summary that it has written."""

    def check(self, spec: Specification) -> None:
        """Raise an InputError if the configuration makes no sense, before anything begins."""
        spec.check()

    def needed(self, run: "Run") -> Iterator["Run"]:
        """Yield the runs of other stages that must be finished first, in order."""
        yield from ()

    def costs(self, cfg: DictConfig) -> Path | None:
        """The file of measured costs for the problem; None: costs are modelled."""
        return None if cfg.costs is None else Path(str(cfg.costs))

    def method(self, spec: Specification) -> str:
        """The name of the run's main method, as in the path of its directory."""
        return spec.policy_name

    def introduce(self, run: "Run") -> None:
        """Print what is run on what."""
        run.introduce()

    def check_left(self, directory: RunDirectory) -> None:
        """Raise an InputError if files are damaged from which this run or a later one starts."""
        if directory.is_finished:
            directory.summary()

    def show(self, run: "Run") -> None:
        """Print the results of a finished run."""
        show_rows(run.directory.path, run.console)


@dataclass(frozen=True, eq=False)
class Run:
    """A stage on a specification.

    Attributes:
        spec: the configuration and the problem.
        stage: what to do with them.
        console: where to print.
        is_step: whether it is a step of another run, which shows the results.
        home: its directory; None: the one that the configuration determines.
    """

    spec: Specification
    stage: Stage
    console: Console
    is_step: bool = False
    home: RunDirectory | None = None

    @cached_property
    def directory(self) -> RunDirectory:
        """Where its results are: ``run_dir``, or the path that the options determine."""
        if self.home is not None:
            return self.home
        spec, cfg = self.spec, self.spec.cfg
        unused = [key for key in self.stage.unused if key != spec.evaluations_option]
        identity = spec.hash(unused)
        if cfg.run_dir is not None:
            return RunDirectory(Path(str(cfg.run_dir)), identity)
        method = self.stage.method(spec)
        parts = (self.stage.name, cfg.workload.name, cfg.cluster.name, method)
        return RunDirectory(
            Path(str(cfg.output_dir), *map(str, parts), f"seed={cfg.seed}-{identity}"), identity
        )

    @cached_property
    def loggers(self) -> Loggers:
        """The configured loggers, which write into the run's directory."""
        chosen, settings = self.spec.cfg.get("logger") or {}, self.spec.settings()
        path = self.directory.path
        return Loggers(chosen, settings, path, self.namespace, is_step=self.is_step)

    @property
    def namespace(self) -> str:
        """Prefix of the curves of its own training in dashboards."""
        if self.stage.name == "imitation":
            return "stage_1"
        return "stage_3" if self.spec.is_measured else "stage_2"

    @property
    def is_finished(self) -> bool:
        """Whether its results exist and are to be kept."""
        return self.directory.is_finished and not self.spec.cfg.overwrite

    def say(self, text: str) -> None:
        """Print one line for the user, without highlighting numbers.

        Args:
            text: the line.
        """
        self.console.print(printable_lines(text), highlight=False, markup=False, soft_wrap=True)

    def open(self) -> Session:
        """Open a session of the system on the problem."""
        return self.spec.system.open(self.spec.problem)

    def step(self, stage: dict[str, Any], **changes: Any) -> "Run":
        """A run of another stage that this one needs, in its own directory.

        Args:
            stage: the key ``stage`` of its configuration.
            changes: of other top-level keys of the configuration.
        """
        # Resolved first, because values such as the size of a workload depend on this run's stage.
        settings = {**as_container(self.spec.cfg), "run_dir": None, "overwrite": False, **changes}
        cfg = DictConfig(escaped({**settings, "stage": stage}))
        return make_run(cfg, self.console, is_step=True)

    def part(self, name: str, spec: Specification | None = None) -> "Run":
        """A training that belongs to this run, in a folder of the run's directory.

        Args:
            name: of the folder.
            spec: what is run there; None: the run's own specification.
        """
        home = RunDirectory(self.directory.path / name, self.directory.identity)
        return Run(spec or self.spec, self.stage, self.console, is_step=True, home=home)

    def anew(self) -> "Run":
        """The same run, which ignores results in its directory."""
        cfg = DictConfig(escaped({**as_container(self.spec.cfg), "overwrite": True}))
        return make_run(cfg, self.console, is_step=self.is_step)

    def introduce(self) -> None:
        """Print what is run on what."""
        problem, cfg = self.spec.problem, self.spec.cfg
        graph = problem.graph
        self.say(
            f"{graph.name}: {graph.num_ops} ops, {graph.num_edges} edges on "
            f"{cfg.cluster.name}, {problem.num_devices} devices -> {self.directory.path}"
        )
        for note in graph.notes:
            self.say(note)
        is_measured = self.spec.is_measured
        if "preset" in cfg.workload and (is_measured or cfg.cluster.name == "host"):
            self.say(f"workload.preset: {cfg.workload.preset}")
        if is_measured:
            limit = f"{self.spec.evaluations_option}={self.spec.evaluations:,}"
            self.say(f"system: {self.spec.system.name}; a method executes within {limit}")
        if graph.given_costs is not None:
            self.say(
                f"{graph.name} comes with its own times: {graph.given_costs.replaced} of "
                f"{cfg.cluster.name} are not used"
            )
        if problem.costs is not None and not problem.has_given_costs:
            measured_VD = problem.is_measured()
            num_modelled = int((np.isfinite(problem.arrays.op_seconds) & ~measured_VD).any(1).sum())
            # A file that is named may come from anywhere; else the system made it.
            kind = "measured" if cfg.costs is not None else self.spec.system.kind
            self.say(
                f"{kind} costs of {self.spec.costs}: {graph.num_ops - num_modelled} ops, "
                f"{'all' if problem.costs.has_links else 'not all'} links; "
                f"{num_modelled} ops are modelled"
            )


@contextmanager
def mendable() -> Iterator[None]:
    """Add to an InputError about damaged files of a run how to make them again."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{error} (overwrite=true runs it again)") from None


def make_run(
    cfg: DictConfig, console: Console, overrides: Sequence[str] = (), *, is_step: bool = False
) -> Run:
    """Make the run that a configuration describes, without starting it.

    Args:
        cfg: the composed configuration.
        console: where to print.
        overrides: of the command line; all are checked.
        is_step: whether it is a step of another run.

    Raises:
        InputError: the configuration is wrong. Hydra's own errors may be raised too.
    """
    check_configuration(cfg, overrides)
    stage = instantiated(cfg.stage)
    return Run(Specification(cfg, costs=stage.costs(cfg)), stage, console, is_step)


def execute(
    cfg: DictConfig,
    overrides: Sequence[str],
    console: Console,
    compute: Compute | None = None,
    before: Callable[["Run"], None] | None = None,
) -> Summary:
    """Run a configuration after the runs that it needs; a finished run is only shown again.

    Args:
        cfg: the composed configuration.
        overrides: of the command line, as they are saved with the run.
        console: where to print.
        compute: replaces the configured `Compute`, which spreads jobs; used only if one is
            configured.
        before: called with each unfinished run before it begins.

    Returns:
        The summary of the run.

    Raises:
        InputError: one line that says what is wrong with the configuration or its files.
    """
    run = make_run(cfg, console, overrides)
    check_loggers(cfg.get("logger") or {})
    for each in _in_order(run, mends=bool(cfg.overwrite)):
        told = overrides if each is run else ()
        directory = each.directory
        with (
            directory.claimed(each.spec.cfg, told, wait=each.is_step),
            going_on(directory.going_on),
        ):
            already = directory.is_finished
            with mendable():
                if already:
                    directory.summary()
                else:
                    each.stage.check_left(directory)
            with each.loggers.closed():
                if not already:
                    with (
                        logged(directory.path, each.console),
                        listening_to_agents(directory.write_agents),
                        computing(each.spec.compute and (compute or each.spec.compute)),
                    ):
                        if before is not None:
                            before(each)
                        each.stage.introduce(each)
                        each.stage.run(each)
                if not each.is_step:
                    for line in each.loggers.publish(retell=already):
                        each.say(line)
        if already and not each.is_step:
            _tell_again(each)
    return run.directory.summary()


def _tell_again(run: Run) -> None:
    """Print the results of a run that was finished before."""
    path = run.directory.path
    run.say(f"{path} is finished already (overwrite=true runs it again)")
    with mendable():
        try:
            run.stage.show(run)
        except (KeyError, TypeError, ValueError) as error:
            what = str(error) if isinstance(error, InputError) else repr(error)
            raise InputError(f"{path}: damaged ({what})") from None


def _in_order(run: Run, *, mends: bool) -> Iterator[Run]:
    """Yield the runs that a run needs, recursively, and then the run itself.

    Args:
        run: the last one.
        mends: whether a needed run with damaged files is run again.
    """
    with waiting(run.say, "building the problem"):
        run.stage.check(run.spec)
    for needed in run.stage.needed(run):
        try:
            with mendable():
                needed.stage.check_left(needed.directory)
        except InputError as error:
            if not mends:
                raise
            run.say(f"made anew: {error}")
            needed = needed.anew()
        if not needed.is_finished:
            run.say(f"stage={needed.stage.name} is needed first: {needed.directory.path}")
            yield from _in_order(needed, mends=mends)
    with waiting(run.say, "building the problem"):
        run.spec.check()
    yield run
