"""The command ``doppler`` and its subcommands."""

import ast
import sys
from collections.abc import Callable
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from doppler.hooks import extension
from doppler.support.commands import carried_out, end_process
from doppler.support.errors import InputError
from doppler.support.files import as_file_name
from doppler.support.stopping import unhurried
from doppler.support.waiting import on_terminal, waiting
from doppler.version import __version__

USAGE = """\
doppler run OPTION=VALUE ...          train on a workload and compare methods (doppler run --help);
                                      with -m, all combinations of OPTION=A,B,C
doppler report DIRECTORY ...          make tables, figures and a page of finished runs
doppler place FILE.py:FUNCTION ...    place your own torch module, or a graph (doppler place --help)
doppler reproduce OPTION=VALUE ...    run every table of the paper, and compare it with the paper
doppler warm                          compile everything now instead of in the first run
doppler completion bash|zsh           print what makes a shell complete all of this
doppler --version                     print the version"""


def main(arguments: list[str] | None = None) -> int:
    """Run a command line.

    Args:
        arguments: words of the command line; those of the process by default.

    Returns:
        The exit code: 0; 1 after an error; 2 for an empty command line; 128 plus the number of the
        signal that ended the command.
    """
    words = sys.argv[1:] if arguments is None else arguments
    if not words or words[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    if words[0] == "--version":
        print(f"doppler {__version__}")
        return 0
    command = COMMANDS.get(words[0])
    if command is None:
        print(f"error: no command {words[0]!r}\n{USAGE}", file=sys.stderr)
        return 1
    return carried_out(command, words[1:])


def program(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line of the process and exit."""
    end_process(lambda: main(arguments))


def run(arguments: list[str]) -> int:
    """Run one experiment or a sweep, composed by Hydra.

    Args:
        arguments: words after the subcommand.
    """
    from doppler.experiment.main import run

    return run(arguments)


def report(arguments: list[str]) -> int:
    """Make tables (Markdown, CSV, LaTeX), figures and an HTML page from finished runs.

    Args:
        arguments: words after the subcommand.
    """
    from doppler.report.page import main

    return main(arguments)


def reproduce(arguments: list[str]) -> int:
    """Run every table of the paper and judge its claims.

    Args:
        arguments: options of ``doppler run`` for every table, such as ``seed=0``.
    """
    if arguments[:1] in (["-h"], ["--help"]):
        print(REPRODUCE_USAGE)
        return 0
    from doppler.experiment.reproduce import reproduce

    return reproduce(arguments)


REPRODUCE_USAGE = """\
doppler reproduce OPTION=VALUE ...

Run every table of the paper, one sweep after the other, and compare each with the paper. After
each table outputs/reproduce/claims.md has the verdicts and claims.csv every comparison. The same
command continues where it was interrupted. Everything takes days on two cores.

Options are those of doppler run, and apply to all tables. For a first look:

    doppler reproduce budget=quick seed=0"""

# The exit code that shells expect after Ctrl-C.
_INTERRUPTED = 130
# Allows files to name code.
TRUST = "--trust"

PLACE_USAGE = """\
doppler place FILE.py:FUNCTION|GRAPH OPTION=VALUE ...

FUNCTION returns a torch module and a tuple of example inputs, and optionally a dictionary of
keyword inputs. It is called on the meta device. GRAPH is a file in a format of docs/formats.md.

save=DIRECTORY   where to write the placement, by default outputs/place/<model>-<cluster>
                 (doppler.Placed.load(DIRECTORY, module=...) of Python executes it)
--trust          let the file of cluster= execute code

All other options are those of doppler.place:"""


def place(arguments: list[str]) -> int:
    """Place a graph, or the module that a function returns; print and save the placement.

    Args:
        arguments: words after the subcommand.

    Raises:
        InputError: names the option that is wrong.
    """
    words = [word for word in arguments if "=" not in word and word != TRUST]
    options = dict(_option(word) for word in arguments if "=" in word)
    if words and words[0] in ("-h", "--help"):
        print(f"{PLACE_USAGE}\n{', '.join(_place_options())}")
        return 0
    if len(words) != 1 or words[0].startswith("-"):
        got = ", ".join(map(repr, words)) or "none"
        has_flag = any(word.startswith("-") for word in words)
        hint = "options are written cluster=p100x4; " if has_flag else ""
        raise InputError(
            f"place: takes one module or graph, got {got}; {hint}--help lists the options"
        )
    known = [*_place_options(), "save"]
    for name in options.keys() - set(known):
        close = get_close_matches(name, known, n=1)
        what = f"did you mean {close[0]}?" if close else f"choose from {', '.join(known)}"
        raise InputError(f"place: no option {name!r}, {what}")
    from doppler.api import place
    from doppler.graph import load_graph
    from doppler.support.options import FilePath, check, parameters

    kinds = {**parameters(place).known, "save": FilePath}
    for name, value in options.items():
        check(f"place: {name}", kinds[name], value)
    save = options.pop("save", None)
    if ":" not in words[0] and Path(words[0]).suffix not in ("", ".py"):
        module, inputs, keywords = load_graph(words[0]), None, None
    else:
        modules = extension("modules.workload", "a torch module")
        module, inputs, keywords = modules.make_module(words[0], "place")
    if options.get("method", "auto") == "auto":
        from rich.console import Console

        from doppler.first_run import SEARCHES, compile_ahead

        compile_ahead(SEARCHES, Console(stderr=True))
    # An interrupted command may have to end before the compiled code of a search does.
    with waiting(on_terminal, "placing"), unhurried():
        placed = place(module, inputs, example_kwargs=keywords, trust=TRUST in arguments, **options)
    print(placed)
    problem = placed.problem
    graph, cluster = map(as_file_name, (problem.graph.name, problem.cluster.name))
    default = Path("outputs", "place", f"{graph}-{cluster}")
    with unhurried():
        print(f"written: {placed.save(default if save is None else str(save))}")
    if placed.is_interrupted:
        print("interrupted: this is the best placement until then", file=sys.stderr)
        return _INTERRUPTED
    return 0


def _option(word: str) -> tuple[str, Any]:
    """Split ``seconds=5`` into a name and a value, which is read as YAML."""
    import yaml

    name, _, value = word.partition("=")
    try:
        read = yaml.safe_load(value)
    except yaml.YAMLError:
        raise InputError(f"place: {word}: not a value") from None
    if isinstance(read, str):  # YAML's numbers have a point: 2e9 is a text
        with suppress(ValueError):
            read = float(read)
    return name, read


def _place_options() -> list[str]:
    """Names of the arguments of doppler.place that a command line can give.

    Read from its source, because importing it takes seconds and an error should come at once.
    """
    objects = ("model", "example_inputs", "example_kwargs", "system", "trust")
    source = Path(__file__).with_name("api") / "placing.py"
    tree = ast.parse(source.read_text(encoding="utf-8"))
    functions = (one for one in tree.body if isinstance(one, ast.FunctionDef))
    taken = next(one for one in functions if one.name == "place").args
    names = [one.arg for one in (*taken.args, *taken.kwonlyargs)]
    return [name for name in names if name not in objects]


def warm(arguments: list[str]) -> int:
    """Compile all compiled functions, so that no run waits for them.

    Args:
        arguments: must be empty.
    """
    if arguments:
        raise InputError(f"warm: takes no options, got {arguments[0]!r}")
    from doppler.precompile import warm
    from doppler.support.compute.threads import num_threads

    # Each process compiles shared code again: 4 processes take 70 s on 16 cores, 13 take 87 s.
    warm(print, processes=min(4, num_threads()))
    return 0


def completion(arguments: list[str]) -> int:
    """Print the script with which a shell completes commands, groups, choices and options.

    Args:
        arguments: the name of the shell.
    """
    from doppler.experiment.completion import SHELLS, completion

    if len(arguments) != 1 or arguments[0] not in SHELLS:
        got = " ".join(arguments) or "nothing"
        raise InputError(f"completion: takes one of {', '.join(SHELLS)}, got {got}")
    print(completion(arguments[0], COMMANDS, [*_place_options(), "save"]), end="")
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "run": run,
    "report": report,
    "place": place,
    "reproduce": reproduce,
    "warm": warm,
    "completion": completion,
}
