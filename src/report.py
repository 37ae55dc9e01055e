"""Run directories -> tables, figures, report.html: ``python src/report.py DIR [--out DIR]``."""

import sys

from doppler.report.page import main

if __name__ == "__main__":
    sys.exit(main())
