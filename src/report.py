"""``python src/report.py DIRECTORY ...`` is ``doppler report DIRECTORY ...``."""

import sys

from doppler.cli import program

if __name__ == "__main__":
    program(["report", *sys.argv[1:]])
