"""``python src/report.py DIRECTORY ...`` is ``doppler report DIRECTORY ...``."""

import sys

from doppler.cli import main

if __name__ == "__main__":
    sys.exit(main(["report", *sys.argv[1:]]))
