"""The log file of a run: console output, all warnings, and the error that ended it."""

import logging
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, ConsoleRenderable, RenderHook
from rich.control import Control

from doppler.support.errors import InputError
from doppler.support.files import open_to_append
from doppler.support.stopping import Stopped

LOG_FILE = "run.log"
_WIDTH = 140  # of tables, the same as in a pipe


class _Copies(RenderHook):
    """Copies console output to a file, without the control codes of progress bars."""

    def __init__(self, file: TextIO) -> None:
        self.console = Console(file=file, width=_WIDTH, no_color=True, highlight=False)

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        shown = [each for each in renderables if not isinstance(each, Control)]
        if shown:
            with suppress(OSError):  # a full disk: the next file of results reports it
                self.console.print(*shown, soft_wrap=True)
        return renderables


@contextmanager
def _log(path: Path) -> Iterator[TextIO]:
    file = open_to_append(path)
    try:
        with suppress(OSError):
            file.write(f"-- {datetime.now().astimezone().isoformat(timespec='seconds')}\n")
        yield file
    finally:
        with suppress(OSError):
            file.close()


def _last_words(error: BaseException) -> str:
    if isinstance(error, Stopped):
        return f"{error.line}\n"
    return f"error: {error}\n" if isinstance(error, InputError) else traceback.format_exc()


@contextmanager
def logged(directory: Path, console: Console) -> Iterator[None]:
    """Append console output, all warnings and a final error to ``run.log``.

    Args:
        directory: of the run; it must exist.
        console: of the run.
    """
    with _log(directory / LOG_FILE) as file:
        handler = logging.StreamHandler(file)
        handler.setLevel(logging.WARNING)
        logging.getLogger().addHandler(handler)
        show = warnings.showwarning

        def copy_warning(message: Any, category: Any, filename: str, lineno: int, *rest: Any):
            with suppress(OSError):
                file.write(warnings.formatwarning(message, category, filename, lineno))
            show(message, category, filename, lineno, *rest)

        console.push_render_hook(_Copies(file))
        warnings.showwarning = copy_warning
        try:
            yield
        except BaseException as error:
            with suppress(OSError):
                file.write(_last_words(error))
            raise
        finally:
            warnings.showwarning = show
            console.pop_render_hook()
            logging.getLogger().removeHandler(handler)
