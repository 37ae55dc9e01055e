"""``python src/run.py OPTION=VALUE ...`` is ``doppler run OPTION=VALUE ...``."""

import sys

from doppler.cli import program

if __name__ == "__main__":
    program(["run", *sys.argv[1:]])
