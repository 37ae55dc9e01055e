"""Run directories -> tables in markdown, CSV and LaTeX, figures, and one page to open in a browser.

    python src/report.py outputs/main_4dev [--out outputs/main_4dev/report]

Rows are averaged over seeds, with spread and n. Simulated and measured rows, queues, systems and
clusters are kept apart.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from doppler.errors import InputError
from doppler.report.writing import write_report


def main() -> int:
    """Collect, average, write, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("runs", nargs="+", type=Path, help="run directories, or folders of them")
    parser.add_argument("--out", type=Path, default=Path("outputs/report"), help="where to write")
    arguments = parser.parse_args()
    try:
        markdown = write_report(arguments.runs, arguments.out)
    except (InputError, OSError) as error:  # a file that is missing, or may not be written
        print(f"error: {error}", file=sys.stderr)
        return 1
    console = Console()
    console.print(
        Markdown(markdown) if console.is_terminal else markdown, soft_wrap=True, markup=False
    )
    print(f"written: {arguments.out}/report.html, table.md, table.csv, table.tex, figures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
