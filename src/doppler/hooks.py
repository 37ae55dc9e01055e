"""Hooks: the places where extensions, and packages of other people, add to Doppler.

An extension in ``doppler/extensions`` implements hooks in its ``plugin.py``. Another package does
so in a module that its metadata names in the entry point group ``doppler``::

    [project.entry-points.doppler]
    my_package = "my_package.doppler_plugin"

A plugin module imports little at its top, because every command loads it. Its functions import what
they need when they are called.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy

from doppler.support.errors import InputError

_NAME = "doppler"
_specification = pluggy.HookspecMarker(_NAME)
implements = pluggy.HookimplMarker(_NAME)
"""Marks a function of a plugin as the implementation of the hook of its name."""


class Hooks:
    """All hooks. A plugin implements any of them, with any subset of the arguments.

    Types are named in docstrings and not imported: this module is below all others.
    """

    @_specification
    def config_folders(self) -> Sequence[Path]:
        """Folders laid out like conf/, whose choices are added to its groups."""
        return ()

    @_specification
    def resolvers(self) -> Mapping[str, Callable[..., Any]]:
        """Functions that a configuration may call as ``${name:argument}``."""
        return {}

    @_specification
    def graph_readers(self) -> Sequence[Any]:
        """Readers of graph files.

        Returns:
            `doppler.graph.formats.GraphReader` objects.
        """
        return ()

    @_specification(firstresult=True)
    def adapt_search(self, steps: Sequence[Any], problem: Any) -> Sequence[Any] | None:
        """Add steps to a search that its problem asks for.

        Args:
            steps: `doppler.search.SearchStep` objects, in their order.
            problem: the `doppler.problem.Problem`.

        Returns:
            The steps; None: they stay as they are.
        """

    @_specification
    def steps_to_compile(self) -> Sequence[Any]:
        """Search steps whose compiled code ``doppler warm`` makes ready.

        Returns:
            `doppler.search.SearchStep` objects.
        """
        return ()

    @_specification(firstresult=True)
    def run_process(self, arguments: Sequence[str]) -> int | None:
        """Use this process for something else than a run, if it was started for that.

        Args:
            arguments: of the command line.

        Returns:
            The exit code of the process; None if the run goes on.
        """

    @_specification
    def leave_artifacts(self, run: Any, trace: Any, title: str) -> Any:
        """Write further files of a finished run into its directory.

        Args:
            run: the `doppler.experiment.run.Run`.
            trace: the `doppler.trace.Trace` of its best placement.
            title: of pictures.

        Returns:
            A `doppler.experiment.artifacts.Artifact`, or None.
        """

    @_specification
    def report_tables(self, runs: Sequence[Any]) -> Sequence[Any]:
        """Make further tables of a report.

        Args:
            runs: `doppler.report.finished.FinishedRun` objects.

        Returns:
            `doppler.report.text_table.TextTable` objects.
        """
        return ()


@cache
def plugins() -> pluggy.PluginManager:
    """All plugins that are installed: the extensions first, by name, then other packages'.

    Raises:
        InputError: another package's plugin cannot be imported, or implements no hook of ours.
    """
    manager = pluggy.PluginManager(_NAME)
    manager.add_hookspecs(Hooks)
    for module in _extensions():
        manager.register(module, name=module.__name__)
    for point in entry_points(group=_NAME):
        try:
            manager.register(point.load(), name=point.value)
            manager.check_pending()
        except Exception as error:  # a module may raise anything when it is imported
            reason = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
            raise InputError(
                f"plug-in {point.name} ({point.value}): {type(error).__name__}: {reason}"
            ) from error
    return manager


def contributed(hook: str, **arguments: Any) -> list[Any]:
    """What all plugins return for a hook, those that were loaded first come first.

    Args:
        hook: a name of `Hooks`.
        arguments: of the hook.
    """
    return list(reversed(getattr(plugins().hook, hook)(**arguments)))


def extension(name: str, needed_for: str) -> Any:
    """A module of an extension.

    Args:
        name: below ``doppler.extensions``, with dots.
        needed_for: what asks for it, for the message.

    Raises:
        InputError: the extension is not installed.
    """
    full_name = f"doppler.extensions.{name}"
    try:
        return import_module(full_name)
    except ModuleNotFoundError as error:
        if error.name is None or not full_name.startswith(error.name):
            raise
        raise InputError(
            f"{needed_for} needs the extension doppler.extensions.{name.partition('.')[0]}, which "
            "is not installed"
        ) from None


def _extensions() -> list[ModuleType]:
    """The plugin modules of the extensions; none where only the core is installed."""
    folder = Path(__file__).with_name("extensions")
    return [_loaded(path) for path in sorted(folder.glob("*/plugin.py"))]


def _loaded(path: Path) -> ModuleType:
    """A plugin module, loaded by its path: to import its package would import the extension."""
    spec = spec_from_file_location(f"doppler_plugin_{path.parent.name}", path)
    assert spec is not None and spec.loader is not None, "the path is that of a Python file"
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
