"""Words of the command line in the form that Hydra 1.3 takes: any path is a path."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override
from hydra.errors import HydraException

from doppler.support.errors import InputError
from doppler.support.resources import resource

# Options that hold a path, or a word in its place: `[a]` or 1e3 is a name too. A test holds them
# against the annotations.
PATHS = (
    *("output_dir", "run_dir", "costs", "stage.init_from"),
    *("workload.path", "workload.program", "workload.module", "workload.profile"),
)
# Options of every file of a group, which none of them lists: they are given without a `+`. Of hosts
# and their interfaces those of `host` have none: this machine is one.
ADDED = (
    *("cluster.memory_bytes", "cluster.hosts", "cluster.nics"),
    *("cluster.nic_bytes_per_s", "cluster.nic_latency_s", "cluster.host_link"),
    *("cluster.host_bytes_per_s", "cluster.host_latency_s"),
)
# Flags whose value is a word of its own, which is no override.
_WITH_VALUE = (
    *("--config-dir", "-cd", "--config-path", "-cp", "--config-name", "-cn"),
    *("--package", "-p", "--cfg", "-c", "--info", "-i"),
)
_NO_PATHS = ("null", "???", "")
_GRAPHS = "workload.path"  # which may be a folder


def hydra_arguments(arguments: Sequence[str]) -> list[str]:
    """The command line in a form that Hydra takes.

    ``-m`` goes first: Hydra rejects overrides that stand behind it (its issue 3053). Values that
    are no words of its grammar are quoted, those of `PATHS` always: a path may have any character,
    but a comma, which separates the values of a sweep, and ``${`` mean something unless they are
    quoted. A folder as ``workload.path`` is a sweep over the graphs in it. What is in `ADDED` is
    added where conf/ has it not. ``stage.teacher=NAME`` chooses from a group: Hydra says
    ``baseline@stage.teacher=NAME``. Options of a group that is swept are given to its sweep alone.

    Raises:
        InputError: a group is chosen by what is no name; a folder has no graph; a run is to be
            loaded from a pickle, which would execute what is in it.
    """
    if any(word.startswith("--e") for word in arguments):
        raise InputError("--experimental-rerun: no such option; the same command goes on")
    flags = [argument for argument in arguments if argument in ("-m", "--multirun")]
    words = [argument for argument in arguments if argument not in flags]
    if any(map(names_folder, words)):
        flags = ["-m"]
    taken, before = flags[:1], ""
    for word in words:
        is_override = "=" in word and not word.startswith("-") and before not in _WITH_VALUE
        taken.append(quoted(word) if is_override else word)
        before = word
    return _of_swept_groups(taken) if flags else taken


def _of_swept_groups(words: Sequence[str]) -> list[str]:
    """The same, but what is said of an option of a group that is swept is a sweep of one value.

    Before it sweeps, Hydra composes all else with the group's default, which may lack the option.
    """
    parsed = {word: _parsed(word) for word in words if "=" in word}
    swept = {
        one.key_or_group for one in parsed.values() if one is not None and one.is_sweep_override()
    }
    groups = [one for one in swept if (resource("conf") / one).is_dir()]

    def taken(word: str) -> str:
        key, _, value = word.partition("=")
        is_of_group = any(key.lstrip("+").startswith(f"{group}.") for group in groups)
        one = parsed.get(word)
        if not is_of_group or one is None or one.is_sweep_override() or not value:
            return word
        return f"{key}=choice({value})"

    return [taken(word) for word in words]


def names_folder(word: str) -> bool:
    """Whether a word of the command line is an override for all graphs of a folder."""
    key, _, value = word.partition("=")
    return key.lstrip("+") == _GRAPHS and any(map(_is_folder, value.split(",")))


def _is_folder(path: str) -> bool:
    try:
        return path not in _NO_PATHS and Path(path).is_dir()
    except (OSError, ValueError):  # too long, a zero byte
        return False


def quoted(word: str) -> str:
    """An override in a form that Hydra takes; see `hydra_arguments`."""
    if word.startswith("stage.teacher="):
        word = f"baseline@{word}"
    key, _, value = word.partition("=")
    if key in ADDED:
        word = f"++{word}"
    parsed = _parsed(word)
    if key.lstrip("+") in PATHS:
        if names_folder(word):
            value = ",".join(_graphs(value))
        elif not _is_quoted(value, parsed):
            value = ",".join(map(_path, value.split(",")))
        return f"{key}={value}"
    if parsed is None:
        return f"{key}={_literal(value)}"
    _check_group(key.lstrip("+~").partition("@")[0], parsed)
    return word


def _parsed(word: str) -> Override | None:
    try:
        return OverridesParser.create().parse_override(word)
    except HydraException:
        return None


def _is_quoted(value: str, parsed: Override | None) -> bool:
    """Whether quotes, or a function of Hydra's over several values, say how it is meant."""
    return parsed is not None and (value[:1] in ("'", '"') or ("," in value and "(" in value))


def _graphs(value: str) -> Iterator[str]:
    """The paths of a sweep, a folder's graphs in the place of the folder."""
    from doppler.graph.formats import graph_files  # which takes long

    for one in value.split(","):
        folder = Path(one)
        yield from map(_path, map(str, graph_files(folder)) if _is_folder(one) else [one])


def _path(value: str) -> str:
    return value if value in _NO_PATHS else _literal(value)


def _literal(text: str) -> str:
    """In quotes, before which, and at the end, backslashes are doubled."""
    text = re.sub(r"(\\*)'", lambda found: found[1] * 2 + "\\'", text)
    text = re.sub(r"\\+$", lambda found: found[0] * 2, text)
    return f"'{text}'"


def _check_group(group: str, override: Override) -> None:
    """Hydra says of a value that is no name neither which one nor whose."""
    folder = resource("conf") / group
    chosen: list[Any] = [override.value()]
    if isinstance(chosen[0], ChoiceSweep):
        chosen = list(chosen[0].list)
    if not override.is_delete():
        chosen = [one for each in chosen for one in (each if isinstance(each, list) else [each])]
    are_names = all(isinstance(one, str | Glob) for one in chosen)
    if are_names or not folder.is_dir():
        return
    given = str(override.input_line).partition("=")[2]
    choices = ", ".join(sorted(file.stem for file in folder.glob("*.yaml")))
    raise InputError(f"{group}: must be one of {choices}, got {given}")
