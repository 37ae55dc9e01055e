"""The command ``doppler reproduce``: run every table of the paper, and compare it with the paper.

    doppler reproduce                       # everything: days on two cores
    doppler reproduce budget=quick seed=0   # a smaller budget and one seed, for a first look

Every step is a sweep of conf/experiment, run by its own ``doppler run -m``. After each, the page is
written anew from all that is finished. The same command continues where it was interrupted.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table

from doppler.graph.formats import write_atomically
from doppler.report.aggregate import frame_of, summarise
from doppler.report.claims import Claim, claims_of, claims_table
from doppler.report.finished import find_runs
from doppler.report.rows import SUMMARY_FILE
from doppler.support.errors import InputError
from doppler.support.stopping import unhurried

FOLDER = Path("outputs/reproduce")
# Words of `doppler run` that this command sets itself.
_OWN = ("experiment=", "output_dir=")
# What the first step compares, without waiting for other seeds, slow methods and the other system.
_FIRST = (
    "system=work_conserving",
    "method=paper_controls,doppler_unaided,doppler,gdp_unaided",
    "seed=0",
)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One sweep.

    Attributes:
        experiment: its choice in conf/experiment.
        claims: numbers of the claims that it tests, or what else it shows.
        budget: unless the command line names another.
        words: further words, which the command line does not change.
    """

    experiment: str
    claims: str
    budget: str = "paper"
    words: tuple[str, ...] = ()


# The first verdicts come first; the slowest models, which encode at every step, come last.
PLAN = (
    Step(experiment="paper", claims="2", words=_FIRST),
    Step(experiment="wc_vs_sync", claims="4"),
    Step(experiment="ablation/policies", claims="5"),
    Step(experiment="ablation/stages", claims="6"),
    Step(experiment="paper", claims="1, 2, 3, 8"),
    Step(experiment="main_8dev", claims="9"),
    Step(experiment="fewer_devices", claims="9"),
    Step(experiment="memory_limits", claims="9"),
    Step(experiment="transfer", claims="10"),
    Step(experiment="transfer_machines", claims="10"),
    Step(experiment="main_host", budget="default", claims="1, 6, measured"),
    Step(experiment="fidelity", budget="default", claims="the simulator's fidelity"),
    Step(experiment="ablation/stages_host", budget="default", claims="the stages, measured"),
    Step(experiment="scaling", budget="default", claims="time and memory by size"),
    Step(experiment="training_curves", claims="learning curves"),
    Step(experiment="ablation/message_passing", claims="7"),
)


def reproduce(arguments: Sequence[str]) -> int:
    """Run the plan; write claims.md and claims.csv after each step.

    Args:
        arguments: options of ``doppler run`` for every step, such as ``seed=0``.

    Returns:
        The exit code: 0; 1 if a run failed; that of an interrupted run. While no run at all has
        succeeded, the first failing step ends the command.

    Raises:
        InputError: an option is one that the plan sets, or not an option.
    """
    for word in arguments:
        if word.startswith(_OWN) or "=" not in word or word.startswith("-"):
            raise InputError(
                f"reproduce: takes options of doppler run such as seed=0, got {word!r}; the plan "
                "sets experiment and output_dir"
            )
    console = Console(markup=False, emoji=False, highlight=False)
    failed = []
    for number, step in enumerate(PLAN, 1):
        console.print(
            f"step {number} of {len(PLAN)}: experiment={step.experiment} (claim {step.claims})"
        )
        code = subprocess.run(_command(step, arguments)).returncode
        if code > 1 or code < 0:  # ended by a signal; what is finished stays
            return code if code > 0 else 128 - code
        if code:
            failed.append(step.experiment)
        finished = finished_tables(Path("outputs"))
        if code and not finished:  # most likely a mistyped option, which fails in every step
            print(
                f"error: no run of {step.experiment} succeeded; nothing else runs", file=sys.stderr
            )
            return 1
        claims = claims_of(finished)
        with unhurried():
            write_page(claims, FOLDER)
        console.print(listed(claims))
    console.print(f"written: {FOLDER}/claims.md, claims.csv")
    if failed:
        names = ", ".join(dict.fromkeys(failed))
        print(f"error: runs failed in {names}; the same command repeats them", file=sys.stderr)
    return int(bool(failed))


def _command(step: Step, arguments: Sequence[str]) -> list[str]:
    """The command line of a step; a later word replaces an earlier one of the same option."""
    words = {"budget": f"budget={step.budget}"}
    for word in (*arguments, *step.words):
        words[word.partition("=")[0]] = word
    program = (sys.executable, "-m", "doppler", "run", "-m", f"experiment={step.experiment}")
    return [*program, *words.values()]


def finished_tables(outputs: Path) -> dict[str, pd.DataFrame]:
    """Return summaries of what is finished, by the name of the experiment.

    Args:
        outputs: folder with a folder for each experiment.

    Raises:
        InputError: two simulated runs of the same seed and settings disagree.
    """
    found = {}
    for name in dict.fromkeys(step.experiment for step in PLAN):
        folder = outputs / name.replace("/", "_")
        if next(folder.rglob(SUMMARY_FILE), None):
            runs = [run for run in find_runs([folder])[0] if run.rows]
            if runs:
                found[name] = _by_budget(frame_of(runs))
    return found


def _by_budget(rows: pd.DataFrame) -> pd.DataFrame:
    """Summaries of the rows of each budget. A claim compares methods of one budget."""
    parts = rows.groupby("run_budget", sort=False)
    return pd.concat([summarise(part).assign(run_budget=budget) for budget, part in parts])


def write_page(claims: Sequence[Claim], folder: Path) -> None:
    """Write claims.md, the verdicts, and claims.csv, every comparison.

    Args:
        claims: with results.
        folder: where to write.
    """
    text = f"# The paper's claims\n\n{verdicts(claims)}\n{_RULE}"
    write_atomically(folder / "claims.md", text)
    write_atomically(folder / "claims.csv", claims_table(claims).to_csv(index=False))


def verdicts(claims: Sequence[Claim]) -> str:
    """Return the table of verdicts in Markdown.

    Args:
        claims: with results.
    """
    lines = [
        f"| | claim | ratio | paper | {' | '.join(_HEADS.values())} |",
        "|--:|---|---|---|---|---|---|---|",
    ]
    for number, claim in enumerate(claims, 1):
        cells = (claim.text, claim.quantity, claim.paper, *map(claim.verdict, _HEADS))
        lines.append(f"| {number} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def listed(claims: Sequence[Claim]) -> Table:
    """Return the verdicts for a terminal, which is too narrow for the columns of `verdicts`.

    Args:
        claims: with results.
    """
    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right")
    for number, claim in enumerate(claims, 1):
        told = {head: claim.verdict(rules) for rules, head in _HEADS.items()}
        lines = [f"{head:<16}  {verdict}" for head, verdict in told.items() if verdict != "-"]
        grid.add_row(str(number), "\n".join([claim.text, *lines]))
    return grid


_HEADS: Mapping[str, str] = {
    "paper's": "paper's rules",
    "equal": "equal executions",
    "search": "with search",
    "measured": "measured here",
}

_RULE = """
**How to read a cell.** *Partly: 5 of 8 agree, 2 level, 1 against; 0.83* compares eight settings. A
*setting* is one workload on one machine and one simulator. It *agrees* if our ratio and the paper's
are both below 1, or both above. It is *against* if one is below and the other above. It is *level*
if ours or the paper's is too close to 1 to tell. Ours counts as below or above 1 if its whole 95%
interval is; with one seed, and for the paper's numbers, if it differs from 1 by at least 1%.
*Yes*: all agree. *No*: none agrees, or more are against than agree. The last number is the
geometric mean of our ratios (of tau, the mean). *Needs*: no verdict yet, because these methods, or
this whole experiment, were not run. *-*: the claim is not tested under the rules of this column.

**The columns.** *Paper's rules*: the critical path heuristic is the best of 50 runs, and learned
methods have no search. *Equal executions*: all methods have the same number. *With search*: learned
methods spend half of theirs on this project's search. *Measured here*: executed on this machine's
own devices, which are not the paper's GPUs. All other numbers are simulated. Every comparison is a
row of claims.csv.
"""
