"""docs/results/gpu.md: what it says, then a small table per part."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from benchmarks.gpu.parts import Cells, Fault, Figure, Part


class Outcome(NamedTuple):
    """What came of a part. problem: why it is not right or not whole, None if it is."""

    part: Part
    found: Sequence[Figure | Fault]
    problem: str | None
    seconds: float

    @property
    def cells(self) -> Cells:
        """Its figures."""
        return Cells([one for one in self.found if isinstance(one, Figure)])

    @property
    def faults(self) -> list[str]:
        """What it found to be wrong."""
        return [one.line for one in self.found if isinstance(one, Fault)]


_WORDS = """\
*Dispatched*: the host starts each op when it is ready. *Issued ahead*: the host puts all ops on
streams, which wait for each other on the GPU. *Replayed*, or *as graphs*: such an order was
captured as a CUDA graph and is started as a whole. *By the host's clock*: including the time that
the host takes, where other figures are by the GPU's clock. *Dealt out*: the ops take turns on the
devices, which are streams if there is one GPU. *Tolerated*: the difference from plain torch that
the test allows for the data type."""


def page(facts: Mapping[str, str], outcomes: Sequence[Outcome], seconds: float) -> str:
    """The whole page, of the parts that have ended."""
    failed = [one.part.name for one in outcomes if one.problem or one.faults]
    answer = f"All {len(outcomes)} parts ran to their end and found no error."
    if failed:
        answer = f"Something is wrong or not whole in {', '.join(failed)}."
    lines = ["# What works on a GPU, and what does it cost?", "", answer, ""]
    lines += [f"- {_words(one)}" for one in outcomes]
    lines += ["", _WORDS]
    for one in outcomes:
        if len(one.cells):
            lines += ["", f"### {one.part.name}: {one.part.title}", "", *_table(one.cells)]
    lines += ["", "## Run it again", "", "    make gpu", ""]
    lines.append(f"- date: {datetime.now(UTC):%Y-%m-%d}")
    lines += [f"- {key}: {value}" for key, value in facts.items()]
    lines.append(f"- took: {seconds:.0f} s")
    return "\n".join(lines) + "\n"


def _words(outcome: Outcome) -> str:
    words = [f"{outcome.part.name} ({outcome.seconds:.0f} s):"]
    if outcome.problem:
        words.append(f"**{outcome.problem}**.")
    words += [f"Wrong: {line}." for line in outcome.faults]
    if len(outcome.cells):
        try:
            words.append(outcome.part.words(outcome.cells))
        except (KeyError, ValueError):  # it was ended before it came to that
            words.append("what it found first is in the table.")
    return " ".join(words)


def _table(cells: Cells) -> list[str]:
    lines = [f"| | {' | '.join(cells.columns)} |", f"| --- |{' ---: |' * len(cells.columns)}"]
    for row in cells.rows:
        lines.append(f"| {row} | {' | '.join(cells(row, column) for column in cells.columns)} |")
    return lines
