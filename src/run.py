"""``python src/run.py OPTION=VALUE ...`` is ``doppler run OPTION=VALUE ...``."""

import sys

from doppler.experiment.main import run
from doppler.support.commands import carried_out, end_process

if __name__ == "__main__":
    end_process(lambda: carried_out(run, sys.argv[1:]))
