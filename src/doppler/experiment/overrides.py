"""Rewrites the words of a command line into a form that Hydra 1.3 accepts."""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override
from hydra.errors import HydraException

from doppler.experiment.resolvers import choice_of_file
from doppler.support.errors import InputError
from doppler.support.files.described import build_described
from doppler.support.resources import resource

# Flags of Hydra that are followed by a value, which is no override even if it contains "=".
_WITH_VALUE = (
    *("--config-dir", "-cd", "--config-path", "-cp", "--config-name", "-cn"),
    *("--package", "-p", "--cfg", "-c", "--info", "-i"),
)
_GRAPHS = "workload.path"  # may name a folder
_CLUSTER, _YAML = "cluster", (".yaml", ".yml")
# KEY=VALUE with the dotted name of an option, unlike the groups in baseline@stage.teacher=heft.
# A function such as choice(1,2) is for sweepers, whose results show the key as it is given.
_OPTION = re.compile(r"(?!hydra\.)\w+(\.\w+)+=(?!\w+\()")


def hydra_arguments(arguments: Sequence[str]) -> list[str]:
    """Rewrite a command line into a form that Hydra accepts.

    * ``-m`` goes first. Hydra rejects overrides that stand behind it (its issue 3053).
    * A folder as ``workload.path`` becomes a sweep over the graphs in it.
    * Each override is rewritten by `quoted`.

    Args:
        arguments: the words of the command line, without the program.

    Raises:
        InputError: the choice of a group is not a name, a folder contains no graphs, or a run is to
            be loaded from a pickle file, which could execute arbitrary code.
    """
    if any(word.startswith("--e") for word in arguments):
        raise InputError("--experimental-rerun: no such option; the same command goes on")
    flags = [argument for argument in arguments if argument in ("-m", "--multirun")]
    words = [argument for argument in arguments if argument not in flags]
    if any(map(names_folder, words)):
        flags = ["-m"]
    rewritten, before = flags[:1], ""
    for word in words:
        is_override = "=" in word and not word.startswith("-") and before not in _WITH_VALUE
        rewritten.append(quoted(word) if is_override else word)
        before = word
    return rewritten


def quoted(word: str) -> str:
    """Rewrite one override into a form that Hydra accepts.

    * ``stage.teacher=NAME`` chooses from a group, which Hydra writes
      ``baseline@stage.teacher=NAME``.
    * An option gets ``++``, because the files of conf/ list only the options that they set. Unknown
      options are refused later, by the signatures of the configured classes. For the same reason an
      option may belong to only some choices of a group that is swept.
    * ``cluster=FILE.yaml`` becomes a choice of the group.
    * Values outside Hydra's grammar, such as many paths, are quoted. Commas still separate the
      values of a sweep.

    Args:
        word: ``KEY=VALUE``.

    Raises:
        InputError: as in `hydra_arguments`.
    """
    if word.startswith("stage.teacher="):
        word = f"baseline@{word}"
    elif _OPTION.match(word):
        word = f"++{word}"
    key, _, value = word.partition("=")
    if key == _CLUSTER and any(path.endswith(_YAML) for path in value.split(",")):
        return f"{key}={','.join(map(_cluster, value.split(',')))}"
    if names_folder(word):
        return f"{key}={','.join(_graphs(value))}"
    override = _parsed(word)
    if override is None:
        return f"{key}={','.join(map(_literal, value.split(',')))}"
    _check_group(key.lstrip("+~").partition("@")[0], override)
    return word


def _cluster(path: str) -> str:
    """Make a cluster file a choice of its group; other names are returned unchanged.

    Raises:
        InputError: the file describes no cluster, or names code outside doppler.cluster.
    """
    if not path.endswith(_YAML):
        return path
    from doppler.cluster import custom, host, preset

    makers = {f"doppler.cluster.{make.__name__}": make for make in (custom, host, preset)}
    try:
        build_described(path, "cluster", makers)
    except InputError as error:
        if "--trust" not in str(error):
            raise
        raise InputError(
            f"{path}: names code that is not of doppler.cluster, or values to be filled in; in a "
            "folder DIR/cluster of your own it is a choice with --config-dir=DIR"
        ) from None
    return choice_of_file(_CLUSTER, Path(path))


def names_folder(word: str) -> bool:
    """Whether a word of the command line selects all graphs of a folder."""
    key, _, value = word.partition("=")
    return key.lstrip("+") == _GRAPHS and any(map(_is_folder, value.split(",")))


def _is_folder(path: str) -> bool:
    try:
        return path != "" and Path(path).is_dir()
    except (OSError, ValueError):  # too long, or contains a zero byte
        return False


def _graphs(value: str) -> Iterator[str]:
    """The paths of a sweep, with each folder replaced by its graphs."""
    from doppler.graph.formats import graph_files  # slow to import

    for path in value.split(","):
        paths = map(str, graph_files(Path(path))) if _is_folder(path) else [path]
        yield from map(_literal, paths)


def _parsed(word: str) -> Override | None:
    try:
        return OverridesParser.create().parse_override(word)
    except HydraException:
        return None
    except Exception:
        if not sys.flags.optimize:
            raise
        # Hydra's parser relies on assertions, which -O removes.
        raise InputError(
            f"{word}: Hydra cannot read this where Python runs with -O (PYTHONOPTIMIZE): unset it"
        ) from None


def _literal(text: str) -> str:
    """A text in quotes; backslashes are doubled before a quote and at the end."""
    text = re.sub(r"(\\*)'", lambda found: found[1] * 2 + "\\'", text)
    text = re.sub(r"\\+$", lambda found: found[0] * 2, text)
    return f"'{text}'"


def _check_group(group: str, override: Override) -> None:
    """Refuse a choice that is not a name; Hydra's own error names neither the choice nor the group.

    Raises:
        InputError: lists the choices.
    """
    folder = resource("conf") / group
    if not folder.is_dir():
        return
    value: Any = override.value()
    chosen = list(value.list) if isinstance(value, ChoiceSweep) else [value]
    if not override.is_delete():  # a list chooses several
        chosen = [name for one in chosen for name in (one if isinstance(one, list) else [one])]
    if not all(isinstance(one, str | Glob) for one in chosen):
        choices = ", ".join(sorted(file.stem for file in folder.glob("*.yaml")))
        got = str(override.input_line).partition("=")[2]
        raise InputError(f"{group}: must be one of {choices}, got {got}")
