"""Run directories -> one table in markdown, CSV and LaTeX.

    python src/report.py outputs/evaluate outputs/pipeline [--out outputs/report]

Rows are averaged over seeds, with spread and n. Simulated and measured rows, queues, systems and
clusters are kept apart.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from doppler.errors import InputError
from doppler.graph.formats import write_atomically
from doppler.reporting.report import collect, summarise, to_csv, to_latex, to_markdown


def main() -> int:
    """Collect, average, write, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("runs", nargs="+", type=Path, help="run directories, or folders of them")
    parser.add_argument("--out", type=Path, default=Path("outputs/report"), help="where to write")
    arguments = parser.parse_args()
    try:
        table = summarise(collect(arguments.runs))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    markdown = to_markdown(table)
    write_atomically(arguments.out / "table.md", markdown)
    write_atomically(arguments.out / "table.csv", to_csv(table))
    write_atomically(arguments.out / "table.tex", to_latex(table))
    console = Console()
    console.print(Markdown(markdown) if console.is_terminal else markdown, soft_wrap=True)
    print(f"written: {arguments.out}/table.md, table.csv, table.tex")
    return 0


if __name__ == "__main__":
    sys.exit(main())
