"""``python -m doppler``: the command line where the script ``doppler`` is not on the path."""

from doppler.cli import program

if __name__ == "__main__":
    program()
