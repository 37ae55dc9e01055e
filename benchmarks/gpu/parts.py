"""What the parts of `make gpu` are; torch is loaded only where one is executed."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).resolve().parents[2]
NUM_DEVICES = 4


class Settings(NamedTuple):
    """executor: cuda, or threads. small: as quickly as may be. runs: where run directories go."""

    executor: str
    small: bool
    runs: Path | None

    @property
    def num_devices(self) -> int:
        """Devices of a problem, on however many GPUs."""
        return 2 if self.small else NUM_DEVICES


class Figure(NamedTuple):
    """A cell of a part's table."""

    row: str
    column: str
    value: float | str

    def __str__(self) -> str:
        return f"{self.row}, {self.column}: {said(self.value)}"


class Fault(NamedTuple):
    """Something that is wrong, in one line."""

    line: str

    def __str__(self) -> str:
        return f"WRONG: {self.line}"

    @classmethod
    def of(cls, error: BaseException, where: str = "") -> "Fault":
        """What an error says first."""
        lines = str(error).strip().splitlines() or [""]
        text = f"{type(error).__name__}: {lines[0]}"
        return cls(f"{where}: {text}" if where else text)


def said(value: float | str) -> str:
    """A number as people read it."""
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


class Cells:
    """The figures of a part by row and column."""

    def __init__(self, figures: Sequence[Figure]) -> None:
        self.rows = list(dict.fromkeys(one.row for one in figures))
        self.columns = list(dict.fromkeys(one.column for one in figures))
        self._values = {(one.row, one.column): one.value for one in figures}

    def __call__(self, row: str, column: str) -> str:
        """The text of a cell; a dash where nothing is known."""
        return said(self._values.get((row, column), "-"))

    def numbers(self, column: str) -> dict[str, float]:
        """By row, where there is one."""
        found = {row: self._values.get((row, column)) for row in self.rows}
        return {row: one for row, one in found.items() if isinstance(one, int | float)}

    def __len__(self) -> int:
        return len(self._values)


class Part(NamedTuple):
    """One thing to find out.

    limit_s: of its process; it may also use what earlier parts left over, and all limits together
    stay below 8 minutes. needs: modules, beside those of `EXECUTING`. where: module and function
    that yields Figures and Faults. words: what the figures say.
    """

    name: str
    title: str
    limit_s: int
    where: tuple[str, str]
    words: Callable[[Cells], str]
    needs: tuple[str, ...] = ()
    needs_on_gpus: tuple[str, ...] = ()

    def function(self) -> Callable[[Settings], Iterator[Figure | Fault]]:
        """Load it."""
        module, name = self.where
        return getattr(import_module(f"benchmarks.gpu.{module}"), name)


def _results(cells: Cells) -> str:
    worst = max(max(cells.numbers(one).values(), default=0.0) for one in cells.columns)
    return (
        f"{len(cells)} pairs of a workload and a system computed what plain torch does, and their "
        f"traces passed the checks; the largest error was {worst:.2f} of what is tolerated."
    )


def _chain(unit: str) -> Callable[[Cells], str]:
    """What an op of a chain that changes the device at every op costs in each mode."""

    def told(cells: Cells) -> str:
        modes = [f"{cells('chain', one)} {unit} {one}" for one in cells.columns]
        return f"An op of a chain that changes the device at every op costs {', '.join(modes)}."

    return told


def _agents(cells: Cells) -> str:
    told = [
        f"{row} by {cells(row, 'way')}: {cells(row, 'ms a message')} ms a message "
        f"({cells(row, 'messages')} messages)"
        for row in cells.rows
    ]
    return f"Two agents computed what plain torch does; {'; '.join(told)}."


def _whole_runs(cells: Cells) -> str:
    """For each number of devices the fastest way, and its time over that of torch."""
    controls = [one for one in cells.columns if "torch" in one]

    def ratios(way: str, control: str) -> list[float]:
        over, under = cells.numbers(way), cells.numbers(control)
        return sorted(over[row] / under[row] for row in over if row in under)

    told = []
    for where in ("one device", "dealt out"):
        ways = {
            way: ratios(way, controls[0])
            for way in cells.columns
            if way.startswith(f"{where}, ") and cells.numbers(way)
        }
        best = min(ways, key=lambda way: statistics.median(ways[way]))
        shares = [
            f"{statistics.median(found):.2f} ({found[0]:.2f} to {found[-1]:.2f}) of {control}"
            for control in controls
            if (found := ratios(best, control))
        ]
        told.append(f"{best}, takes {' and '.join(shares)}")
    return f"The fastest ways, as medians and ranges over workloads: {'; '.join(told)}."


def _machine(cells: Cells) -> str:
    default, tf32 = (cells(f"f32 product{how}, TFLOP/s", "rate") for how in ("", " in TF32"))
    return (
        f"Products of f32 matrices run at {default} TFLOP/s as torch does them by default, at "
        f"{tf32} in TF32, for which the presets of A100 and H100 price them."
    )


def _use(cells: Cells) -> str:
    busy = [f"{row} is busy {cells(row, 'busy, %')}% of the time" for row in cells.rows]
    return f"While one placement is executed over and over, {', '.join(busy)}."


def _calibrate(cells: Cells) -> str:
    told = [
        f"with {row} Spearman is {cells(row, 'Spearman')}, the mean error "
        f"{cells(row, 'mean error, %')}%"
        for row in cells.numbers("Spearman")
    ]
    return f"Simulated against measured seconds: {'; '.join(told)}."


def _stage_three(cells: Cells) -> str:
    ratios = cells.numbers("stage III's seconds over its")
    other = max(ratios, key=ratios.__getitem__)
    return (
        f"Stage III's placement takes {cells('stage III', 'ms')} ms, {said(ratios[other])} times "
        f"what {other} takes, the fastest of the others (95%: {cells(other, '95% interval')})."
    )


EXECUTING = ("torch", "numpy", "numba", "scipy", "networkx", "lark")
STAGES = ("hydra", "omegaconf", "antlr4", "rich", "pytorch_lightning", "torch_geometric")
PICTURES = ("matplotlib",)  # which run directories have

PARTS = (
    Part(
        "results",
        "results against plain torch, over what is tolerated",
        70,
        ("executing", "results"),
        _results,
    ),
    Part("overhead", "microseconds per op", 30, ("executing", "overhead"), _chain("us")),
    Part("graphs", "milliseconds per op, CUDA graphs", 20, ("executing", "graphs"), _chain("ms")),
    Part("whole_runs", "milliseconds per run", 115, ("executing", "whole_runs"), _whole_runs),
    Part("agents", "two agents, and what a message costs", 40, ("agents", "agents"), _agents),
    Part("machine", "what a device can do", 12, ("executing", "machine"), _machine),
    Part(
        "use",
        "how busy GPUs are (NVML)",
        15,
        ("executing", "use"),
        _use,
        needs_on_gpus=("pynvml",),
    ),
    Part(
        "calibrate",
        "calibration and fidelity",
        65,
        ("stages", "calibrate"),
        _calibrate,
        needs=(*STAGES, *PICTURES),
    ),
    Part(
        "stage_three",
        "stage III on measured seconds",
        105,
        ("stages", "stage_three"),
        _stage_three,
        needs=(*STAGES, *PICTURES),
    ),
)
