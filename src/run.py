"""``python src/run.py OPTION=VALUE ...`` is ``doppler run OPTION=VALUE ...``."""

import sys

from doppler.cli import main

if __name__ == "__main__":
    sys.exit(main(["run", *sys.argv[1:]]))
