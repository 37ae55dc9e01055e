"""Command lines that nobody meant: one line and exit code 1, or what they say is done."""

import io
import os
from contextlib import redirect_stderr, redirect_stdout

import pytest
from fuzz.forking import Commands
from fuzz.outcomes import CASES, FUZZ, LIMIT_S, limited, said_in_one_line
from hydra import compose, initialize_config_dir
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig

from doppler.cli import main
from doppler.support.resources import resource

STAGES = (
    "evaluate",
    "describe",
    "imitation",
    "rl_sim",
    "train",
    "inference",
    "calibrate",
    "rl_real",
)
SMALL = (
    "workload=chainmm",
    "workload.params.n=64",
    "budget.imitation_episodes=4",
    "budget.evaluations=12",
    "baseline=[critical_path]",
)
VALUES = (
    "",
    "null",
    "true",
    "-1",
    "0",
    "1",
    "1.5",
    "1e9",
    "inf",
    "nan",
    "abc",
    "'1'",
    "[]",
    "[1,2]",
    "{}",
    "{a:1}",
    "99999999999999999999",
    "2**64",
    "ü",
    "a b",
    "a=b",
    "a(b",
    "a]b",
    "[/b]",
    "a{b",
    "a'b",
    'a"b',
    "a&b",
    "a#b",
    "a+b",
    "a;b",
    "a%b",
    "~/x",
    "a,b",
    "${seed}",
    "${oc.env:HOME}",
    "../..",
    "/dev/null",
    "/proc/self/mem",
    "a" * 300,
    "\\",
    "$",
    "@",
    "???",
)


def keys_of(cfg: object, at: str = "") -> list[str]:
    """Dotted keys of a configuration, of groups too."""
    found = []
    if isinstance(cfg, DictConfig):
        for key in cfg:
            dotted = f"{at}.{key}" if at else str(key)
            found += [dotted, *keys_of(cfg._get_node(key), dotted)]
    return found


def _keys() -> list[str]:
    found: set[str] = set()
    with initialize_config_dir(str(resource("conf")), version_base="1.3"):
        for stage in STAGES:
            cfg = compose("config", [f"stage={stage}", *SMALL])
            found |= set(keys_of(cfg))
    # Where it is written is the test's to say.
    return sorted(found - {"output_dir", "run_dir"})


KEYS = _keys()
overrides = st.builds(
    "{}={}".format, st.sampled_from(KEYS), st.sampled_from(VALUES) | st.text(max_size=5)
)
unknown = st.builds(
    "{}{}{}={}".format,
    st.sampled_from(["", "+", "++", "~"]),
    st.sampled_from(KEYS),
    st.sampled_from(["z", ".z", ""]),
    st.sampled_from(VALUES),
)
noise = (
    st.sampled_from(VALUES)
    | st.text(max_size=8)
    | st.sampled_from(["-m", "--help", "--cfg", "-p", "--version", "run"])
)
words = st.lists(overrides | overrides | overrides | unknown | noise, min_size=1, max_size=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands")
    before = os.getcwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


def ends(arguments: list[str], kind: str) -> None:
    """In this process."""
    arguments = [spoken(word) for word in arguments]
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), limited():
        try:
            code = main(arguments)
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
    said_in_one_line(kind, code, err.getvalue())


@FUZZ
@given(st.sampled_from(("evaluate", "describe", "evaluate", "train")), words)
def test_run(folder, stage, more):
    ends(["run", f"stage={stage}", *SMALL, *more], "command run")


OPTIONS = (
    "cluster",
    "seconds",
    "evaluations",
    "method",
    "policy",
    "decomposition",
    "training",
    "learning_rate",
    "seed",
    "save",
)
place_options = st.builds(
    "{}={}".format, st.sampled_from((*OPTIONS, "nosuch")), st.sampled_from(VALUES)
)
FILES = {
    "model.py": "from torch import nn, ones\ndef factory():\n    return nn.ReLU(), (ones(2, 4),)\n",
    "exits.py": "import sys\n\ndef factory():\n    sys.exit(3)\n",
    "broken.py": "def factory(:\n",
    "nothing.py": "def factory():\n    return None\n",
}


@FUZZ
@example("model.py:factory", ["evaluations="])
@given(
    st.sampled_from(
        [f"{name}:factory" for name in FILES] + ["model.py:none", "model.py", ":", "none.py:f"]
    ),
    st.lists(place_options, max_size=2),
)
def test_place(folder, factory, options):
    for name, text in FILES.items():
        (folder / name).write_text(text)
    ends(["place", factory, "evaluations=4", *options], "command place")


@FUZZ
@given(
    st.lists(st.sampled_from(VALUES) | st.sampled_from(["--out", "--overwrite", "."]), max_size=3)
)
def test_report(folder, words):
    ends(["report", *words], "command report")


@pytest.fixture(scope="module")
def commands(folder):
    commands = Commands(folder, limit_s=LIMIT_S)
    yield commands
    commands.close()


def spoken(word: str) -> str:
    """What a command line can hold."""
    return "".join(one for one in word if one != "\0" and not "\ud800" <= one <= "\udfff")


@pytest.mark.slow
@settings(FUZZ, max_examples=CASES // 2)
@example("place", ["algorithm="])
@given(st.sampled_from(("run", "place", "report", "warmth")), words)
def test_as_commands(commands, command, more):
    first = ["stage=evaluate", *SMALL] if command == "run" else []
    code, error = commands.run([command, *first, *map(spoken, more)])
    said_in_one_line("as a command", code, error)
