"""The one exception that means "the user's input is at fault"."""


class InputError(ValueError):
    """Bad input: its message is one line that names what is wrong and where.

    The command line prints the message and exits with code 1. Any other exception is a defect of
    ours and keeps its traceback.
    """
