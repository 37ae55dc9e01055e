"""stage=stream: plays a stream of inputs to an allocator, which learns while it chooses models."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from doppler.experiment.directory import Summary
from doppler.experiment.results import identity
from doppler.experiment.run import Run, Stage
from doppler.experiment.specification import Specification
from doppler.extensions.programs.streams import (
    WHICH,
    Allocator,
    Always,
    AnyStream,
    BestFixed,
    Hindsight,
    LabelledStream,
    Oracle,
    Played,
    Stream,
    StreamGraph,
    check_fits,
    has_few_choices,
    play,
)
from doppler.graph.formats import write_atomically
from doppler.report.rows import plain_table
from doppler.search import seeded_generator
from doppler.support.errors import InputError
from doppler.support.waiting import waiting

PLAYED_FILE, CONTROLS_FILE = "stream.csv", "controls.csv"


@dataclass(frozen=True, kw_only=True)
class StreamStage(Stage):
    """Play a stream once, input by input.

    Attributes:
        allocator: chooses the backends.
        order: order of the inputs; ``by_group`` plays subject after subject, or class after class.
    """

    allocator: Allocator | Hindsight
    order: Literal["random", "by_group", "as_recorded"] = "random"
    name: ClassVar[str] = "stream"
    unused: ClassVar[tuple[str, ...]] = (
        *("policy", "algorithm", "search", "trainer", "baseline", "budget"),
        *("system", "cluster"),
    )

    def method(self, spec: Specification) -> str:
        """Return the name of the allocator.

        Args:
            spec: of the run.
        """
        return self.allocator.name

    def check(self, spec: Specification) -> None:
        check_fits(stream_of(spec), self.allocator)
        super().check(spec)

    def introduce(self, run: Run) -> None:
        stream = stream_of(run.spec)
        run.say(
            f"{run.spec.problem.graph.name}: {len(stream):,} inputs, {stream.num_modules} modules, "
            f"backends {', '.join(stream.backends)} -> {run.directory.path}"
        )

    def run(self, run: Run) -> Summary:
        stream, directory = stream_of(run.spec), run.directory.path
        order_N = stream.in_order(self.order, seeded_generator(run.spec.seed, "order"))
        with waiting(run.say, f"{self.allocator.name} plays {len(stream):,} inputs"):
            rng = seeded_generator(run.spec.seed, self.allocator.name)
            played = play(stream, order_N, self.allocator, rng)
        told = controls(stream, order_N, played)
        write_atomically(directory / PLAYED_FILE, _played_csv(played))
        write_atomically(directory / CONTROLS_FILE, _controls_csv(told))
        summary = {
            **identity(run),
            "method": self.allocator.name,
            "num_inputs": len(stream),
            "order": self.order,
            "accuracy": played.accuracy,
            "cost": played.mean_cost,
            "shares": _shares(stream, played),
            "controls": told,
        }
        run.directory.write_summary(summary)
        self._tell(run, summary)
        return summary

    def show(self, run: Run) -> None:
        self._tell(run, run.directory.summary())

    def _tell(self, run: Run, summary: Mapping[str, Any]) -> None:
        title = f"{run.spec.problem.graph.name}, {summary['num_inputs']:,} inputs, seed "
        table = plain_table(
            f"{title}{summary['seed']}, order {summary['order']}",
            ("method",),
            ("accuracy", "cost"),
            note="random mixture and oracle: at the same cost",
        )
        table.add_row(summary["method"], f"{summary['accuracy']:.4f}", f"{summary['cost']:.4f}")
        for name, one in summary["controls"].items():
            table.add_row(name, f"{one['accuracy']:.4f}", f"{one['cost']:.4f}")
        run.console.print(table)


def stream_of(spec: Specification) -> AnyStream:
    """Return the stream of the workload.

    Args:
        spec: of the run.

    Raises:
        InputError: the workload is not a stream.
    """
    graph = spec.problem.graph
    if not isinstance(graph, StreamGraph):
        raise InputError(
            f"workload={spec.cfg.workload.name}: is a graph, not a stream such as workload=answers"
        )
    return graph.stream


def controls(stream: AnyStream, order_N: Any, played: Played) -> dict[str, dict[str, float]]:
    """Play the controls on the same inputs: they do not learn, or they know all outcomes.

    Args:
        stream: that was played.
        order_N: order of its inputs.
        played: result of the allocator; a control that can choose its cost gets the same cost.

    Returns:
        Accuracy and mean cost by name of the control.
    """
    if isinstance(stream, LabelledStream):
        right = float((stream.expert == stream.label).mean())
        return {"expert": {"accuracy": right, "cost": float(stream.cost[-1])}}
    assert isinstance(stream, Stream)
    rng = np.random.default_rng(0)
    small, large = (play(stream, order_N, Always(which=one), rng) for one in WHICH)
    told = {
        "always_small": {"accuracy": small.accuracy, "cost": small.mean_cost},
        "always_large": {"accuracy": large.accuracy, "cost": large.mean_cost},
    }
    share = _share(played.mean_cost, small.mean_cost, large.mean_cost)
    mixed = mixture_accuracy(stream, share)
    told["random_mixture"] = {"accuracy": mixed, "cost": played.mean_cost}
    if not has_few_choices(stream):
        return told  # the others try all combinations
    dearest = float(stream.cost.max())
    most = played.mean_cost / dearest if dearest > 0 else 1.0
    knowing: list[Any] = [BestFixed(), Oracle(share=min(1.0, most))]
    for one in knowing:
        known = play(stream, order_N, one, rng)
        told[one.name] = {"accuracy": known.accuracy, "cost": known.mean_cost}
    return told


def mixture_accuracy(stream: Stream, share: float) -> float:
    """Return the expected accuracy of `RandomMixture`.

    Args:
        stream: that is played.
        share: of the inputs that go to the dearest backend.
    """
    small, large = int(stream.cost.argmin()), int(stream.cost.argmax())
    mixed_NM = (1.0 - share) * stream.right[:, :, small] + share * stream.right[:, :, large]
    return float(stream.joined(mixed_NM).mean())


def _shares(stream: AnyStream, played: Played) -> dict[str, float]:
    """Return the share of each backend, or level, in all choices."""
    counts = np.bincount(played.choice.ravel(), minlength=len(stream.backends))
    return dict(zip(stream.backends, (counts / played.choice.size).tolist(), strict=True))


def _share(cost: float, least: float, most: float) -> float:
    return float(np.clip((cost - least) / (most - least), 0.0, 1.0)) if most > least else 0.0


def _played_csv(played: Played) -> str:
    choices = ["+".join(map(str, choice_M)) for choice_M in played.choice.tolist()]
    columns = (played.order.tolist(), choices, played.right.tolist(), played.cost.tolist())
    return _csv(("input", "choice", "right", "cost"), list(zip(*columns, strict=True)))


def _controls_csv(told: Mapping[str, Mapping[str, float]]) -> str:
    rows = [(name, one["accuracy"], one["cost"]) for name, one in told.items()]
    return _csv(("method", "accuracy", "cost"), rows)


def _csv(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue()
