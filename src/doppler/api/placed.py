"""Placed: a placement with everything known about it, and ways to inspect it."""

import base64
import html
import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doppler.api.clusters import simulator_of
from doppler.api.memory_modes import REFUSE, memory_mode
from doppler.baselines import LowerBound, lower_bound
from doppler.cluster.json_format import load_cluster, save_cluster
from doppler.graph import DataflowGraph, load_graph, save_json
from doppler.graph.formats import write_atomically
from doppler.hooks import extension
from doppler.problem import Placement, Problem, build
from doppler.report.modules import module_lines, module_parts
from doppler.report.relations import relation_lines
from doppler.report.rows import format_seconds, gap_over
from doppler.simulator import BulkSynchronous, Published, WorkConserving
from doppler.support.errors import InputError, printable
from doppler.support.files import read_json
from doppler.support.files.values import (
    fault,
    read_integer,
    read_list,
    read_number,
    read_object,
    read_text,
)
from doppler.system import System
from doppler.trace import Trace, explain, save_gantt, save_perfetto
from doppler.trace.usage import bytes_text

if TYPE_CHECKING:
    from torch import nn
    from torch.export import ExportedProgram

    from doppler.extensions.memory import MemoryPlan
    from doppler.extensions.modules import Binding

# The tensors of a torch module, if one was placed.
MODULE_FILE = "module.pt"
# Fields of found.json about the search.
_FOUND = ("makespan_s", "single_device_s", "method", "evaluations", "seconds", "phases")
_TEXTS = ("whole", "by_bytes", "cut_short")
# Fields of found.json that may be null.
_OPTIONAL = ("limit_s", "beaten_s")
# Fields that older files lack.
_LATER = ("memory", "memory_options", "system", "placed_on", "by_bytes", *_OPTIONAL)
# The share by which a call may exceed its limit before that is worth a word.
_OVERRUN = 0.1
# Simulators that are saved, by name, with what the caller chose.
_SIMULATORS: dict[str, tuple[type, tuple[str, ...]]] = {
    WorkConserving.name: (WorkConserving, ("queue", "contention", "streams", "noise")),
    Published.name: (Published, ("queue", "streams", "noise")),
    BulkSynchronous.name: (BulkSynchronous, ("noise",)),
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Placed:
    """A model or graph on a machine: which device runs each op, and in which order.

    Attributes:
        problem: the graph on the machine.
        placement: device and priority of each op.
        system: what it was placed for.
        makespan_s: seconds of one execution on that system, or on ``placed_on``.
        bound: a makespan that no placement of this graph can beat.
        single_device_s: makespan on one device without splits; inf if it does not fit.
        method: what searched.
        evaluations: executions that the search used.
        seconds: wall time of the whole call.
        limit_s: what was asked for it, compilation not included; None: no limit.
        beaten_s: makespan of the best placement that the search found, if the whole model on one
            device is faster and is therefore the placement.
        phases: wall time of its parts, by name.
        cut_short: what was left out for lack of time, a line each.
        whole: ops of a torch module that are not split, a line each.
        by_bytes: ops that are priced by their bytes only, a line each.
        binding: how the module's tensors correspond to those of the graph; None for a graph.
        placed_on: what executed the placement, if it was loaded and ``system`` is only a simulator
            in its place, for trace, memory and explanation; else empty.
    """

    problem: Problem
    placement: Placement
    system: System
    makespan_s: float
    bound: LowerBound
    single_device_s: float
    method: str
    evaluations: int
    seconds: float
    limit_s: float | None = None
    beaten_s: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    cut_short: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    by_bytes: tuple[str, ...] = ()
    binding: "Binding | None" = None
    placed_on: str = ""

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C ended the search."""
        return "interrupted" in self.cut_short

    @property
    def lower_bound_s(self) -> float:
        """Seconds that no placement of this graph can beat."""
        return self.bound.seconds

    @property
    def speed_up(self) -> float:
        """How many times faster than one device; inf if one device has too little memory."""
        return 1.0 + gap_over(self.makespan_s, self.single_device_s)

    @cached_property
    def trace(self) -> Trace:
        """All events of one execution."""
        with self.system.open(self.problem) as session:
            return session.trace(self.placement)

    @property
    def memory_bytes(self) -> dict[str, float]:
        """Largest memory in use on each device, by the name of the device."""
        devices = self.problem.cluster.devices
        return {
            device.name: float(peak)
            for device, peak in zip(devices, self.trace.peak_bytes, strict=True)
        }

    @property
    def offloaded_bytes(self) -> float:
        """Bytes that are held in host memory because device memory is too small."""
        memory = self.trace.memory
        return 0.0 if memory is None else memory.offloaded_bytes

    @property
    def plan(self) -> "MemoryPlan | None":
        """The memory plan that keeps within the limits; None with ``memory="refuse"``."""
        opened: Any = self.system.open(self.problem)
        with opened as session:
            return session.plan(self.placement) if _memory_of(self.system) != REFUSE else None

    def explain(self) -> str:
        """Say why an execution takes as long as it does.

        Returns:
            Lines about the critical chain of ops, and about busy devices and links. For a torch
            module also seconds, bytes and parameters by submodule, and how its tensors are split.
        """
        lines = explain(self.trace).lines()
        lines += [f"not split: {line}" for line in self.whole]
        lines += [f"priced by bytes only: {line}" for line in self.by_bytes]
        if self.binding is not None:
            graph, device_V = self.problem.graph, self.placement.device
            op_s_V = self.trace.op_finish_s - self.trace.op_start_s
            for table in (
                module_lines(module_parts(graph, op_s_V, device_V)),
                relation_lines(graph),
            ):
                lines += ["", *table] if table else []
        return "\n".join(map(printable, lines))

    def device_map(self, *, nearest: bool = False) -> dict[str, int]:
        """Return the device of each submodule in the format of accelerate.

        A warning says why if the map has one device, but the placement several.

        Args:
            nearest: put a module whose ops are on several devices on the one with most of it, if a
                map cannot divide it. The result is another placement, with another makespan.

        Raises:
            InputError: the placement divides a module that a map cannot divide, or it is not one of
                a torch module.
        """
        if self.binding is None:
            raise InputError("device_map: no torch module was placed")
        modules = extension("modules.device_maps", "device_map")
        return modules.device_map(self.problem.graph, self.placement, self.binding, nearest=nearest)

    def save(self, directory: str | Path) -> Path:
        """Write the placement, graph, trace, picture and explanation to a directory for `load`.

        Parameters of a module are saved, too.

        Args:
            directory: is created if it does not exist.

        Returns:
            The directory.
        """
        directory = Path(directory)
        self.placement.save(directory / "placement.json", {"makespan_s": self.makespan_s})
        save_json(self.problem.graph, directory / "graph.json")
        save_perfetto(self.trace, directory / "trace.json")
        save_gantt(self.trace, directory / "schedule.png", title=self._title)
        write_atomically(directory / "explanation.txt", self.explain() + "\n")
        write_atomically(directory / "placed.json", json.dumps(dict(self._rows), indent=1) + "\n")
        found = {key: getattr(self, key) for key in (*_FOUND, *_TEXTS, *_OPTIONAL)}
        if self.single_device_s == float("inf"):
            found["single_device_s"] = None
        memory, name = _memory_of(self.system), self.system.name
        if memory != REFUSE:
            found["memory"] = memory
            found["memory_options"] = asdict(self.system.memory_mode)  # type: ignore[attr-defined]
        if self.system.kind == "simulated" and name in _SIMULATORS:
            rules = {key: getattr(self.system, key) for key in _SIMULATORS[name][1]}
            found["system"] = {"name": name, **rules}
        else:
            found["placed_on"] = f"{self.system.kind} by {name}"
        if self.placed_on:
            found["placed_on"] = self.placed_on
        write_atomically(directory / "found.json", json.dumps(found, indent=1) + "\n")
        save_cluster(self.problem.cluster, directory)
        (directory / MODULE_FILE).unlink(missing_ok=True)  # of another placement
        if self.binding is not None:
            modules = extension("modules.saving_bindings", "a torch module")
            modules.save_binding(self.binding, directory)
        return directory

    @classmethod
    def load(
        cls,
        directory: str | Path,
        *,
        module: "nn.Module | ExportedProgram | None" = None,
        trust: bool = False,
    ) -> "Placed":
        """Read what `save` wrote.

        A simulator has the rules that it had. A placement that another system executed keeps the
        seconds that it took there, and says so; trace, memory and explanation then come from the
        default simulator of its machine.

        Args:
            directory: that `save` wrote to.
            module: the torch module that was placed, whose parameters then are those of the
                placement. Needed to execute what was saved without values, as by ``doppler place``.
            trust: allow your own classes among the module's inputs and outputs; their modules are
                imported.

        Raises:
            InputError: a file is missing, damaged, or belongs to another placement; or the module
                does not compute what was placed.
        """
        directory = Path(directory)
        path = directory / "found.json"
        try:
            found = read_object(read_json(path), "", (*_FOUND, *_TEXTS), _LATER)
            _check_found(found)
            texts = {key: tuple(read_list(found.pop(key, []), key, read_text)) for key in _TEXTS}
            mode: Any = memory_mode(read_text(found.pop("memory", REFUSE), "memory"))
            if "memory_options" in found:
                names = [one.name for one in fields(mode)]
                mode = replace(mode, **read_object(found.pop("memory_options"), "memory", names))
            told: Any = None
            if "system" in found:
                told = mode.applied(_simulator(found.pop("system")))
            read_text(found.get("placed_on", ""), "placed_on")
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        if found["single_device_s"] is None:
            found["single_device_s"] = float("inf")
        problem = build(load_graph(directory / "graph.json"), load_cluster(directory))
        system = told or simulator_of(problem.cluster, mode)
        return cls(
            problem=problem,
            placement=Placement.load(directory / "placement.json", problem),
            system=system,
            bound=lower_bound(
                problem, streams=system.streams, shares=getattr(system, "shares", False)
            ),
            binding=_load_binding(directory, problem.graph, module, trust=trust),
            **texts,
            **found,
        )

    @property
    def _title(self) -> str:
        graph, cluster = self.problem.graph, self.problem.cluster
        return f"{graph.name} on {cluster.name} ({cluster.num_devices} devices)"

    @property
    def _executed_text(self) -> str:
        if self.placed_on:
            return f"{self.placed_on} when it was placed"
        return self.system.kind

    @property
    def _phases_text(self) -> str:
        parts = [f"{name} {seconds:.1f}" for name, seconds in self.phases.items()]
        return "; ".join([", ".join(parts), *self.cut_short])

    @property
    def _effort_text(self) -> str:
        """What the search used, and by how much it went beyond the limit."""
        text = f"{self.method}: {self.evaluations:,} executions in {self.seconds:.1f} s"
        limit_s, counted_s = self.limit_s, self.seconds - self.phases.get("compile", 0.0)
        if limit_s is None or counted_s <= (1.0 + _OVERRUN) * limit_s:
            return text
        return f"{text} (asked for: {limit_s:g} s)"

    @property
    def _memory_text(self) -> str:
        peaks = self.trace.peak_bytes.tolist()
        if any(peak != peak for peak in peaks):
            return "not counted by this system"
        return ", ".join(map(bytes_text, peaks))

    @property
    def _one_device_text(self) -> str:
        if self.single_device_s == float("inf"):
            return "has too little memory"
        if self.beaten_s is None:
            told = _compared(self.speed_up)
        else:
            told = "used, because the best that the search found takes "
            told += format_seconds(self.beaten_s)
        return f"{format_seconds(self.single_device_s)} ({told})"

    @cached_property
    def _rows(self) -> list[tuple[str, str]]:
        graph = self.problem.graph
        gap = gap_over(self.lower_bound_s, self.makespan_s)
        bound = f"{format_seconds(self.lower_bound_s)} ({self.bound.name})"
        return [
            ("ops", f"{graph.num_ops:,}, {graph.num_edges:,} edges"),
            ("makespan", f"{format_seconds(self.makespan_s)}, {self._executed_text}"),
            (
                "lower bound",
                f"{bound}, gap {gap:.1%}",
            ),
            ("one device", self._one_device_text),
            ("memory", self._memory_text),
            *(
                [("offloaded", f"{bytes_text(self.offloaded_bytes)} to the memory of the host")]
                if self.offloaded_bytes
                else []
            ),
            ("found by", self._effort_text),
            *([("seconds", self._phases_text)] if self.phases else []),
        ]

    def __repr__(self) -> str:
        width = max(len(key) for key, _ in self._rows)
        return "\n".join(
            [
                printable(line)
                for line in (
                    self._title,
                    *(f"  {key:<{width}}  {value}" for key, value in self._rows),
                )
            ]
        )

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the table of `repr`, and the schedule."""
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "schedule.png"
            save_gantt(self.trace, path, title=self._title)
            picture = base64.b64encode(path.read_bytes()).decode()
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(key)}</th>"
            f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
            for key, value in self._rows
        )
        return (
            f"<b>{html.escape(self._title)}</b><table>{rows}</table>"
            f"<img alt='schedule' style='max-width:100%' src='data:image/png;base64,{picture}'>"
        )


def _memory_of(system: System) -> str:
    """The name of a system's memory mode."""
    return getattr(system, "memory", REFUSE)


def _simulator(entry: object) -> System:
    """A simulator as `Placed.save` writes it; files from before other simulators have no name."""
    name = WorkConserving.name
    if isinstance(entry, dict):
        entry = dict(entry)
        name = read_text(entry.pop("name", name), "system.name")
    if name not in _SIMULATORS:
        raise fault("system.name", f"one of {', '.join(_SIMULATORS)}", name)
    make, keys = _SIMULATORS[name]
    return make(**read_object(entry, "system", keys))


def _check_found(found: dict[str, Any]) -> None:
    """Raise an InputError for impossible values in found.json."""
    read_text(found["method"], "method")
    if read_integer(found["evaluations"], "evaluations") < 0:
        raise fault("evaluations", "a number that is not negative", found["evaluations"])
    if not isinstance(found["phases"], dict):
        raise fault("phases", "an object", found["phases"])
    times = {f"phases.{name}": seconds for name, seconds in found["phases"].items()}
    times |= {key: found[key] for key in ("makespan_s", "seconds")}
    for key in ("single_device_s", *_OPTIONAL):  # None: too little memory; or see `Placed`
        if found.get(key) is not None:
            times[key] = found[key]
    for where, seconds in times.items():
        if read_number(seconds, where) < 0:
            raise fault(where, "seconds", seconds)


def _load_binding(
    directory: Path,
    graph: DataflowGraph,
    module: "nn.Module | ExportedProgram | None",
    *,
    trust: bool,
) -> "Binding | None":
    if not (directory / MODULE_FILE).exists():
        if module is not None:
            raise InputError(f"{directory}: no torch module was placed, so it takes none")
        return None
    modules = extension("modules.saving_bindings", "a torch module")
    return modules.load_binding(directory, graph, module=module, trust=trust)


def _compared(speed_up: float) -> str:
    """Say how much faster or slower a placement is than one device."""
    if speed_up >= 1.0:
        return f"{speed_up:.2f} times faster"
    slower = 1.0 / speed_up if speed_up > 0.0 else float("inf")
    return f"{slower:.2f} times slower: use one device, as method=auto with decomposition=auto does"
